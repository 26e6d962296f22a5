"""Turn a database URL into Django's settings, and back: `postgres://user:password@host:port/name?option=value`, `mysql://`, `sqlite:///path`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

POSTGRES = "django.db.backends.postgresql"
MYSQL = "django.db.backends.mysql"
SQLITE = "django.db.backends.sqlite3"
SQLITE_OPTIONS = {
    # Writers wait for each other at the start of a transaction and not, with an error, in its middle.
    "transaction_mode": "IMMEDIATE",
    "timeout": 20,
    "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
}


def from_url(url: str) -> dict[str, Any]:
    """Return the entry of DATABASES for `url`. A `host` in the query (a socket's folder) wins over the one before the path."""
    parts = urlsplit(url)
    options: dict[str, Any] = dict(parse_qsl(parts.query))
    name = unquote(parts.path)[1:]
    if parts.scheme == "sqlite":
        name = name or ":memory:"
        # The test database is a file, too: threads and other processes meet in it.
        test = {"NAME": name if name == ":memory:" else name + ".test"}
        return {"ENGINE": SQLITE, "NAME": name, "TEST": test, "OPTIONS": dict(SQLITE_OPTIONS)}
    base: dict[str, Any] = {
        "NAME": name,
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": options.pop("host", "") or parts.hostname or "",
        "PORT": str(parts.port or ""),
    }
    if parts.scheme in ("postgres", "postgresql"):
        return base | {"ENGINE": POSTGRES, "OPTIONS": options}
    if parts.scheme in ("mysql", "mariadb"):
        _install_mysql_driver()
        if socket := options.pop("unix_socket", ""):
            base["HOST"] = socket
        return base | {"ENGINE": MYSQL, "OPTIONS": {"charset": "utf8mb4", **options}}
    raise ValueError(f"DATABASE_URL: unknown scheme {parts.scheme!r}: use postgres, mysql or sqlite")


def to_url(settings: Mapping[str, Any]) -> str:
    """Return the URL of an entry of DATABASES as it stands now: in a test, that of the test database."""
    name = quote(str(settings["NAME"]), safe="/")
    if settings["ENGINE"] == SQLITE:
        return f"sqlite:///{name}"
    options = {key: value for key, value in settings.get("OPTIONS", {}).items() if isinstance(value, str)}
    host, user = str(settings.get("HOST") or ""), quote(settings.get("USER") or "", safe="")
    if password := settings.get("PASSWORD"):
        user += ":" + quote(password, safe="")
    if host.startswith("/"):
        options["host" if settings["ENGINE"] == POSTGRES else "unix_socket"] = host
        host = "localhost"
    if port := settings.get("PORT"):
        host += f":{port}"
    scheme = "postgres" if settings["ENGINE"] == POSTGRES else "mysql"
    return f"{scheme}://{user}@{host}/{name}" + ("?" + urlencode(options, safe="/") if options else "")


def _install_mysql_driver() -> None:
    """Let PyMySQL stand in for mysqlclient where that is not installed."""
    try:
        import MySQLdb  # noqa: F401
    except ImportError:
        import pymysql

        pymysql.install_as_MySQLdb()

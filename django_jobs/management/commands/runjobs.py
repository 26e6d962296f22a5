"""`manage.py runjobs`: the worker."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import OperationalError, connections
from django.utils import autoreload

from django_jobs import conf
from django_jobs.exceptions import InvalidOption
from django_jobs.worker.logs import configure
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
            ("--processes", _positive, 1, "Worker processes."),
            ("--threads", _positive, 4, "Threads in each process: how many ordinary jobs it runs at once."),
            ("--async-jobs", _not_negative, 20, "Coroutines at once in each process, for tasks that are `async def`."),
        ):
            add(name, type=kind, default=default, help=f"{text} Default: {default}.")
        limits: tuple[tuple[str, Callable[[str], float], str, str], ...] = (
            ("--max-jobs", _positive, "N", "Replace each process after this many jobs."),
            ("--max-memory", _positive_number, "MB", "Replace a process when it has more resident memory than this."),
            ("--max-age", _duration, "DURATION", "Replace a process after this time, for example 12h."),
            ("--stop-timeout", _duration, "DURATION", "How long jobs may go on after a stop (default: STOP_TIMEOUT)."),
            ("--health-port", _not_negative, "PORT", "Serve /live and /ready on this port."),
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
        add("--name", default="", help="A name to show (default: host and process id). It identifies nobody.")
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
                        self.stderr.write(f"Waiting for the database: {error}")
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
        configure(worker.name or "supervisor", as_json=worker.log_json, verbosity=worker.verbosity)
        if options["reload"]:
            # The reloader runs this in a thread and ends the process on a change; the children end with their standard input.
            autoreload.run_with_reloader(self._run, worker)
        else:
            self._run(worker)

    def _run(self, worker: WorkerOptions) -> None:
        code = Supervisor(worker).run()
        if code:
            raise CommandError(f"The worker ended with {code}.", returncode=code)

    def _options(self, options: dict[str, Any]) -> WorkerOptions:
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


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def _not_negative(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError
    return number


def _positive_number(text: str) -> float:
    number = float(text)
    if not number > 0:
        raise ValueError
    return number


def _duration(text: str) -> float:
    return conf.parse_duration(text)


_positive.__name__ = "whole number above 0"
_not_negative.__name__ = "whole number"
_positive_number.__name__ = "number above 0"
_duration.__name__ = "duration"

"""`manage.py runjobs`: the worker."""

from __future__ import annotations

import os
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections
from django.utils import autoreload

from django_jobs import conf
from django_jobs.exceptions import InvalidOption
from django_jobs.worker.logs import configure
from django_jobs.worker.options import WorkerOptions
from django_jobs.worker.supervisor import Supervisor


class Command(BaseCommand):
    """Runs jobs until it is told to stop."""

    help = (
        "Runs jobs. TERM or Ctrl-C once: finish what runs, at most --stop-timeout, then give the rest back; twice: stop now."
        " USR1 shows what every job is doing. Any number of these may work on one database."
    )
    requires_migrations_checks = False

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument(
            "--queue",
            action="append",
            default=[],
            metavar="NAME",
            help="Take jobs from this queue only; `name.*` means it and all below it. May be repeated: the first is served before the second.",
        )
        parser.add_argument(
            "--exclude",
            action="append",
            default=[],
            metavar="NAME",
            help="Never take jobs from this queue or those below it. May be repeated.",
        )
        parser.add_argument("--processes", type=_positive, default=1, help="Worker processes (default: 1).")
        parser.add_argument(
            "--threads",
            type=_positive,
            default=4,
            help="Threads in each process: how many ordinary jobs it runs at once (default: 4).",
        )
        parser.add_argument(
            "--async-jobs",
            type=_not_negative,
            default=20,
            help="Coroutines at once in each process, for tasks that are `async def` (default: 20).",
        )
        parser.add_argument("--drain", action="store_true", help="End when no job is ready to run any more.")
        parser.add_argument("--max-jobs", type=_positive, help="Replace each process after this many jobs.")
        parser.add_argument(
            "--max-memory",
            type=_positive_number,
            metavar="MB",
            help="Replace a process when it has more resident memory than this.",
        )
        parser.add_argument(
            "--max-age", type=_duration, metavar="DURATION", help="Replace a process after this time, for example 12h."
        )
        parser.add_argument(
            "--stop-timeout",
            type=_duration,
            metavar="DURATION",
            help="How long running jobs may go on after a stop (default: the setting STOP_TIMEOUT, 30 s).",
        )
        parser.add_argument(
            "--no-maintenance", action="store_true", help="Leave the sweeps (dead workers, due jobs, retention) to other workers."
        )
        parser.add_argument("--no-listen", action="store_true", help="Poll only; for connections that can't LISTEN.")
        parser.add_argument("--database", help="The database alias that holds the jobs.")
        parser.add_argument("--name", default="", help="A name to show (default: host and process id). It identifies nobody.")
        parser.add_argument("--health-port", type=_not_negative, help="Serve /live and /ready on this port.")
        parser.add_argument("--health-host", default="127.0.0.1", help="The address for --health-port (default: 127.0.0.1).")
        parser.add_argument("--log-json", action="store_true", help="Log one JSON object a line.")
        parser.add_argument("--reload", action="store_true", help="Restart when code changes. For development.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the supervisor, under Django's reloader if asked."""
        if "DJANGO_SETTINGS_MODULE" not in os.environ:
            raise CommandError(
                "Worker processes read their settings from DJANGO_SETTINGS_MODULE: set it (settings.configure() can't be passed on)."
            )
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

"""`manage.py jobs`: the verbs of the admin on the command line, for people and for scripts.

Exit status: 0 if everything that was asked for happened, 1 if a job was refused or is not there, 2 for a wrong command line.
"""

from __future__ import annotations

import getpass
import json
from argparse import ArgumentTypeError
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.core.serializers.json import DjangoJSONEncoder
from django.db import DatabaseError, connections
from django.db.models import Count

from django_jobs import db, signals
from django_jobs.conf import jobs_database, jobs_settings
from django_jobs.db.schema import is_without_tables, without_tables
from django_jobs.durations import parse_duration
from django_jobs.exceptions import InvalidOption
from django_jobs.lifecycle import control
from django_jobs.lifecycle.recover import writing
from django_jobs.lifecycle.report import NOT_FOUND, Report
from django_jobs.lifecycle.sweep import prune
from django_jobs.management import listing, tokens
from django_jobs.models import Job, JobAttempt, JobLock
from django_jobs.models.selection import OPEN, SEGMENTS, JobFilter, id_range
from django_jobs.models.visibility import visible_ids, visible_jobs

if TYPE_CHECKING:
    from django_jobs.models.job import JobQuerySet

#: Jobs in one call of a verb: as many ids as are kept in memory at once.
BATCH: Final = 500
SHOWN: Final = 20
#: A verb, its help, and the statuses that it takes where the command line names none; None: it must name some.
VERBS: Final[dict[str, tuple[Callable[..., Report], str, tuple[str, ...] | None]]] = {
    "requeue": (
        control.requeue,
        "put jobs back that have ended (failed and timed-out ones, unless --status says otherwise)",
        ("failed", "timed_out"),
    ),
    "cancel": (control.cancel, "cancel jobs that have not ended", (OPEN,)),
    "done": (control.done, "mark failed and timed-out jobs as done by hand", ("failed", "timed_out")),
    "delete": (control.delete, "delete jobs with their attempts", None),
    "run": (control.run_now, "make scheduled jobs ready at once", ("scheduled",)),
}


class Command(BaseCommand):
    help = "List, show and steer background jobs."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the verbs, and the filters that they share."""
        verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
        found = verbs.add_parser("list", help="list jobs, the newest first")
        self._add_filters(found)
        found.add_argument("--limit", type=_positive, default=50, help="at most so many (50)")
        found = verbs.add_parser("show", help="show all about one job, its attempts and errors")
        found.add_argument("ids", metavar="ID", nargs=1, help="an id, or the beginning of one")
        self._add_user(found)
        self._add_common(found)
        for name, (_function, text, _statuses) in VERBS.items():
            found = verbs.add_parser(name, help=text)
            self._add_filters(found)
            found.add_argument(
                "--all", action="store_true", dest="everything", help="no other filter: all jobs in these statuses"
            )
            found.add_argument("--reason", default="", help="kept with the jobs")
            found.add_argument("--by", default="", help="who asks (the name of the account that runs this)")
            found.add_argument("--dry-run", action="store_true", help="say what would be asked for; change nothing")
            if name in ("cancel", "delete"):
                found.add_argument(
                    "--force", action="store_true", help="running jobs, too: kill the process of one that does not stop"
                )
            if name == "requeue":
                found.add_argument(
                    "--keep-attempts", action="store_true", help="only the attempts that are left, not all of them again"
                )
        found = verbs.add_parser("prune", help="delete jobs whose retention has passed, as maintenance does")
        found.add_argument("--dry-run", action="store_true", help="say how many; delete nothing")
        self._add_common(found)
        found = verbs.add_parser("token", help="make, list and revoke tokens of the HTTP API")
        tokens.add_token_arguments(found, self._add_common)
        self._add_common(verbs.add_parser("sync-queues", help="make a row for each queue of the setting QUEUES; delete none"))

    def _add_filters(self, parser: CommandParser) -> None:
        parser.add_argument("ids", metavar="ID", nargs="*", help="ids, or the beginnings of ids")
        parser.add_argument(
            "--status", action="append", default=[], choices=[OPEN, "final", "all", *SEGMENTS], help="may be given more than once"
        )
        parser.add_argument("--queue", default="", help="a queue; with .* at the end its subtree")
        parser.add_argument("--task", default="", help="the dotted name of a task; it need not exist any more")
        parser.add_argument("--error-class", default="", help="the dotted path of the last error's class")
        parser.add_argument("--since", metavar="TIME", help="enqueued within this time: 90s, 10m, 2d")
        parser.add_argument("--before", metavar="TIME", help="enqueued longer ago than this")
        self._add_user(parser)
        self._add_common(parser)

    def _add_user(self, parser: CommandParser) -> None:
        parser.add_argument("--user", default="", help="only jobs that this user sees, by the setting VISIBLE_TO (every job)")

    def _add_common(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="answer in JSON")
        parser.add_argument("--database", default=None, help="the alias of the database that holds the jobs")

    def handle(self, *args: Any, **options: Any) -> None:
        """Do the verb."""
        try:
            self._do(options)
        except DatabaseError as error:
            if not is_without_tables(error):
                raise
            raise CommandError(without_tables(self.using)) from error

    def _do(self, options: dict[str, Any]) -> None:
        self.using = options["database"] or jobs_database()
        if self.using not in connections:
            raise CommandError(f"There is no database {self.using!r} in the settings.", returncode=2)
        self.user = tokens.find_user(options["user"]) if options.get("user") else None
        match options["verb"]:
            case "list":
                self._list(options)
            case "show":
                self._show(options)
            case "prune":
                self._prune(options)
            case "token":
                self._token(options)
            case "sync-queues":
                self._answer(tokens.sync(self.using), options)
            case verb:
                self._act(verb, options)

    # Which jobs.

    def _jobs(self) -> JobQuerySet:
        """Return the jobs that the user sees for whom this is run; without one, all."""
        jobs = Job.objects.using(self.using)
        return jobs if self.user is None else visible_jobs(self.user, jobs)

    def _ids(self, texts: list[str]) -> tuple[UUID, ...]:
        """Return the ids that `texts` mean. A whole id need not exist; the beginning of one must mean one job."""
        found: list[UUID] = []
        for text in texts:
            ids = id_range(text)
            if ids is None:
                raise CommandError(f"{text!r} is no id, nor the beginning of one (8 digits at least).", returncode=2)
            if ids[0] == ids[1]:
                found.append(ids[0])
                continue
            matches = list(self._jobs().filter(id__range=ids).order_by("id").values_list("pk", flat=True)[:2])
            if len(matches) != 1:
                raise CommandError(f"{'More than one' if matches else 'No'} job has an id that begins with {text}.")
            found += matches
        return tuple(found)

    def _filter(self, options: dict[str, Any], statuses: tuple[str, ...] = ()) -> JobFilter:
        now = db.server_now(connections[self.using])
        try:
            ages = {
                name: timedelta(seconds=parse_duration(text, field=f"--{name}"))
                for name in ("since", "before")
                if (text := options[name])
            }
        except InvalidOption as error:
            raise CommandError(str(error), returncode=2) from error
        ids = self._ids(options["ids"])
        return JobFilter(
            ids=ids,
            statuses=tuple(options["status"]) or (() if ids else statuses),
            queue=options["queue"],
            task=options["task"],
            error_class=options["error_class"],
            since=now - ages["since"] if "since" in ages else None,
            until=now - ages["before"] if "before" in ages else None,
        )

    # Verbs.

    def _list(self, options: dict[str, Any]) -> None:
        chosen = self._filter(options)
        jobs = chosen.apply(self._jobs())
        # One status: in the order of its index, which for final ones is by their end.
        order = SEGMENTS[chosen.statuses[0]].order if len(chosen.statuses) == 1 and chosen.statuses[0] in SEGMENTS else ("-id",)
        names = [*listing.COLUMNS, *listing.COLUMNS_MORE]
        rows = list(jobs.only(*names).order_by(*order)[: options["limit"]])
        if options["json"]:
            self._print([listing.as_dict(job, names) for job in rows])
        elif rows:
            self.stdout.write("\n".join(listing.table(rows)))
        else:
            self.stderr.write("No job matches.")

    def _show(self, options: dict[str, Any]) -> None:
        job_id = self._ids(options["ids"])[0]
        job = self._jobs().filter(pk=job_id).first()
        if job is None:
            raise CommandError(f"There is no job {job_id}.")
        attempts = list(JobAttempt.objects.using(self.using).filter(job_id=job_id).order_by("number"))
        found = listing.details(job, attempts, JobLock.objects.using(self.using).filter(job_id=job_id).first())
        if options["json"]:
            self._print(found)
        else:
            self.stdout.write("\n".join(listing.detail_lines(found, _dump)))

    def _act(self, verb: str, options: dict[str, Any]) -> None:
        function, _text, statuses = VERBS[verb]
        chosen = self._filter(options, statuses or ())
        if not chosen.ids:
            if statuses is None and not options["status"]:
                raise CommandError(f"{verb}: name ids, or say which jobs with --status.", returncode=2)
            narrowed = any(options[name] for name in ("queue", "task", "error_class", "since", "before", "status"))
            if not narrowed and not options["everything"]:
                raise CommandError(f"{verb}: name ids or filters, or say --all.", returncode=2)
        if options["dry_run"]:
            self._preview(verb, chosen, options)
            return
        extra = {name: options[name] for name in ("force", "keep_attempts") if name in options}
        who = (options["by"] or options["user"] or _account())[:64]
        report = Report()
        for batch in self._batches(chosen):
            seen = self._seen(batch)
            report += function(seen, by=who, reason=options["reason"], using=self.using, **extra)
            report.refused |= {job_id: NOT_FOUND for job_id in batch if job_id not in seen}
        self._tell(verb, report, options)

    def _batches(self, chosen: JobFilter) -> Iterator[list[UUID]]:
        """Yield the ids in pieces, in order. Ids that were named are all tried, whether they match a filter or exist at all."""
        jobs = chosen.apply(self._jobs()).order_by("pk")
        if chosen == JobFilter(ids=chosen.ids):
            yield from (list(chosen.ids[start : start + BATCH]) for start in range(0, len(chosen.ids), BATCH))
            return
        last: UUID | None = None
        while batch := list((jobs.filter(pk__gt=last) if last else jobs).values_list("pk", flat=True)[:BATCH]):
            yield batch
            last = batch[-1]

    def _seen(self, ids: list[UUID]) -> list[UUID]:
        """Return those of `ids` that the user may know of for whom this is run."""
        return ids if self.user is None else visible_ids(self.user, ids, using=self.using)

    def _preview(self, verb: str, chosen: JobFilter, options: dict[str, Any]) -> None:
        jobs = chosen.apply(self._jobs())
        counts = dict(jobs.order_by("status").values_list("status").annotate(number=Count("pk")))
        ids = list(jobs.order_by("pk").values_list("pk", flat=True)[:SHOWN])
        if options["json"]:
            self._print({"verb": verb, "dry_run": True, "matching": sum(counts.values()), "by_status": counts, "first": ids})
            return
        self.stdout.write(f"Would {verb}: {sum(counts.values())} jobs. Nothing was changed.")
        for status, number in sorted(counts.items()):
            self.stdout.write(f"  {status}: {number}")

    def _tell(self, verb: str, report: Report, options: dict[str, Any]) -> None:
        requested = set(report.requested)
        changed = [job_id for job_id in report.changed if job_id not in requested]
        if options["json"]:
            self._print(
                {"verb": verb, "dry_run": False, "changed": changed, "requested": report.requested, "refused": report.refused}
            )
        else:
            self.stdout.write(f"{verb}: {len(changed)} jobs.")
            if requested:
                self.stdout.write(f"{len(requested)} running jobs were asked to stop.")
            for job_id, why in list(report.refused.items())[:SHOWN]:
                self.stdout.write(f"  {job_id}  {why}")
            if len(report.refused) > SHOWN:
                for why, number in Counter(report.refused.values()).most_common():
                    self.stdout.write(f"  {number} x {why}")
        if report.refused:
            raise CommandError(f"{len(report.refused)} jobs were left as they are.")

    def _prune(self, options: dict[str, Any]) -> None:
        deleted = 0
        if options["dry_run"]:
            now = db.server_now(connections[self.using])
            deleted = Job.objects.using(self.using).filter(prune_at__lte=now).count()
        else:
            limit = jobs_settings().prune_batch
            touched = limit
            while touched >= limit:
                with writing(self.using):
                    swept = prune(using=self.using, limit=limit)
                signals.dispatch(swept.events)
                touched = swept.touched
                deleted += touched
        if options["json"]:
            self._print({"verb": "prune", "dry_run": options["dry_run"], "deleted": deleted})
        else:
            self.stdout.write(f"{'Would delete' if options['dry_run'] else 'Deleted'} {deleted} jobs.")

    def _token(self, options: dict[str, Any]) -> None:
        match options["action"]:
            case "add":
                self._answer(tokens.add_token(options, _account(), self.using), options)
            case "list":
                self._answer(tokens.list_tokens(options["everything"], self.using), options)
            case _:
                self._answer(tokens.end_token(options["id"], self.using), options)

    def _answer(self, answer: tuple[Any, str], options: dict[str, Any]) -> None:
        """Print JSON, or text for people."""
        if options["json"]:
            self._print(answer[0])
        else:
            self.stdout.write(answer[1])

    def _print(self, value: Any) -> None:
        self.stdout.write(_dump(value, indent=2))


def _dump(value: Any, indent: int | None = None) -> str:
    """Return JSON; ids are the only keys that are no text."""
    if isinstance(value, dict):
        value = {key: {str(k): v for k, v in item.items()} if isinstance(item, dict) else item for key, item in value.items()}
    return json.dumps(value, cls=DjangoJSONEncoder, indent=indent, ensure_ascii=False)


def _positive(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if not number:
        raise ArgumentTypeError(f"use a whole number above 0, not {text!r}.")
    return number


def _account() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's account without a name
        return "manage.py"

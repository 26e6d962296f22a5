"""The verbs for many jobs at once, by ids or by a filter, each with a report; `dry_run` says what would be asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Final
from uuid import UUID

from rest_framework.request import Request
from rest_framework.response import Response

from ..conf import jobs_settings
from ..exceptions import InvalidOption
from ..lifecycle import control
from ..lifecycle.report import NOT_FOUND, Report
from ..models import Job
from ..statuses import LIVE, Move, Status, sources
from . import filters, values
from .base import JobsView
from .errors import ApiError, invalid
from .job_actions import reason_of


@dataclass(frozen=True)
class Verb:
    """A verb: what does it, and the statuses of jobs to which a filter may lead it."""

    name: str
    do: Callable[..., Report]
    statuses: frozenset[Status]
    extra: tuple[str, ...] = ()


VERBS: Final[Mapping[str, Verb]] = {
    "requeue": Verb("requeue", control.requeue, sources(Move.REQUEUE, Status.READY), ("keep_attempts",)),
    "cancel": Verb("cancel", control.cancel, sources(Move.CANCEL, Status.CANCELLED) | LIVE, ("force",)),
    "done": Verb("done", control.done, sources(Move.DONE, Status.SUCCEEDED)),
    "run-now": Verb("run", control.run_now, sources(Move.STAGE, Status.READY)),
    "delete": Verb("delete", control.delete, frozenset(Status) - {Status.RUNNING}, ("force",)),
}


class BulkView(JobsView):
    """A verb for many jobs."""

    verb: ClassVar[Verb]

    def post(self, request: Request) -> Response:
        """Do it to the jobs that `ids` name, or that `filter` means: at most API_BULK_MAX of them; `more` if there are more.

        The report says of each job what became of it, in `results`.
        """
        data = self.body(("ids", "filter", "dry_run", "reason", *self.verb.extra))
        said = {name: values.flag(data[name], name) for name in self.verb.extra if name in data}
        is_dry = values.flag(data.get("dry_run", False), "dry_run")
        reason = reason_of(data)
        ids, more = self._chosen(data, force=said.get("force", False))
        seen = set(ids) if "ids" not in data else set(self.jobs().filter(pk__in=ids).values_list("pk", flat=True))
        if is_dry:
            allowed = self._allowed(said.get("force", False))
            statuses = dict(Job.objects.using(self.using).filter(pk__in=seen).values_list("pk", "status"))
            would = {job_id for job_id, status in statuses.items() if status in allowed}
            report = Report(changed=[job_id for job_id in ids if job_id in would])
            report.refused = {
                job_id: f"It is {statuses[job_id]}." if job_id in statuses else NOT_FOUND for job_id in ids if job_id not in would
            }
        else:
            asked = [job_id for job_id in ids if job_id in seen]
            report = self.verb.do(asked, by=self.caller.name, reason=reason, using=self.using, **said)
            report.refused |= {job_id: NOT_FOUND for job_id in ids if job_id not in seen}
        return Response(told(ids, report, is_dry=is_dry, more=more))

    def _allowed(self, force: bool) -> frozenset[Status]:
        """Return the statuses of jobs that the verb takes."""
        is_forced_delete = self.verb.name == "delete" and force
        return self.verb.statuses | {Status.RUNNING} if is_forced_delete else self.verb.statuses

    def _chosen(self, data: Mapping[str, Any], *, force: bool) -> tuple[list[UUID], bool]:
        most = jobs_settings().api_bulk_max
        if ("ids" in data) == ("filter" in data):
            raise ApiError(400, "invalid", "Say which jobs: by ids, or by a filter.", {"ids": "or filter, one of them."})
        if "ids" in data:
            return _ids(data["ids"], most), False
        said = filters.of_body(data["filter"])
        if not said:
            raise invalid("filter", 'is empty: say {"status": "all"} if you mean every job.')
        if "status" not in said and "ended" not in said:
            # As the command does: one word that was left out must not run again what has succeeded, nor delete what waits.
            if self.verb.name == "delete":
                raise invalid("filter", 'names no status: say {"status": "all"} if you mean jobs in any.')
            if self.verb.name == "requeue":
                said = {**said, "status": [Status.FAILED.value, Status.TIMED_OUT.value]}
        choice = filters.Choice(said)
        # Of those that the verb does not take there is no report: they would be found again and again.
        rows = choice.filter.apply(self.jobs()).filter(status__in=sorted(self._allowed(force)))
        found: list[UUID] = []
        for part in choice.parts:
            found += part.of(rows).values_list("pk", flat=True)[: most + 1 - len(found)]
            if len(found) > most:
                return found[:most], True
        return found, False


def _ids(value: Any, most: int) -> list[UUID]:
    if not isinstance(value, list) or not value:
        raise InvalidOption("ids", "a list of ids.")
    if len(value) > most:
        raise ApiError(413, "too_large", f"{len(value)} jobs in one request: at most {most}.", limit=most)
    return list(dict.fromkeys(values.uuid(each, f"ids.{index}") for index, each in enumerate(value)))


def told(ids: Sequence[UUID], report: Report, *, is_dry: bool, more: bool) -> dict[str, Any]:
    """Return what became of the jobs `ids`, as the API tells it."""
    requested = set(report.requested)
    changed = set(report.changed)
    results = []
    for job_id in ids:
        if job_id in requested:
            results.append({"id": str(job_id), "outcome": "requested"})
        elif job_id in changed:
            results.append({"id": str(job_id), "outcome": "changed"})
        else:
            results.append({"id": str(job_id), "outcome": "refused", "message": report.refused.get(job_id, NOT_FOUND)})
    return {
        "dry_run": is_dry,
        "matched": len(ids),
        "changed": len(changed - requested),
        "requested": len(requested),
        "refused": len(ids) - len(changed),
        "more": more,
        "results": results,
    }


@cache
def bulk_view(name: str) -> type[BulkView]:
    """Return the view of a verb."""
    verb = VERBS[name]
    return type(f"Bulk{name.title().replace('-', '')}View", (BulkView,), {"verb": verb, "verbs": {"POST": verb.name}})

"""One job: read, change, delete; and how those who run it report."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, ClassVar, Final
from uuid import UUID

from django.db import connections
from rest_framework.request import Request
from rest_framework.response import Response

from .. import db
from ..lifecycle import control, lease
from ..lifecycle.recover import writing
from ..models import Job
from ..statuses import Status
from . import reports, values
from .base import JobsView
from .errors import ApiError, invalid, not_found
from .outcome import check, refused
from .parsers import AnyTextJSONParser
from .serializers import fields_asked, only, render_job

#: What can be changed without the token of an attempt.
EDITABLE: Final = ("queue", *values.LIMITS, *values.DESCRIPTION)
#: What only the holder of the token can say.
REPORTED: Final = ("output", "error", "logs", "progress", "final")
#: Where a person may send a job.
_MOVES: Final = {Status.READY.value: "requeue", Status.CANCELLED.value: "cancel"}


class JobView(JobsView):
    """A job."""

    parser_classes = (AnyTextJSONParser,)
    verbs: ClassVar = {"GET": "view", "PATCH": "change|requeue|cancel|claim", "DELETE": "delete"}

    @property
    def query(self) -> frozenset[str]:  # type: ignore[override]
        """What a query may have depends on the method."""
        by_method = {
            "GET": frozenset({"fields"}),
            "HEAD": frozenset({"fields"}),
            "DELETE": frozenset({"force"}),
            "OPTIONS": frozenset({"fields", "force"}),
        }
        return by_method.get(self.request.method or "", frozenset())

    def get(self, request: Request, pk: UUID) -> Response:
        """Return the job: all of it, or the fields that `fields` names."""
        fields = fields_asked(request.query_params.get("fields"), self.caller)
        job = only(self.jobs(), fields).filter(pk=pk).first()
        if job is None:
            raise not_found(f"There is no job {pk}.")
        return Response(render_job(job, fields, self.caller))

    def patch(self, request: Request, pk: UUID) -> Response:
        """Change a job; with the `token` of its attempt, say what came of it."""
        data = self.body((*EDITABLE, *REPORTED, "status", "reason", "token"))
        job = self.job(pk)
        token = reports.token_of(request, data)
        if token is not None:
            self.require("claim")
            return self._report(job, token, {name: value for name, value in data.items() if name != "token"})
        if needs := [name for name in data if name in REPORTED]:
            raise invalid("token", f"is missing: {needs[0]} can be written by the holder of the attempt's token alone.")
        self._change(job, data)
        return Response(status=204)

    def delete(self, request: Request, pk: UUID) -> Response:
        """Delete a job: 204. A running one is refused, unless `force=true`: then 202 while its worker has yet to stop."""
        job = self.job(pk)
        force = values.flag(request.query_params.get("force", False), "force")
        report = control.delete([pk], by=self.caller.name, force=force, using=self.using)
        check(report, job, "deleted")
        return Response(status=202 if report.requested else 204)

    def _report(self, job: Job, token: UUID, data: Mapping[str, Any]) -> Response:
        if wrong := [name for name in data if name not in (*REPORTED, "status", "reason")]:
            raise invalid(wrong[0], "can't be changed with an attempt's token: leave the token out.")
        return reports.write(self, job.pk, token, data)

    def _change(self, job: Job, data: Mapping[str, Any]) -> None:
        """Do all of it, or nothing."""
        move = _move(job, data) if "status" in data else None
        changes = {name: value for name, value in data.items() if name in EDITABLE}
        reason = values.text(data.get("reason", ""), "reason", 500)
        if not changes and move is None:
            raise ApiError(400, "invalid", "The body changes nothing.")
        if changes:
            self.require("change")
        if move is not None:
            self.require(move)
        said = self._edits(job, changes)
        with writing(self.using):
            if move == "requeue":
                check(control.requeue([job.pk], by=self.caller.name, reason=reason, using=self.using), job, Status.READY)
            if said:
                report = control.edit([job.pk], by=self.caller.name, reason=reason, using=self.using, **said)
                check(report, job, job.status)
            if move == "cancel":
                check(control.cancel([job.pk], by=self.caller.name, reason=reason, using=self.using), job, Status.CANCELLED)

    def _edits(self, job: Job, changes: Mapping[str, Any]) -> dict[str, Any]:
        said = values.merged_retention(changes, values.job_options(changes), job.retention)
        now = db.server_now(connections[self.using])
        for name in ("run_after", "start_by"):
            if isinstance(said.get(name), timedelta):
                said[name] = now + said[name]
        if said.get("run_after", now) is None:
            said["run_after"] = now
        if "queue" in changes:
            said["queue"] = changes["queue"]
            if isinstance(said["queue"], str):
                self.check_queue(said["queue"], "change a job's queue")
        return said


def _move(job: Job, data: Mapping[str, Any]) -> str:
    """Return the verb that leads to the status that is asked for."""
    status = values.status_word(data["status"])
    if status in _MOVES:
        return _MOVES[status]
    if status == Status.RUNNING:
        raise refused("A job starts to run by a claim.", job.status, status)
    if status in reports.ENDS:
        raise invalid("token", f"is missing: the holder of the attempt's token alone can say that the job has {status}.")
    raise refused(f"Nobody can make a job {status}.", job.status, status)


class JobOutputView(JobsView):
    """What a job puts out: while it runs, its partial output; then its result."""

    verbs: ClassVar = {"GET": "payload", "PUT": "claim"}

    def get(self, request: Request, pk: UUID) -> Response:
        """Return it, any JSON."""
        job = self.job(pk)
        return Response(render_job(job, ("output",), self.caller)["output"])

    def put(self, request: Request, pk: UUID) -> Response:
        """Write partial output, any JSON: the body as it is. The token goes into the header `X-Job-Token`."""
        token = reports.token_of(request, {})
        if token is None:
            raise invalid(reports.TOKEN_HEADER, "is missing: the token of the attempt.")
        self.job(pk)
        if not self.has_body:
            raise ApiError(400, "invalid", "The body is empty: write null to clear the output.")
        output = reports.output_of(request.data, "output")
        return reports.leased(lease.report(pk, token, output=output, has_output=True, using=self.using))


class HeartbeatView(JobsView):
    """The sign of life of an attempt."""

    verbs: ClassVar = {"PUT": "claim", "POST": "claim"}

    def put(self, request: Request, pk: UUID) -> Response:
        """Extend the lease; the answer's header `Lease-Expires` says until when. `progress`: how far it is."""
        data = self.optional_body(("token", "progress"))
        token = reports.token_of(request, data)
        if token is None:
            raise invalid("token", "is missing: the token of the attempt.")
        self.job(pk)
        progress = reports.progress_of(data["progress"]) if data.get("progress") is not None else None
        return reports.leased(lease.report(pk, token, progress=progress, using=self.using))

    post = put

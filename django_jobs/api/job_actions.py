"""What can be done to one job: requeue, cancel, mark as done, run now."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final
from uuid import UUID

from rest_framework.request import Request
from rest_framework.response import Response

from ..lifecycle import control, lease
from ..lifecycle.report import Report
from ..models import Job
from ..statuses import Status
from . import values
from .base import JobsView
from .claims import leased_jobs
from .outcome import check
from .serializers import FIELDS, render_job

MAX_REASON: Final = 500


class ActionView(JobsView):
    """A verb about one job. The answer is the job as it is then."""

    target: ClassVar[Status]
    extra: ClassVar[tuple[str, ...]] = ()
    do: ClassVar[Callable[..., Report]]

    def post(self, request: Request, pk: UUID) -> Response:
        """Do it: 200; 202 if a worker has yet to stop; 409 saying why if it can't be done."""
        data = self.optional_body(("reason", *self.extra))
        job = self.job(pk)
        said = {name: values.flag(data[name], name) for name in self.extra if name in data}
        report = type(self).do([pk], by=self.caller.name, reason=reason_of(data), using=self.using, **said)
        check(report, job, self.target)
        return self.answer(pk, 202 if report.requested else 200)

    def answer(self, pk: UUID, status: int) -> Response:
        """Return the job."""
        job = Job.objects.using(self.using).filter(pk=pk).first()
        return Response(None if job is None else render_job(job, FIELDS, self.caller), status=status)


def reason_of(data: Mapping[str, Any]) -> str:
    """Return why, for people."""
    return values.text(data.get("reason", ""), "reason", MAX_REASON)


class CancelView(ActionView):
    """Cancel a job; acknowledge one that failed or timed out."""

    verbs: ClassVar = {"POST": "cancel"}
    target: ClassVar = Status.CANCELLED
    extra: ClassVar = ("force",)
    do = staticmethod(control.cancel)


class DoneView(ActionView):
    """Mark a job as done by hand."""

    verbs: ClassVar = {"POST": "done"}
    target: ClassVar = Status.SUCCEEDED
    do = staticmethod(control.done)


class RunNowView(ActionView):
    """Make a scheduled job ready at once."""

    verbs: ClassVar = {"POST": "run"}
    target: ClassVar = Status.READY
    do = staticmethod(control.run_now)


class RequeueView(ActionView):
    """Put a job that has ended back to the end of its queue."""

    verbs: ClassVar = {"POST": "requeue"}
    target: ClassVar = Status.READY
    do = staticmethod(control.requeue)

    def post(self, request: Request, pk: UUID) -> Response:
        """Do it, with all attempts anew, or with `keep_attempts` those that are left.

        With `claim` the caller gets it at once, as from a claim of its queue: it runs then. `worker`: the name to keep with it.
        """
        data = self.optional_body(("reason", "keep_attempts", "claim", "worker"))
        keep = values.flag(data.get("keep_attempts", False), "keep_attempts")
        is_claim = values.flag(data.get("claim", False), "claim")
        worker = values.text(data.get("worker", ""), "worker", 64)
        said: dict[str, Any] = {"by": self.caller.name, "reason": reason_of(data), "keep_attempts": keep, "using": self.using}
        if is_claim:
            self.require("claim")
        job = self.job(pk)
        if not is_claim:
            check(control.requeue([pk], **said), job, Status.READY)
            return self.answer(pk, 200)
        report, held = lease.requeue_and_claim(pk, worker=worker or self.caller.name, **said)
        check(report, job, Status.RUNNING)
        assert held is not None
        return Response(leased_jobs([held], self.using)[0])

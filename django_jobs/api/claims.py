"""HTTP workers take jobs: several at once, and waiting for them if there are none."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from .. import conf
from ..conf import jobs_settings
from ..durations import format_duration, parse_duration
from ..exceptions import InvalidOption
from ..lifecycle.inherit import declared
from ..lifecycle.lease import Lease, claim_http
from ..models import Job, Queue
from ..queues import check_queue_name
from . import values
from .base import JobsView
from .errors import ApiError, not_found
from .longpoll import hub
from .presence import is_gone
from .rendering import time_text
from .serializers import render_claimed

#: What somebody is told who can't wait, because as many do as may. Seconds.
RETRY_AFTER = 1


class ClaimView(JobsView):
    """Claim jobs of a queue."""

    verbs: ClassVar = {"POST": "claim"}

    def post(self, request: Request, name: str) -> Response:
        """Claim up to `limit` jobs: 200 with them and their tokens, or 204 if there are none, also after `wait` seconds.

        204 with `Retry-After` if it could not wait. 404 or 409 if the queue is none for HTTP workers.
        """
        data = self.optional_body(("limit", "wait", "worker"))
        check_queue_name(name, field="name")
        self.check_queue(name, "claim")
        self.require_all()
        limit = values.whole(data.get("limit", 1), "limit", 1, jobs_settings().api_claim_max)
        wait = _seconds(data.get("wait", 0))
        worker = values.text(data.get("worker", ""), "worker", 64) or self.caller.name
        found = claim_http(name, limit=limit, worker=worker, using=self.using)
        headers: dict[str, str] = {}
        if not found:
            self._check_is_http(name)
            if wait:
                found = self._wait(request, name, limit, wait, worker, headers)
        if not found:
            return Response(status=204, headers=headers)
        return Response({"jobs": leased_jobs(found, self.using)})

    def _wait(self, request: Request, name: str, limit: int, wait: float, worker: str, headers: dict[str, str]) -> list[Lease]:
        end = time.monotonic() + wait
        waiting = hub(self.using)
        with waiting.waiting(name) as waiter:
            if waiter is None:
                headers["Retry-After"] = str(RETRY_AFTER)
                return []
            # Once more, now that whatever comes is told.
            found = claim_http(name, limit=limit, worker=worker, using=self.using)
            is_left = False
            while not found and waiting.wait(waiter, end - time.monotonic()):
                if is_left := is_gone(request._request.META):
                    break
                found = claim_http(name, limit=limit, worker=worker, using=self.using)
        if found or is_left:
            waiting.wake(name)  # there may be more, for others
        return found

    def _check_is_http(self, name: str) -> None:
        """Nothing will ever come from a queue whose jobs Django workers run: say so instead of waiting."""
        if declared(self.using).options(name, conf.jobs_aliases()[0]).is_http:
            return
        if not Queue.objects.using(self.using).filter(name=name).exists():
            raise not_found(f"There is no queue {name!r}.")
        raise ApiError(409, "conflict", f"The queue {name!r} is not for HTTP workers: set its is_http.")


def _seconds(value: Any) -> float:
    seconds = parse_duration(value, field="wait")
    most = jobs_settings().api_wait_max
    if seconds > most:
        raise InvalidOption("wait", f"at most {format_duration(most)}.")
    return seconds


def leased_jobs(leases: Sequence[Lease], using: str) -> list[dict[str, Any]]:
    """Return claimed jobs as their worker gets them: all of each, with the token of the attempt and the end of the lease."""
    jobs = Job.objects.using(using).in_bulk([lease.attempt.job_id for lease in leases])
    return [
        {
            **render_claimed(jobs[lease.attempt.job_id]),
            "token": str(lease.attempt.token),
            "attempt": lease.attempt.number,
            "lease_expires_at": time_text(lease.expires_at),
        }
        for lease in leases
        if lease.attempt.job_id in jobs
    ]

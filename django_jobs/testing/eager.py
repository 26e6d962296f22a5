"""Run jobs as they are enqueued, in the caller: for tests that want the effect and not the queue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from .. import insertion
from ..conf import jobs_database
from ..lifecycle import control
from ..models import Job
from ..results import JobResult
from ..statuses import Status
from .draining import Drain


class _Eager:
    """Runs what is stored, and what that releases."""

    def __init__(self, using: str, raise_errors: bool) -> None:
        self._using = using
        self._drain = Drain(using, raise_errors=raise_errors, commits=False)
        self._ids: list[UUID] = []
        self._busy = False

    def __call__(self, results: Sequence[JobResult[..., Any]]) -> None:
        """Run these jobs, whose rows are stored, and bring their results up to date."""
        mine = [result for result in results if result.using == self._using]
        self._ids += [result.job_id for result in mine]
        if self._busy:
            return  # a job that enqueues: its jobs run after it
        self._busy = True
        try:
            while (attempt := self._next()) is not None:
                self._drain.perform(attempt)
        finally:
            self._busy = False
            self._ids = [] if self._is_done() else self._ids
            for result in mine:
                result.refresh()

    def _next(self) -> Any:
        attempt = self._drain.claim_of(self._ids)
        if attempt is None:
            # A later start, or the pause before a retry: nobody waits here.
            later = Job.objects.using(self._using).filter(id__in=self._ids, status=Status.SCHEDULED).order_by("due_at", "id")
            if ids := list(later.values_list("id", flat=True)[:1]):
                control.run_now(ids, using=self._using)
                attempt = self._drain.claim_of(self._ids)
        return attempt

    def _is_done(self) -> bool:
        return not Job.objects.using(self._using).live().filter(id__in=self._ids).exists()


@contextmanager
def eager_jobs(*, using: str | None = None, raise_errors: bool = False) -> Iterator[None]:
    """Have `enqueue` run the job before it returns, in the block: its result has ended.

    The job is stored, claimed, executed and recorded as always, so options such as `unique` and `atomic` have their effect.
    Nobody waits: a later start comes at once, and a retry without its pause, until the attempts are used up. What a job enqueues
    runs after it; graphs run in their order. Tasks with `enqueue_on_commit` run when that commit comes. `raise_errors`: the
    exception of a job that does not succeed is raised by `enqueue`. `using`: the database, by default that of the first back end
    in TASKS.
    """
    eager = _Eager(jobs_database() if using is None else using, raise_errors)
    insertion.after_store.append(eager)
    try:
        yield
    finally:
        insertion.after_store.remove(eager)

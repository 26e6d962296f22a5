"""The moves that the clock makes: stage what is due, cancel what started too late, give up and bring back unknown tasks, prune.

Each function is one bounded piece of work in the caller's open transaction. It takes up to `limit` rows that nobody has locked,
through the partial index that it names, so that neither a locked row nor the size of the table stalls it; two at
once take different rows. Call it again at once while `Swept.touched` reaches the limit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Final
from uuid import UUID

from django.db import DatabaseError, connections
from django.db.models import Exists, OuterRef

from .. import db
from ..models import CancelRequest, Job, JobLock
from ..outcomes import ErrorInfo, Event
from ..statuses import FINAL, PENDING, Move, Parked, Status, sources
from . import tally
from .batch_keep import Keeper
from .ended import leave_ended
from .graph import kept_for_others, orphan
from .moves import cancel_locked, delete_rows, forget_requests, prune_time
from .recover import lock_jobs, skipping_locked
from .report import event, said, write_each

logger = logging.getLogger("django_jobs.sweep")

#: A job that can't be deleted (a project's own protected reference) is tried again after this long. Seconds.
PRUNE_AGAIN: Final = 86_400.0
#: Names of unknown tasks that are looked at in one go.
NAMES: Final = 100


@dataclass(slots=True)
class Swept:
    """What one piece of work did. `touched`: rows that it took; `queues`: those with new work in them."""

    touched: int = 0
    events: list[Event] = field(default_factory=list)
    queues: set[str] = field(default_factory=set)


def stage_due(*, using: str, limit: int) -> Swept:
    """Make scheduled jobs ready whose time has come, the earliest first. Index django_jobs_live."""
    now = db.server_now(connections[using])
    due = Job.objects.using(using).filter(status=Status.SCHEDULED, due_at__lte=now).order_by("due_at", "id")
    jobs = list(skipping_locked(due.only("id", "queue", "status", "batch_id"))[:limit])

    def write(part: Sequence[Job]) -> list[UUID]:
        ids = [job.id for job in part]
        rows = Job.objects.using(using).filter(id__in=ids, status__in=sources(Move.STAGE, Status.READY))
        rows.update(status=Status.READY)
        tally.moved(part, Status.READY, using=using)
        return ids

    changed, errors = write_each(jobs, using, write)
    _complain(errors, "could not be made ready")
    done = set(changed)
    return Swept(len(jobs), queues={job.queue for job in jobs if job.id in done})


def cancel_late(*, using: str, limit: int) -> Swept:
    """Cancel jobs that have not started by their `start_by`. Index django_jobs_start_by."""
    now = db.server_now(connections[using])
    # A job that has started once is not late: it waits for its next attempt.
    late = (
        Job.objects.using(using).filter(start_by__lte=now, status__in=PENDING, started_at__isnull=True).order_by("start_by", "id")
    )
    jobs = list(skipping_locked(late)[:limit])
    events: list[Event] = []

    def write(part: Sequence[Job]) -> list[UUID]:
        for job in part:
            assert job.start_by is not None, "the query asks for it"
            reason = f"It had not started by {job.start_by.isoformat(timespec='seconds')}."
            events.extend(cancel_locked([job], using=using, reason=reason))
        return [job.id for job in part]

    _changed, errors = write_each(jobs, using, _fresh(events, write))
    _complain(errors, "could not be cancelled as late")
    return Swept(len(jobs), events=events)


def apply_requests(*, using: str, limit: int) -> Swept:
    """Act on up to `limit` cancel requests that no attempt's end will act on.

    A job that was locked when the cancel came, or that went back to waiting at that moment, is cancelled now (and deleted, if
    that was asked); a request about a job that has ended, or is gone, is deleted.
    """
    running = Job.objects.using(using).filter(id=OuterRef("job_id"), status=Status.RUNNING)
    requests = CancelRequest.objects.using(using).filter(~Exists(running))
    found = {request.job_id: request for request in requests.order_by("id")[:limit]}
    if not found:
        return Swept()
    unwanted = {request.job_id for request in found.values() if request.delete_job}
    jobs = list(lock_jobs(using, found, whole=bool(unwanted)))
    pending = [job for job in jobs if job.status in PENDING]
    events: list[Event] = []
    for job in pending:
        request = found[job.id]
        events += cancel_locked([job], using=using, reason=said("cancelled", request.requested_by, request.reason))
        job.status = Status.CANCELLED
    deleted = [job for job in jobs if job.id in unwanted and job.status != Status.RUNNING]
    events += orphan(deleted, using=using)
    _changed, errors = write_each(deleted, using, partial(delete_rows, using))
    _complain(errors, "could not be deleted")
    ended = {job.id for job in jobs if job.status in FINAL}
    gone = found.keys() - set(Job.objects.using(using).filter(id__in=found).values_list("id", flat=True))
    forget_requests(using, ended | gone)
    return Swept(len(found), events=events)


def unpark_known(knows: Callable[[str], bool], *, using: str, limit: int) -> Swept:
    """Bring back parked jobs of unknown tasks that this process knows. Index django_jobs_parked, one step a task."""
    known, last = [], ""
    parked = Job.objects.using(using).filter(parked=Parked.UNKNOWN_TASK)
    for _ in range(NAMES):
        task = parked.filter(task__gt=last).order_by("task").values_list("task", flat=True).first()
        if task is None:
            break
        last = task
        if knows(task):
            known.append(task)
    return unpark(list(skipping_locked(parked.filter(task__in=known).order_by("id"))[:limit]), using=using) if known else Swept()


def unpark(jobs: Collection[Job], *, using: str) -> Swept:
    """Let the claim see `jobs` again, which the caller's transaction has locked."""
    rows = Job.objects.using(using).filter(id__in=[job.id for job in jobs], status=Status.READY)
    rows.update(parked="", reason="")
    return Swept(len(jobs), queues={job.queue for job in jobs})


def give_up_unknown(*, using: str, grace: float, limit: int) -> Swept:
    """Fail jobs that have been parked for `grace` seconds because no worker knows their task. Index django_jobs_parked.

    Every worker process brings back what it knows every few seconds: so a job that stayed parked for so long is known to none.
    """
    now = db.server_now(connections[using])
    # The claim that found the task unknown was the job's last start.
    old = Job.objects.using(using).filter(parked=Parked.UNKNOWN_TASK, last_started_at__lte=now - timedelta(seconds=grace))
    jobs = list(skipping_locked(old.order_by("id"))[:limit])
    events: list[Event] = []

    def write(part: Sequence[Job]) -> list[UUID]:
        for job in part:
            error = ErrorInfo("django_jobs.exceptions.UnknownTask", f"No worker knows the task {job.task!r}.")
            rows = Job.objects.using(using).filter(id=job.id, status__in=sources(Move.GIVE_UP, Status.FAILED))
            rows.update(
                status=Status.FAILED,
                parked="",
                reason=error.message[:500],
                error_class=error.exception_class,
                error_message=error.message,
                finished_at=now,
                prune_at=prune_time(job, Status.FAILED, now),
            )
            events.append(event("job_failed", job, Status.FAILED, error.message, error=error))
        tally.moved(part, Status.FAILED, using=using)
        with connections[using].cursor() as cursor:
            leave_ended(cursor, db.dialect(connections[using]), [job.id for job in part])
        return [job.id for job in part]

    _changed, errors = write_each(jobs, using, _fresh(events, write))
    _complain(errors, "could not be failed as unknown")
    return Swept(len(jobs), events=events)


def prune(*, using: str, limit: int, keeper: Keeper | None = None) -> Swept:
    """Delete jobs whose retention has passed, the oldest first. Index django_jobs_prune.

    A job that still has a lock row is left until that is cleared: deleting it would wait for whoever holds the row. A graph, or a
    batch, goes when every member is due: those that are due before the others wait for them. `keeper`: one for many calls.
    """
    now = db.server_now(connections[using])
    locks = JobLock.objects.using(using).filter(job=OuterRef("pk"))
    old = Job.objects.using(using).filter(~Exists(locks), prune_at__lte=now).order_by("prune_at", "id")
    jobs = list(skipping_locked(old.only("id", "queue", "status", "batch_id", "graph"), whole=True)[:limit])
    kept = kept_for_others(jobs, using=using, now=now)
    kept |= (keeper or Keeper()).kept([job for job in jobs if job.id not in kept], using=using, now=now)
    for again in set(kept.values()):
        # Out of the way of the others, which come after them in the order.
        Job.objects.using(using).filter(id__in=[job_id for job_id, at in kept.items() if at == again]).update(prune_at=again)
    _changed, errors = write_each([job for job in jobs if job.id not in kept], using, partial(delete_rows, using))
    if errors:
        _complain(errors, "could not be pruned")
        again = now + timedelta(seconds=PRUNE_AGAIN)
        Job.objects.using(using).filter(id__in=errors, prune_at__isnull=False).update(prune_at=again)
    return Swept(len(jobs))


def _fresh(events: list[Event], write: Callable[[Sequence[Job]], list[UUID]]) -> Callable[[Sequence[Job]], list[UUID]]:
    """Return `write` without the events of a batch that failed half-way and is written again one by one."""

    def attempt(part: Sequence[Job]) -> list[UUID]:
        before = len(events)
        try:
            return write(part)
        except DatabaseError:
            del events[before:]
            raise

    return attempt


def _complain(errors: dict[UUID, DatabaseError], what: str) -> None:
    for job_id, error in errors.items():
        logger.error("Job %s %s: %s", job_id, what, error)

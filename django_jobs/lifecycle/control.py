"""What a person or a program may do to jobs: cancel, requeue, mark as done, run now, delete. No task is imported for any of it.

Each verb takes ids and reports per job. It never waits for another transaction's row: a job that somebody else has locked at
this moment is refused with that reason (a cancel is left as a request). Only a requeue waits, for a transaction that is just
storing a job with the same unique key. Which statuses a verb may leave is read from `statuses`; a job's row is locked and read
in one statement, and updated on the condition that it still is what was read.

A running job belongs to its worker. So cancel and delete insert a request, a row of its own that locks nothing of the job: a
web request that stays open for minutes stalls nobody. Whoever ends the attempt acts on the request; maintenance
does for requests that an attempt's end has passed by.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from functools import partial
from uuid import UUID

from django.db import IntegrityError
from django.db.models import Q

from .. import db, wakeup
from ..models import HOLDS_ITS_KEY, CancelRequest, Job, JobLock, LockKind
from ..outcomes import Cancelled, Event
from ..serializers import clean_text
from ..statuses import FINAL, LABELS, LIVE, Move, Status, sources
from . import tally
from .edit import edit
from .graph import follow_now, hold_back, orphan, waits_for
from .moves import cancel_locked, delete_rows, finish, forget_requests, where
from .pause import pause_queue, resume_queue
from .recover import lock_free, lock_jobs, recover, writing
from .report import BUSY, NOT_FOUND, Report, event, in_batches, said, write_each

__all__ = ["Report", "cancel", "delete", "done", "edit", "pause_queue", "requeue", "resume_queue", "run_now"]


def cancel(job_ids: Iterable[UUID], *, by: str = "", reason: str = "", force: bool = False, using: str = "default") -> Report:
    """Cancel jobs: those that have not started at once, running ones by request; failed and timed-out ones are acknowledged.

    `force`: the process of a running job is killed if the task does not stop by itself. Running jobs are in the report's
    `requested`; one that an HTTP worker has is cancelled at once. A job that has ended otherwise is refused: too late.
    """
    return in_batches(job_ids, using, partial(_cancel, using, by, reason, force))


def _cancel(using: str, by: str, reason: str, force: bool, ids: Sequence[UUID]) -> Report:
    report = Report()
    why = said("cancelled", by, reason)
    movable = sources(Move.CANCEL, Status.CANCELLED)
    with writing(using):
        report.events += _cancel_leases(using, ids, why)
        report.changed += [event.job_id for event in report.events]
        statuses = _statuses(using, ids)
        # Only what a plain read shows as not running is locked: a lock on a running job's row would stall its worker.
        asked = [job_id for job_id in ids if statuses.get(job_id) in movable]
        jobs = list(lock_jobs(using, asked).filter(status__in=movable))
        report.events += cancel_locked(jobs, using=using, reason=why)
        report.events += _follow(jobs, using)
        report.changed += [job.id for job in jobs]
        left = [job_id for job_id in ids if job_id not in set(report.changed)]
        # A later statement: a job that a worker claimed meanwhile is running now.
        statuses = _statuses(using, left)
        for job_id in left:
            status = statuses.get(job_id)
            if status in LIVE:
                report.requested.append(job_id)
            elif status in movable:
                report.refused[job_id] = BUSY
            else:
                report.refused[job_id] = _too_late(status, "cancel")
        report.changed += report.requested
        _request(using, report.requested, by, reason, force=force)
    return report


def _cancel_leases(using: str, ids: Sequence[UUID], why: str) -> list[Event]:
    """Cancel what HTTP workers have: nobody holds their lock rows by a lock, and they learn it on their next call."""
    leases = JobLock.objects.using(using).filter(job_id__in=ids, kind=LockKind.HTTP).values_list("job_id", flat=True)
    rows = [row for row in lock_free(using, leases) if row.kind == LockKind.HTTP]
    guilty = {row.token: Cancelled(reason=why) for row in rows}
    return [event for event in recover(rows, using=using, cause=why, guilty=guilty) if event.status == Status.CANCELLED]


def requeue(
    job_ids: Iterable[UUID],
    *,
    by: str = "",
    reason: str = "",
    keep_attempts: bool = False,
    using: str = "default",
) -> Report:
    """Put jobs that have ended back to the end of their queues as what they were, with nothing of their last run.

    They get all their attempts again, or with `keep_attempts` only those that are left. Attempt records stay. A job whose
    unique key another live job has by now is refused; so is one that has not ended.
    """
    return in_batches(job_ids, using, partial(_requeue, using, by, reason, keep_attempts))


def _requeue(using: str, by: str, reason: str, keep_attempts: bool, ids: Sequence[UUID]) -> Report:
    report = Report()
    with writing(using) as connection:
        jobs = _lock_in(using, ids, sources(Move.REQUEUE, Status.READY), report, "requeue")
        if held := hold_back([job.id for job in jobs if job.graph is not None], using=using):
            report.refused |= {job_id: f"Another transaction is changing its child {held[job_id]}: try again." for job_id in held}
            jobs = [job for job in jobs if job.id not in held]
        now = db.server_now(connection)
        why = said("requeued", by, reason)
        changed, errors = write_each(jobs, using, partial(_put_back, using, now, why, keep_attempts))
        for job in jobs:
            if job.id not in errors:
                report.events.append(event("job_requeued", job, Status.READY, why))
            elif isinstance(errors[job.id], IntegrityError):
                report.refused[job.id] = _conflict(using, job)
            else:
                report.refused[job.id] = f"The database refused it: {errors[job.id]}"
        report.changed += changed
        forget_requests(using, changed)
        wakeup.wake(using, {job.queue for job in jobs if job.id not in errors})
    return report


def _put_back(using: str, now: datetime, why: str, keep_attempts: bool, jobs: Sequence[Job]) -> list[UUID]:
    values = {
        "status": Status.READY,
        "reason": why,
        "due_at": now,
        "run_after": None,
        "deaths": 0,
        "last_outcome": "",
        "worker": "",
        "output": None,
        "progress": None,
        "result": None,
        "error_class": "",
        "error_message": "",
        "fingerprint": "",
        "started_at": None,
        "last_started_at": None,
        "last_heartbeat_at": None,
        "finished_at": None,
        "run_seconds": None,
        "prune_at": None,
    }
    if not keep_attempts:
        values["attempts_used"] = 0
    ids = [job.id for job in jobs]
    rows = where(using, ids, Move.REQUEUE, Status.READY)
    # A deadline that has passed would cancel the job before it could start again.
    rows.filter(start_by__lte=now).update(start_by=None)
    rows.update(**values)
    # A later statement, which sees what these jobs have become: parents and children may be requeued together.
    waiting = waits_for([job.id for job in jobs if job.graph is not None], using=using)
    for job_id, parent in waiting.items():
        Job.objects.using(using).filter(id=job_id).update(status=Status.WAITING, reason=f"{why}; waits for {parent}"[:500])
    tally.moved([job for job in jobs if job.id not in waiting], Status.READY, using=using)
    tally.moved([job for job in jobs if job.id in waiting], Status.WAITING, using=using)
    return ids


def _conflict(using: str, job: Job) -> str:
    rival = Job.objects.using(using).filter(HOLDS_ITS_KEY, unique_key=job.unique_key).exclude(id=job.id).first()
    return f"Its unique key is held by the job {rival.id}." if rival else "The database refused it: its unique key is held."


def done(job_ids: Iterable[UUID], *, by: str = "", reason: str = "", using: str = "default") -> Report:
    """Mark jobs as succeeded by hand: those that have not started, and failed and timed-out ones. Who and why are kept."""
    return in_batches(job_ids, using, partial(_done, using, by, reason))


def _done(using: str, by: str, reason: str, ids: Sequence[UUID]) -> Report:
    report = Report()
    with writing(using) as connection:
        jobs = _lock_in(using, ids, sources(Move.DONE, Status.SUCCEEDED), report, "mark as done")
        why = said("marked as done", by, reason)
        now = db.server_now(connection)

        def write(part: Sequence[Job]) -> list[UUID]:
            finish(part, using, Move.DONE, Status.SUCCEEDED, now, why)
            return [job.id for job in part]

        report.changed, errors = write_each(jobs, using, write)
        for job in jobs:
            if job.id in errors:  # a success may hold a key, too
                report.refused[job.id] = _conflict(using, job)
        jobs = [job for job in jobs if job.id not in errors]
        forget_requests(using, report.changed)
        report.events = [event("job_succeeded", job, Status.SUCCEEDED, why) for job in jobs]
        report.events += _follow(jobs, using)
    return report


def _follow(jobs: Sequence[Job], using: str) -> list[Event]:
    """Look at the children of jobs that have ended just now."""
    ended = [job.id for job in jobs if job.graph is not None]
    return follow_now(ended, using=using) if ended else []


def run_now(job_ids: Iterable[UUID], *, by: str = "", reason: str = "", using: str = "default") -> Report:
    """Make scheduled jobs ready at once, whatever they were to wait for."""
    return in_batches(job_ids, using, partial(_run_now, using, by, reason))


def _run_now(using: str, by: str, reason: str, ids: Sequence[UUID]) -> Report:
    report = Report()
    with writing(using) as connection:
        jobs = _lock_in(using, ids, sources(Move.STAGE, Status.READY), report, "start now")
        report.changed = [job.id for job in jobs]
        where(using, report.changed, Move.STAGE, Status.READY).update(
            status=Status.READY, due_at=db.server_now(connection), reason=said("started at once", by, reason)
        )
        tally.moved(jobs, Status.READY, using=using)
        wakeup.wake(using, {job.queue for job in jobs})
    return report


def delete(job_ids: Iterable[UUID], *, by: str = "", reason: str = "", force: bool = False, using: str = "default") -> Report:
    """Delete jobs with all that belongs to them. A running job is refused, or with `force` stopped first.

    A forced delete of a running job asks for cancellation (`requested`), and maintenance deletes the job when its attempt has
    ended; one whose lock row nobody holds is deleted at once.
    """
    return in_batches(job_ids, using, partial(_delete, using, by, reason, force))


def _delete(using: str, by: str, reason: str, force: bool, ids: Sequence[UUID]) -> Report:
    report = Report()
    with writing(using) as connection:
        # Lock order: lock rows first. Those of running jobs only if forced, and nobody holds them.
        now = db.server_now(connection)
        locks = JobLock.objects.using(using).filter(job_id__in=ids)
        running = Job.objects.using(using).filter(id__in=ids, status=Status.RUNNING)
        if force:
            free = locks.filter(Q(expires_at__lt=now) | Q(kind=LockKind.HTTP) | ~Q(job__in=running))
        else:
            free = locks.exclude(job__in=running)
        wanted = {row.job_id: (row.token, row.expires_at) for row in free}
        taken = {row.job_id for row in lock_free(using, wanted) if (row.token, row.expires_at) == wanted[row.job_id]}
        held = set(locks.exclude(job_id__in=taken).values_list("job_id", flat=True))
        jobs = list(lock_jobs(using, [job_id for job_id in ids if job_id not in held], whole=True))
        good = [job for job in jobs if job.status != Status.RUNNING or job.id in taken]
        report.events += orphan(good, using=using)
        changed, errors = write_each(good, using, partial(delete_rows, using))
        report.changed += changed
        report.refused |= {job_id: f"The database refused it: {error}" for job_id, error in errors.items()}
        left = [job_id for job_id in ids if job_id not in changed and job_id not in errors]
        statuses = _statuses(using, left)
        for job_id in left:
            if statuses.get(job_id) == Status.RUNNING and force:
                report.requested.append(job_id)
            elif statuses.get(job_id) == Status.RUNNING:
                report.refused[job_id] = "It is running: cancel it first, or delete it by force."
            else:
                report.refused[job_id] = BUSY if job_id in statuses else NOT_FOUND
        report.changed += report.requested
        _request(using, report.requested, by, reason, force=True, delete_job=True)
    return report


def _lock_in(using: str, ids: Sequence[UUID], allowed: Collection[Status], report: Report, verb: str) -> list[Job]:
    """Lock and return those of the jobs that are in one of the `allowed` statuses; refuse the others in `report`."""
    statuses = _statuses(using, ids)
    candidates = [job_id for job_id in ids if statuses.get(job_id) in allowed]
    jobs = list(lock_jobs(using, candidates).filter(status__in=allowed))
    found = {job.id for job in jobs}
    for job_id in ids:
        if job_id not in found:
            status = statuses.get(job_id)
            report.refused[job_id] = BUSY if status in allowed else _too_late(status, verb)
    return jobs


def _too_late(status: Status | None, verb: str) -> str:
    if status is None:
        return NOT_FOUND
    if status in FINAL:
        return f"It has ended as {LABELS[status]}: too late to {verb}."
    if status == Status.RUNNING:
        return f"It is running: can't {verb} it."
    return f"It is {LABELS[status]}: there is nothing to {verb}."


def _statuses(using: str, ids: Sequence[UUID]) -> dict[UUID, Status]:
    rows = Job.objects.using(using).filter(id__in=ids).values_list("id", "status")
    return {job_id: Status(status) for job_id, status in rows}


def _request(using: str, ids: Sequence[UUID], by: str, reason: str, *, force: bool, delete_job: bool = False) -> None:
    """Insert cancel requests, except where the same is asked for already."""
    asked = CancelRequest.objects.using(using).filter(job_id__in=ids)
    if force:
        asked = asked.filter(force=True)
    if delete_job:
        asked = asked.filter(delete_job=True)
    same = set(asked.values_list("job_id", flat=True))
    CancelRequest.objects.using(using).bulk_create(
        [
            CancelRequest(
                job_id=job_id,
                requested_by=clean_text(by, 64),
                reason=clean_text(reason, 500),
                force=force,
                delete_job=delete_job,
            )
            for job_id in ids
            if job_id not in same
        ]
    )

"""What HTTP workers do to jobs: claim with a lease, report, finish, and have the lease lapse.

An HTTP worker holds no connection, so nothing holds its lock rows but `expires_at`: the lease. It ends at the first of the
job's limits: `heartbeat_timeout` after the last report, `timeout` after the claim; a job without limits has none, and lists show
it so. When a lease lapses, the attempt has timed out (a worker that died and one that is slow look alike from here), and
whoever comes late learns it: every call names the attempt's token, and a token whose lock row is gone is answered by
`LeaseLost` with what became of the job.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final
from uuid import UUID

from django.db import DatabaseError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from .. import db, wakeup
from ..exceptions import JobDoesNotExist, JobIsBusy, LeaseLost
from ..models import Job, JobLock, LockKind
from ..outcomes import Attempt, ErrorInfo, Event, Finished, Outcome, TimedOut
from ..retry import is_database_conflict
from ..statuses import LABELS, Status
from .claim import UNBOUNDED, QueueFilter, claim, claim_one
from .control import requeue
from .fence import Note, write_notes
from .graph import follow_rest
from .pause import is_paused
from .record import record
from .recover import attempt_of, lock_free, lock_jobs, recover, writing
from .report import Report, tell
from .sweep import Swept

#: After a restart of the database every lease has at least this many seconds left: its workers could not report meanwhile.
AFTER_RESTART_SECONDS: Final = 60.0
#: A lease that ends later than this has no end.
_FAR_SECONDS: Final = UNBOUNDED / 2
#: How long a report or an outcome waits for a lock that somebody else has on its job; MariaDB counts whole seconds.
LOCK_SECONDS: Final = 0.5
_BUSY: Final = "Job {} is locked by somebody else at this moment: try again."


@dataclass(slots=True, frozen=True)
class Lease:
    """A claimed job. `expires_at` is None if its lease has no end."""

    attempt: Attempt
    expires_at: datetime | None


def claim_http(queue: str, *, limit: int, worker: str = "", using: str) -> list[Lease]:
    """Claim up to `limit` jobs of `queue` for HTTP workers, in a transaction of its own; none of a paused queue."""
    with writing(using) as connection:
        attempts = claim(
            connection,
            worker=None,
            worker_name=worker[:64],
            tokens=[uuid.uuid4() for _ in range(limit)],
            free=limit,
            grace=UNBOUNDED,
            queues=QueueFilter(names=(queue,), is_http=True),
        )
        return _leases(attempts, using)


def requeue_and_claim(
    job_id: UUID, *, worker: str = "", by: str = "", reason: str = "", keep_attempts: bool = False, using: str
) -> tuple[Report, Lease | None]:
    """Requeue a job and claim it for the caller, an HTTP worker, in one transaction: nobody else gets it in between.

    Return what the requeue says, and the lease; None if the requeue was refused, or the job is not for HTTP workers or its queue
    paused (then that is the refusal, and nothing was changed).
    """
    with writing(using) as connection:
        report = requeue([job_id], by=by, reason=reason, keep_attempts=keep_attempts, using=using)
        if report.refused:
            return report, None
        job = Job.objects.using(using).only("queue", "status", "is_http").get(id=job_id)
        why = ""
        if not job.is_http:
            why = "It is not for HTTP workers: they can't claim it."
        elif job.status != Status.READY:
            why = f"It would be {LABELS[Status(job.status)]}, and can't be claimed."
        elif is_paused(job.queue, using=using):
            why = "Its queue is paused."
        if why:
            transaction.set_rollback(True, using=using)
            return Report(refused={job_id: why}), None
        attempt = claim_one(connection, job_id, token=uuid.uuid4(), worker_name=worker[:64])
        (lease,) = _leases([attempt], using)
        return report, lease


def _leases(attempts: Sequence[Attempt], using: str) -> list[Lease]:
    rows = JobLock.objects.using(using).filter(job_id__in=[attempt.job_id for attempt in attempts])
    ends = dict(rows.values_list("job_id", "expires_at"))
    now = db.server_now(connections[using])
    return [Lease(attempt, _end(ends[attempt.job_id], now)) for attempt in attempts]


def _end(expires_at: datetime, now: datetime) -> datetime | None:
    return None if expires_at - now > timedelta(seconds=_FAR_SECONDS) else expires_at


def report(job_id: UUID, token: UUID, *, progress: Any = None, output: Any = None, has_output: bool = False, using: str) -> Lease:
    """Take a sign of life: a heartbeat, with progress and partial output if there are any. Extend the lease.

    `has_output`: write `output`, also if it is null. Raises `JobDoesNotExist`, `LeaseLost`, `JobIsBusy`.
    """
    with _unstalled(job_id, using) as connection:
        attempt, row = _held(job_id, token, using)
        note = Note(attempt, heartbeat=True)
        if progress is not None:
            note.progress = progress
        if has_output:
            note.output = output
        write_notes(connection, [note])
        now = db.server_now(connection)
        row.expires_at = _next_end(attempt, row, now)
        row.save(using=using, update_fields=["expires_at"])
        return Lease(attempt, _end(row.expires_at, now))


def _next_end(attempt: Attempt, row: JobLock, now: datetime) -> datetime:
    ends = []
    if attempt.heartbeat_timeout:
        ends.append(now + timedelta(seconds=attempt.heartbeat_timeout))
    if attempt.timeout:
        ends.append(row.claimed_at + timedelta(seconds=attempt.timeout))
    return min(ends, default=now + timedelta(seconds=UNBOUNDED))


def finish(
    job_id: UUID, token: UUID, outcome: Outcome, *, output: Any = None, has_output: bool = False, logs: str = "", using: str
) -> Status:
    """End the attempt with this token as `outcome` says, and return the job's status after it.

    A failure is retried while attempts remain unless it is final. `output` is written in the same transaction, before it.
    Raises `JobDoesNotExist`, `LeaseLost`, `JobIsBusy`.
    """
    with _unstalled(job_id, using) as connection:
        attempt, row = _held(job_id, token, using)
        if has_output:
            write_notes(connection, [Note(attempt, heartbeat=True, output=output)])
        seconds = (db.server_now(connection) - row.claimed_at).total_seconds()
        worker = Job.objects.using(using).values_list("worker", flat=True).get(id=job_id)
        recorded = record(connection, [Finished(attempt, outcome, run_seconds=seconds, logs=logs)], worker_name=worker)
        if recorded.later or not recorded.done:
            raise JobIsBusy(_BUSY.format(job_id))
        status = Status(Job.objects.using(using).values_list("status", flat=True).get(id=job_id))
        if status == Status.READY:
            wakeup.wake(using, [attempt.queue])
        if recorded.has_ended:
            transaction.on_commit(partial(follow_rest, using=using), using=using, robust=True)
    tell(recorded.events, using)
    return status


@contextmanager
def _unstalled(job_id: UUID, using: str) -> Iterator[BaseDatabaseWrapper]:
    """A transaction about one job that waits for nobody's lock for long: `JobIsBusy` then, and nothing was written."""
    connection = connections[using]
    dialect = db.dialect(connection)
    before: str | None = None
    try:
        with writing(using):
            before = dialect.wait_at_most(connection, LOCK_SECONDS)
            yield connection
            dialect.wait_again(connection, before)
            before = None
    except DatabaseError as error:
        if is_database_conflict(error):
            raise JobIsBusy(_BUSY.format(job_id)) from error
        raise
    finally:
        # What PostgreSQL was told ends with the savepoint or the transaction.
        if before is not None and connection.vendor == "mysql" and connection.is_usable():
            dialect.wait_again(connection, before)


def _held(job_id: UUID, token: UUID, using: str) -> tuple[Attempt, JobLock]:
    """Lock and return the attempt with this token."""
    rows = JobLock.objects.using(using).filter(job_id=job_id)
    if connections[using].features.has_select_for_update:
        rows = rows.select_for_update()
    row = rows.first()
    job = Job.objects.using(using).filter(id=job_id).first()
    if job is None:
        raise JobDoesNotExist(f"There is no job {job_id}.")
    if row is None or row.token != token or row.kind != LockKind.HTTP or job.status != Status.RUNNING or job.last_token != token:
        raise LeaseLost(_what_became(job, token), status=Status(job.status))
    return attempt_of(job), row


def _what_became(job: Job, token: UUID) -> str:
    reason = f" ({job.reason})" if job.reason else ""
    if job.last_token == token:
        return f"This attempt has ended: the job is {LABELS[Status(job.status)]}{reason}."
    if job.status == Status.RUNNING:
        return f"This attempt was taken over: attempt {job.starts} runs now."
    return f"No attempt with this token runs: the job is {LABELS[Status(job.status)]}{reason}."


def lapse(*, using: str, limit: int) -> Swept:
    """End up to `limit` attempts whose leases are over, as timed out: the sweep of HTTP workers."""
    swept = Swept()
    with writing(using) as connection:
        uptime = db.dialect(connection).uptime(connection)
        if uptime is not None and uptime < AFTER_RESTART_SECONDS:
            return swept
        expired = JobLock.objects.using(using).expired().filter(kind=LockKind.HTTP).order_by("expires_at")
        now = db.server_now(connection)
        rows = [
            row
            for row in lock_free(using, list(expired.values_list("job_id", flat=True)[:limit]))
            if row.kind == LockKind.HTTP and row.expires_at < now
        ]
        jobs = {job.id: job for job in lock_jobs(using, [row.job_id for row in rows])}
        guilty: dict[UUID, Outcome] = {row.token: _lapsed(jobs[row.job_id], row) for row in rows if row.job_id in jobs}
        seconds = {row.token: (now - row.claimed_at).total_seconds() for row in rows}
        events: list[Event] = recover(rows, using=using, cause="its lease has lapsed", guilty=guilty, started=seconds)
        swept.events += events
        swept.touched = len(events)
        swept.queues |= {event.queue for event in events if event.status == Status.READY}
    return swept


def _lapsed(job: Job, row: JobLock) -> TimedOut:
    limit, seconds = "timeout", job.timeout
    if job.heartbeat_timeout and not (job.timeout and row.expires_at >= row.claimed_at + timedelta(seconds=job.timeout)):
        limit, seconds = "heartbeat_timeout", job.heartbeat_timeout
    if seconds is None:  # the limit was taken off after the claim: what was granted holds
        seconds = (row.expires_at - row.claimed_at).total_seconds()
    what = "sent no sign of life" if limit == "heartbeat_timeout" else "did not finish"
    message = f"The HTTP worker {what} for {seconds:g} s ({limit})."
    return TimedOut(ErrorInfo("django_jobs.exceptions.JobTimeout", message), limit=limit)

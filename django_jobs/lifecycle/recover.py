"""Recover: end the attempts whose worker is gone, each by the one function that decides about every outcome.

State model: a running job has one lock row, whose token is the job's `last_token`. Whoever recovers has judged that nobody
holds the row: the requeuer by its looks (`maintenance.looks`), the supervisor because it reaped the process itself. Then, in
one transaction: the lock row is locked FOR UPDATE and compared once more, the job's row is locked, `record` writes the outcome
(`Lost`, or what the supervisor knows better) and deletes the lock row. So two that recover the same attempt end it once: the
second finds no row.

What it never does: wait. A lock row or a job that another transaction has locked is left for the next sweep. A lock row whose
job is not running with that token is rubbish, not evidence: it is deleted and the job is left alone. One bad row costs one row.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from django.db import DatabaseError, IntegrityError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import QuerySet

from .. import db
from ..models import Job, JobLock, LockKind
from ..models.stat import move_name
from ..outcomes import Attempt, Event, Finished, HandedBack, Lost, Outcome
from ..statuses import Status
from . import tally
from .record import record

logger = logging.getLogger("django_jobs.recover")

#: More rows than a worker process has in hand; what is beyond is told by `Recovered.left`.
WORKER_BATCH = 1000
_HANDED_BACK = move_name(Status.RUNNING, Status.READY)


class Recovered(list[Event]):
    """The events to dispatch after the commit. `left`: rows that could not be taken now, because somebody has them locked."""

    left: int = 0


@contextmanager
def writing(using: str) -> Iterator[BaseDatabaseWrapper]:
    """A transaction (or a savepoint in the caller's) that is going to write.

    Where there are no row locks it is alone from the start. SQLite takes its write lock at the first write, and fails at once if
    somebody else wrote since the first read: so the first statement is a write that changes nothing.
    """
    connection = connections[using]
    outermost = not connection.in_atomic_block
    with transaction.atomic(using=using):
        if outermost and not db.dialect(connection).row_locks:
            with connection.cursor() as cursor:
                cursor.execute(f"UPDATE {db.LEADER} SET touched = touched WHERE 1 = 0")
        yield connection


def lock_free(using: str, job_ids: Iterable[UUID]) -> list[JobLock]:
    """Return those of these jobs' lock rows that no transaction has locked, locked FOR UPDATE, by job id.

    Plain FOR UPDATE, never NO KEY: the fence of an `atomic=True` job is FOR KEY SHARE, which only FOR UPDATE respects. By
    primary key alone: InnoDB would keep locks on rows that another condition leaves out, so find the ids by a plain read, and
    look at the rows again. Where there are no row locks every row is returned, and the caller's judgement by `expires_at` is
    all there is.
    """
    rows = JobLock.objects.using(using).filter(job_id__in=list(job_ids)).order_by("job_id")
    if db.dialect(connections[using]).row_locks:
        rows = rows.select_for_update(skip_locked=True)
    return list(rows)


def lock_jobs(using: str, ids: Iterable[UUID], *, whole: bool = False) -> QuerySet[Job]:
    """Return a query for those of the jobs that no other transaction has locked; it locks them, by id, in one statement."""
    return skipping_locked(Job.objects.using(using).filter(id__in=list(ids)).order_by("id"), whole=whole)


def skipping_locked(jobs: QuerySet[Job], *, whole: bool = False) -> QuerySet[Job]:
    """Return a query that locks the rows of `jobs`, leaving out those that another transaction has locked.

    The lock leaves foreign-key checks of others alone, unless `whole`, for rows about to be deleted. It locks nothing where there
    are no row locks.
    """
    connection = connections[jobs.db]
    if not db.dialect(connection).row_locks:
        return jobs
    return jobs.select_for_update(skip_locked=True, no_key=connection.features.has_select_for_no_key_update and not whole)


def recover(
    rows: Sequence[JobLock],
    *,
    using: str,
    cause: str,
    counts: bool = True,
    started: Collection[UUID] | None = None,
    guilty: Collection[UUID] | Mapping[UUID, Outcome] | None = None,
) -> Recovered:
    """End the attempts of `rows`, which the caller's open transaction has locked. Dispatch the events after the commit.

    Each ends as `Lost(cause, counts)`. A prefetched row, and with `started` (tokens) one that is not among them, never began:
    it is handed back without a trace. `guilty` (tokens) names the attempts for whose sake a process was killed: the others in
    it are lost without being counted; as a mapping it says how the guilty ones end (a hard time-out: `TimedOut`).
    """
    recovered = Recovered()
    if not rows:
        return recovered
    by_job = {row.job_id: row for row in rows}
    jobs = {job.id: job for job in lock_jobs(using, by_job)}
    recovered.left, rubbish = _sort_out(using, by_job, jobs)
    if rubbish:
        logger.warning("Deleting %d lock rows without a running job", len(rubbish))
        JobLock.objects.using(using).filter(job_id__in=rubbish).delete()
    groups: dict[str, list[Finished]] = defaultdict(list)
    for job in jobs.values():
        row = by_job[job.id]
        if job.status != Status.RUNNING or job.last_token != row.token:
            continue
        outcome = _outcome(row, cause, counts, started, guilty)
        seconds = started.get(row.token) if isinstance(started, Mapping) else None
        groups[job.worker].append(
            Finished(attempt_of(job), outcome, run_seconds=seconds if isinstance(seconds, int | float) else None)
        )
    for worker, finished in groups.items():
        events, failed = _record(connections[using], finished, worker)
        recovered += events
        recovered.left += failed
    return recovered


def recover_worker(
    using: str,
    worker: UUID,
    *,
    cause: str,
    counts: bool = True,
    started: Collection[UUID] | None = None,
    guilty: Collection[UUID] | Mapping[UUID, Outcome] | None = None,
) -> Recovered:
    """End every attempt of the incarnation `worker`, in a transaction of its own. For the supervisor, about its own dead child.

    It must know that the process is reaped and that its database session has ended: nothing else is asked here, no expiry and
    no looks. Dispatch the events. While `left` is not 0, call it again a little later: a row is locked by somebody else, or
    there are more than `WORKER_BATCH`. Rows given up so are found by the requeuer. For `started` and `guilty` see `recover`.
    """
    with writing(using):
        mine = JobLock.objects.using(using).filter(worker=worker)
        ids = list(mine.order_by("job_id").values_list("job_id", flat=True)[: WORKER_BATCH + 1])
        rows = [row for row in lock_free(using, ids[:WORKER_BATCH]) if row.worker == worker]
        recovered = recover(rows, using=using, cause=cause, counts=counts, started=started, guilty=guilty)
        recovered.left += len(ids) - len(rows)
    return recovered


def recover_missing(tokens: Mapping[UUID, UUID], *, using: str, cause: str) -> Recovered:
    """End running jobs that have no lock row, in the caller's open transaction; `tokens` maps their ids to their last tokens.

    Each gets its lock row back first, so that there is one way to end an attempt; where there is one by now, somebody is alive.
    """
    found = [job for job in lock_jobs(using, tokens) if job.status == Status.RUNNING and job.last_token == tokens[job.id]]
    # A statement later than the one that took the locks: what was committed before them is seen.
    present = set(JobLock.objects.using(using).filter(job__in=found).values_list("job_id", flat=True))
    rows = []
    now = db.server_now(connections[using])
    for job in found:
        if job.id in present or job.last_token is None:
            continue
        row = JobLock(
            job_id=job.id,
            token=job.last_token,
            kind=LockKind.WORKER,
            queue=job.queue,
            claimed_at=now,
            expires_at=now,
            limit_keys=[],
        )
        try:
            with transaction.atomic(using=using):
                row.save(using=using, force_insert=True)
        except IntegrityError:
            continue
        rows.append(row)
    return recover(rows, using=using, cause=cause)


def attempt_of(job: Job) -> Attempt:
    """Return the attempt that a running job's row describes."""
    assert job.last_token is not None, "a running job has a token"
    return Attempt(
        job_id=job.id,
        token=job.last_token,
        task=job.task,
        args=job.args,
        kwargs=job.kwargs,
        number=job.starts,
        attempts_used=job.attempts_used,
        max_attempts=job.max_attempts,
        deaths=job.deaths,
        max_deaths=job.max_deaths,
        queue=job.queue,
        priority=job.priority,
        backend=job.backend,
        serializer=job.serializer,
        timeout=job.timeout,
        timeout_grace=job.timeout_grace,
        heartbeat_timeout=job.heartbeat_timeout,
        cpu_timeout=job.cpu_timeout,
        backoff=job.backoff,
        metadata=job.metadata,
        tags=job.tags,
        context=job.context,
        created_by=job.created_by,
        retention=job.retention,
        run_after=job.run_after,
        enqueued_at=job.enqueued_at,
        started_at=job.last_started_at,
        graph=job.graph,
        batch=job.batch_id,
    )


def _outcome(
    row: JobLock,
    cause: str,
    counts: bool,
    started: Collection[UUID] | None,
    guilty: Collection[UUID] | Mapping[UUID, Outcome] | None,
) -> Outcome:
    if row.prefetched or (started is not None and row.token not in started):
        return HandedBack(reason=cause)
    if guilty is None:
        return Lost(cause, counts=counts)
    if row.token not in guilty:
        return Lost(cause, counts=False)
    return guilty[row.token] if isinstance(guilty, Mapping) else Lost(cause, counts=True)


def _sort_out(using: str, rows: Mapping[UUID, JobLock], jobs: Mapping[UUID, Job]) -> tuple[int, list[UUID]]:
    """Return how many jobs are locked by others, and the ids of the lock rows that are rubbish."""
    rubbish = [job.id for job in jobs.values() if job.status != Status.RUNNING or job.last_token != rows[job.id].token]
    busy = [job_id for job_id in rows if job_id not in jobs]
    if not busy:
        return 0, rubbish
    # Locked by somebody: a plain read tells a running job, which has to wait, from one whose lock row is rubbish.
    seen = Job.objects.using(using).filter(id__in=busy, status=Status.RUNNING).values_list("id", "last_token")
    running = {job_id for job_id, token in seen if token == rows[job_id].token}
    return len(running), rubbish + [job_id for job_id in busy if job_id not in running]


def _record(connection: BaseDatabaseWrapper, finished: Sequence[Finished], worker: str) -> tuple[list[Event], int]:
    """Record a batch; if it can't be, one by one. Return the events, and how many could not be recorded."""
    try:
        with db.savepoint(connection, "recover"):
            recorded = record(connection, finished, worker_name=worker)
            return recorded.events, len(recorded.later)
    except DatabaseError as error:
        if is_transaction_lost(connection, error):
            raise
        if len(finished) == 1:
            logger.exception("Job %s could not be recovered: it is tried again", finished[0].attempt.job_id)
            return [], 1
    parts = [_record(connection, [item], worker) for item in finished]
    return [event for events, _ in parts for event in events], sum(failed for _, failed in parts)


def is_transaction_lost(connection: Any, error: BaseException) -> bool:
    """Whether nothing more can be done in this transaction: the session is gone, or a deadlock undid all of it (MariaDB)."""
    return db.dialect(connection).is_connection_loss(error) or (connection.vendor == "mysql" and db.errno(error) == 1213)


def _handed_back(dialect: db.Dialect, queue: str, batch: Any) -> tally.Key:
    return queue, _HANDED_BACK, None if batch is None else dialect.to_uuid(batch)


def unclaim(connection: BaseDatabaseWrapper, worker: UUID, *, keep: Collection[UUID]) -> int:
    """Give back what `worker` has claimed and never learnt of (the answer to a commit was lost), in the caller's transaction.

    `keep`: the tokens that it has in hand. Returns how many jobs were given back; their attempts were not counted.
    """
    dialect, count = db.dialect(connection), 0
    with connection.cursor() as cursor:
        # By a plain read: a locking one without an index would, on MariaDB, lock the rows of others that it passes.
        cursor.execute(f"SELECT job_id, token FROM {db.LOCK} WHERE worker = %s", [dialect.uuid(worker)])
        found = {dialect.to_uuid(job): dialect.to_uuid(token) for job, token in cursor.fetchall()}
        lost = sorted(job for job, token in found.items() if token not in keep)
        for chunk in db.batches(lost, 200):
            # Looked at again under the lock: meanwhile an attempt may have been recovered, and claimed by another worker.
            marks, params = dialect.marks(chunk)
            cursor.execute(
                f"SELECT job_id, token FROM {db.LOCK}{dialect.by_key} WHERE job_id IN ({marks}) ORDER BY job_id"
                f"{dialect.for_change_skip}",
                params,
            )
            rows = [(dialect.to_uuid(job), dialect.to_uuid(token)) for job, token in cursor.fetchall()]
            mine = [job for job, token in rows if found[job] == token]
            # Another may have their key by now: these are left to the requeuer, who knows what to do then.
            marks, params = dialect.marks(mine or [worker])
            cursor.execute(
                f"SELECT id FROM {db.JOB} WHERE id IN ({marks}) AND unique_key IS NOT NULL AND unique_until = 'started'", params
            )
            keyless = {dialect.to_uuid(row[0]) for row in cursor.fetchall()}
            mine = [job for job in mine if job not in keyless]
            if not mine:
                continue
            marks, params = dialect.marks(mine)
            tokens, more = dialect.marks(found[job] for job in mine)
            cursor.execute(*dialect.delete_by_key(db.LOCK, "job_id", mine))
            where = (
                f" WHERE id IN ({marks}) AND last_token IN ({tokens}) AND status = 'running' AND starts > 0 AND attempts_used > 0"
            )
            cursor.execute(f"SELECT queue, batch_id FROM {db.JOB}{dialect.by_key}{where}{dialect.for_change}", [*params, *more])
            tally.write(cursor, Counter(_handed_back(dialect, *row) for row in cursor.fetchall()))
            # `started_at` first: MariaDB's later assignments see what the earlier ones have set.
            cursor.execute(
                f"UPDATE {db.JOB}{dialect.by_key} SET status = 'ready',"
                " started_at = CASE WHEN starts <= 1 THEN NULL ELSE started_at END,"
                " starts = starts - 1, attempts_used = attempts_used - 1,"
                f" reason = 'handed back: its worker lost the connection while claiming it'{where}",
                [*params, *more],
            )
            count += cursor.rowcount
    return count

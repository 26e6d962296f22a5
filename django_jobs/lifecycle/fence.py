"""Writes about a running attempt: progress, heartbeat, partial output, the success of an `atomic=True` job;

all fenced by its token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_jobs import db, prepared
from django_jobs.exceptions import AttemptLost
from django_jobs.lifecycle import tally
from django_jobs.lifecycle.ended import leave_ended
from django_jobs.lifecycle.successes import prune_delay
from django_jobs.outcomes import Attempt
from django_jobs.serializers import dumps
from django_jobs.statuses import Move, Status, check

_UNSET: Any = object()


@dataclass(slots=True)
class Note:
    """What a running attempt reported since the last cycle; a later report replaces an earlier one."""

    attempt: Attempt
    heartbeat: bool = False
    progress: Any = _UNSET  # {"done", "total", "message"}
    output: Any = _UNSET

    @property
    def has_progress(self) -> bool:
        """Whether progress was reported."""
        return self.progress is not _UNSET

    @property
    def has_output(self) -> bool:
        """Whether partial output was saved."""
        return self.output is not _UNSET


class CancelWish(NamedTuple):
    """A request to stop a running job."""

    job_id: UUID
    reason: str
    force: bool


def write_notes(connection: BaseDatabaseWrapper, notes: Iterable[Note]) -> None:
    """Write reports of running attempts in the caller's transaction; that of an attempt that was taken over writes nothing."""
    dialect = db.dialect(connection)
    with connection.cursor() as cursor:
        for note in sorted(notes, key=lambda note: note.attempt.job_id):
            sets, params = [f"last_heartbeat_at = {dialect.now_sql}"], []
            if note.has_progress:
                sets.append("progress = %s")
                params.append(dumps(note.progress))
            if note.has_output:
                sets.append("output = %s")
                params.append(dumps(note.output))
            job, token = dialect.uuid(note.attempt.job_id), dialect.uuid(note.attempt.token)
            cursor.execute(
                f"UPDATE {db.JOB} SET {', '.join(sets)} WHERE id = %s AND last_token = %s AND status = 'running'"
                f" AND EXISTS (SELECT 1 FROM {db.LOCK} l WHERE l.job_id = %s AND l.token = %s)",
                [*params, job, token, job, token],
            )


def cancel_wishes(connection: BaseDatabaseWrapper, jobs: Sequence[UUID]) -> list[CancelWish]:
    """Return the requests to stop any of `jobs`, the forced ones last so that they win."""
    dialect = db.dialect(connection)
    wishes: list[CancelWish] = []
    with connection.cursor() as cursor:
        for chunk in db.batches(jobs, 500):
            marks, params = dialect.marks(chunk)
            cursor.execute(
                f"SELECT job_id, reason, {connection.ops.quote_name('force')} FROM {db.CANCEL} WHERE job_id IN ({marks})", params
            )
            wishes += [CancelWish(dialect.to_uuid(job), reason, bool(force)) for job, reason, force in cursor.fetchall()]
    return sorted(wishes, key=lambda wish: wish.force)


def tokens_present(connection: BaseDatabaseWrapper, rows: Mapping[UUID, UUID]) -> set[UUID]:
    """Return which of the tokens in `rows` (job id -> token) still have their lock row, locked by somebody or not."""
    dialect = db.dialect(connection)
    present: set[UUID] = set()
    with connection.cursor() as cursor:
        for chunk in db.batches(list(rows), 500):
            marks, params = dialect.marks(chunk)
            cursor.execute(f"SELECT token FROM {db.LOCK} WHERE job_id IN ({marks})", params)
            present |= {dialect.to_uuid(row[0]) for row in cursor.fetchall()}
    return present & set(rows.values())


def tokens_recorded(connection: BaseDatabaseWrapper, rows: Mapping[UUID, UUID]) -> set[UUID]:
    """Return which tokens are those of a job's last attempt that has ended:

    an outcome whose commit was never confirmed, yet landed.
    """
    dialect = db.dialect(connection)
    found: set[UUID] = set()
    with connection.cursor() as cursor:
        for chunk in db.batches(list(rows), 500):
            marks, params = dialect.marks(chunk)
            cursor.execute(f"SELECT last_token FROM {db.JOB} WHERE id IN ({marks}) AND status <> 'running'", params)
            found |= {dialect.to_uuid(row[0]) for row in cursor.fetchall() if row[0] is not None}
    return found & set(rows.values())


def promote(connection: BaseDatabaseWrapper, attempts: Sequence[Attempt]) -> None:
    """Clear the prefetched mark of `attempts`: from the commit on they count as started. Called before their functions are."""
    if connection.vendor == "postgresql":
        prepared.fetch_all(
            connection,
            f"UPDATE {db.LOCK} l SET prefetched = false FROM unnest(%s::uuid[], %s::uuid[]) p(job, token)"
            " WHERE l.job_id = p.job AND l.token = p.token",
            [[attempt.job_id for attempt in attempts], [attempt.token for attempt in attempts]],
        )
        return
    dialect = db.dialect(connection)
    with connection.cursor() as cursor:
        for chunk in db.batches(attempts, 400):
            marks, params = dialect.marks(attempt.job_id for attempt in chunk)
            tokens, more = dialect.marks(attempt.token for attempt in chunk)
            cursor.execute(
                f"UPDATE {db.LOCK}{dialect.by_key} SET prefetched = %s WHERE job_id IN ({marks}) AND token IN ({tokens})",
                [False, *params, *more],
            )


def fence_success(attempt: Attempt, result: Any, *, using: str) -> None:
    """Record the success of an `atomic=True` job in the job's own transaction on `using`, beside the control connection's hold.

    The lock row is locked FOR KEY SHARE, which goes beside the holder's lock and which a sweep (FOR UPDATE) skips; the control
    loop deletes it once the executor has reported. Raises `AttemptLost` when the attempt was taken over or is to be cancelled:
    the caller's transaction must roll back.
    """
    check(Move.RECORD, Status.RUNNING, Status.SUCCEEDED)
    connection = connections[using]
    dialect = db.dialect(connection)
    job, token = dialect.uuid(attempt.job_id), dialect.uuid(attempt.token)
    keep = prune_delay(attempt, Status.SUCCEEDED)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT 1 FROM {db.LOCK} WHERE job_id = %s AND token = %s{dialect.for_fence}", [job, token])
        if cursor.fetchone() is None:
            raise AttemptLost(f"Job {attempt.job_id}: attempt {attempt.number} was taken over; its writes are rolled back.")
        cursor.execute(
            f"UPDATE {db.JOB} SET status = 'succeeded', last_outcome = 'succeeded', reason = '', deaths = 0, result = %s,"
            f" finished_at = {dialect.now_sql}, prune_at = {dialect.now_plus() if keep is not None else '%s'}"
            f" WHERE id = %s AND status = 'running' AND last_token = %s"
            f" AND NOT EXISTS (SELECT 1 FROM {db.CANCEL} c WHERE c.job_id = %s)",
            [None if result is None else dumps(result), keep, job, token, job],
        )
        if cursor.rowcount != 1:
            raise AttemptLost(f"Job {attempt.job_id}: attempt {attempt.number} is to be cancelled; its writes are rolled back.")
        tally.write(cursor, {(attempt.queue, tally.SUCCEEDED, attempt.batch): 1})
        leave_ended(cursor, dialect, [attempt.job_id])

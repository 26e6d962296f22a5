"""Record: write the outcomes of attempts, fenced by their lock rows, in the caller's transaction.

Every write about an attempt requires that the lock row with its token is still there; recording deletes it in the same
transaction. An outcome whose lock row is gone was taken over by somebody else: it is dropped and reported as fenced. An attempt
number would be no substitute: two copies of a job can carry the same number, never the same token.

Successes go in one statement; everything else is decided by `retry.decide`, the one function that says what becomes of a job. A
job that somebody asked to cancel is never a plain success: it takes the second way. One bad row costs one row: when a batch
fails, its members are written one by one, each in a savepoint, and what can't be written is recorded as a failure that says so.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from django.db import DatabaseError, IntegrityError, InterfaceError
from django.db.backends.base.base import BaseDatabaseWrapper

from django_jobs import db
from django_jobs.conf import jobs_settings
from django_jobs.lifecycle import tally
from django_jobs.lifecycle.attempts import error_of, keep_attempt
from django_jobs.lifecycle.ended import leave_ended
from django_jobs.lifecycle.successes import lock_tokens, prune_delay, succeed_portable, succeed_postgresql
from django_jobs.models.stat import RETRIED, move_name
from django_jobs.outcomes import (
    Cancelled,
    ErrorInfo,
    Event,
    Failed,
    Finished,
    HandedBack,
    Succeeded,
)
from django_jobs.retry import End, decide, is_database_conflict
from django_jobs.serializers import dumps
from django_jobs.statuses import FINAL, Move, Status, check

logger = logging.getLogger("django_jobs.record")

_EVENTS = {
    Status.SUCCEEDED: "job_succeeded",
    Status.FAILED: "job_failed",
    Status.TIMED_OUT: "job_timed_out",
    Status.CANCELLED: "job_cancelled",
    Status.READY: "job_retrying",
    Status.SCHEDULED: "job_retrying",
}


#: The end of an attempt that succeeded.
_DONE = End(True, Status.SUCCEEDED, 0.0, True, "succeeded", "", 0)


@dataclass(slots=True)
class Recorded:
    """What became of a batch. `fenced`: tokens whose attempt was taken over; `done`: those that are settled now;
    `later`: outcomes whose job somebody else's open transaction has locked: to be sent again, alone, after a while."""

    events: list[Event] = field(default_factory=list)
    fenced: list[UUID] = field(default_factory=list)
    done: list[UUID] = field(default_factory=list)
    later: list[Finished] = field(default_factory=list)
    #: Whether jobs of a graph have ended: once this is committed, they are to be followed.
    has_ended: bool = False


@dataclass(slots=True, frozen=True)
class _Asked:
    """Somebody's wish to cancel."""

    reason: str
    by: str


def record(connection: BaseDatabaseWrapper, finished: Sequence[Finished], *, worker_name: str) -> Recorded:
    """Write the outcomes in the caller's open transaction; the caller commits, and then dispatches `events`.

    Raises a database error only when the connection is lost or the transaction can't go on.
    """
    result = Recorded()
    confirmed = [item for item in finished if item.confirmed_by_task]
    finished = [item for item in finished if not item.confirmed_by_task]
    plain = [item for item in finished if _is_plain(item)]
    others = [item for item in finished if not _is_plain(item)]
    if confirmed:
        _isolated(connection, confirmed, result, worker_name, _clear_confirmed)
    if plain:
        others += _isolated(connection, plain, result, worker_name, _record_successes)
    if others:
        _isolated(connection, others, result, worker_name, _record_others)
    return result


def _is_plain(item: Finished) -> bool:
    return isinstance(item.outcome, Succeeded) and not item.logs and not item.outcome.note


_Write = Callable[[BaseDatabaseWrapper, Sequence[Finished], str], tuple[Recorded, list[Finished]]]


def _isolated(
    connection: BaseDatabaseWrapper,
    items: Sequence[Finished],
    result: Recorded,
    worker_name: str,
    write: _Write,
    *,
    again: bool = False,
) -> list[Finished]:
    """Write a batch in a savepoint; when it fails, write its members one by one."""
    items = sorted(items, key=lambda item: item.attempt.job_id)
    try:
        with db.savepoint(connection, "outcomes"):
            part, left = write(connection, items, worker_name)
    except Exception as error:
        # Not only the database's: whatever one outcome has in it must cost that one, not the loop that writes them all.
        if _is_over(connection, error):
            raise
        if len(items) == 1:
            is_last_resort = isinstance(items[0].outcome, Failed) and items[0].outcome.error.exception_class == _UNWRITABLE
            if is_last_resort or is_database_conflict(error):
                result.later.append(items[0])
                return []
            if isinstance(error, IntegrityError) and not again:
                if (rival := _rival(connection, items[0])) is not None:
                    outcome = Cancelled(reason=f"superseded by {rival}, which has its unique key by now")
                    return _isolated(connection, [replace(items[0], outcome=outcome)], result, worker_name, _record_others)
                # Who had the key has let it go since.
                return _isolated(connection, items, result, worker_name, write, again=True)
            logger.exception("The outcome of job %s could not be written", items[0].attempt.job_id)
            return _isolated(connection, [_unwritable(items[0], error)], result, worker_name, _record_others)
        waits = is_database_conflict(error)
        free = _free(connection, items) if waits else items
        if len(free) < len(items):
            # Those that somebody's transaction has locked are waited for once in a while, not each for its own lock timeout.
            result.later += [item for item in items if item not in free]
            return _isolated(connection, free, result, worker_name, write) if free else []
        # Keys of open transactions are waited for a few times, then it is another's turn: this must not hold up the worker.
        left, patience = [], len(result.later) + _WAITS
        for item in random.sample(items, len(items)) if waits else items:
            if len(result.later) < patience:
                left += _isolated(connection, [item], result, worker_name, write)
            else:
                result.later.append(item)
        return left
    result.events += part.events
    result.fenced += part.fenced
    result.done += part.done
    result.has_ended |= part.has_ended
    return left


def _free(connection: BaseDatabaseWrapper, items: Sequence[Finished]) -> Sequence[Finished]:
    """Return those whose jobs no other transaction has locked just now, and lock them; all, where there are no row locks."""
    dialect = db.dialect(connection)
    if not dialect.row_locks:
        return items
    marks, ids = dialect.marks(item.attempt.job_id for item in items)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT id FROM {db.JOB}{dialect.by_key} WHERE id IN ({marks}) ORDER BY id{dialect.for_change_skip}", ids)
        found = {dialect.to_uuid(row[0]) for row in cursor.fetchall()}
    return [item for item in items if item.attempt.job_id in found]


def _rival(connection: BaseDatabaseWrapper, item: Finished) -> UUID | None:
    """Return the job that holds the unique key of this one, which does not hold it while it runs; None if there is none."""
    dialect = db.dialect(connection)
    job = dialect.uuid(item.attempt.job_id)
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT r.id FROM {db.JOB} j JOIN {db.JOB} r ON r.unique_key = j.unique_key WHERE j.id = %s AND r.id <> %s"
            " AND (r.status IN ('waiting', 'scheduled', 'ready') OR (r.status = 'running' AND r.unique_until IN ('', 'pruned'))"
            " OR (r.status = 'succeeded' AND r.unique_until = 'pruned'))",
            [job, job],
        )
        row = cursor.fetchone()
    return None if row is None else dialect.to_uuid(row[0])


_WAITS = 2  # lock timeouts for the members of one batch
_UNWRITABLE = "django_jobs.exceptions.InvalidResult"


def _unwritable(item: Finished, error: BaseException) -> Finished:
    message = f"The outcome could not be written: {type(error).__name__}: {str(error)[:500]}".replace("\x00", "\\x00")
    return replace(item, outcome=Failed(ErrorInfo(_UNWRITABLE, message), final=True), logs="")


def _is_over(connection: BaseDatabaseWrapper, error: Exception) -> bool:
    """Whether the session is gone, or the whole transaction, savepoints included (a deadlock on MariaDB)."""
    if isinstance(error, DatabaseError):
        lost = db.dialect(connection).is_connection_loss(error)
        return lost or (connection.vendor == "mysql" and db.errno(error) == 1213)
    return isinstance(error, InterfaceError)


def _clear_confirmed(
    connection: BaseDatabaseWrapper, items: Sequence[Finished], worker_name: str
) -> tuple[Recorded, list[Finished]]:
    """Delete the lock rows of `atomic=True` jobs, whose success is committed already with their own writes."""
    dialect = db.dialect(connection)
    part = Recorded()
    with connection.cursor() as cursor:
        for item in items:
            job, token = dialect.uuid(item.attempt.job_id), dialect.uuid(item.attempt.token)
            cursor.execute(f"DELETE FROM {db.LOCK} WHERE job_id = %s AND token = %s", [job, token])
            note = item.outcome.note[:500] if isinstance(item.outcome, Succeeded) else ""
            # What only the executor knew when the job's own transaction had ended.
            cursor.execute(
                f"UPDATE {db.JOB} SET run_seconds = %s, reason = %s WHERE id = %s AND last_token = %s AND status = 'succeeded'",
                [item.run_seconds, note, job, token],
            )
            if cursor.rowcount and item.logs:
                keep_attempt(cursor, dialect, item, _DONE, worker_name)
            part.done.append(item.attempt.token)
            part.events.append(_event("job_succeeded", item, Status.SUCCEEDED))
    part.has_ended = any(item.attempt.graph for item in items)  # the job's own transaction has left the row
    return part, []


def _record_successes(
    connection: BaseDatabaseWrapper, items: Sequence[Finished], worker_name: str
) -> tuple[Recorded, list[Finished]]:
    if connection.vendor == "postgresql":
        done, has_ended = succeed_postgresql(connection, items)
    else:
        done, has_ended = succeed_portable(connection, items)
    part = Recorded(has_ended=has_ended)
    left = []
    for item in items:
        if item.attempt.job_id in done:
            part.done.append(item.attempt.token)
            part.events.append(_event("job_succeeded", item, Status.SUCCEEDED))
        else:
            left.append(item)  # taken over, or somebody asked to cancel: looked at singly
    return part, left


# -- everything else --------------------------------------------------------------------------------


def _record_others(
    connection: BaseDatabaseWrapper, items: Sequence[Finished], worker_name: str
) -> tuple[Recorded, list[Finished]]:
    dialect = db.dialect(connection)
    part = Recorded()
    with connection.cursor() as cursor:
        for chunk in db.batches(items, 200):
            tokens = lock_tokens(cursor, dialect, chunk)
            good = [item for item in chunk if tokens.get(item.attempt.job_id) == item.attempt.token]
            part.fenced += [item.attempt.token for item in chunk if tokens.get(item.attempt.job_id) != item.attempt.token]
            if not good:
                continue
            asked = _cancel_requests(cursor, dialect, good)
            _lock_jobs(cursor, dialect, good)
            cursor.execute(*dialect.delete_by_key(db.LOCK, "job_id", [item.attempt.job_id for item in good]))
            settle(cursor, dialect, good, asked, part, worker_name)
    return part, []


def _cancel_requests(cursor: Any, dialect: db.Dialect, items: Sequence[Finished]) -> dict[UUID, _Asked]:
    """Return the cancel requests for these jobs, and delete them: they end with the attempt.

    One that also asks to delete the job stays: maintenance deletes it, by the rules of a project's own foreign keys.
    """
    marks, ids = dialect.marks(item.attempt.job_id for item in items)
    cursor.execute(f"SELECT job_id, reason, requested_by, delete_job FROM {db.CANCEL} WHERE job_id IN ({marks}) ORDER BY id", ids)
    asked: dict[UUID, _Asked] = {}
    deleted = set()
    for job, reason, by, delete_job in cursor.fetchall():
        asked[dialect.to_uuid(job)] = _Asked(reason, by)
        if delete_job:
            deleted.add(dialect.to_uuid(job))
    if done := asked.keys() - deleted:
        marks, ids = dialect.marks(done)
        cursor.execute(f"DELETE FROM {db.CANCEL} WHERE job_id IN ({marks})", ids)
    return asked


def _lock_jobs(cursor: Any, dialect: db.Dialect, items: Sequence[Finished]) -> None:
    if dialect.for_change:
        marks, ids = dialect.marks(item.attempt.job_id for item in items)
        cursor.execute(f"SELECT id FROM {db.JOB}{dialect.by_key} WHERE id IN ({marks}) ORDER BY id{dialect.for_change}", ids)


def settle(
    cursor: Any,
    dialect: db.Dialect,
    items: Sequence[Finished],
    asked: dict[UUID, _Asked],
    part: Recorded,
    worker_name: str,
) -> None:
    """Move jobs whose lock rows the caller has deleted to where `decide` says, and keep the records of their attempts.

    A job whose unique key another live job holds by now can't go back to work: it is cancelled with that reason.
    """
    changes: Counter[tally.Key] = Counter()
    ended: list[UUID] = []
    for item in items:
        request = asked.get(item.attempt.job_id)
        end = decide(
            item.outcome,
            item.attempt,
            cancel_requested=request is not None,
            default_backoff=jobs_settings().backoff,
        )
        check(Move.RECORD, Status.RUNNING, end.status)
        if request is not None and end.status == Status.CANCELLED:
            by = f" (by {request.by})" if request.by else ""
            end = end._replace(reason=(f"{request.reason or 'cancelled on request'}{by}")[:500])
        moved = _move(cursor, dialect, item, end)
        if moved:
            keep_attempt(cursor, dialect, item, end, worker_name)
            part.done.append(item.attempt.token)
            if end.status in FINAL:
                ended.append(item.attempt.job_id)
            changes[item.attempt.queue, move_name(Status.RUNNING, end.status), item.attempt.batch] += 1
            if not isinstance(item.outcome, HandedBack) or end.status in FINAL:
                part.events.append(_event(_EVENTS[end.status], item, end.status, end.reason))
                changes[item.attempt.queue, RETRIED, item.attempt.batch] += end.status not in FINAL
        else:
            part.fenced.append(item.attempt.token)
    tally.write(cursor, changes)
    part.has_ended |= bool(ended and leave_ended(cursor, dialect, ended))


def _move(cursor: Any, dialect: db.Dialect, item: Finished, end: End) -> bool:
    now = dialect.now_sql
    job = item.attempt
    error = error_of(item)
    final = end.status in FINAL
    parked = item.outcome.parked if isinstance(item.outcome, HandedBack) and end.status == Status.READY else ""
    never_started = isinstance(item.outcome, HandedBack) and not item.outcome.started
    sets: list[tuple[str, str, list[Any]]] = [
        ("status", "%s", [end.status.value]),
        ("last_outcome", "%s", [end.outcome]),
        ("reason", "%s", [end.reason[:500]]),
        ("parked", "%s", [parked]),
        ("deaths", "%s", [end.deaths]),
    ]
    # `started_at` first: MariaDB reads columns as the assignments before have left them.
    if never_started:
        sets.append(("started_at", "CASE WHEN starts <= 1 THEN NULL ELSE started_at END", []))
    if not end.counted:
        sets.append(("attempts_used", "CASE WHEN attempts_used > 0 THEN attempts_used - 1 ELSE 0 END", []))
    if never_started:
        # As if it had never been claimed: the next start takes this number again.
        sets.append(("starts", "CASE WHEN starts > 0 THEN starts - 1 ELSE 0 END", []))
    if error is not None:
        sets += [
            ("error_class", "%s", [error.exception_class[:255]]),
            ("error_message", "%s", [error.message]),
            ("fingerprint", "%s", [error.fingerprint[:32]]),
        ]
    if item.run_seconds is not None:
        sets.append(("run_seconds", "%s", [item.run_seconds]))
    if final:
        sets.append(("finished_at", now, []))
        keep = prune_delay(job, end.status)
        sets.append(("prune_at", dialect.now_plus(), [keep]) if keep is not None else ("prune_at", "NULL", []))
        if isinstance(item.outcome, Succeeded) and end.status == Status.SUCCEEDED:
            result = item.outcome.result
            sets.append(("result", "%s", [None if result is None else dumps(result)]))
            if item.outcome.note:
                sets[2] = ("reason", "%s", [item.outcome.note[:500]])
    elif not isinstance(item.outcome, HandedBack) and end.delay > 0:
        sets.append(("due_at", dialect.now_plus(), [end.delay]))
    sql = ", ".join(f"{column} = {expression}" for column, expression, _ in sets)
    params = [value for _, _, values in sets for value in values]
    cursor.execute(
        f"UPDATE {db.JOB} SET {sql} WHERE id = %s AND status = 'running' AND last_token = %s",
        [*params, dialect.uuid(job.job_id), dialect.uuid(job.token)],
    )
    return bool(cursor.rowcount)


def _event(name: str, item: Finished, status: Status, reason: str = "") -> Event:
    attempt = item.attempt
    return Event(
        name=name,
        job_id=attempt.job_id,
        task=attempt.task,
        queue=attempt.queue,
        status=status,
        backend=attempt.backend,
        attempt=attempt.number,
        run_seconds=item.run_seconds,
        error=error_of(item),
        reason=reason,
        told=item.told == status,
    )

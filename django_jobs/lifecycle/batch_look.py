"""Look at batches: end those whose jobs have all ended, open those again of which a job lives again, release their callbacks.

State model: a batch is over when it is sealed and none of its jobs lives. Nothing counts them down: the numbers are the sum of
the rows that every move of a job leaves (`tally`). A batch is looked at after each change of its numbers, because whoever folds
the rows of a batch looks at it in the same transaction; where a look leaves something undone it leaves a note, a row that
changes no number.

Why no job is forgotten, and no callback runs twice: whoever adds jobs keeps the batch's row locked, shared, until its commit
(`batch.join`). A look that would end a batch locks the row FOR UPDATE first, skipping one that is locked, and reads the numbers
in a later statement: so it sees all that was added, or somebody who adds later sees the end. A callback is a job that waits,
and leaves `waiting` by one conditional update.

What it never does: wait. For a row that somebody has locked it leaves a note.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from django.db.backends.base.base import BaseDatabaseWrapper

from .. import db
from ..models.stat import spelled_out
from ..statuses import LIVE, Status
from . import tally
from .follow import STILL_WAITS, Followed, cancel_waiting, release

#: Batches in one statement.
_BATCH: Final = 100
#: How a job ends that has not succeeded.
BAD: Final = (Status.FAILED, Status.TIMED_OUT, Status.CANCELLED)

Numbers = Counter[str]


@dataclass(slots=True)
class _Row:
    is_sealed: bool
    is_finished: bool
    on_success: UUID | None
    on_failure: UUID | None
    on_finish: UUID | None


def numbers_of(connection: BaseDatabaseWrapper, ids: Iterable[UUID]) -> dict[UUID, Numbers]:
    """Return the numbers of each of these batches: of jobs by status, and the series `TOTALS`.

    As of one moment, what the open transaction has done included; a fold is seen whole or not at all.
    """
    with connection.cursor() as cursor:
        return _numbers(cursor, db.dialect(connection), list(ids))


def _numbers(cursor: Any, dialect: db.Dialect, ids: Sequence[UUID]) -> dict[UUID, Numbers]:
    found: dict[UUID, Numbers] = {batch: Counter() for batch in ids}
    for part in db.batches(ids, _BATCH):
        marks, params = dialect.marks(part)
        cursor.execute(
            "SELECT batch_id, name, SUM(value) FROM ("
            f"SELECT batch_id, name, value FROM {db.BATCH_COUNT} WHERE batch_id IN ({marks})"
            f" UNION ALL SELECT batch_id, name, value FROM {db.DELTA} WHERE batch_id IN ({marks})"
            ") AS rows_ GROUP BY batch_id, name",
            [*params, *params],
        )
        for batch, name, value in cursor.fetchall():
            numbers = found[dialect.to_uuid(batch)]
            for number, change in spelled_out(name, int(value)):
                numbers[number] += change
    return found


def look(connection: BaseDatabaseWrapper, batches: Iterable[UUID]) -> Followed:
    """Look at `batches` in the caller's open transaction. Of the answer only `queues`, those with new work, says something."""
    dialect = db.dialect(connection)
    followed = Followed()
    with connection.cursor() as cursor:
        for part in db.batches(sorted(set(batches)), _BATCH):
            _look_at(cursor, dialect, part, followed)
        followed.write(cursor, dialect)
    # A callback that is not needed was never meant to run: nobody is told that it does not.
    followed.events.clear()
    return followed


def _look_at(cursor: Any, dialect: db.Dialect, part: Sequence[UUID], followed: Followed) -> None:
    rows = _read(cursor, dialect, part)
    _forget(cursor, dialect, [batch for batch in part if batch not in rows])
    numbers = _numbers(cursor, dialect, list(rows))
    changing = [batch for batch, row in rows.items() if row.is_finished != _is_over(row, numbers[batch])]
    left: set[UUID] = set()
    if changing:
        locked = _lock(cursor, dialect, changing)
        left = set(changing) - set(locked)
        # Later statements than the one that took the locks.
        rows |= _read(cursor, dialect, locked)
        numbers |= _numbers(cursor, dialect, locked)
        for batch in locked:
            _turn(cursor, dialect, batch, rows[batch], numbers[batch])
    due: dict[UUID, UUID] = {}
    unneeded: dict[UUID, UUID] = {}
    for batch, row in rows.items():
        if batch not in left:
            _sort_callbacks(batch, row, numbers[batch], due, unneeded)
    waiting = _waiting(cursor, dialect, [*due, *unneeded])
    before, followed.again = followed.again, False
    release(cursor, dialect, {job: "" for job in due if job in waiting}, followed)
    cancel_waiting(cursor, dialect, {job: _UNNEEDED for job in unneeded if job in waiting}, followed)
    if followed.again:
        left |= {(due | unneeded)[job] for job in waiting}
    followed.again = before
    if left:
        tally.note_batches(cursor, left)


_UNNEEDED: Final = "not needed: every job of the batch has succeeded"


def _sort_callbacks(
    batch: UUID, row: _Row, numbers: Mapping[str, int], due: dict[UUID, UUID], unneeded: dict[UUID, UUID]
) -> None:
    """Put those of the batch's callbacks whose time has come, and those whose time never comes, into dicts from job to batch."""
    over = row.is_finished and _is_over(row, numbers)
    went_wrong = any(numbers[f"total_{status.value}"] > 0 for status in BAD)
    if row.on_failure and went_wrong:
        due[row.on_failure] = batch
    if not over:
        return
    if row.on_finish:
        due[row.on_finish] = batch
    if row.on_success and not _count(numbers, BAD):
        due[row.on_success] = batch
    if row.on_failure and not went_wrong:
        unneeded[row.on_failure] = batch


def _turn(cursor: Any, dialect: db.Dialect, batch: UUID, row: _Row, numbers: Mapping[str, int]) -> None:
    """End a batch that is over, or open it again; its row is locked."""
    over = _is_over(row, numbers)
    if over == row.is_finished:
        return
    if not over:
        cursor.execute(f"UPDATE {db.BATCH} SET finished_at = NULL, read_at = NULL WHERE id = %s", [dialect.uuid(batch)])
        row.is_finished = False
        return
    cursor.execute(
        f"UPDATE {db.BATCH} SET finished_at = {dialect.now_sql} WHERE id = %s AND finished_at IS NULL", [dialect.uuid(batch)]
    )
    row.is_finished = True
    if row.on_success and (bad := _count(numbers, BAD)):
        reason = f"waits: {bad} job{'s' if bad > 1 else ''} of its batch did not succeed"
        cursor.execute(f"UPDATE {db.JOB} SET reason = %s WHERE id = %s AND {STILL_WAITS}", [reason, dialect.uuid(row.on_success)])


def _is_over(row: _Row, numbers: Mapping[str, int]) -> bool:
    return row.is_sealed and _count(numbers, LIVE) <= 0


def _count(numbers: Mapping[str, int], statuses: Iterable[Status]) -> int:
    return sum(numbers[status.value] for status in statuses)


def _read(cursor: Any, dialect: db.Dialect, batches: Sequence[UUID]) -> dict[UUID, _Row]:
    if not batches:
        return {}
    marks, params = dialect.marks(batches)
    cursor.execute(
        "SELECT id, sealed_at IS NOT NULL, finished_at IS NOT NULL, on_success_id, on_failure_id, on_finish_id"
        f" FROM {db.BATCH} WHERE id IN ({marks})",
        params,
    )
    return {
        dialect.to_uuid(batch): _Row(
            bool(sealed), bool(finished), *(None if job is None else dialect.to_uuid(job) for job in jobs)
        )
        for batch, sealed, finished, *jobs in cursor.fetchall()
    }


def _lock(cursor: Any, dialect: db.Dialect, batches: Sequence[UUID]) -> list[UUID]:
    marks, params = dialect.marks(sorted(batches))
    cursor.execute(
        f"SELECT id FROM {db.BATCH}{dialect.by_key} WHERE id IN ({marks}) ORDER BY id{dialect.for_update_skip}", params
    )
    return [dialect.to_uuid(row[0]) for row in cursor.fetchall()]


def _waiting(cursor: Any, dialect: db.Dialect, jobs: Sequence[UUID]) -> set[UUID]:
    """Return those of these jobs that wait, by a plain read: no lock on a callback that runs already."""
    if not jobs:
        return set()
    marks, params = dialect.marks(jobs)
    cursor.execute(f"SELECT id FROM {db.JOB} WHERE id IN ({marks}) AND {STILL_WAITS}", params)
    return {dialect.to_uuid(row[0]) for row in cursor.fetchall()}


def _forget(cursor: Any, dialect: db.Dialect, batches: Sequence[UUID]) -> None:
    """Delete the numbers of batches that are gone."""
    if batches:
        marks, params = dialect.marks(batches)
        cursor.execute(f"DELETE FROM {db.BATCH_COUNT} WHERE batch_id IN ({marks})", params)

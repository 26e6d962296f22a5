"""Tally: count what moves, in the transaction that moves it, as rows that are only ever added.

A row says how many jobs of a queue made one move. There are a few to a transaction, never one for each job. Nobody waits for
anybody: two that count the same move add two rows, and `rollup` adds them up later. A rollback takes the row with it. The hot
statements of PostgreSQL count within themselves; everything else calls `write`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final
from uuid import UUID

from django.db import connections

from ..db import DELTA, dialect
from ..db import batches as db_batches
from ..models import Job
from ..models.stat import move_name
from ..statuses import Status

#: What is counted: (queue, name, batch), the last None for jobs of no batch.
Key = tuple[str, str, UUID | None]

#: Rows in one statement.
_ROWS: Final = 250

#: The name of a row that only says that a batch is to be looked at.
LOOK: Final = "look"

CLAIMED: Final = move_name(Status.READY, Status.RUNNING)
SUCCEEDED: Final = move_name(Status.RUNNING, Status.SUCCEEDED)


def write(cursor: Any, changes: Mapping[Key, int]) -> None:
    """Add `changes` in the transaction open on the cursor's connection."""
    words = dialect(cursor.db)
    rows = [
        (queue, name, None if batch is None else words.uuid(batch), value)
        for (queue, name, batch), value in sorted(changes.items(), key=_order)
        if value
    ]
    for part in db_batches(rows, _ROWS):
        marks = ", ".join(["(%s, %s, %s, %s)"] * len(part))
        cursor.execute(
            f"INSERT INTO {DELTA} (queue, name, batch_id, value) VALUES {marks}", [value for row in part for value in row]
        )


def _order(change: tuple[Key, int]) -> tuple[str, str, str]:
    (queue, name, batch), _value = change
    return queue, name, str(batch or "")


def moved(jobs: Iterable[Job], target: str, *, using: str) -> None:
    """Count that `jobs`, whose queue and status are as they were read under a lock, have become `target` (empty: deleted)."""
    changes = Counter((job.queue, move_name(job.status, target), job.batch_id) for job in jobs)
    if changes:
        with connections[using].cursor() as cursor:
            write(cursor, changes)


def note_batches(cursor: Any, batches: Iterable[UUID]) -> None:
    """Have `batches` looked at by whoever folds next, in the transaction open on the cursor's connection: no number changes."""
    words = dialect(cursor.db)
    for part in db_batches(sorted(batches), _ROWS):
        marks = ", ".join([f"('', '{LOOK}', %s, 0)"] * len(part))
        cursor.execute(f"INSERT INTO {DELTA} (queue, name, batch_id, value) VALUES {marks}", [words.uuid(one) for one in part])


def counting(rows: str, name: str) -> str:
    """Return SQL (PostgreSQL) that counts the rows of the CTE `rows`, with `queue` and `batch_id`. `name` is SQL of a name."""
    return (
        f"INSERT INTO {DELTA} (queue, name, batch_id, value)"
        f" SELECT queue, {name}, batch_id, count(*) FROM {rows} GROUP BY 1, 2, 3"
    )

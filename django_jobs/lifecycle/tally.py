"""Tally: count what moves, in the transaction that moves it, as rows that are only ever added.

A row says how many jobs of a queue made one move. There are a few to a transaction, never one for each job. Nobody waits for
anybody: two that count the same move add two rows, and `rollup` adds them up later. A rollback takes the row with it. The hot
statements of PostgreSQL count within themselves; everything else calls `write`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from django.db import connections

from ..db import DELTA, batches
from ..models import Job
from ..models.stat import move_name
from ..statuses import Status

#: Rows in one statement.
_ROWS: Final = 250

CLAIMED: Final = move_name(Status.READY, Status.RUNNING)
SUCCEEDED: Final = move_name(Status.RUNNING, Status.SUCCEEDED)


def write(cursor: Any, changes: Mapping[tuple[str, str], int]) -> None:
    """Add `changes`, (queue, name) -> value, in the transaction open on the cursor's connection."""
    rows = [(queue, name, value) for (queue, name), value in sorted(changes.items()) if value]
    for part in batches(rows, _ROWS):
        marks = ", ".join(["(%s, %s, %s)"] * len(part))
        cursor.execute(f"INSERT INTO {DELTA} (queue, name, value) VALUES {marks}", [value for row in part for value in row])


def moved(jobs: Iterable[Job], target: str, *, using: str) -> None:
    """Count that `jobs`, whose queue and status are as they were read under a lock, have become `target` (empty: deleted)."""
    changes = Counter((job.queue, move_name(job.status, target)) for job in jobs)
    if changes:
        with connections[using].cursor() as cursor:
            write(cursor, changes)


def counting(rows: str, name: str) -> str:
    """Return SQL (PostgreSQL) that counts the rows of the CTE `rows`, which has a column `queue`. `name` is SQL of a name."""
    return f"INSERT INTO {DELTA} (queue, name, value) SELECT queue, {name}, count(*) FROM {rows} GROUP BY 1, 2"

"""What a job of a graph leaves behind when it ends: a row that says that its children are to be looked at (see `follow`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from .. import db


def leave_ended(cursor: Any, dialect: db.Dialect, ids: Iterable[UUID]) -> int:
    """Write a row for each of these jobs that is in a graph, in the transaction that ends it. Return how many there were."""
    count = 0
    for part in db.batches(sorted(ids), 500):
        marks, params = dialect.marks(part)
        cursor.execute(
            f"INSERT INTO {db.ENDED} (job_id) SELECT id FROM {db.JOB} WHERE id IN ({marks}) AND graph IS NOT NULL", params
        )
        count += max(0, cursor.rowcount)
    return count

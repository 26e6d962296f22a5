"""Roll up: add the deltas that `tally` has written to the counts, and mend counts that something else has put wrong.

Both are bounded, and correct when they run twice at once, beside everything that moves jobs.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final
from uuid import UUID

from django.db import DatabaseError, connections, transaction
from django.db.models import F

from .. import db
from ..db import BATCH_COUNT, COUNT, DELTA, JOB
from ..models import IdempotencyKey, Leader
from ..models.stat import spelled_out
from ..statuses import Status
from . import tally
from .recover import is_transaction_lost, writing

logger = logging.getLogger("django_jobs.rollup")

#: The maintenance service that recounts; its row is also what two recounts meet at.
RECOUNT: Final = "recount"
#: Rows of counts in one statement.
_ROWS: Final = 250


@dataclass(slots=True)
class Folded:
    """What a fold took: so many deltas. `batches`: those that they name; the caller looks at them in the same transaction."""

    touched: int = 0
    batches: set[UUID] = field(default_factory=set)


def fold(*, using: str, limit: int) -> Folded:
    """Add up to `limit` deltas to the counts, the oldest first, in the caller's open transaction.

    Deltas that another fold has locked are left to it: each is taken once. Readers see it either way, since a transaction takes
    the deltas and changes the counts as one. Counts are changed in order, so two folds wait for each other at most.
    """
    connection = connections[using]
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(_FOLD, [limit])
            touched, named = cursor.fetchone()
            return Folded(int(touched), set(named or ()))
        dialect = db.dialect(connection)
        cursor.execute(
            f"SELECT id, queue, name, value, batch_id FROM {DELTA}{dialect.by_key} ORDER BY id LIMIT %s{dialect.for_update_skip}",
            [limit],
        )
        rows = cursor.fetchall()
        sums: Counter[tuple[str, str]] = Counter()
        batches: Counter[tuple[str, str]] = Counter()
        for _id, queue, name, value, batch in rows:
            if name == tally.LOOK:
                continue
            sums[queue, name] += int(value)
            if batch is not None:
                batches[batch, name] += int(value)
        for part in db.batches([row[0] for row in rows], dialect.max_params):
            cursor.execute(*dialect.delete_by_id(DELTA, part))
        is_mysql = connection.vendor == "mysql"
        for table, owner, numbers in ((COUNT, "queue", sums), (BATCH_COUNT, "batch_id", batches)):
            add = "DUPLICATE KEY UPDATE value = value + VALUES(value)" if is_mysql else _add(table, owner)
            for counts in db.batches(sorted(numbers.items()), _ROWS):
                cursor.execute(
                    f"INSERT INTO {table} ({owner}, name, value) VALUES {', '.join(['(%s, %s, %s)'] * len(counts))} ON {add}",
                    [item for (key, name), value in counts for item in (key, name, value)],
                )
    return Folded(len(rows), {dialect.to_uuid(row[4]) for row in rows if row[4] is not None})


def _add(table: str, owner: str) -> str:
    return f"CONFLICT ({owner}, name) DO UPDATE SET value = {table}.value + EXCLUDED.value"


#: Found by primary key: what has been folded leaves dead rows, which only an index passes over.
_FOLD: Final = (
    f"WITH picked AS MATERIALIZED (SELECT id FROM {DELTA} ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED),"
    f" taken AS (DELETE FROM {DELTA} d USING picked p WHERE d.id = p.id RETURNING d.queue, d.name, d.value, d.batch_id),"
    f" folded AS (INSERT INTO {COUNT} (queue, name, value)"
    f" SELECT queue, name, SUM(value) FROM taken WHERE name <> '{tally.LOOK}' GROUP BY queue, name ORDER BY queue, name"
    f" ON {_add(COUNT, 'queue')}),"
    f" batched AS (INSERT INTO {BATCH_COUNT} (batch_id, name, value)"
    f" SELECT batch_id, name, SUM(value) FROM taken WHERE batch_id IS NOT NULL AND name <> '{tally.LOOK}'"
    f" GROUP BY batch_id, name ORDER BY batch_id, name ON {_add(BATCH_COUNT, 'batch_id')})"
    " SELECT COUNT(*), array_agg(DISTINCT batch_id) FILTER (WHERE batch_id IS NOT NULL) FROM taken"
)


def recount(*, using: str) -> int:
    """Compare the numbers of jobs by queue and status with the jobs there are, and mend them; return how many were wrong.

    For after somebody has changed the table by hand, or a failure that nobody thought of. Maintenance does the same, a status
    at a time, once a day. Safe beside everything (see `recount_status`), if it is called outside a transaction.
    """
    wrong = 0
    for status in Status:
        with writing(using):
            wrong += recount_status(status, using=using)
    return wrong


def recount_status(status: Status, *, using: str) -> int:
    """Mend the numbers of jobs in `status`, in the caller's open transaction; return how many queues' numbers were wrong.

    Jobs, counts and deltas are read by *one statement*, so of one moment (PostgreSQL's snapshot at READ COMMITTED, InnoDB's read
    view, SQLite's lock). Whoever moves a job commits its row and its delta together, so at that moment both are seen or neither:
    what the two sides differ by is wrong, and no move in flight. It is written as a delta, which stays right however many moves
    are committed before it. Only another recount could write the same difference again: so each first updates one row, in an
    earlier statement than the one that reads, and the second sees what the first has written. Reads the jobs of one status, by
    an index that begins with it.
    """
    connection = connections[using]
    alone = Leader.objects.using(using).filter(name=RECOUNT)
    if not alone.update(touched=F("touched")):
        row = Leader(name=RECOUNT, next_at=db.server_now(connection))
        Leader.objects.using(using).bulk_create([row], ignore_conflicts=True)
        alone.update(touched=F("touched"))
    difference: Counter[tally.Key] = Counter()
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT queue, name, SUM(value) FROM ("
            f"SELECT queue, '' AS name, COUNT(*) AS value FROM {JOB} WHERE status = %s GROUP BY queue"
            f" UNION ALL SELECT queue, name, value FROM {COUNT} UNION ALL SELECT queue, name, value FROM {DELTA}"
            ") AS rows_ GROUP BY queue, name",
            [status.value],
        )
        for queue, name, value in cursor.fetchall():
            if not name:
                difference[queue, status.value, None] += int(value)
            else:
                for number, change in spelled_out(name, int(value)):
                    if number == status:
                        difference[queue, number, None] -= change
        tally.write(cursor, difference)
    wrong = {queue: value for (queue, _name, _batch), value in difference.items() if value}
    if wrong:
        logger.warning("The numbers of %s jobs were wrong and have been mended: %s", status, wrong)
    return len(wrong)


def recount_next(*, using: str) -> None:
    """Recount the status whose turn it is, in the caller's open transaction. One that fails waits for its next turn."""
    done = Leader.objects.using(using).filter(name=RECOUNT).values_list("touched", flat=True).first() or 0
    statuses = list(Status)
    status = statuses[done % len(statuses)]
    try:
        with transaction.atomic(using=using):
            recount_status(status, using=using)
    except DatabaseError as error:
        if is_transaction_lost(connections[using], error):
            raise
        logger.warning("The %s jobs could not be counted", status, exc_info=True)


def prune_keys(*, using: str, seconds: float, limit: int) -> int:
    """Delete up to `limit` answers to idempotent requests that are older than `seconds`. Index django_jobs_idempotency_age."""
    connection = connections[using]
    before = db.server_now(connection) - timedelta(seconds=seconds)
    keys = IdempotencyKey.objects.using(using).filter(created_at__lt=before).order_by("created_at")
    if db.dialect(connection).row_locks:
        keys = keys.select_for_update(skip_locked=True)
    ids = list(keys.values_list("id", flat=True)[:limit])
    with connection.cursor() as cursor:
        for part in db.batches(ids, db.dialect(connection).max_params):
            cursor.execute(*db.dialect(connection).delete_by_id(IdempotencyKey._meta.db_table, part))
    return len(ids)

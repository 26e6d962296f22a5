"""Write many successes at once, fenced: one statement on PostgreSQL, a few elsewhere. Jobs to be cancelled are left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.db.backends.base.base import BaseDatabaseWrapper

from django_jobs import db, prepared
from django_jobs.conf import jobs_settings
from django_jobs.lifecycle import tally
from django_jobs.lifecycle.ended import leave_ended
from django_jobs.outcomes import Attempt, Finished, Succeeded
from django_jobs.serializers import dumps
from django_jobs.statuses import Move, Status, check

_COUNTED = tally.counting("moved", f"'{tally.SUCCEEDED}'")


def prune_delay(attempt: Attempt, status: Status) -> float | None:
    """Return after how many seconds a job that ends as `status` is pruned; None: never."""
    retention: dict[str, float | None] = {**jobs_settings().retention, **(attempt.retention or {})}
    return retention.get(status)


def succeed_postgresql(connection: BaseDatabaseWrapper, items: Sequence[Finished]) -> tuple[set[UUID], bool]:
    """Write successes in one statement; return the ids of the jobs that it found running and ours, and if any is in a graph."""
    check(Move.RECORD, Status.RUNNING, Status.SUCCEEDED)
    # Lock order: own lock rows (held by this session already), then jobs by id. Primary keys throughout.
    sql = (
        "WITH o AS MATERIALIZED (SELECT * FROM unnest(%s::uuid[], %s::uuid[], %s::text[], %s::float8[], %s::float8[])"
        " o(id, token, result, run_seconds, prune)"
        f" WHERE NOT EXISTS (SELECT 1 FROM {db.CANCEL} c WHERE c.job_id = o.id)),"
        f" gone AS (DELETE FROM {db.LOCK} l USING o WHERE l.job_id = o.id AND l.token = o.token RETURNING o.*),"
        f" moved AS (UPDATE {db.JOB} j SET status = 'succeeded', last_outcome = 'succeeded', result = gone.result::jsonb,"
        " reason = '', finished_at = clock_timestamp(), run_seconds = gone.run_seconds, deaths = 0,"
        " prune_at = clock_timestamp() + gone.prune * interval '1 second'"
        " FROM gone WHERE j.id = gone.id AND j.status = 'running' RETURNING j.id, j.queue, j.batch_id, j.graph),"
        f" counted AS ({_COUNTED}),"
        f" ended AS (INSERT INTO {db.ENDED} (job_id) SELECT id FROM moved WHERE graph IS NOT NULL)"
        " SELECT id, graph IS NOT NULL FROM moved"
    )
    params: list[list[Any]] = [[], [], [], [], []]
    for item in items:
        assert isinstance(item.outcome, Succeeded)
        row = (
            item.attempt.job_id,
            item.attempt.token,
            None if item.outcome.result is None else dumps(item.outcome.result),
            item.run_seconds,
            prune_delay(item.attempt, Status.SUCCEEDED),
        )
        for column, value in zip(params, row, strict=True):
            column.append(value)
    rows = prepared.fetch_all(connection, sql, params)
    return {row[0] for row in rows}, any(row[1] for row in rows)


def succeed_portable(connection: BaseDatabaseWrapper, items: Sequence[Finished]) -> tuple[set[UUID], bool]:
    """Do the same in a few statements."""
    dialect = db.dialect(connection)
    now = dialect.now_sql
    done: set[UUID] = set()
    ended = 0
    with connection.cursor() as cursor:
        for chunk in db.batches(items, 100):
            tokens = lock_tokens(cursor, dialect, chunk)
            good = [item for item in chunk if tokens.get(item.attempt.job_id) == item.attempt.token]
            marks, ids = dialect.marks(item.attempt.job_id for item in good)
            if not good:
                continue
            cursor.execute(f"SELECT job_id FROM {db.CANCEL} WHERE job_id IN ({marks})", ids)
            asked = {dialect.to_uuid(row[0]) for row in cursor.fetchall()}
            good = [item for item in good if item.attempt.job_id not in asked]
            if not good:
                continue
            marks, ids = dialect.marks(item.attempt.job_id for item in good)
            cursor.execute(*dialect.delete_by_key(db.LOCK, "job_id", [item.attempt.job_id for item in good]))
            cases = " ".join(["WHEN %s THEN %s"] * len(good))

            def case(values: list[Any], good: list[Finished] = good) -> list[Any]:
                return [x for item, v in zip(good, values, strict=True) for x in (dialect.uuid(item.attempt.job_id), v)]

            results = [None if i.outcome.result is None else dumps(i.outcome.result) for i in good]  # type: ignore[union-attr]
            prunes = [prune_delay(item.attempt, Status.SUCCEEDED) for item in good]
            cursor.execute(
                f"UPDATE {db.JOB}{dialect.by_key} SET status = 'succeeded', last_outcome = 'succeeded', reason = '', deaths = 0,"
                f" finished_at = {now}, result = CASE id {cases} END, run_seconds = CASE id {cases} END,"
                f" prune_at = {dialect.now_plus(f'CASE id {cases} END')} WHERE id IN ({marks}) AND status = 'running'",
                [*case(results), *case([item.run_seconds for item in good]), *case(prunes), *ids],
            )
            tally.write(cursor, Counter((item.attempt.queue, tally.SUCCEEDED, item.attempt.batch) for item in good))
            ids_done = {item.attempt.job_id for item in good}
            ended += leave_ended(cursor, dialect, ids_done)
            done |= ids_done
    return done, ended > 0


def lock_tokens(cursor: Any, dialect: db.Dialect, items: Sequence[Finished]) -> dict[UUID, UUID]:
    """Return the tokens of the lock rows of these jobs, locked by this transaction."""
    marks, ids = dialect.marks(item.attempt.job_id for item in items)
    cursor.execute(
        f"SELECT job_id, token FROM {db.LOCK}{dialect.by_key} WHERE job_id IN ({marks}) ORDER BY job_id{dialect.for_change}", ids
    )
    return {dialect.to_uuid(row[0]): dialect.to_uuid(row[1]) for row in cursor.fetchall()}

"""Claim: ready -> running, with a lock row and a token for each job, in the caller's transaction.

State model: a job that is `ready` and not parked belongs to nobody. The claim picks due jobs in order with a row lock that skips
what others are picking, makes them `running`, counts the attempt, and inserts one lock row each with a token that the worker made
beforehand and `expires_at` = now + grace. Until the commit nobody sees any of it; after the commit the jobs are the worker's for
one grace even if it never says another word, and no longer: the requeuer takes them then.

A job that still has a lock row (rubbish of an ended attempt, which maintenance clears) is left alone: one bad row costs one row.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.backends.base.base import BaseDatabaseWrapper

from django_jobs import db, prepared
from django_jobs.lifecycle import tally
from django_jobs.models import PRIORITY_MIN, LockKind
from django_jobs.outcomes import Attempt
from django_jobs.statuses import Move, Status, check

#: With a filter on tasks the claim looks at this many jobs at the head of the order, no more.
LOOKAHEAD = 1000

_COLUMNS = (
    "id",
    "last_token",
    "task",
    "args",
    "kwargs",
    "starts",
    "attempts_used",
    "max_attempts",
    "deaths",
    "max_deaths",
    "queue",
    "priority",
    "backend",
    "serializer",
    "timeout",
    "timeout_grace",
    "heartbeat_timeout",
    "cpu_timeout",
    "backoff",
    "metadata",
    "tags",
    "context",
    "created_by",
    "retention",
    "run_after",
    "enqueued_at",
    "last_started_at",
    "graph",
    "batch_id",
)
_JSON = frozenset({"args", "kwargs", "backoff", "metadata", "tags", "context", "retention"})
_TIMES = frozenset({"run_after", "enqueued_at", "last_started_at"})
_COUNTED = tally.counting("claimed", f"'{tally.CLAIMED}'")
_ORDER = "priority DESC, due_at, id"
#: A counter at the end of its column stays where it is: the overflow would fail the claim of all others.
#: They begin with the condition and the first column of the indexes `django_jobs_claim` and `django_jobs_claim_queue`.
_READY = {
    is_http: f"j.status = 'ready' AND j.parked = '' AND j.is_http = {str(is_http).lower()}"
    f" AND j.starts < {2**31 - 1} AND j.attempts_used < {2**31 - 1}"
    for is_http in (False, True)
}
#: Said by claims from all queues: the condition of their index, which keeps claims from one queue away from it.
_ANY_QUEUE = f" AND j.priority >= {PRIORITY_MIN}"
#: The lease of an HTTP worker whose job has no limit, in seconds: a hundred years.
UNBOUNDED = 100 * 365.25 * 86_400

check(Move.CLAIM, Status.READY, Status.RUNNING)  # the one move of this module


@dataclass(frozen=True, slots=True)
class QueueFilter:
    """Which jobs a worker claims. `names` None: every queue. Names are exact, patterns having been resolved."""

    names: tuple[str, ...] | None = None
    strict: bool = False  # take from the first name before the second
    excluded: tuple[str, ...] = ()  # paused queues and `--exclude`; each stands for its subtree too
    skip_tasks: tuple[str, ...] = ()  # this process does not know them
    only_tasks: tuple[str, ...] | None = None
    is_http: bool = False  # those for HTTP workers, and no others


def claim(
    connection: BaseDatabaseWrapper,
    *,
    worker: UUID | None,
    worker_name: str,
    tokens: Sequence[UUID],
    free: int,
    grace: float,
    queues: QueueFilter,
) -> list[Attempt]:
    """Claim up to `len(tokens)` jobs in the caller's open transaction and return their attempts, in order.

    The first `free` are for slots that are free now; the others are marked as prefetched. `queues.is_http`: the lock rows are
    leases, for the job's own limits instead of `grace`. Raises a database error: the caller rolls back, and nothing was claimed.
    """
    if not tokens or queues.names == () or queues.only_tasks == ():
        return []
    if connection.vendor == "postgresql":
        rows = _claim_postgresql(connection, worker, worker_name, tokens, free, grace, queues)
    else:
        rows = _claim_portable(connection, worker, worker_name, tokens, free, grace, queues)
    return [_attempt(row, index >= free) for index, row in enumerate(rows)]


def _kind(queues: QueueFilter) -> str:
    return LockKind.HTTP if queues.is_http else LockKind.WORKER


def _where(queues: QueueFilter, vendor: str, dialect: db.Dialect) -> tuple[str, list[Any]]:
    """Return the conditions that the claim's index does not serve, for jobs `j`: a pause acts at once, through every ancestor."""
    sql = (
        f" AND NOT EXISTS (SELECT 1 FROM {db.QUEUE} q WHERE {_paused(dialect)}"
        f" AND (q.name = j.queue OR {dialect.is_below('j.queue', 'q.name')}))"
    )
    params: list[Any] = []
    for name in queues.excluded:
        sql += " AND NOT " + _SUBTREE
        params += _subtree(name)
    is_postgresql = vendor == "postgresql"
    for tasks, word, array in ((queues.skip_tasks, "NOT IN", "<> ALL"), (queues.only_tasks or (), "IN", "= ANY")):
        if tasks and is_postgresql:  # one text whatever their number, so that it can be prepared
            sql += f" AND j.task {array} (%s::text[])"
            params.append(list(tasks))
        elif tasks:
            sql += f" AND j.task {word} ({', '.join(['%s'] * len(tasks))})"
            params += tasks
    if is_postgresql:
        sql += f" AND NOT EXISTS (SELECT 1 FROM {db.LOCK} l WHERE l.job_id = j.id)"
    return sql, params


def _paused(dialect: db.Dialect) -> str:
    return f"q.paused_at IS NOT NULL AND (q.paused_until IS NULL OR q.paused_until > {dialect.now_sql})"


#: "queue is the one named, or below it"; LIKE would need escapes that differ between databases.
_SUBTREE = "(j.queue = %s OR SUBSTR(j.queue, 1, %s) = %s)"


def _subtree(name: str) -> list[Any]:
    return [name, len(name) + 1, name + "."]


def _ready(queues: QueueFilter) -> str:
    return _READY[queues.is_http] + (_ANY_QUEUE if queues.names is None else "")


def _pick_postgresql(queues: QueueFilter, limit: int, dialect: db.Dialect) -> tuple[str, list[Any]]:
    """Return SQL that locks the jobs to claim, as (id, n): n counts them from 1 in the order of the claim."""
    extra, extra_params = _where(queues, "postgresql", dialect)
    ready, lock = _ready(queues), " FOR NO KEY UPDATE SKIP LOCKED"
    if queues.only_tasks is not None:
        # Bounded: the filter on tasks is applied to the head of the order only. Index django_jobs_claim(_queue).
        names, name_params = ("", []) if queues.names is None else (" AND j.queue = ANY(%s::text[])", [list(queues.names)])
        head = f"SELECT id FROM {db.JOB} j WHERE {ready}{names} ORDER BY {_ORDER} LIMIT {LOOKAHEAD}"
        inner = (
            f"SELECT j.id, row_number() OVER () AS n FROM (SELECT j.id FROM {db.JOB} j WHERE j.id IN ({head}) AND {ready}{extra}"
            f" ORDER BY {_ORDER} LIMIT %s{lock}) j"
        )
        return inner, [*name_params, *extra_params, limit]
    if queues.names is None:
        # Index django_jobs_claim.
        one = f"SELECT j.id FROM {db.JOB} j WHERE {ready}{extra} ORDER BY {_ORDER} LIMIT %s{lock}"
        return f"SELECT id, row_number() OVER () AS n FROM ({one}) p", [*extra_params, limit]
    if len(queues.names) == 1:
        # Index django_jobs_claim_queue.
        one = f"SELECT j.id FROM {db.JOB} j WHERE {ready} AND j.queue = %s{extra} ORDER BY {_ORDER} LIMIT %s{lock}"
        return f"SELECT id, row_number() OVER () AS n FROM ({one}) p", [queues.names[0], *extra_params, limit]
    # The head of each queue by index django_jobs_claim_queue, merged. Locks of rows that the merge leaves out end with the
    # commit.
    rank = "q.rank, " if queues.strict else ""
    merged = (
        f"SELECT p.id, row_number() OVER (ORDER BY {rank}p.priority DESC, p.due_at, p.id) AS n"
        " FROM unnest(%s::text[]) WITH ORDINALITY q(name, rank), LATERAL ("
        f"SELECT j.id, j.priority, j.due_at FROM {db.JOB} j WHERE {ready} AND j.queue = q.name{extra}"
        f" ORDER BY {_ORDER} LIMIT %s{lock}) p"
    )
    return f"SELECT id, n FROM ({merged}) m WHERE n <= %s", [list(queues.names), *extra_params, limit, limit]


def _claim_postgresql(
    connection: BaseDatabaseWrapper,
    worker: UUID | None,
    worker_name: str,
    tokens: Sequence[UUID],
    free: int,
    grace: float,
    queues: QueueFilter,
) -> list[dict[str, Any]]:
    pick, params = _pick_postgresql(queues, len(tokens), db.dialect(connection))
    columns = ", ".join(f"j.{name}" for name in _COLUMNS)
    lease = "COALESCE(LEAST(heartbeat_timeout, timeout), %s::float8)" if queues.is_http else "%s::float8"
    # MATERIALIZED: a plan that ran the pick again would lock and claim more than the limit.
    sql = (
        f"WITH picked AS MATERIALIZED ({pick}), claimed AS ("
        f"UPDATE {db.JOB} j SET status = 'running', starts = j.starts + 1, attempts_used = j.attempts_used + 1, worker = %s,"
        " last_token = (%s::uuid[])[picked.n], last_started_at = clock_timestamp(),"
        " started_at = COALESCE(j.started_at, clock_timestamp())"
        f" FROM picked WHERE j.id = picked.id RETURNING picked.n, {columns}), locked AS ("
        f"INSERT INTO {db.LOCK} (job_id, token, worker, kind, queue, limit_keys, prefetched, claimed_at, expires_at)"
        f" SELECT id, last_token, %s, '{_kind(queues)}', queue, '[]', n > %s, clock_timestamp(),"
        f" clock_timestamp() + {lease} * interval '1 second' FROM claimed),"
        f" counted AS ({_COUNTED})"
        " SELECT * FROM claimed ORDER BY n"
    )
    rows = prepared.fetch_all(connection, sql, [*params, worker_name, list(tokens), worker, free, grace])
    return [dict(zip(_COLUMNS, row[1:], strict=True)) for row in rows]


def _claim_portable(
    connection: BaseDatabaseWrapper,
    worker: UUID | None,
    worker_name: str,
    tokens: Sequence[UUID],
    free: int,
    grace: float,
    queues: QueueFilter,
) -> list[dict[str, Any]]:
    """Claim by SELECT with row locks, UPDATE, INSERT (MariaDB has no UPDATE ... RETURNING); on SQLite under BEGIN IMMEDIATE."""
    dialect = db.dialect(connection)
    with connection.cursor() as cursor:
        ids = _pick_portable(cursor, dialect, connection.vendor, queues, len(tokens))
        if not ids:
            return []
        rows: list[dict[str, Any]] = []
        pairs = list(zip(ids, tokens, strict=False))
        for chunk in db.batches(pairs, 200):
            rows += _take(cursor, dialect, chunk, worker, worker_name, grace, kind=_kind(queues), first=len(rows), free=free)
        tally.write(cursor, Counter((row["queue"], tally.CLAIMED, _or_uuid(row["batch_id"])) for row in rows))
        return rows


def _pick_portable(cursor: Any, dialect: db.Dialect, vendor: str, queues: QueueFilter, limit: int) -> list[UUID]:
    extra, extra_params = _where(queues, vendor, dialect)
    # One statement per queue where the order of queues counts; else all names in one.
    groups: list[tuple[str, ...] | None] = [queues.names]
    if queues.names is not None and queues.strict:
        groups = [(name,) for name in queues.names]
    ids: list[UUID] = []
    for names in groups:
        if len(ids) >= limit:
            break
        where, params = "", []
        if names is not None:
            where, params = f" AND j.queue IN ({', '.join(['%s'] * len(names))})", list(names)
        # The index must serve the whole WHERE and ORDER BY: InnoDB locks every row that it reads.
        index = "" if vendor != "mysql" else f" FORCE INDEX (django_jobs_claim{'' if names is None else '_queue'})"
        cursor.execute(
            f"SELECT j.id FROM {db.JOB} j{index} WHERE {_ready(queues)}{where}{extra} ORDER BY {_ORDER} LIMIT %s"
            f"{dialect.for_change_skip}",
            [*params, *extra_params, limit - len(ids)],
        )
        ids += [dialect.to_uuid(row[0]) for row in cursor.fetchall()]
    if not ids:
        return []
    marks, params = dialect.marks(ids)
    cursor.execute(f"SELECT job_id FROM {db.LOCK} WHERE job_id IN ({marks})", params)
    rubbish = {dialect.to_uuid(row[0]) for row in cursor.fetchall()}
    return [job for job in ids if job not in rubbish]


def _take(
    cursor: Any,
    dialect: db.Dialect,
    pairs: Sequence[tuple[UUID, UUID]],
    worker: UUID | None,
    worker_name: str,
    grace: float,
    *,
    kind: str,
    first: int,
    free: int,
) -> list[dict[str, Any]]:
    now = dialect.now_sql
    case = " ".join(["WHEN %s THEN %s"] * len(pairs))
    case_params = [dialect.uuid(value) for pair in pairs for value in pair]
    marks, ids = dialect.marks(job for job, _ in pairs)
    cursor.execute(
        f"UPDATE {db.JOB}{dialect.by_key} SET status = 'running', worker = %s,"
        " starts = starts + 1, attempts_used = attempts_used + 1,"
        f" last_token = CASE id {case} END, last_started_at = {now}, started_at = COALESCE(started_at, {now})"
        f" WHERE id IN ({marks}) AND status = 'ready'",
        [worker_name, *case_params, *ids],
    )
    cursor.execute(f"SELECT {', '.join(_COLUMNS)} FROM {db.JOB} WHERE id IN ({marks})", ids)
    found = {dialect.to_uuid(row[0]): dict(zip(_COLUMNS, row, strict=True)) for row in cursor.fetchall()}
    rows = [found[job] for job, _ in pairs]
    values, params = [], []
    for index, (row, (job, token)) in enumerate(zip(rows, pairs, strict=True), start=first):
        values.append(f"(%s, %s, %s, %s, %s, '[]', %s, {now}, {dialect.now_plus()})")
        holder = None if worker is None else dialect.uuid(worker)
        limits = [limit for limit in (row["timeout"], row["heartbeat_timeout"]) if limit is not None and kind == LockKind.HTTP]
        lease = min(limits, default=grace)
        params += [dialect.uuid(job), dialect.uuid(token), holder, kind, row["queue"], index >= free, lease]
    cursor.execute(
        f"INSERT INTO {db.LOCK} (job_id, token, worker, kind, queue, limit_keys, prefetched, claimed_at, expires_at)"
        f" VALUES {', '.join(values)}",
        params,
    )
    return rows


def claim_one(connection: BaseDatabaseWrapper, job_id: UUID, *, token: UUID, worker_name: str) -> Attempt:
    """Claim one job for an HTTP worker. The caller's open transaction has its row locked, and knows that it is ready."""
    dialect = db.dialect(connection)
    with connection.cursor() as cursor:
        pairs = [(job_id, token)]
        (row,) = _take(cursor, dialect, pairs, None, worker_name, UNBOUNDED, kind=LockKind.HTTP, first=0, free=1)
        tally.write(cursor, {(row["queue"], tally.CLAIMED, _or_uuid(row["batch_id"])): 1})
    return _attempt(row, False)


def _attempt(row: dict[str, Any], prefetched: bool) -> Attempt:
    for name in _JSON:
        value = row[name]
        if isinstance(value, str | bytes):
            row[name] = [] if value == "[]" else {} if value == "{}" else json.loads(value)
    for name in _TIMES:
        if row[name] is not None:
            row[name] = db.as_datetime(row[name])
    return Attempt(
        job_id=_uuid(row["id"]),
        token=_uuid(row["last_token"]),
        task=row["task"],
        args=row["args"],
        kwargs=row["kwargs"],
        number=row["starts"],
        attempts_used=row["attempts_used"],
        max_attempts=row["max_attempts"],
        deaths=row["deaths"],
        max_deaths=row["max_deaths"],
        queue=row["queue"],
        priority=row["priority"],
        backend=row["backend"],
        serializer=row["serializer"],
        timeout=row["timeout"],
        timeout_grace=row["timeout_grace"],
        heartbeat_timeout=row["heartbeat_timeout"],
        cpu_timeout=row["cpu_timeout"],
        backoff=row["backoff"],
        metadata=row["metadata"],
        tags=row["tags"],
        context=row["context"],
        created_by=row["created_by"],
        retention=row["retention"],
        run_after=row["run_after"],
        enqueued_at=row["enqueued_at"],
        started_at=row["last_started_at"],
        prefetched=prefetched,
        graph=_or_uuid(row["graph"]),
        batch=_or_uuid(row["batch_id"]),
    )


def _or_uuid(value: Any) -> UUID | None:
    return None if value is None else _uuid(value)


def _uuid(value: Any) -> UUID:
    return value if isinstance(value, UUID) else UUID(value)


def ready_queues(connection: BaseDatabaseWrapper) -> list[str]:
    """Return the names of the queues that have claimable jobs: a walk over the index django_jobs_claim_queue, a step a queue."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"WITH RECURSIVE q(name) AS ("
            f"SELECT MIN(j.queue) FROM {db.JOB} j WHERE {_READY[False]}"
            f" UNION ALL SELECT (SELECT MIN(j.queue) FROM {db.JOB} j WHERE {_READY[False]} AND j.queue > q.name)"
            " FROM q WHERE q.name IS NOT NULL) SELECT name FROM q WHERE name IS NOT NULL"
        )
        return [row[0] for row in cursor.fetchall()]

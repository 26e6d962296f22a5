"""Store new jobs: in the caller's transaction, in as few statements as can be, by the database's clock.

The statements name only the columns that a new job needs, with everything that is the same for every new job as a literal. One job is one
statement; many are one for each thousand. The key is made by the client and a key that is there already is left alone, so an insert whose
answer was lost with its connection can be sent again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

from django.core.signals import setting_changed
from django.db import DatabaseError, InterfaceError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.signals import post_delete, post_migrate, post_save

from .. import conf, signals, wakeup
from ..db import JOB, Dialect, as_datetime, dialect, server_now
from ..ids import uuid7
from ..models import Queue
from ..options import UNSET, Unset
from ..outcomes import Event
from ..queues import JobOptions, QueueOptions
from ..serializers import dumps
from ..statuses import Status

#: Rows in one statement: where more rows no longer make it faster.
CHUNK_ROWS: Final = 1_000
#: Characters of JSON in one statement, unless a single row has more: a quarter of MariaDB's smallest usual `max_allowed_packet`.
CHUNK_CHARS: Final = 4_000_000
#: How long a process may go on with settings of queues that were changed in another.
QUEUE_CACHE_SECONDS: Final = 5.0


@dataclass(slots=True, kw_only=True)
class NewJob:
    """A job to be stored. The values have been checked: `args`, `kwargs`, `metadata`, `tags`, `context` are JSON. Durations are seconds.

    What says nothing (None; `UNSET` for `max_attempts`) is taken from the queue, then from the settings; a limit of 0 is off. `run_after` and
    `start_by` take a timedelta from now by the database's clock, too. `insert` fills in the last three fields.
    """

    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    id: UUID = field(default_factory=uuid7)
    backend: str = "default"
    queue: str = "default"
    priority: int = 0
    description: str = ""
    serializer: str = "json"
    metadata: Mapping[str, Any] = field(default_factory=dict)
    tags: Sequence[str] = ()
    context: Mapping[str, Any] = field(default_factory=dict)
    created_by: str | None = None
    run_after: datetime | timedelta | None = None
    start_by: datetime | timedelta | None = None
    timeout: float | None = None
    timeout_grace: float | None = None
    heartbeat_timeout: float | None = None
    cpu_timeout: float | None = None
    max_attempts: int | None | Unset = UNSET
    backoff: Any = None
    max_deaths: int | None = None
    retention: Mapping[str, float | None] | None = None
    unique_key: str | None = None

    status: Status = Status.READY
    enqueued_at: datetime | None = None


def insert(jobs: Sequence[NewJob], *, using: str) -> None:
    """Store `jobs`, all or none, on the database `using`, in the transaction that is open there; wake workers when it commits.

    Fills in what each job inherits, its `status` and its `enqueued_at`. A job whose id is stored already is left as it is. Outside a
    transaction a lost connection is opened again, once. Raises a database error; an open transaction is then to be rolled back.
    """
    if not jobs:
        return
    connection = connections[using]
    try:
        _insert(connection, jobs)
    except (DatabaseError, InterfaceError) as error:
        if connection.in_atomic_block or not dialect(connection).is_connection_loss(error) or connection.is_usable():
            raise
        connection.close()
        _insert(connection, jobs)
    if queues := [job.queue for job in jobs if job.status is Status.READY]:
        wakeup.wake(using, queues)
    if signals.has_listeners("job_enqueued"):
        signals.dispatch([_event(job) for job in jobs])


def _event(job: NewJob) -> Event:
    return Event("job_enqueued", job.id, job.task, job.queue, job.status, backend=job.backend)


def _insert(connection: BaseDatabaseWrapper, jobs: Sequence[NewJob]) -> None:
    for job in jobs:
        _inherit(job, connection.alias)
    if len(jobs) == 1:
        _insert_one(connection, jobs[0])
    else:
        with transaction.atomic(using=connection.alias):
            _insert_many(connection, jobs)


# --- One job ------------------------------------------------------------------------------------------------------------------------------

#: Columns that are the same for each new job.
_LITERALS: Final = {
    "parked": "''",
    "reason": "''",
    "starts": "0",
    "attempts_used": "0",
    "deaths": "0",
    "last_outcome": "''",
    "worker": "''",
    "error_class": "''",
    "error_message": "''",
    "fingerprint": "''",
}
#: Columns that are mostly the same, with the literal for it.
_USUAL: Final = {"description": "''", "serializer": "'json'", "metadata": "'{}'", "tags": "'[]'", "context": "'{}'"}
#: Columns left out where they are NULL.
_NULLABLE: Final = (
    "created_by",
    "timeout",
    "timeout_grace",
    "heartbeat_timeout",
    "cpu_timeout",
    "max_attempts",
    "backoff",
    "max_deaths",
    "retention",
    "unique_key",
)
_JSON: Final = frozenset({"args", "kwargs", "metadata", "tags", "context", "backoff", "retention"})
_FIRST: Final = ("id", "backend", "task", "args", "kwargs", "queue", "priority")



def _insert_one(connection: BaseDatabaseWrapper, job: NewJob) -> None:
    words = dialect(connection)
    columns, params = _special(job)
    start = _as_start(job.run_after)
    returning = bool(connection.features.can_return_columns_from_insert)
    sql = _one_sql(connection.vendor, columns, type(start), type(job.start_by), returning)
    times = [_time(words, value) for value in (start, start, start, job.start_by) if value is not None]
    if isinstance(start, timedelta):
        del times[0]  # a delay decides the status by itself
    first = [words.uuid(job.id), job.backend, job.task, dumps(job.args), dumps(job.kwargs), job.queue, job.priority]
    with connection.cursor() as cursor:
        cursor.execute(sql, first + params + times)
        row = cursor.fetchone() if returning else None
        if row is None:  # stored before: say what was stored then
            cursor.execute(f"SELECT enqueued_at, status, run_after FROM {JOB} WHERE id = %s", [words.uuid(job.id)])
            row = cursor.fetchone()
    job.enqueued_at = as_datetime(row[0])
    job.status = Status(row[1])
    job.run_after = as_datetime(row[2]) if row[2] is not None else None


def _as_start(run_after: datetime | timedelta | None) -> datetime | timedelta | None:
    """A delay that has passed already is none."""
    return None if isinstance(run_after, timedelta) and run_after.total_seconds() <= 0 else run_after


@lru_cache(maxsize=512)
def _one_sql(vendor: str, columns: tuple[str, ...], start: type, start_by: type, returning: bool) -> str:
    """Return the INSERT of one job. The times come last: three for a `start` given as a datetime, two for a delay, one for `start_by`."""
    words = _dialect_of(vendor)
    now, later = words.now_sql, words.now_plus()
    values = dict.fromkeys((*_FIRST, *columns), "%s")
    values |= {name: literal for name, literal in (_LITERALS | _USUAL).items() if name not in columns}
    values["enqueued_at"] = now
    if start is timedelta:
        values |= {"status": f"'{Status.SCHEDULED}'", "due_at": later, "run_after": later}
    elif start is type(None):
        values |= {"status": f"'{Status.READY}'", "due_at": now}
    else:
        latest = "MAX" if vendor == "sqlite" else "GREATEST"
        values["status"] = f"CASE WHEN %s <= {now} THEN '{Status.READY}' ELSE '{Status.SCHEDULED}' END"
        values |= {"due_at": f"{latest}(%s, {now})", "run_after": "%s"}
    if start_by is not type(None):
        values["start_by"] = later if start_by is timedelta else "%s"
    sql = f"INSERT INTO {JOB} ({', '.join(values)}) VALUES ({', '.join(values.values())}){_LEAVE[vendor]}"
    return sql + " RETURNING enqueued_at, status, run_after" if returning else sql


#: A key that is there already is left alone.
_LEAVE: Final = {
    "postgresql": " ON CONFLICT (id) DO NOTHING",
    "sqlite": " ON CONFLICT (id) DO NOTHING",
    "mysql": " ON DUPLICATE KEY UPDATE id = id",
}


def _dialect_of(vendor: str) -> Dialect:
    return next(dialect(connection) for connection in connections.all() if connection.vendor == vendor)


def _special(job: NewJob) -> tuple[tuple[str, ...], list[Any]]:
    """Return the columns in which `job` differs from the usual, and their values."""
    names, values = [], []
    if job.description:
        names.append("description")
        values.append(job.description)
    if job.serializer != "json":
        names.append("serializer")
        values.append(job.serializer)
    for name in ("metadata", "tags", "context"):
        if value := getattr(job, name):
            names.append(name)
            values.append(dumps(value))
    for name in _NULLABLE:
        if (value := getattr(job, name)) is not None:
            names.append(name)
            values.append(dumps(value) if name in _JSON else value)
    return tuple(names), values


def _time(words: Dialect, value: datetime | timedelta) -> Any:
    """Return a moment, or the seconds of a delay, as a parameter."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if words.vendor == "postgresql":
        return value
    naive = value.astimezone(UTC).replace(tzinfo=None)
    return naive if words.vendor == "mysql" else naive.isoformat(" ", "microseconds")


# --- Many jobs ----------------------------------------------------------------------------------------------------------------------------

_TYPES: Final = {
    "id": "uuid",
    "priority": "smallint",
    "run_after": "timestamptz",
    "due_at": "timestamptz",
    "start_by": "timestamptz",
    "enqueued_at": "timestamptz",
    "timeout": "float8",
    "timeout_grace": "float8",
    "heartbeat_timeout": "float8",
    "cpu_timeout": "float8",
    "max_attempts": "integer",
    "max_deaths": "integer",
}


def _insert_many(connection: BaseDatabaseWrapper, jobs: Sequence[NewJob]) -> None:
    words = dialect(connection)
    now = server_now(connection)
    rows = [_row(words, job, now) for job in jobs]
    with connection.cursor() as cursor:
        for chunk in _chunks(rows):
            names = {name: None for row in chunk for name in row}
            columns = {name: [row.get(name, _DEFAULTS.get(name)) for row in chunk] for name in names}
            if connection.vendor == "postgresql":
                _unnest(cursor, columns)
            else:
                _values(cursor, words, columns)


_DEFAULTS: Final = {"description": "", "serializer": "json", "metadata": "{}", "tags": "[]", "context": "{}"}


def _row(words: Dialect, job: NewJob, now: datetime) -> dict[str, Any]:
    """Return the columns of one of many jobs, as parameters; sets the job's times and status."""
    start = job.run_after
    start = now + start if isinstance(start, timedelta) else start
    start_by = now + job.start_by if isinstance(job.start_by, timedelta) else job.start_by
    is_ready = start is None or start <= now
    if isinstance(job.run_after, timedelta):
        job.run_after = None if is_ready else start
    job.enqueued_at, job.status = now, Status.READY if is_ready else Status.SCHEDULED
    moment = _time(words, now)
    row: dict[str, Any] = {
        "id": words.uuid(job.id),
        "backend": job.backend,
        "task": job.task,
        "args": dumps(job.args) if job.args else "[]",
        "kwargs": dumps(job.kwargs) if job.kwargs else "{}",
        "queue": job.queue,
        "priority": job.priority,
        "status": job.status.value,
        "enqueued_at": moment,
        "due_at": moment if is_ready or start is None else _time(words, start),
    }
    if job.run_after is not None:
        row["run_after"] = _time(words, job.run_after)
    if start_by is not None:
        row["start_by"] = _time(words, start_by)
    names, values = _special(job)
    row.update(zip(names, values, strict=True))
    return row


def _chunks(rows: Sequence[dict[str, Any]]) -> Iterator[Sequence[dict[str, Any]]]:
    first, size = 0, 0
    for index, row in enumerate(rows):
        length = len(row["args"]) + len(row["kwargs"])
        if index > first and (index - first >= CHUNK_ROWS or size + length > CHUNK_CHARS):
            yield rows[first:index]
            first, size = index, 0
        size += length
    yield rows[first:]


def _unnest(cursor: Any, columns: Mapping[str, list[Any]]) -> None:
    """PostgreSQL: an array for each column whose values differ, one parameter for each that is the same in all rows."""
    arrays, params, expressions = [], [], []
    scalars = []
    for name, values in columns.items():
        kind = _TYPES.get(name, "text")
        cast = "::jsonb" if name in _JSON else ""
        if name != "id" and values.count(values[0]) == len(values):
            expressions.append(f"%s::{kind}{cast}")
            scalars.append(values[0])
        else:
            expressions.append(f"u.{name}{cast}")
            arrays.append((name, kind))
            params.append(values)
    literals = {name: literal for name, literal in (_LITERALS | _USUAL).items() if name not in columns}
    cursor.execute(
        f"INSERT INTO {JOB} ({', '.join((*columns, *literals))})"
        f" SELECT {', '.join((*expressions, *literals.values()))}"
        f" FROM unnest({', '.join(f'%s::{kind}[]' for _, kind in arrays)}) AS u({', '.join(name for name, _ in arrays)})"
        f"{_LEAVE['postgresql']}",
        scalars + params,
    )


def _values(cursor: Any, words: Dialect, columns: Mapping[str, list[Any]]) -> None:
    """The others: rows of parameters, as many in a statement as the database takes."""
    literals = {name: literal for name, literal in (_LITERALS | _USUAL).items() if name not in columns}
    row = f"({', '.join(['%s'] * len(columns) + list(literals.values()))})"
    rows = list(zip(*columns.values(), strict=True))
    head = f"INSERT INTO {JOB} ({', '.join((*columns, *literals))}) VALUES "
    step = max(1, words.max_params // len(columns))
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        cursor.execute(f"{head}{', '.join([row] * len(part))}{_LEAVE[words.vendor]}", [value for values in part for value in values])


# --- What a job inherits ------------------------------------------------------------------------------------------------------------------


class _QueueCache:
    """What queues say about their jobs, by database; read again after `QUEUE_CACHE_SECONDS`, or when this process changes one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._declared: dict[str, tuple[float, dict[str, QueueOptions]]] = {}
        self._inherited: dict[tuple[str, str, str], JobOptions] = {}
        self._changed = float("-inf")

    def inherited(self, using: str, queue: str, backend: str) -> JobOptions:
        """Return what a job in `queue` has where it says nothing itself."""
        entry = self._declared.get(using)
        if entry is not None and time.monotonic() < entry[0]:
            if (options := self._inherited.get((using, queue, backend))) is None:
                options = conf.job_options(queue, {}, backend=backend, rows=entry[1])
                self._inherited[using, queue, backend] = options
            return options
        declared = self._read(using)
        # Queues changed within a transaction that may yet be rolled back: don't keep what was read in one.
        if not connections[using].in_atomic_block or time.monotonic() - self._changed > QUEUE_CACHE_SECONDS:
            with self._lock:
                self._inherited = {}
                self._declared[using] = (time.monotonic() + QUEUE_CACHE_SECONDS, declared)
        return conf.job_options(queue, {}, backend=backend, rows=declared)

    def _read(self, using: str) -> dict[str, QueueOptions]:
        names = [item.name for item in fields(QueueOptions)]
        rows = Queue.objects.using(using).values_list("name", *names)
        return {name: QueueOptions(*values) for name, *values in rows}

    def forget(self, **kwargs: Any) -> None:
        """Read the queues again before the next job."""
        with self._lock:
            self._changed = time.monotonic()
            self._declared, self._inherited = {}, {}


_cache = _QueueCache()
#: Forget what was read of the queues' settings. `save()` and `delete()` of a queue do so by themselves; `update()` does not.
forget_queues = _cache.forget

post_save.connect(_cache.forget, sender=Queue, dispatch_uid="django_jobs.enqueue")
post_delete.connect(_cache.forget, sender=Queue, dispatch_uid="django_jobs.enqueue")
post_migrate.connect(_cache.forget, dispatch_uid="django_jobs.enqueue")
setting_changed.connect(_cache.forget, dispatch_uid="django_jobs.enqueue")


def _inherit(job: NewJob, using: str) -> None:
    """Fill in what `job` does not say. A limit of 0 becomes NULL: off."""
    inherited = _cache.inherited(using, job.queue, job.backend)
    if job.max_attempts is UNSET:
        job.max_attempts = inherited.max_attempts
    job.timeout = (inherited.timeout if job.timeout is None else job.timeout) or None
    job.heartbeat_timeout = (inherited.heartbeat_timeout if job.heartbeat_timeout is None else job.heartbeat_timeout) or None
    if job.backoff is None:
        job.backoff = inherited.backoff
    if inherited.retention:
        job.retention = {**inherited.retention, **(job.retention or {})}

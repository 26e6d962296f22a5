"""Store new jobs: in the caller's transaction, in as few statements as can be, by the database's clock.

The statements name only the columns that a new job needs, with everything that is the same for every new job as a literal.
One job is one statement; many are one for each thousand. The key is made by the client and a key that is there already is
left alone, so an insert whose answer was lost with its connection can be sent again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

from django.db import DatabaseError, InterfaceError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from .. import prepared, signals, wakeup
from ..db import JOB, Dialect, as_datetime, batches, dialect, server_now, sqlstate
from ..ids import uuid7
from ..options import UNSET, Unset
from ..outcomes import Event
from ..serializers import dumps
from ..statuses import Status
from .inherit import Declared, declared

#: Rows in one statement: where more rows no longer make it faster.
CHUNK_ROWS: Final = 1_000
#: Characters of JSON in one statement, unless one row has more: a quarter of MariaDB's usual `max_allowed_packet`.
CHUNK_CHARS: Final = 4_000_000


@dataclass(slots=True, kw_only=True, eq=False)
class JobSpec:
    """What new jobs of one call have in common. All has been checked; what is JSON is JSON. Durations are seconds.

    What says nothing (None; `UNSET` for `max_attempts`) is taken from the queue, then from the settings; a limit of 0 is
    off. `run_after` and `start_by` are aware datetimes, or timedeltas from now by the database's clock.
    """

    task: str
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
    max_attempts: int | Unset | None = UNSET
    backoff: Any = None
    max_deaths: int | None = None
    retention: Mapping[str, float | None] | None = None


@dataclass(slots=True, eq=False)
class NewJob:
    """A job to be stored, with arguments that are JSON. `insert` fills in the last three fields."""

    spec: JobSpec
    args: list[Any]
    kwargs: dict[str, Any]
    id: UUID = field(default_factory=uuid7)
    unique_key: str | None = None

    status: Status = Status.READY
    enqueued_at: datetime | None = None
    run_after: datetime | None = None


def insert(jobs: Sequence[NewJob], *, using: str) -> None:
    """Store `jobs`, all or none, on the database `using`, in the transaction open there; wake workers when it commits.

    A job whose id is stored already is left as it is. Outside a transaction a lost connection is opened again, once. Raises
    a database error; an open transaction is then to be rolled back.
    """
    if not jobs:
        return
    connection = connections[using]
    try:
        told = _insert(connection, jobs)
    except (DatabaseError, InterfaceError) as error:
        if connection.in_atomic_block or not dialect(connection).is_connection_loss(error):
            raise
        connection.close()
        told = _insert(connection, jobs)
    if queues := {job.spec.queue for job in jobs if job.status is Status.READY} - told:
        wakeup.wake(using, queues)
    if signals.has_listeners("job_enqueued"):
        signals.dispatch([_event(job) for job in jobs])


def _event(job: NewJob) -> Event:
    return Event("job_enqueued", job.id, job.spec.task, job.spec.queue, job.status, backend=job.spec.backend)


def _insert(connection: BaseDatabaseWrapper, jobs: Sequence[NewJob]) -> set[str]:
    """Store `jobs`; return the queues whose workers have been told by the same statement."""
    if len(jobs) == 1:
        return _insert_one(connection, jobs[0])
    with transaction.atomic(using=connection.alias):
        _insert_many(connection, jobs)
    return set()


# --- One job ---


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
    "is_http": "false",
}
#: Columns that are mostly the same, with the literal for it.
_USUAL: Final = {"description": "''", "serializer": "'json'", "metadata": "'{}'", "tags": "'[]'", "context": "'{}'"}
#: Columns left out where they are NULL, besides those of `_optional`.
_NULLABLE: Final = ("created_by", "timeout_grace", "cpu_timeout", "max_deaths")
_JSON: Final = frozenset({"args", "kwargs", "metadata", "tags", "context", "backoff", "retention"})
_FIRST: Final = ("id", "backend", "task", "args", "kwargs", "queue", "priority")


def _optional(spec: JobSpec, queues: Declared) -> dict[str, Any]:
    """Return the columns in which the jobs of `spec` differ from the usual, with what they inherit. A limit of 0 is NULL: off."""
    columns: dict[str, Any] = {}
    name: str
    value: Any
    from_queue = queues.options(spec.queue, spec.backend)
    retention = spec.retention
    if from_queue.retention:
        retention = {**from_queue.retention, **(retention or {})}
    backoff = from_queue.backoff if spec.backoff is None else spec.backoff
    for name, value in (
        ("timeout", from_queue.timeout if spec.timeout is None else spec.timeout),
        ("heartbeat_timeout", from_queue.heartbeat_timeout if spec.heartbeat_timeout is None else spec.heartbeat_timeout),
        ("max_attempts", from_queue.max_attempts if spec.max_attempts is UNSET else spec.max_attempts),
        ("description", spec.description),
    ):
        if value:
            columns[name] = value
    if spec.serializer != "json":
        columns["serializer"] = spec.serializer
    if from_queue.is_http:
        columns["is_http"] = True
    for name, value in (("metadata", spec.metadata), ("tags", spec.tags), ("context", spec.context), ("retention", retention)):
        if value:
            columns[name] = dumps(value)
    if backoff is not None:
        columns["backoff"] = dumps(backoff)
    for name in _NULLABLE:
        if (value := getattr(spec, name)) is not None:
            columns[name] = value
    return columns


def _insert_one(connection: BaseDatabaseWrapper, job: NewJob) -> set[str]:
    words, spec = dialect(connection), job.spec
    optional = _optional(spec, declared(connection.alias))
    if job.unique_key is not None:
        optional["unique_key"] = job.unique_key
    start = _as_start(spec.run_after)
    returning = bool(connection.features.can_return_columns_from_insert)
    sql = _one_sql(connection.vendor, tuple(optional), _form(start), _form(spec.start_by), returning)
    times = [_time(words, value) for value in (start, start, start, spec.start_by) if value is not None]
    if isinstance(start, timedelta):
        del times[0]  # a delay decides the status by itself
    first = [words.uuid(job.id), spec.backend, spec.task, dumps(job.args), dumps(job.kwargs), spec.queue, spec.priority]
    params = [*first, *optional.values(), *times]
    told: set[str] = set()
    if start is None and connection.vendor == "postgresql" and not connection.in_atomic_block and connection.get_autocommit():
        # In one statement, so that the worker need not wait for a second commit.
        told = set(wakeup.due(connection.alias, [spec.queue]))
    if told:
        try:
            row = prepared.fetch_one(connection, _and_notify(sql), [*params, wakeup.CHANNEL, spec.queue])
        except DatabaseError as error:
            if sqlstate(error) != _QUEUE_IS_FULL:
                raise
            told = set()
            row = prepared.fetch_one(connection, sql, params)
    elif returning:
        row = prepared.fetch_one(connection, sql, params)
    else:
        row = None
        with connection.cursor() as cursor:
            cursor.execute(sql, params)
    if row is None:  # stored before: say what was stored then
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT enqueued_at, status, run_after FROM {JOB} WHERE id = %s", [words.uuid(job.id)])
            row = cursor.fetchone()
    job.enqueued_at = as_datetime(row[0])
    job.status = Status(row[1])
    job.run_after = as_datetime(row[2]) if row[2] is not None else None
    return told


def _as_start(run_after: datetime | timedelta | None) -> datetime | timedelta | None:
    """A delay that has passed already is none."""
    return None if isinstance(run_after, timedelta) and run_after.total_seconds() <= 0 else run_after


def _form(moment: datetime | timedelta | None) -> str:
    return "none" if moment is None else "delay" if isinstance(moment, timedelta) else "date"


@lru_cache(maxsize=512)
def _one_sql(vendor: str, columns: tuple[str, ...], start: str, start_by: str, returning: bool) -> str:
    """Return the INSERT of one job. Times come last: three for a `start` by date, two for a delay, one for `start_by`."""
    words = _dialect_of(vendor)
    now, later = words.now_sql, words.now_plus()
    values = dict.fromkeys((*_FIRST, *columns), "%s")
    values |= {name: literal for name, literal in (_LITERALS | _USUAL).items() if name not in columns}
    values["enqueued_at"] = now
    if start == "delay":
        values |= {"status": f"'{Status.SCHEDULED}'", "due_at": later, "run_after": later}
    elif start == "none":
        values |= {"status": f"'{Status.READY}'", "due_at": now}
    else:
        latest = "MAX" if vendor == "sqlite" else "GREATEST"
        values["status"] = f"CASE WHEN %s <= {now} THEN '{Status.READY}' ELSE '{Status.SCHEDULED}' END"
        values |= {"due_at": f"{latest}(%s, {now})", "run_after": "%s"}
    if start_by != "none":
        values["start_by"] = later if start_by == "delay" else "%s"
    sql = f"INSERT INTO {JOB} ({', '.join(values)}) VALUES ({', '.join(values.values())}){_LEAVE[vendor]}"
    return sql + " RETURNING enqueued_at, status, run_after" if returning else sql


#: PostgreSQL's program_limit_exceeded: notifications that some session does not read have filled their queue.
_QUEUE_IS_FULL: Final = "54000"


def _and_notify(sql: str) -> str:
    """Return `sql`, an INSERT with RETURNING, extended by a notification for the row that it stores (none if it was there)."""
    return f"WITH stored AS ({sql}) SELECT s.*, pg_notify(%s, %s)::text FROM stored s"


#: A key that is there already is left alone.
_LEAVE: Final = {
    "postgresql": " ON CONFLICT (id) DO NOTHING",
    "sqlite": " ON CONFLICT (id) DO NOTHING",
    "mysql": " ON DUPLICATE KEY UPDATE id = id",
}


def _dialect_of(vendor: str) -> Dialect:
    return next(dialect(connection) for connection in connections.all() if connection.vendor == vendor)


def _time(words: Dialect, value: datetime | timedelta) -> Any:
    """Return a moment, or the seconds of a delay, as a parameter."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if words.vendor == "postgresql":
        return value
    naive = value.astimezone(UTC).replace(tzinfo=None)
    return naive if words.vendor == "mysql" else naive.isoformat(" ", "microseconds")


# --- Many jobs ---

_TYPES: Final = {
    "is_http": "boolean",
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
    queues = declared(connection.alias)
    shared: dict[int, dict[str, Any]] = {}
    for job in jobs:
        spec = job.spec
        if (columns := shared.get(id(spec))) is None:
            columns = shared[id(spec)] = _shared_columns(words, spec, queues, now)
        job.enqueued_at, job.status = now, Status.READY if columns["status"] == "ready" else Status.SCHEDULED
        if spec.run_after is not None:
            job.run_after = _absolute(spec.run_after, now)
    with connection.cursor() as cursor:
        for chunk, args, kwargs in _chunks(jobs):
            own = {"id": [words.uuid(job.id) for job in chunk], "args": args, "kwargs": kwargs}
            if any(job.unique_key is not None for job in chunk):
                own["unique_key"] = [job.unique_key for job in chunk]
            _insert_chunk(cursor, words, own, [shared[id(job.spec)] for job in chunk])


def _insert_chunk(cursor: Any, words: Dialect, own: dict[str, list[Any]], shared: list[dict[str, Any]]) -> None:
    """Insert rows of which `own` has the columns of their own, as lists, and `shared` the others, a dict for each row."""
    head = shared[0]
    if any(columns is not head for columns in shared):
        for name in {name: None for columns in shared for name in columns}:
            own[name] = [columns.get(name, _DEFAULTS.get(name)) for columns in shared]
        head = {}
    if words.vendor == "postgresql":
        _unnest(cursor, own, head)
    else:
        _values(cursor, words, own, head)


_DEFAULTS: Final = {"description": "", "serializer": "json", "metadata": "{}", "tags": "[]", "context": "{}", "is_http": False}


def _absolute(start: datetime | timedelta, now: datetime) -> datetime | None:
    """Return the start time that is stored; a delay that has passed already is none."""
    if isinstance(start, timedelta):
        return now + start if start.total_seconds() > 0 else None
    return start


def _shared_columns(words: Dialect, spec: JobSpec, queues: Declared, now: datetime) -> dict[str, Any]:
    """Return the columns that all jobs of `spec` have in common, as parameters."""
    start = None if spec.run_after is None else _absolute(spec.run_after, now)
    is_ready = start is None or start <= now
    moment = _time(words, now)
    columns: dict[str, Any] = {
        "backend": spec.backend,
        "task": spec.task,
        "queue": spec.queue,
        "priority": spec.priority,
        "status": (Status.READY if is_ready else Status.SCHEDULED).value,
        "enqueued_at": moment,
        "due_at": moment if start is None or is_ready else _time(words, start),
    }
    if start is not None:
        columns["run_after"] = _time(words, start)
    if spec.start_by is not None:
        start_by = now + spec.start_by if isinstance(spec.start_by, timedelta) else spec.start_by
        columns["start_by"] = _time(words, start_by)
    return columns | _optional(spec, queues)


def _chunks(jobs: Sequence[NewJob]) -> Iterator[tuple[Sequence[NewJob], list[str], list[str]]]:
    """Cut `jobs` into what fits into a statement, each part with the JSON of its arguments."""
    first, size = 0, 0
    args: list[str] = []
    kwargs: list[str] = []
    for index, job in enumerate(jobs):
        own = (dumps(job.args) if job.args else "[]", dumps(job.kwargs) if job.kwargs else "{}")
        length = len(own[0]) + len(own[1])
        if args and (len(args) >= CHUNK_ROWS or size + length > CHUNK_CHARS):
            yield jobs[first:index], args, kwargs
            first, size, args, kwargs = index, 0, [], []
        size += length
        args.append(own[0])
        kwargs.append(own[1])
    yield jobs[first:], args, kwargs


def _unnest(cursor: Any, own: Mapping[str, list[Any]], shared: Mapping[str, Any]) -> None:
    """PostgreSQL: an array for each column whose values differ, one parameter for each that is the same in all rows."""
    same = {name: values[0] for name, values in own.items() if name != "id" and values.count(values[0]) == len(values)}
    scalars = {**shared, **same}
    arrays = {name: values for name, values in own.items() if name not in same}
    expressions = {name: f"%s::{_TYPES.get(name, 'text')}{'::jsonb' if name in _JSON else ''}" for name in scalars}
    expressions |= {name: f"u.{name}{'::jsonb' if name in _JSON else ''}" for name in arrays}
    expressions |= {name: literal for name, literal in (_LITERALS | _USUAL).items() if name not in expressions}
    marks = ", ".join(f"%s::{_TYPES.get(name, 'text')}[]" for name in arrays)
    cursor.execute(
        f"INSERT INTO {JOB} ({', '.join(expressions)}) SELECT {', '.join(expressions.values())}"
        f" FROM unnest({marks}) AS u({', '.join(arrays)})"
        f"{_LEAVE['postgresql']}",
        [*scalars.values(), *arrays.values()],
    )


def _values(cursor: Any, words: Dialect, own: Mapping[str, list[Any]], shared: Mapping[str, Any]) -> None:
    """The others: rows of parameters, as many in a statement as the database takes."""
    columns = (*own, *shared)
    literals = {name: literal for name, literal in (_LITERALS | _USUAL).items() if name not in columns}
    row = f"({', '.join(['%s'] * len(columns) + list(literals.values()))})"
    tail = list(shared.values())
    rows = [[*values, *tail] for values in zip(*own.values(), strict=True)]
    head = f"INSERT INTO {JOB} ({', '.join((*columns, *literals))}) VALUES "
    for part in batches(rows, max(1, words.max_params // len(columns))):
        marks = ", ".join([row] * len(part))
        cursor.execute(f"{head}{marks}{_LEAVE[words.vendor]}", [value for values in part for value in values])

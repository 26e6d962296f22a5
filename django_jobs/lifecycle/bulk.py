"""Store many new jobs: one statement for each thousand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.db.backends.base.base import BaseDatabaseWrapper

from ..db import JOB, Dialect, batches, dialect, server_now
from ..models.stat import move_name
from ..serializers import dumps
from ..statuses import Status
from . import tally
from .inherit import Declared, declared
from .spec import JSON_COLUMNS, LEAVE, LITERALS, USUAL, JobSpec, NewJob, as_param, optional_columns
from .tags import TAGGING, write_tags

#: Rows in one statement: where more rows no longer make it faster.
CHUNK_ROWS: Final = 1_000
#: Characters of JSON in one statement, unless one row has more: a quarter of MariaDB's usual `max_allowed_packet`.
CHUNK_CHARS: Final = 4_000_000

_TYPES: Final = {
    "is_http": "boolean",
    "graph": "uuid",
    "batch_id": "uuid",
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


def insert_many(connection: BaseDatabaseWrapper, jobs: Sequence[NewJob]) -> None:
    """Store `jobs` in the transaction that is open on `connection`, and fill in what the database decided about each."""
    words = dialect(connection)
    now = server_now(connection)
    queues = declared(connection.alias)
    shared: dict[int, dict[str, Any]] = {}
    for job in jobs:
        spec = job.spec
        if (common := shared.get(id(spec))) is None:
            common = shared[id(spec)] = _shared_columns(words, spec, queues, now)
        job.enqueued_at, job.status = now, Status.WAITING if job.waits else Status(common["status"])
        if spec.run_after is not None:
            job.run_after = _absolute(spec.run_after, now)
    with connection.cursor() as cursor:
        for chunk, args, kwargs in _chunks(jobs):
            own = {"id": [words.uuid(job.id) for job in chunk], "args": args, "kwargs": kwargs}
            if any(job.unique_key is not None for job in chunk):
                own["unique_key"] = [job.unique_key for job in chunk]
            columns = _of_each(chunk, shared)
            if words.vendor == "postgresql":
                _unnest(cursor, *_columns(own, columns))
                continue
            before = _known(cursor, words, chunk)
            _values(cursor, words, *_columns(own, columns))
            stored = [job for job in chunk if job.id not in before]
            tally.write(cursor, Counter((job.spec.queue, move_name("", job.status), job.spec.batch) for job in stored))
            write_tags(connection, {job.id: job.spec.tags for job in stored if job.spec.tags})


def _of_each(jobs: Sequence[NewJob], shared: Mapping[int, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the columns of each job: those of its spec, and where it differs, a copy."""
    rows = []
    for job in jobs:
        columns = shared[id(job.spec)]
        if job.waits:
            columns = {**columns, "status": Status.WAITING.value}
        if job.description:
            columns = {**columns, "description": job.description}
        if job.related:
            columns = {**columns, "related": dumps(job.related)}
        rows.append(columns)
    return rows


def _known(cursor: Any, words: Dialect, jobs: Sequence[NewJob]) -> set[UUID]:
    """Return which of `jobs` are stored already."""
    known: set[UUID] = set()
    for part in batches(jobs, words.max_params):
        marks, params = words.marks(job.id for job in part)
        cursor.execute(f"SELECT id FROM {JOB} WHERE id IN ({marks})", params)
        known |= {words.to_uuid(row[0]) for row in cursor.fetchall()}
    return known


def _columns(own: dict[str, list[Any]], shared: list[dict[str, Any]]) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """Sort columns of rows into those that differ, as lists, and those that all have in common.

    `own` has the columns that are each row's own, `shared` the others, a dict for each row.
    """
    head = shared[0]
    if any(columns is not head for columns in shared):
        for name in {name: None for columns in shared for name in columns}:
            own[name] = [columns.get(name, _DEFAULTS.get(name)) for columns in shared]
        head = {}
    return own, head


_CREATED: Final = "'>' || status"
_DEFAULTS: Final = {
    "description": "",
    "serializer": "json",
    "metadata": "{}",
    "tags": "[]",
    "context": "{}",
    "is_http": False,
    "on_parent_failure": "",
    "on_parent_cancel": "",
    "unique_until": "",
}


def _absolute(start: datetime | timedelta, now: datetime) -> datetime | None:
    """Return the start time that is stored; a delay that has passed already is none."""
    if isinstance(start, timedelta):
        return now + start if start.total_seconds() > 0 else None
    return start


def _shared_columns(words: Dialect, spec: JobSpec, queues: Declared, now: datetime) -> dict[str, Any]:
    """Return the columns that all jobs of `spec` have in common, as parameters."""
    start = None if spec.run_after is None else _absolute(spec.run_after, now)
    is_ready = start is None or start <= now
    moment = as_param(words, now)
    columns: dict[str, Any] = {
        "backend": spec.backend,
        "task": spec.task,
        "queue": spec.queue,
        "priority": spec.priority,
        "status": (Status.READY if is_ready else Status.SCHEDULED).value,
        "enqueued_at": moment,
        "due_at": moment if start is None or is_ready else as_param(words, start),
    }
    if start is not None:
        columns["run_after"] = as_param(words, start)
    if spec.start_by is not None:
        start_by = now + spec.start_by if isinstance(spec.start_by, timedelta) else spec.start_by
        columns["start_by"] = as_param(words, start_by)
    return columns | optional_columns(spec, queues, words)


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
    expressions = {name: f"%s::{_TYPES.get(name, 'text')}{'::jsonb' if name in JSON_COLUMNS else ''}" for name in scalars}
    expressions |= {name: f"u.{name}{'::jsonb' if name in JSON_COLUMNS else ''}" for name in arrays}
    expressions |= {name: literal for name, literal in (LITERALS | USUAL).items() if name not in expressions}
    marks = ", ".join(f"%s::{_TYPES.get(name, 'text')}[]" for name in arrays)
    has_tags = "tags" in scalars or "tags" in arrays
    cursor.execute(
        f"WITH stored AS (INSERT INTO {JOB} ({', '.join(expressions)}) SELECT {', '.join(expressions.values())}"
        f" FROM unnest({marks}) AS u({', '.join(arrays)})"
        f"{LEAVE['postgresql']} RETURNING queue, batch_id, status{', id, tags' if has_tags else ''})"
        f"{f', tagged AS ({TAGGING})' if has_tags else ''} {tally.counting('stored', _CREATED)}",
        [*scalars.values(), *arrays.values()],
    )


def _values(cursor: Any, words: Dialect, own: Mapping[str, list[Any]], shared: Mapping[str, Any]) -> None:
    """The others: rows of parameters, as many in a statement as the database takes."""
    columns = (*own, *shared)
    literals = {name: literal for name, literal in (LITERALS | USUAL).items() if name not in columns}
    row = f"({', '.join(['%s'] * len(columns) + list(literals.values()))})"
    tail = list(shared.values())
    rows = [[*values, *tail] for values in zip(*own.values(), strict=True)]
    head = f"INSERT INTO {JOB} ({', '.join((*columns, *literals))}) VALUES "
    for part in batches(rows, max(1, words.max_params // len(columns))):
        marks = ", ".join([row] * len(part))
        cursor.execute(f"{head}{marks}{LEAVE[words.vendor]}", [value for values in part for value in values])

"""Store new jobs: in the caller's transaction, in as few statements as can be, by the database's clock.

The statements name only the columns that a new job needs, with everything that is the same for every new job as a literal.
One job is one statement; many (`bulk`) are one for each thousand. The key is made by the client and a key that is there
already is left alone, so an insert whose answer was lost with its connection can be sent again.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final

from django.db import DatabaseError, InterfaceError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from .. import prepared, signals, wakeup
from ..db import JOB, Dialect, as_datetime, dialect, sqlstate
from ..outcomes import Event
from ..serializers import dumps
from ..statuses import Status
from .bulk import insert_many
from .inherit import declared
from .spec import LEAVE, LITERALS, USUAL, JobSpec, NewJob, as_param, optional_columns

__all__ = ["JobSpec", "NewJob", "insert"]


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
        insert_many(connection, jobs)
    return set()


def _insert_one(connection: BaseDatabaseWrapper, job: NewJob) -> set[str]:
    words, spec = dialect(connection), job.spec
    optional = optional_columns(spec, declared(connection.alias))
    if job.unique_key is not None:
        optional["unique_key"] = job.unique_key
    start = _as_start(spec.run_after)
    returning = bool(connection.features.can_return_columns_from_insert)
    sql = _one_sql(connection.vendor, tuple(optional), _form(start), _form(spec.start_by), returning)
    times = [as_param(words, value) for value in (start, start, start, spec.start_by) if value is not None]
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


_FIRST: Final = ("id", "backend", "task", "args", "kwargs", "queue", "priority")


@lru_cache(maxsize=512)
def _one_sql(vendor: str, columns: tuple[str, ...], start: str, start_by: str, returning: bool) -> str:
    """Return the INSERT of one job. Times come last: three for a `start` by date, two for a delay, one for `start_by`."""
    words = _dialect_of(vendor)
    now, later = words.now_sql, words.now_plus()
    values = dict.fromkeys((*_FIRST, *columns), "%s")
    values |= {name: literal for name, literal in (LITERALS | USUAL).items() if name not in columns}
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
    sql = f"INSERT INTO {JOB} ({', '.join(values)}) VALUES ({', '.join(values.values())}){LEAVE[vendor]}"
    return sql + " RETURNING enqueued_at, status, run_after" if returning else sql


#: PostgreSQL's program_limit_exceeded: notifications that some session does not read have filled their queue.
_QUEUE_IS_FULL: Final = "54000"


def _and_notify(sql: str) -> str:
    """Return `sql`, an INSERT with RETURNING, extended by a notification for the row that it stores (none if it was there)."""
    return f"WITH stored AS ({sql}) SELECT s.*, pg_notify(%s, %s)::text FROM stored s"


def _dialect_of(vendor: str) -> Dialect:
    return next(dialect(connection) for connection in connections.all() if connection.vendor == vendor)

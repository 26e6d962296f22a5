"""Store new jobs: in the caller's transaction, in as few statements as can be, by the database's clock.

The statements name only the columns that a new job needs, with everything that is the same for every new job as a literal.
One job is one statement; many (`bulk`) are one for each thousand. The key is made by the client and a key that is there
already is left alone, so an insert whose answer was lost with its connection can be sent again.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final

from django.db import DatabaseError, InterfaceError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from .. import prepared, signals, wakeup
from ..db import JOB, Dialect, as_datetime, dialect, sqlstate
from ..models.stat import move_name
from ..outcomes import Event
from ..serializers import dumps
from ..statuses import Status
from . import tally
from .bulk import insert_many
from .inherit import declared
from .recover import writing
from .spec import LEAVE, LITERALS, USUAL, JobSpec, NewJob, as_param, optional_columns
from .tags import TAGGING, write_tags

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
    if len(jobs) == 1 and not jobs[0].waits:
        return _insert_one(connection, jobs[0])
    with writing(connection.alias):
        insert_many(connection, jobs)
    return set()


#: Which columns a new job has besides those of every job, and the forms of its times: what decides its statement.
_Form = tuple[tuple[str, ...], str, str]


def _insert_one(connection: BaseDatabaseWrapper, job: NewJob) -> set[str]:
    words, spec = dialect(connection), job.spec
    optional = optional_columns(spec, declared(connection.alias), words)
    if job.unique_key is not None:
        optional["unique_key"] = job.unique_key
    if job.description:
        optional["description"] = job.description
    if job.related:
        optional["related"] = dumps(job.related)
    start = _as_start(spec.run_after)
    form = (tuple(optional), _form(start), _form(spec.start_by))
    times = [as_param(words, value) for value in (start, start, start, spec.start_by) if value is not None]
    if isinstance(start, timedelta):
        del times[0]  # a delay decides the status by itself
    first = [words.uuid(job.id), spec.backend, spec.task, dumps(job.args), dumps(job.kwargs), spec.queue, spec.priority]
    params = [*first, *optional.values(), *times]
    told: set[str] = set()
    if connection.vendor == "postgresql":
        if start is None and not connection.in_atomic_block and connection.get_autocommit():
            # In one statement, so that the worker need not wait for a second commit.
            told = set(wakeup.due(connection.alias, [spec.queue]))
        row, told = _store_postgresql(connection, form, params, told)
    else:
        row = _store_portable(connection, job, form, params)
    if row is None:  # stored before: say what was stored then
        with connection.cursor() as cursor:
            row = _stored(cursor, words, job)
    job.enqueued_at = as_datetime(row[0])
    job.status = Status(row[1])
    job.run_after = as_datetime(row[2]) if row[2] is not None else None
    return told


def _stored(cursor: Any, words: Dialect, job: NewJob) -> Any:
    cursor.execute(f"SELECT enqueued_at, status, run_after FROM {JOB} WHERE id = %s", [words.uuid(job.id)])
    return cursor.fetchone()


def _store_postgresql(connection: BaseDatabaseWrapper, form: _Form, params: list[Any], told: set[str]) -> tuple[Any, set[str]]:
    """Store a job with all that belongs to it, in one statement; also tell the workers of the queue in `told`, if it can be."""
    if told:
        try:
            return prepared.fetch_one(connection, _whole_sql(*form, notify=True), [*params, wakeup.CHANNEL]), told
        except DatabaseError as error:
            if sqlstate(error) != _QUEUE_IS_FULL:
                raise
    return prepared.fetch_one(connection, _whole_sql(*form, notify=False), params), set()


def _store_portable(connection: BaseDatabaseWrapper, job: NewJob, form: _Form, params: list[Any]) -> Any:
    """Do the same in a few statements and one transaction."""
    words = dialect(connection)
    returning = bool(connection.features.can_return_columns_from_insert)
    is_alone = not connection.in_atomic_block and connection.get_autocommit()
    with transaction.atomic(using=connection.alias) if is_alone else nullcontext(), connection.cursor() as cursor:
        # MariaDB returns a row whether it has stored it or left it.
        before = _stored(cursor, words, job) if connection.vendor == "mysql" else None
        if before is not None:
            return before
        cursor.execute(_one_sql(connection.vendor, *form, returning), params)
        row = cursor.fetchone() if returning else _stored(cursor, words, job)
        if row is not None:
            tally.write(cursor, {(job.spec.queue, move_name("", row[1]), job.spec.batch): 1})
            write_tags(connection, {job.id: job.spec.tags})
        return row


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


@lru_cache(maxsize=512)
def _whole_sql(columns: tuple[str, ...], start: str, start_by: str, *, notify: bool) -> str:
    """Return PostgreSQL's INSERT of one job, its tags and its count; `notify`: and a notification, if the row is new."""
    plain = _one_sql("postgresql", columns, start, start_by, returning=True)
    tagged = f" tagged AS ({TAGGING})," if "tags" in columns else ""
    counted = tally.counting("stored", "'>' || status")
    told = ", pg_notify(%s, queue)::text" if notify else ""
    return (
        f"WITH stored AS ({plain}, queue, batch_id{', id, tags' if tagged else ''}),{tagged} counted AS ({counted})"
        f" SELECT enqueued_at, status, run_after{told} FROM stored"
    )


def _dialect_of(vendor: str) -> Dialect:
    return next(dialect(connection) for connection in connections.all() if connection.vendor == vendor)

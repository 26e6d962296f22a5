"""Fail ready jobs whose rows can't be read: such a row, made by hand, would stop every claim that comes upon it.

PostgreSQL, for one, stores times before the year 1 and infinite ones, which Python has not. A time that can't be read is
emptied, so that the failed job can be shown, requeued and deleted like any other.
"""

from __future__ import annotations

import logging
from typing import Any, Final
from uuid import UUID

from django.db import DatabaseError, InterfaceError
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import DateTimeField

from .. import db
from ..models import Job
from ..models.stat import move_name
from ..outcomes import ErrorInfo, Event
from ..statuses import Move, Status, check
from . import claim, tally
from .ended import leave_ended

logger = logging.getLogger("django_jobs.claim")

_MAX_TEXT: Final = 500

check(Move.GIVE_UP, Status.READY, Status.FAILED)


def fail_unreadable(connection: BaseDatabaseWrapper, queues: claim.QueueFilter, limit: int) -> list[Event]:
    """Read the first `limit` jobs of a claim one by one, in the caller's open transaction, and fail those that can't be read.

    Return the events, to be dispatched after the commit. Raises a database error when the session is lost.
    """
    events = []
    with connection.cursor() as cursor:
        for job_id in _heads(cursor, connection, queues, limit):
            error = _error(cursor, connection, f"{', '.join(claim._COLUMNS)}", job_id)
            if error is not None:
                events.append(_fail(cursor, connection, job_id, error))
    return events


def _heads(cursor: Any, connection: BaseDatabaseWrapper, queues: claim.QueueFilter, limit: int) -> list[UUID]:
    dialect = db.dialect(connection)
    if connection.vendor != "postgresql":
        return claim._pick_portable(cursor, dialect, connection.vendor, queues, limit)
    pick, params = claim._pick_postgresql(queues, limit, dialect)
    cursor.execute(f"SELECT id FROM ({pick}) p", params)
    return [row[0] for row in cursor.fetchall()]


def _error(cursor: Any, connection: BaseDatabaseWrapper, columns: str, job_id: UUID) -> Exception | None:
    """Return what reading these columns of a job raises, None if nothing."""
    dialect = db.dialect(connection)
    try:
        with db.savepoint(connection, "one_read"):
            cursor.execute(f"SELECT {columns} FROM {db.JOB} WHERE id = %s", [dialect.uuid(job_id)])
            (row,) = cursor.fetchall()
            if columns in _TIMES:
                if row[0] is not None:
                    db.as_datetime(row[0])
            else:
                claim._attempt(dict(zip(claim._COLUMNS, row, strict=True)) | {"last_token": job_id}, False)
    except Exception as error:
        if isinstance(error, DatabaseError | InterfaceError) and dialect.is_connection_loss(error):
            raise
        return error
    return None


_TIMES: Final = {str(field.column): field.null for field in Job._meta.local_concrete_fields if isinstance(field, DateTimeField)}


def _fail(cursor: Any, connection: BaseDatabaseWrapper, job_id: UUID, error: Exception) -> Event:
    dialect = db.dialect(connection)
    job = dialect.uuid(job_id)
    why = f"The row of this job can't be read: {type(error).__name__}: {' '.join(str(error).split())}"[:_MAX_TEXT]
    logger.error("Job %s is failed: %s", job_id, why)
    bad = [name for name in _TIMES if _error(cursor, connection, name, job_id) is not None]
    sets = {name: "NULL" if _TIMES[name] else dialect.now_sql for name in bad} | {"finished_at": dialect.now_sql}
    cursor.execute(f"SELECT task, queue, backend, batch_id FROM {db.JOB} WHERE id = %s", [job])
    task, queue, backend, batch = cursor.fetchone()
    info = ErrorInfo("django_jobs.exceptions.JobsError", why)
    cursor.execute(
        f"UPDATE {db.JOB} SET status = 'failed', parked = '', {', '.join(f'{name} = {sql}' for name, sql in sets.items())},"
        " reason = %s, error_class = %s, error_message = %s WHERE id = %s AND status = 'ready'",
        [why, info.exception_class, why, job],
    )
    key = (queue, move_name(Status.READY, Status.FAILED), None if batch is None else dialect.to_uuid(batch))
    tally.write(cursor, {key: cursor.rowcount})
    leave_ended(cursor, dialect, [job_id])
    return Event("job_failed", job_id, task, queue, Status.FAILED, backend=backend, error=info, reason=why)

"""Run jobs inside a test: no worker, no other process, and within the transaction of a `TestCase`, too."""

from __future__ import annotations

import uuid
from functools import partial
from typing import Any, Final

from asgiref.sync import async_to_sync
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from . import conf, signals
from .execution.executor import Executor
from .lifecycle.claim import QueueFilter, claim
from .lifecycle.fence import Note, fence_success, write_notes
from .lifecycle.record import record
from .outcomes import Attempt, Finished
from .registry import find_task

WORKER_NAME: Final = "run_jobs"


def run_jobs(*, using: str | None = None, limit: int | None = None) -> int:
    """Run the jobs that are ready, one after the other in this thread, until none is left; return how many attempts there were.

    In the order of a worker, and by the same code: claimed, executed, recorded. Jobs that those enqueue are run, too. What
    is due later, as a retry after a pause, stays. `using`: the database, by default that of the first back end in TASKS;
    `limit`: attempts at most.
    """
    using = conf.jobs_database() if using is None else using
    connection = connections[using]
    worker = uuid.uuid4()
    executor = Executor(_Link(connection), find_task=find_task, database=using, fence=partial(fence_success, using=using))
    done = 0
    while limit is None or done < limit:
        attempt = _claim(connection, worker)
        if attempt is None:
            break
        _record(connection, _run(executor, attempt))
        done += 1
    return done


def _claim(connection: BaseDatabaseWrapper, worker: uuid.UUID) -> Attempt | None:
    with transaction.atomic(using=connection.alias):
        attempts = claim(
            connection,
            worker=worker,
            worker_name=WORKER_NAME,
            tokens=[uuid.uuid4()],
            free=1,
            grace=conf.jobs_settings().grace,
            queues=QueueFilter(),
        )
    return attempts[0] if attempts else None


def _run(executor: Executor, attempt: Attempt) -> Finished:
    if executor.is_async(attempt):
        return async_to_sync(executor.arun)(attempt)
    return executor.run(attempt)


def _record(connection: BaseDatabaseWrapper, finished: Finished) -> None:
    with transaction.atomic(using=connection.alias):
        recorded = record(connection, [finished], worker_name=WORKER_NAME)
    signals.dispatch(recorded.events)


class _Link:
    """Writes what a running task reports at once."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self._using = connection.alias

    def _write(self, note: Note) -> None:
        with transaction.atomic(using=self._using):
            write_notes(connections[self._using], [note])

    def progress(self, attempt: Attempt, done: float | None, total: float | None, message: str) -> None:
        self._write(Note(attempt, progress={"done": done, "total": total, "message": message}))

    def heartbeat(self, attempt: Attempt) -> None:
        self._write(Note(attempt, heartbeat=True))

    def save(self, attempt: Attempt, output: Any) -> None:
        self._write(Note(attempt, output=output))

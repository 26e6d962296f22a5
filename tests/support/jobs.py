"""Jobs as rows, claimed by workers that do not exist, and connections beside the test's own."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from django_jobs import db
from django_jobs.lifecycle.claim import QueueFilter, claim
from django_jobs.models import Job, JobLock
from django_jobs.outcomes import Attempt
from django_jobs.statuses import FINAL, Status

WORKER_NAME = "host/worker/1-abcdef01"


def make_job(status: Status = Status.READY, **values: Any) -> Job:
    """Store a job as if it had come to `status` in the usual way (not running: see `run_jobs`)."""
    now = db.server_now(connection)
    values = {"task": "tests.nowhere.task", "max_attempts": 5, "due_at": now, "enqueued_at": now} | values
    if status in FINAL:
        values = {"finished_at": now, "starts": 1, "attempts_used": 1, "started_at": now, "last_started_at": now} | values
    return Job.objects.create(status=status, **values)


def claim_jobs(worker: UUID | None = None, *, count: int = 100, free: int | None = None, grace: float = 10.0) -> list[Attempt]:
    """Claim up to `count` ready jobs for `worker`, which holds nothing: their lock rows live for `grace` seconds."""
    with transaction.atomic():
        return claim(
            connection,
            worker=worker or uuid.uuid4(),
            worker_name=WORKER_NAME,
            tokens=[uuid.uuid4() for _ in range(count)],
            free=count if free is None else free,
            grace=grace,
            queues=QueueFilter(),
        )


def running_job(worker: UUID | None = None, *, expired: bool = False, free: int | None = None, **values: Any) -> Job:
    """Return a job that a worker claimed; `expired`: its lock row's time has passed."""
    job = make_job(**values)
    claim_jobs(worker, free=free)
    if expired:
        expire(job)
    job.refresh_from_db()
    assert job.status == Status.RUNNING
    return job


def expire(*jobs: Job, seconds: float = 60.0) -> None:
    """Let the lock rows of `jobs` have expired `seconds` ago."""
    past = db.server_now(connection) - timedelta(seconds=seconds)
    JobLock.objects.filter(job__in=jobs).update(expires_at=past)


@contextmanager
def other_connection() -> Iterator[BaseDatabaseWrapper]:
    """A session of its own on the test database, in autocommit."""
    other = db.control_connection("default")
    other.connect()
    # The test's thread opens it, another may use it.
    other.inc_thread_sharing()
    try:
        yield other
    finally:
        other.close()


@contextmanager
def locked(table: str, column: str, value: UUID, lock: str) -> Iterator[BaseDatabaseWrapper]:
    """Another session keeps a row locked by `lock` ("FOR UPDATE", ...) in an open transaction."""
    with other_connection() as other, other.cursor() as cursor:
        dialect = db.dialect(other)
        cursor.execute(dialect.begin_sql)
        cursor.execute(f"SELECT 1 FROM {table} WHERE {column} = %s {lock}", [dialect.uuid(value)])
        assert cursor.fetchall()
        yield other
        cursor.execute("ROLLBACK")


def in_threads(*functions: Callable[[], Any], timeout: float = 30.0) -> list[Any]:
    """Run the functions at once, each in a thread with a connection of its own; return what they returned, or raise."""
    results: list[Any] = [None] * len(functions)
    errors: list[BaseException] = []
    start = threading.Barrier(len(functions))

    def run(index: int, function: Callable[[], Any]) -> None:
        try:
            start.wait(timeout)
            results[index] = function()
        except BaseException as error:
            errors.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=(index, function), daemon=True) for index, function in enumerate(functions)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + timeout
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
        assert not thread.is_alive(), "a thread did not end in time"
    if errors:
        raise errors[0]
    return results


class Clock:
    """A monotonic clock that moves when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def move(self, seconds: float) -> None:
        self.now += seconds

"""Batches in the database: counted without a hot row, ended once, callbacks released once, reopened, kept and removed as a whole."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import DatabaseError, connection, transaction

from django_jobs import db, stats
from django_jobs.exceptions import BatchDoesNotExist, BatchIsFinished, InvalidTransition
from django_jobs.ids import uuid7
from django_jobs.lifecycle import batch, control, rollup, sweep
from django_jobs.lifecycle.batch_keep import Keeper, Walk
from django_jobs.lifecycle.batch_look import look, numbers_of
from django_jobs.lifecycle.enqueue import JobSpec, NewJob, insert
from django_jobs.lifecycle.record import record
from django_jobs.lifecycle.recover import writing
from django_jobs.models import Batch, BatchCount, Delta, Job
from django_jobs.outcomes import ErrorInfo, Failed, Finished, Succeeded
from django_jobs.retry import is_database_conflict
from django_jobs.statuses import Status
from tests.support.jobs import claim_jobs, in_threads, locked, other_connection
from tests.support.moves import real_counts

pytestmark = pytest.mark.django_db
commits = pytest.mark.django_db(transaction=True)
needs_row_locks = pytest.mark.skipif(
    not connection.features.has_select_for_update_skip_locked, reason="this database has no row locks"
)

ERROR = ErrorInfo("builtins.ValueError", "no")
CALLBACKS = ("on_success", "on_failure", "on_finish")


def make(jobs: int = 0, *, callbacks: tuple[str, ...] = CALLBACKS, is_sealed: bool = True, **spec: Any) -> UUID:
    """Store a batch with `jobs` jobs and these callbacks."""
    new = {name: NewJob(JobSpec(task="tests.nowhere.callback", queue="callbacks"), [], {}) for name in callbacks}
    made = batch.NewBatch(id=uuid7(), name="b", metadata={}, created_by=None, callbacks=new)
    with transaction.atomic():
        batch.create(made, using="default")
        if jobs:
            add(made.id, jobs, **spec)
        if is_sealed:
            batch.seal(made.id, using="default")
    return made.id


def add(to: UUID, jobs: int = 1, **spec: Any) -> list[UUID]:
    """Add jobs in a transaction."""
    with writing("default"):
        batch.join(to, using="default")
        new = [NewJob(JobSpec(task="tests.nowhere.task", batch=to, **spec), [], {}) for _ in range(jobs)]
        insert(new, using="default")
    return [job.id for job in new]


def run(count: int = 100, *, failed: bool = False) -> list[UUID]:
    """Claim up to `count` ready jobs and end them."""
    attempts = claim_jobs(count=count)
    outcome = Failed(ERROR) if failed else Succeeded(1)
    with transaction.atomic():
        record(connection, [Finished(attempt, outcome) for attempt in attempts], worker_name="w")
    return [attempt.job_id for attempt in attempts]


def fold() -> None:
    """Do what maintenance does until all is folded."""
    for _ in range(100):
        try:
            with writing("default"):
                folded = rollup.fold(using="default", limit=1000)
                look(connection, folded.batches)
            if not folded.touched:
                return
        except DatabaseError as error:
            if not is_database_conflict(error) or connection.in_atomic_block:
                raise
    raise AssertionError("there is always more to fold")


def callbacks(of: UUID) -> str:
    """Return the statuses of success, failure and finish, as "waiting ready -"."""
    row = Batch.objects.get(id=of)
    statuses = dict(Job.objects.values_list("id", "status"))
    return " ".join(statuses.get(job, "-") for job in (row.on_success_id, row.on_failure_id, row.on_finish_id))


def is_finished(of: UUID) -> bool:
    return Batch.objects.get(id=of).finished_at is not None


def counts(of: UUID) -> dict[str, int]:
    found = numbers_of(connection, [of])[of]
    return {status.value: found[status] for status in Status if found[status]}


# -- its end ----------------------------------------------------------------------------------------


def test_a_batch_ends_with_its_last_job_and_its_callbacks_are_released_once() -> None:
    made = make(3)
    assert (callbacks(made), counts(made)) == ("waiting waiting waiting", {"ready": 3})
    run(2)
    fold()
    assert not is_finished(made)
    run(1)
    fold()
    assert is_finished(made)
    assert (callbacks(made), counts(made)) == ("ready cancelled ready", {"succeeded": 3})
    done = run()
    assert len(done) == 2
    fold()
    with writing("default"):
        look(connection, [made])
    assert callbacks(made) == "succeeded cancelled succeeded"
    assert stats.queue_counts() == {q: {**dict.fromkeys(map(str, Status), 0), **n} for q, n in _by_queue().items()}


def _by_queue() -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for (queue, status), number in real_counts().items():
        found.setdefault(queue, {})[status] = number
    return found

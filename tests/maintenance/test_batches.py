"""Ends of batches in the loop: soon while some batch is open, and at no cost while nothing happens."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_jobs import Batch
from django_jobs.lifecycle.record import record
from django_jobs.lifecycle.recover import writing
from django_jobs.maintenance.service import BATCH_FOLD_SECONDS, FOLD_SECONDS, Maintenance
from django_jobs.models import Batch as Row
from django_jobs.models import Delta, Job
from django_jobs.outcomes import Finished, Succeeded
from tests.support.jobs import Clock, claim_jobs
from tests.support.tasks import add

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def maintenance(clock: Clock) -> Iterator[Maintenance]:
    made = Maintenance(using="default", worker=uuid.uuid4(), stop=threading.Event(), knows=lambda name: False, clock=clock)
    made.cycle()
    made.cycle()
    yield made
    connection.close()  # a session that was prepared for maintenance has time limits that the next test does not expect


def run_one() -> None:
    """End a job, and nobody looks at its batch."""
    with writing("default"):
        record(connection, [Finished(attempt, Succeeded(1)) for attempt in claim_jobs(count=1)], worker_name="w")


def test_a_batch_ends_with_the_next_look_after_its_last_job(maintenance: Maintenance, clock: Clock) -> None:
    with Batch(on_finish=add.s(1)) as batch:
        batch.add(add, 1)
    for _ in range(3):
        maintenance.cycle()
        clock.move(BATCH_FOLD_SECONDS + 0.01)
    run_one()
    maintenance.cycle()
    row = Row.objects.get()
    assert row.finished_at
    assert Job.objects.get(id=row.on_finish_id).status == "ready"


def test_a_process_folds_often_only_while_a_batch_is_open(maintenance: Maintenance, clock: Clock) -> None:
    add.enqueue(1)
    clock.move(FOLD_SECONDS)
    maintenance.cycle()
    assert not Delta.objects.exists()
    add.enqueue(1)
    clock.move(BATCH_FOLD_SECONDS + 0.01)
    maintenance.cycle()
    assert Delta.objects.exists()
    Batch().seal()
    Batch().add(add, 1)
    maintenance.cycle()
    assert not Delta.objects.exists()


def test_an_open_batch_costs_an_idle_cluster_nothing(maintenance: Maintenance, clock: Clock) -> None:
    Batch().add(add, 1)
    clock.move(FOLD_SECONDS)
    maintenance.cycle()
    clock.move(FOLD_SECONDS)
    with CaptureQueriesContext(connection) as queries:
        maintenance.look()
        wanted = maintenance._wanted(maintenance.looks.look())
    assert wanted == []
    assert len([query for query in queries if "django_jobs_batch" in query["sql"]]) == 2, "the pulse alone asks, each time"

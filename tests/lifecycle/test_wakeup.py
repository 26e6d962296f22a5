"""Notifications: one for each queue and moment, in the commit that stores the job, and none before or without it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction

from django_jobs import prepared, wakeup
from django_jobs.lifecycle.enqueue import JobSpec, NewJob, insert
from django_jobs.models import Job

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="NOTIFY is PostgreSQL's"),
]


@pytest.fixture
def listener() -> Iterator[wakeup.Listener]:
    wakeup._sent.clear()
    listener = wakeup.Listener("default")
    listener.open()
    yield listener
    listener.close()


def new(queue: str = "q", **spec: Any) -> NewJob:
    return NewJob(JobSpec(task="tests.support.tasks.add", queue=queue, **spec), [1], {})


def put(*jobs: NewJob) -> None:
    insert(list(jobs), using="default")


def heard(listener: wakeup.Listener, seconds: float = 0.2) -> list[str]:
    return list(listener.wait(seconds))


def test_one_job_is_stored_and_told_by_one_statement(listener: wakeup.Listener) -> None:
    statements: list[str] = []

    def watch(execute: Any, sql: str, *rest: Any) -> Any:
        statements.append(sql)
        return execute(sql, *rest)

    put(new("other"))  # reads the queues' settings, which are kept for a while
    with connection.execute_wrapper(watch):
        put(new())
    assert len(statements) == 1
    assert heard(listener) == ["other", "q"]


def test_queues_are_told_once_in_a_while_each(listener: wakeup.Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wakeup, "DEBOUNCE_SECONDS", 60.0)
    for queue in ("a", "a", "b", "a", "b"):
        put(new(queue))
    assert heard(listener) == ["a", "b"]
    assert Job.objects.count() == 5


def test_in_a_transaction_nothing_is_told_before_the_commit_and_nothing_without(listener: wakeup.Listener) -> None:
    with transaction.atomic():
        put(new())
        assert heard(listener) == []
    assert heard(listener) == ["q"]
    wakeup._sent.clear()
    with transaction.atomic():
        put(new())
        transaction.set_rollback(True)
    put(new("other"))
    assert heard(listener) == ["other"]


def test_what_can_not_start_yet_wakes_nobody(listener: wakeup.Listener) -> None:
    put(new())
    assert heard(listener) == ["q"]
    wakeup._sent.clear()
    put(new(run_after=timedelta(hours=1)))
    assert heard(listener) == []
    assert Job.objects.count() == 2


def test_a_full_queue_of_notifications_stops_no_insert(listener: wakeup.Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    real = prepared.fetch_all

    class Full(Exception):
        sqlstate = "54000"

    def fetch(connection: Any, sql: str, params: Any) -> Any:
        if "pg_notify" in sql:
            raise DatabaseError("too many notifications in the NOTIFY queue") from Full()
        return real(connection, sql, params)

    monkeypatch.setattr(prepared, "fetch_all", fetch)
    job = new()
    put(job)
    assert Job.objects.get().pk == job.id
    assert job.enqueued_at is not None

"""HTTP workers' leases: claim, report, finish, lapse, cancel; and what a latecomer is told."""

from __future__ import annotations

import time
import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from django_jobs import db, wakeup
from django_jobs.exceptions import JobDoesNotExist, JobIsBusy, LeaseLost
from django_jobs.lifecycle import control, graph, lease
from django_jobs.lifecycle.enqueue import JobSpec, NewJob, insert
from django_jobs.lifecycle.inherit import forget_queues
from django_jobs.models import Job, JobAttempt, JobLock, LockKind, Queue
from django_jobs.outcomes import ErrorInfo, Failed, HandedBack, Succeeded
from django_jobs.statuses import Status
from tests.support.jobs import locked

pytestmark = pytest.mark.django_db(transaction=True)
ERROR = ErrorInfo("Oops", "it broke")


@pytest.fixture(autouse=True)
def queue() -> None:
    Queue.objects.create(name="web", is_http=True)
    forget_queues()


def put(queue: str = "web", **spec: Any) -> NewJob:
    job = NewJob(JobSpec(task="t", queue=queue, **spec), ["input"], {})
    insert([job], using="default")
    return job


def claim(limit: int = 1, queue: str = "web") -> list[lease.Lease]:
    return lease.claim_http(queue, limit=limit, worker="me", using="default")


def now() -> Any:
    return db.server_now(connection)


def expire(job: NewJob, seconds: float = 1.0) -> None:
    JobLock.objects.filter(job_id=job.id).update(expires_at=now() - timedelta(seconds=seconds))


def status(job: NewJob) -> str:
    return Job.objects.get(pk=job.id).status


@pytest.fixture
def long_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(db.dialect(connection)), "uptime", lambda self, connection: 3600.0)


def test_a_claim_takes_jobs_of_its_queue_in_order_and_no_others() -> None:
    Queue.objects.create(name="plain")
    low, high = put(), put(priority=5)
    put("plain")
    put("web.below")
    found = claim(10)
    assert [one.attempt.job_id for one in found] == [high.id, low.id]
    assert {row.kind for row in JobLock.objects.all()} == {LockKind.HTTP}
    assert Job.objects.get(pk=low.id).worker == "me"
    assert claim() == []
    assert claim(queue="plain") == []
    assert len(claim(queue="web.below")) == 1, "what is not said is inherited: it is below web"


@pytest.mark.parametrize(
    ("limits", "seconds"),
    [
        ({}, None),
        ({"timeout": 60.0}, 60),
        ({"heartbeat_timeout": 20.0}, 20),
        ({"timeout": 60.0, "heartbeat_timeout": 20.0}, 20),
        ({"timeout": 10.0, "heartbeat_timeout": 20.0}, 10),
    ],
)
def test_the_lease_ends_at_the_first_limit(limits: dict[str, float], seconds: float | None) -> None:
    put(**limits)
    (one,) = claim()
    if seconds is None:
        assert one.expires_at is None
    else:
        assert one.expires_at is not None
        assert abs((one.expires_at - now()).total_seconds() - seconds) < 2


def test_a_report_extends_the_lease_up_to_the_timeout(long_up: None) -> None:
    job = put(timeout=60.0, heartbeat_timeout=20.0)
    (one,) = claim()
    expire(job)
    again = lease.report(job.id, one.attempt.token, progress={"done": 1}, output=[1], has_output=True, using="default")
    assert again.expires_at is not None
    assert 15 < (again.expires_at - now()).total_seconds() <= 20
    row = Job.objects.get(pk=job.id)
    assert (row.progress, row.output) == ({"done": 1}, [1])
    assert row.last_heartbeat_at is not None
    JobLock.objects.filter(job_id=job.id).update(claimed_at=now() - timedelta(seconds=55))
    late = lease.report(job.id, one.attempt.token, using="default")
    assert late.expires_at is not None
    assert (late.expires_at - now()).total_seconds() <= 5.5


def test_a_finish_ends_the_attempt_once() -> None:
    job = put()
    (one,) = claim()
    assert lease.finish(job.id, one.attempt.token, Succeeded({"a": 1}), output="last", has_output=True, using="default") == (
        Status.SUCCEEDED
    )
    row = Job.objects.get(pk=job.id)
    assert (row.status, row.result, row.output) == ("succeeded", {"a": 1}, "last")
    assert row.run_seconds is not None
    with pytest.raises(LeaseLost, match="has ended: the job is succeeded") as caught:
        lease.finish(job.id, one.attempt.token, Succeeded(), using="default")
    assert caught.value.status == Status.SUCCEEDED


def test_a_failure_is_retried_while_attempts_remain_unless_it_is_final() -> None:
    job = put(max_attempts=2, backoff=0)
    (one,) = claim()
    assert lease.finish(job.id, one.attempt.token, Failed(ERROR, final=False), using="default") == Status.READY
    (two,) = claim()
    assert two.attempt.token != one.attempt.token
    assert lease.finish(job.id, two.attempt.token, Failed(ERROR, final=False), using="default") == Status.FAILED
    final = put(max_attempts=5)
    (three,) = claim()
    assert lease.finish(final.id, three.attempt.token, Failed(ERROR), using="default") == Status.FAILED


def test_who_does_not_have_the_lease_changes_nothing(long_up: None) -> None:
    job = put(max_attempts=3, timeout=30.0, backoff=0)
    (one,) = claim()
    with pytest.raises(LeaseLost, match=r"No attempt with this token|taken over"):
        lease.report(job.id, uuid.uuid4(), using="default")
    with pytest.raises(JobDoesNotExist):
        lease.report(uuid.uuid4(), one.attempt.token, using="default")
    expire(job)
    assert lease.lapse(using="default", limit=10).touched == 1
    (two,) = claim()
    with pytest.raises(LeaseLost, match="taken over: attempt 2 runs now"):
        lease.finish(job.id, one.attempt.token, Succeeded("late"), using="default")
    assert lease.finish(job.id, two.attempt.token, Succeeded("mine"), using="default") == Status.SUCCEEDED
    assert Job.objects.get(pk=job.id).result == "mine"


@pytest.mark.parametrize("limits", [{"timeout": 30.0}, {"heartbeat_timeout": 30.0}])
def test_a_lapse_is_a_time_out_never_a_death(limits: dict[str, float], long_up: None) -> None:
    job = put(max_attempts=1, **limits)
    claim()
    assert lease.lapse(using="default", limit=10).touched == 0
    expire(job)
    swept = lease.lapse(using="default", limit=10)
    assert [event.name for event in swept.events] == ["job_timed_out"]
    row = Job.objects.get(pk=job.id)
    assert (row.status, row.deaths) == ("timed_out", 0)
    (record,) = JobAttempt.objects.all()
    assert record.outcome == "timed_out"
    assert next(iter(limits)) in record.error_message
    assert not JobLock.objects.exists()


def test_after_a_restart_of_the_database_leases_have_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    job = put(timeout=30.0)
    claim()
    expire(job)
    monkeypatch.setattr(type(db.dialect(connection)), "uptime", lambda self, connection: 59.0)
    assert lease.lapse(using="default", limit=10).touched == 0
    assert status(job) == "running"


def test_a_cancel_takes_effect_at_once_and_the_worker_is_told_why() -> None:
    job = put()
    (one,) = claim()
    report = control.cancel([job.id], by="ann", reason="wrong file")
    assert report.changed == [job.id]
    assert status(job) == "cancelled"
    with pytest.raises(LeaseLost, match="wrong file") as caught:
        lease.report(job.id, one.attempt.token, using="default")
    assert caught.value.status == Status.CANCELLED


def test_a_paused_queue_gives_nothing() -> None:
    put()
    control.pause_queue("web")
    assert claim() == []
    control.resume_queue("web")


def test_the_server_tells_for_how_long_it_has_been_up() -> None:
    seconds = db.dialect(connection).uptime(connection)
    assert seconds is None if connection.vendor == "sqlite" else seconds > 0


@pytest.mark.skipif(not connection.features.has_select_for_update_skip_locked, reason="this database has no row locks")
def test_a_job_that_somebody_has_locked_can_be_finished_a_little_later() -> None:
    job = put()
    (one,) = claim()
    before = _lock_timeout()
    with locked(db.JOB, "id", job.id, "FOR UPDATE"):
        began = time.monotonic()
        with pytest.raises(JobIsBusy):
            lease.finish(job.id, one.attempt.token, Succeeded(1), using="default")
        with pytest.raises(JobIsBusy):
            lease.report(job.id, one.attempt.token, output="so far", has_output=True, using="default")
        assert time.monotonic() - began < 10, "it waits for nobody"
    assert _lock_timeout() == before, "the session is as it was"
    lease.report(job.id, one.attempt.token, using="default")
    assert _lock_timeout() == before
    assert lease.finish(job.id, one.attempt.token, Succeeded(1), using="default") == Status.SUCCEEDED


def _lock_timeout() -> str:
    name = "current_setting('lock_timeout')" if connection.vendor == "postgresql" else "@@SESSION.innodb_lock_wait_timeout"
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {name}")
        return str(cursor.fetchone()[0])


@pytest.mark.skipif(connection.vendor != "postgresql", reason="NOTIFY is PostgreSQL's")
def test_whoever_waits_is_told_of_a_job_that_was_given_back() -> None:
    job = put()
    (one,) = claim()
    wakeup._sent.clear()
    listener = wakeup.Listener("default")
    listener.open()
    try:
        assert lease.finish(job.id, one.attempt.token, HandedBack(started=True), using="default") == Status.READY
        assert next(iter(listener.wait(10)), None) == "web"
    finally:
        listener.close()


def test_what_comes_after_a_job_is_released_when_its_http_worker_has_finished() -> None:
    job = put()
    child = NewJob(JobSpec(task="tests.nowhere.task"), [], {})
    graph.insert_graph([child], [(job.id, child.id)], using="default")
    (one,) = claim()
    lease.finish(job.id, one.attempt.token, Succeeded(1), using="default")
    assert Job.objects.get(id=child.id).status == Status.READY

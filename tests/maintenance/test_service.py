"""The loop: what it does by itself, how it goes on after failures, and how little it asks when there is nothing to do."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection, connections
from django.test.utils import CaptureQueriesContext

from django_jobs import db
from django_jobs.lifecycle.enqueue import JobSpec, NewJob, insert
from django_jobs.lifecycle.pause import pause_queue, resume_queue
from django_jobs.lifecycle.sweep import Swept
from django_jobs.maintenance import service as service_module
from django_jobs.maintenance.service import AFTER_SECONDS, Maintenance
from django_jobs.maintenance.turns import Service
from django_jobs.models import CancelRequest, Count, Delta, IdempotencyKey, Job, JobLock, Leader, Worker
from django_jobs.outcomes import Event
from django_jobs.signals import job_failed, job_retrying
from django_jobs.statuses import Parked, Status
from tests.support.jobs import Clock, claim_jobs, expire, make_job, running_job

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def maintenance(clock: Clock) -> Iterator[Maintenance]:
    yield Maintenance(using="default", worker=uuid.uuid4(), stop=threading.Event(), knows=lambda name: False, clock=clock)
    connection.close()  # a session that was prepared for maintenance has time limits that the next test does not expect


def status_of(job: Job) -> str:
    return Job.objects.values_list("status", flat=True).get(id=job.id)


def rounds(maintenance: Maintenance, clock: Clock, count: int) -> None:
    for _ in range(count):
        maintenance.cycle()
        clock.move(maintenance.settings.sweep_interval)


def wait_until(true: Callable[[], bool], timeout: float = 20.0) -> None:
    deadline = time.monotonic() + timeout
    while not true():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def test_a_dead_attempt_is_recovered_within_the_session_grace_and_told(maintenance: Maintenance, clock: Clock) -> None:
    told: list[Event] = []

    def listen(event: Event, **kwargs: Any) -> None:
        told.append(event)

    dead, failing, alive = running_job(expired=True), running_job(max_attempts=1), running_job()
    expire(failing)
    job_retrying.connect(listen)
    job_failed.connect(listen)
    try:
        rounds(maintenance, clock, 10)
        assert told == []
        rounds(maintenance, clock, 1)
    finally:
        job_retrying.disconnect(listen)
        job_failed.disconnect(listen)
    assert sorted((event.name, event.job_id) for event in told) == sorted([("job_retrying", dead.id), ("job_failed", failing.id)])
    assert [status_of(job) for job in (dead, failing, alive)] == ["ready", "failed", "running"]
    assert Leader.objects.get(name="requeuer").touched == 2


def test_looks_are_kept_current_without_a_turn(maintenance: Maintenance, clock: Clock) -> None:
    """Another process may hold every turn: when it dies, this one has seen enough to go on at once."""
    job = running_job(expired=True)
    for _ in range(11):
        maintenance.look()
        clock.move(1.0)
    assert status_of(job) == Status.RUNNING
    maintenance.cycle()
    assert status_of(job) == Status.READY


def test_every_kind_of_work_is_done_in_one_round(maintenance: Maintenance) -> None:
    now = db.server_now(connection)
    due = make_job(Status.SCHEDULED, due_at=now)
    late = make_job(Status.SCHEDULED, due_at=now + timedelta(days=1), start_by=now - timedelta(seconds=1))
    asked = make_job(Status.SCHEDULED, due_at=now + timedelta(days=1))
    CancelRequest.objects.create(job=asked)
    unknown = make_job(parked=Parked.UNKNOWN_TASK, last_started_at=now - timedelta(days=1))
    old = make_job(Status.SUCCEEDED, prune_at=now - timedelta(seconds=1))
    values = {"kind": "process", "name": "w", "host": "h", "pid": 1}
    gone = Worker.objects.create(id=uuid.uuid4(), seen_at=now - timedelta(hours=1), running=3, **values)
    seen = Worker.objects.create(id=uuid.uuid4(), **values)
    forgotten = Worker.objects.create(id=uuid.uuid4(), stopped_at=now - timedelta(days=2), **values)
    maintenance.cycle()
    assert status_of(due) == Status.READY
    assert status_of(late) == Status.CANCELLED
    assert status_of(asked) == Status.CANCELLED
    assert status_of(unknown) == Status.FAILED
    assert not Job.objects.filter(id=old.id).exists()
    gone.refresh_from_db()
    seen.refresh_from_db()
    assert (gone.running, gone.stop_reason) == (0, "vanished without a word")
    assert gone.stopped_at is not None
    assert seen.stopped_at is None
    assert not Worker.objects.filter(id=forgotten.id).exists()
    assert set(Leader.objects.values_list("name", flat=True)) == set(maintenance.services)


def test_b22_a_process_that_knows_the_task_saves_the_job_from_one_that_does_not(maintenance: Maintenance, clock: Clock) -> None:
    now = db.server_now(connection)
    job = make_job(parked=Parked.UNKNOWN_TASK, last_started_at=now - timedelta(minutes=59), task="app.known")
    rounds(maintenance, clock, 2)
    assert Job.objects.get(id=job.id).parked == "unknown_task"
    knowing = Maintenance(using="default", worker=uuid.uuid4(), stop=threading.Event(), knows=lambda name: name == "app.known")
    knowing.cycle()
    assert Job.objects.get(id=job.id).parked == ""


def test_an_idle_round_is_one_query(maintenance: Maintenance, clock: Clock) -> None:
    make_job(Status.SCHEDULED, due_at=db.server_now(connection) + timedelta(days=1))
    running_job()
    rounds(maintenance, clock, 2)
    counts = []
    for _ in range(20):
        with CaptureQueriesContext(connection) as queries:
            maintenance.cycle()
        counts.append(len(queries))
        clock.move(1.0)
    # Every half grace one more: running jobs without a lock row.
    assert sum(counts) <= 24
    assert counts.count(1) >= 16


def test_counts_are_folded_every_few_seconds_while_there_are_any(maintenance: Maintenance, clock: Clock) -> None:
    def put() -> None:
        insert([NewJob(JobSpec(task="t"), [], {})], using="default")

    maintenance.cycle()
    put()
    maintenance.cycle()
    assert (Delta.objects.count(), Count.objects.get().value) == (0, 1)
    put()
    maintenance.cycle()
    assert Delta.objects.count() == 1
    clock.move(service_module.FOLD_SECONDS)
    maintenance.cycle()
    assert (Delta.objects.count(), Count.objects.get().value) == (0, 2)


def test_old_answers_to_idempotent_requests_are_forgotten(maintenance: Maintenance) -> None:
    age = timedelta(seconds=maintenance.settings.idempotency_retention)
    now = db.server_now(connection)
    for key, created_at in (("old", now - age - timedelta(seconds=5)), ("new", now - age + timedelta(minutes=5))):
        IdempotencyKey.objects.create(scope="user:1", key=key, digest="", created_at=created_at)
    maintenance.cycle()
    assert list(IdempotencyKey.objects.values_list("key", flat=True)) == ["new"]


def test_the_loop_waits_no_longer_than_until_the_next_thing_is_due(maintenance: Maintenance) -> None:
    maintenance.cycle()
    assert maintenance.cycle() == pytest.approx(maintenance.settings.sweep_interval)
    make_job(Status.SCHEDULED, due_at=db.server_now(connection) + timedelta(seconds=0.4))
    assert maintenance.cycle() <= 0.4 + AFTER_SECONDS


def test_a_long_interval_does_not_let_the_session_fall_asleep(settings: Any) -> None:
    settings.DJANGO_JOBS = {"SWEEP_INTERVAL": 60}
    maintenance = Maintenance(using="default", worker=uuid.uuid4(), stop=threading.Event())
    maintenance.cycle()
    assert 1 < maintenance.cycle() <= 5


def test_a_full_batch_goes_on_at_once(maintenance: Maintenance) -> None:
    now = db.server_now(connection)
    jobs = [Job(task="t", status=Status.SCHEDULED, due_at=now, enqueued_at=now) for _ in range(501)]
    Job.objects.bulk_create(jobs, batch_size=200)
    assert maintenance.cycle() < 0.1
    maintenance.cycle()
    assert Job.objects.filter(status=Status.READY).count() == 501


def test_a_service_that_fails_stops_no_other(maintenance: Maintenance, caplog: pytest.LogCaptureFixture) -> None:
    def fail(using: str, limit: int) -> Swept:
        raise ValueError("broken")

    maintenance.services["stager"] = Service("stager", fail, 10, 60.0)
    old = make_job(Status.SUCCEEDED, prune_at=db.server_now(connection) - timedelta(seconds=1))
    maintenance.cycle()
    assert not Job.objects.filter(id=old.id).exists()
    assert "stager" in caplog.text
    assert maintenance.health()["services"]["stager"]["error"] == "ValueError: broken"
    assert Leader.objects.get(name="stager").error == "ValueError: broken"


def test_b12_a_lost_session_is_made_again_with_a_pause_that_grows_to_a_bound(
    maintenance: Maintenance, monkeypatch: pytest.MonkeyPatch
) -> None:
    maintenance.cycle()
    session = maintenance.looks.up_since
    assert session is not None

    def refuse() -> None:
        raise OperationalError("connection refused")

    with monkeypatch.context() as patch:
        patch.setattr(maintenance.looks, "look", refuse)
        pauses = [maintenance._one_round() for _ in range(8)]
    assert pauses == sorted(pauses)
    assert 0 < pauses[0] < pauses[1]
    assert pauses[-1] == maintenance.settings.grace / 4
    assert maintenance.looks.up_since is None
    assert maintenance.health()["failures"] == 8
    maintenance._one_round()
    assert maintenance.health()["failures"] == 0
    assert maintenance.looks.up_since is not None


@pytest.mark.skipif(connection.vendor != "postgresql", reason="ends the session on the server")
def test_b12_a_session_that_the_server_ended_counts_for_nothing_any_more(maintenance: Maintenance, clock: Clock) -> None:
    job = running_job(expired=True)
    rounds(maintenance, clock, 8)
    backend = db.dialect(connection).session_id(connection)
    other = connections.create_connection("default")
    with other.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s)", [backend])
    other.close()
    wait_until(lambda: maintenance._one_round() < 1 or maintenance.health()["failures"] > 0)
    for _ in range(9):
        clock.move(1.0)
        maintenance._one_round()
    assert status_of(job) == Status.RUNNING, "the new session has not been up for a grace"
    for _ in range(4):
        clock.move(1.0)
        maintenance._one_round()
    assert status_of(job) == Status.READY


def test_the_loop_runs_in_a_thread_and_stops_when_told() -> None:
    stop = threading.Event()
    maintenance = Maintenance(using="default", worker=uuid.uuid4(), stop=stop)
    thread = threading.Thread(target=maintenance.run, daemon=True)
    thread.start()
    job = make_job(Status.SCHEDULED, due_at=db.server_now(connection) + timedelta(seconds=0.3))
    wait_until(lambda: status_of(job) == Status.READY)
    stop.set()
    thread.join(10)
    assert not thread.is_alive()
    health = maintenance.health()
    assert health["last_look_seconds"] is not None
    assert health["services"]["stager"]["touched"] >= 0


@pytest.mark.slow
def test_b08_a_dead_workers_job_is_ready_again_within_the_grace_and_two_seconds(settings: Any) -> None:
    """By the real clock. The worker claimed the job, its row lives for one grace, and nothing is heard of it again."""
    grace = 2.0
    settings.DJANGO_JOBS = {"GRACE": grace, "SWEEP_INTERVAL": 1}
    stop = threading.Event()
    maintenance = Maintenance(using="default", worker=uuid.uuid4(), stop=stop)
    thread = threading.Thread(target=maintenance.run, daemon=True)
    thread.start()
    try:
        wait_until(lambda: (maintenance.health()["session_seconds"] or 0) >= grace)
        make_job()
        begin = time.monotonic()
        [attempt] = claim_jobs(grace=grace)
        wait_until(lambda: Job.objects.filter(id=attempt.job_id, status=Status.READY).exists())
        took = time.monotonic() - begin
    finally:
        stop.set()
        thread.join(10)
    assert grace < took < grace + 2.0


@pytest.mark.slow
def test_two_loops_at_once_recover_each_attempt_once(settings: Any) -> None:
    settings.DJANGO_JOBS = {"GRACE": 1, "SWEEP_INTERVAL": 0.1}
    for _ in range(50):
        make_job()
    jobs = [running_job()]
    expire(*Job.objects.all())
    stop = threading.Event()
    loops = [Maintenance(using="default", worker=uuid.uuid4(), stop=stop) for _ in range(2)]
    threads = [threading.Thread(target=loop.run, daemon=True) for loop in loops]
    begin = time.monotonic()
    for thread in threads:
        thread.start()
    wait_until(lambda: not JobLock.objects.exists())
    assert time.monotonic() - begin >= 1.0, "not before the sessions were up for a grace"
    stop.set()
    for thread in threads:
        thread.join(10)
    assert set(Job.objects.values_list("deaths", "status", "starts")) == {(1, "ready", 1)}
    assert jobs[0].starts == 1


def test_names_of_tasks_are_asked_of_the_registry() -> None:
    assert service_module.knows_task("no.such.task") is False


def test_what_comes_to_a_paused_queue_is_parked_within_seconds(maintenance: Maintenance, clock: Clock) -> None:
    pause_queue("a")
    rounds(maintenance, clock, 1)
    job = make_job(queue="a.b")
    rounds(maintenance, clock, int(service_module.PARK_SECONDS / maintenance.settings.sweep_interval) + 1)
    assert Job.objects.get(id=job.id).parked == Parked.PAUSED
    with CaptureQueriesContext(connection) as queries:
        maintenance.cycle()
    assert len(queries) == 1, "not at every look"
    resume_queue("a")
    assert Job.objects.get(id=job.id).parked == ""

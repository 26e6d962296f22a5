"""The evidence on which an attempt is judged dead: who is never taken, and who is, when."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection, transaction

from django_jobs import db
from django_jobs.lifecycle.sweep import Swept
from django_jobs.maintenance import requeuer
from django_jobs.maintenance.looks import Looks
from django_jobs.models import Job, JobAttempt, JobLock, LockKind
from django_jobs.statuses import Status
from tests.support.jobs import Clock, expire, locked, make_job, running_job

pytestmark = pytest.mark.django_db(transaction=True)
has_row_locks = connection.features.has_select_for_update_skip_locked
needs_row_locks = pytest.mark.skipif(not has_row_locks, reason="this database has no row locks")

GRACE, INTERVAL = 10.0, 1.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def looks(clock: Clock) -> Looks:
    """The looks of a process whose session has been up for a grace and that has seen nothing."""
    looks = Looks(using="default", grace=GRACE, interval=INTERVAL, clock=clock)
    looks.connected()
    clock.move(GRACE)
    return looks


def sweep(looks: Looks, limit: int = 100) -> Swept:
    with transaction.atomic():
        return requeuer.sweep(looks, "default", limit)


def look(looks: Looks, clock: Clock, *, after: float = 0.0) -> None:
    clock.move(after)
    looks.look()


def status_of(job: Job) -> str:
    return Job.objects.values_list("status", flat=True).get(id=job.id)


def test_two_looks_an_interval_apart_take_an_expired_row_that_nobody_holds(looks: Looks, clock: Clock) -> None:
    job = running_job(expired=True)
    look(looks, clock)
    assert looks.dead() == {}
    assert sweep(looks).touched == 0
    assert looks.wait() == pytest.approx(INTERVAL)
    look(looks, clock, after=INTERVAL)
    assert set(looks.dead()) == {job.id}
    swept = sweep(looks)
    assert (swept.touched, swept.queues) == (1, {"default"})
    assert [event.name for event in swept.events] == ["job_retrying"]
    assert status_of(job) == Status.READY
    assert JobAttempt.objects.get().outcome == "lost"
    look(looks, clock, after=INTERVAL)
    assert looks.dead() == {}


def test_two_looks_less_than_an_interval_apart_take_nothing(looks: Looks, clock: Clock) -> None:
    job = running_job(expired=True)
    look(looks, clock)
    look(looks, clock, after=INTERVAL * 0.9)
    assert sweep(looks).touched == 0
    look(looks, clock, after=INTERVAL * 0.2)
    assert set(looks.dead()) == {job.id}


def test_nothing_is_taken_before_the_session_has_been_up_for_a_grace(clock: Clock) -> None:
    job = running_job(expired=True)
    looks = Looks(using="default", grace=GRACE, interval=INTERVAL, clock=clock)
    assert looks.dead() == {}
    looks.connected()
    for _ in range(9):
        look(looks, clock, after=INTERVAL)
        assert looks.dead() == {}
    assert sweep(looks).touched == 0
    look(looks, clock, after=INTERVAL)
    assert sweep(looks).touched == 1
    assert status_of(job) == Status.READY


def test_a_new_session_begins_anew(looks: Looks, clock: Clock) -> None:
    job = running_job(expired=True)
    look(looks, clock)
    look(looks, clock, after=INTERVAL)
    assert looks.dead()
    looks.disconnected()
    assert looks.dead() == {}
    looks.connected()
    look(looks, clock, after=INTERVAL)
    assert looks.dead() == {}
    assert status_of(job) == Status.RUNNING


@needs_row_locks
@pytest.mark.parametrize("lock", ["hold", "fence"])
def test_a_row_that_is_locked_is_never_taken_however_long_it_has_expired(looks: Looks, clock: Clock, lock: str) -> None:
    """The worker that can't refresh (GIL, swap, a debugger), and the `atomic=True` job that commits."""
    job = running_job(expired=True)
    dialect = db.dialect(connection)
    with locked(db.LOCK, "job_id", job.id, dialect.for_hold_skip if lock == "hold" else dialect.for_fence):
        for _ in range(50):
            look(looks, clock, after=INTERVAL)
            assert looks.dead() == {}
    assert status_of(job) == Status.RUNNING
    look(looks, clock, after=INTERVAL)
    assert looks.dead() == {}, "the first look that sees it free"
    look(looks, clock, after=INTERVAL)
    assert sweep(looks).touched == 1


@needs_row_locks
@pytest.mark.parametrize("lock", ["hold", "fence"])
def test_a_row_that_is_locked_after_the_looks_is_not_swept(looks: Looks, clock: Clock, lock: str) -> None:
    job = running_job(expired=True)
    look(looks, clock)
    look(looks, clock, after=INTERVAL)
    dialect = db.dialect(connection)
    with locked(db.LOCK, "job_id", job.id, dialect.for_hold_skip if lock == "hold" else dialect.for_fence):
        assert sweep(looks).touched == 0
    assert status_of(job) == Status.RUNNING
    assert JobLock.objects.count() == 1


@needs_row_locks
def test_a_row_that_was_locked_in_between_begins_anew(looks: Looks, clock: Clock) -> None:
    job = running_job(expired=True)
    look(looks, clock)
    with locked(db.LOCK, "job_id", job.id, db.dialect(connection).for_hold_skip):
        look(looks, clock, after=INTERVAL)
    look(looks, clock, after=INTERVAL)
    assert looks.dead() == {}


def test_another_token_or_expiry_begins_anew(looks: Looks, clock: Clock) -> None:
    job = running_job(expired=True)
    look(looks, clock)
    expire(job, seconds=30)
    look(looks, clock, after=INTERVAL)
    assert looks.dead() == {}
    JobLock.objects.update(token="11111111-1111-1111-1111-111111111111")
    look(looks, clock, after=INTERVAL)
    assert looks.dead() == {}


def test_a_row_that_was_refreshed_after_the_looks_is_not_swept(looks: Looks, clock: Clock) -> None:
    job = running_job(expired=True)
    look(looks, clock)
    look(looks, clock, after=INTERVAL)
    JobLock.objects.update(expires_at=db.server_now(connection) + timedelta(seconds=GRACE))
    assert sweep(looks).touched == 0
    assert status_of(job) == Status.RUNNING


def test_an_attempt_that_ended_after_the_looks_is_not_swept(looks: Looks, clock: Clock) -> None:
    job = running_job(expired=True)
    look(looks, clock)
    look(looks, clock, after=INTERVAL)
    JobLock.objects.all().delete()
    Job.objects.filter(id=job.id).update(status=Status.SUCCEEDED, finished_at=job.enqueued_at)
    assert sweep(looks).touched == 0
    assert status_of(job) == Status.SUCCEEDED


def test_a_row_within_its_time_is_left_alone(looks: Looks, clock: Clock) -> None:
    """Whoever holds it, or nobody: in the first grace it is a living worker's."""
    job = running_job()
    for _ in range(5):
        look(looks, clock, after=INTERVAL)
    assert sweep(looks).touched == 0
    assert status_of(job) == Status.RUNNING


def ahead(job: Job, seconds: float = 3600.0) -> None:
    """As if the database's clock had been set back since the row was refreshed."""
    JobLock.objects.filter(job=job).update(expires_at=db.server_now(connection) + timedelta(seconds=seconds))


def test_b34_a_row_ahead_of_the_clock_is_dead_after_three_graces_without_a_change(looks: Looks, clock: Clock) -> None:
    job = running_job()
    ahead(job)
    look(looks, clock)
    for _ in range(29):
        look(looks, clock, after=INTERVAL)
        assert looks.dead() == {}
    look(looks, clock, after=INTERVAL)
    assert set(looks.dead()) == {job.id}
    assert sweep(looks).touched == 1
    assert status_of(job) == Status.READY


def test_b34_a_worker_that_refreshes_is_not_robbed_whatever_the_times_say(looks: Looks, clock: Clock) -> None:
    job = running_job()
    for step in range(40):
        ahead(job, 3600.0 + step)
        look(looks, clock, after=INTERVAL)
        assert looks.dead() == {}
    assert sweep(looks).touched == 0


@needs_row_locks
def test_b34_a_worker_that_holds_is_not_robbed_whatever_the_times_say(looks: Looks, clock: Clock) -> None:
    job = running_job()
    ahead(job)
    with locked(db.LOCK, "job_id", job.id, db.dialect(connection).for_hold_skip):
        for _ in range(40):
            look(looks, clock, after=INTERVAL)
            assert looks.dead() == {}


def test_an_http_lease_is_not_a_workers_row(looks: Looks, clock: Clock) -> None:
    job = running_job(expired=True)
    JobLock.objects.update(kind=LockKind.HTTP)
    for _ in range(40):
        look(looks, clock, after=INTERVAL)
    assert sweep(looks).touched == 0
    assert status_of(job) == Status.RUNNING


def test_a_running_job_without_a_lock_row_for_one_grace_is_dead(looks: Looks, clock: Clock) -> None:
    job, alive = running_job(), running_job()
    JobLock.objects.filter(job=job).delete()
    look(looks, clock)
    for _ in range(9):
        look(looks, clock, after=INTERVAL)
        assert looks.missing() == {}
    look(looks, clock, after=INTERVAL)
    assert looks.missing() == {job.id: job.last_token}
    swept = sweep(looks)
    assert swept.touched == 1
    assert (status_of(job), status_of(alive)) == (Status.READY, Status.RUNNING)
    assert "lock row" in JobAttempt.objects.get().cause


def test_a_lock_row_that_comes_back_saves_its_job(looks: Looks, clock: Clock) -> None:
    job = running_job()
    [row] = JobLock.objects.all()
    JobLock.objects.all().delete()
    for _ in range(12):
        look(looks, clock, after=INTERVAL)
    assert looks.missing()
    row.save(force_insert=True)
    assert sweep(looks).touched == 0
    assert status_of(job) == Status.RUNNING


def test_rubbish_is_cleared_so_that_the_job_can_be_claimed_again(looks: Looks, clock: Clock) -> None:
    job = running_job(expired=True)
    Job.objects.filter(id=job.id).update(status=Status.READY)
    look(looks, clock)
    look(looks, clock, after=INTERVAL)
    assert sweep(looks).events == []
    assert not JobLock.objects.exists()
    assert status_of(job) == Status.READY


def test_a_sweep_is_bounded(looks: Looks, clock: Clock) -> None:
    jobs = [make_job() for _ in range(7)]
    running_job()
    expire(*jobs)
    look(looks, clock)
    look(looks, clock, after=INTERVAL)
    assert sweep(looks, limit=5).touched == 5
    assert JobLock.objects.count() == 3


def test_b08_the_same_worker_name_means_nothing(looks: Looks, clock: Clock) -> None:
    """A worker that was killed and restarted under its name holds only what its new incarnation claimed."""
    dead = running_job(expired=True)
    alive = running_job()
    assert dead.worker == alive.worker
    look(looks, clock)
    look(looks, clock, after=INTERVAL)
    sweep(looks)
    assert (status_of(dead), status_of(alive)) == (Status.READY, Status.RUNNING)


@pytest.mark.skipif(connection.vendor != "postgresql", reason="sets the session's time zone")
def test_b34_the_sessions_time_zone_changes_nothing(looks: Looks, clock: Clock) -> None:
    job = running_job()
    with connection.cursor() as cursor:
        cursor.execute("SET TIME ZONE 'Pacific/Kiritimati'")
    try:
        pulse = looks.look()
        assert pulse.expiry is not None
        assert 0 < pulse.expiry <= GRACE
        assert not pulse.is_ahead
    finally:
        with connection.cursor() as cursor:
            cursor.execute("SET TIME ZONE 'UTC'")
    assert status_of(job) == Status.RUNNING

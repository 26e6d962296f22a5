"""The clock's moves: bounded, safe beside each other, stalled by no locked row and no bad one."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction
from django.db.models import ProtectedError
from django.db.models.signals import pre_delete

from django_jobs import db
from django_jobs.lifecycle import moves, pause, sweep
from django_jobs.lifecycle.control import pause_queue, resume_queue
from django_jobs.lifecycle.recover import writing
from django_jobs.models import CancelRequest, Job, JobAttempt, JobLock, Queue
from django_jobs.retry import is_database_conflict
from django_jobs.statuses import Parked, Status
from tests.support.jobs import in_threads, locked, make_job, running_job

pytestmark = pytest.mark.django_db
commits = pytest.mark.django_db(transaction=True)
needs_row_locks = pytest.mark.skipif(
    not connection.features.has_select_for_update_skip_locked, reason="this database has no row locks"
)


def ago(seconds: float) -> datetime:
    return db.server_now(connection) - timedelta(seconds=seconds)


def run(function: Callable[..., sweep.Swept], limit: int = 100, **options: Any) -> sweep.Swept:
    with writing("default"):
        return function(using="default", limit=limit, **options)


def status_of(job: Job) -> str:
    return Job.objects.values_list("status", flat=True).get(id=job.id)


# -- stager --------------------------------------------------------------------------------------


def test_due_jobs_become_ready_the_earliest_first() -> None:
    late, later = make_job(Status.SCHEDULED, due_at=ago(2)), make_job(Status.SCHEDULED, due_at=ago(1), queue="q")
    future = make_job(Status.SCHEDULED, due_at=ago(-60))
    swept = run(sweep.stage_due, limit=1)
    assert (swept.touched, swept.queues) == (1, {"default"})
    assert [status_of(job) for job in (late, later, future)] == ["ready", "scheduled", "scheduled"]
    assert run(sweep.stage_due).queues == {"q"}
    assert status_of(future) == Status.SCHEDULED
    assert run(sweep.stage_due).touched == 0


@commits
def test_two_stagers_at_once_take_each_job_once() -> None:
    Job.objects.bulk_create(
        [Job(task="t", status=Status.SCHEDULED, due_at=ago(5), enqueued_at=ago(5)) for _ in range(200)], batch_size=100
    )
    found = in_threads(*[lambda: run(sweep.stage_due, limit=200)] * 2)
    assert sum(swept.touched for swept in found) == 200
    assert Job.objects.filter(status=Status.READY).count() == 200


@needs_row_locks
@commits
def test_a_locked_job_does_not_stall_the_stager() -> None:
    stuck, free = make_job(Status.SCHEDULED, due_at=ago(2)), make_job(Status.SCHEDULED, due_at=ago(1))
    with locked(db.JOB, "id", stuck.id, "FOR UPDATE"):
        assert run(sweep.stage_due, limit=1).touched == 1
    assert (status_of(stuck), status_of(free)) == (Status.SCHEDULED, Status.READY)


# -- start_by ------------------------------------------------------------------------------------


def test_a_job_that_has_not_started_in_time_is_cancelled() -> None:
    jobs = [make_job(status, start_by=ago(1)) for status in (Status.WAITING, Status.SCHEDULED, Status.READY)]
    in_time = make_job(start_by=ago(-60))
    retrying = make_job(Status.SCHEDULED, start_by=ago(1), started_at=ago(5))
    swept = run(sweep.cancel_late)
    assert [event.name for event in swept.events] == ["job_cancelled"] * 3
    for job in jobs:
        job.refresh_from_db()
        assert job.status == Status.CANCELLED
        assert "had not started by" in job.reason
        assert job.prune_at is not None
    assert (status_of(in_time), status_of(retrying)) == (Status.READY, Status.SCHEDULED)


def test_a_running_job_is_not_late() -> None:
    job = running_job(start_by=ago(-60))
    Job.objects.filter(id=job.id).update(start_by=ago(1))
    assert run(sweep.cancel_late).touched == 0
    assert status_of(job) == Status.RUNNING


# -- left-over cancel requests -------------------------------------------------------------------


def test_a_request_that_an_attempts_end_passed_by_is_acted_on() -> None:
    retrying, ended, running = make_job(Status.SCHEDULED), make_job(Status.SUCCEEDED), running_job()
    unwanted = make_job()
    for job in (retrying, ended, running):
        CancelRequest.objects.create(job=job, requested_by="ann", reason="no")
    CancelRequest.objects.create(job=unwanted, delete_job=True)
    CancelRequest.objects.create(job_id="11111111-1111-1111-1111-111111111111")
    swept = run(sweep.apply_requests)
    assert sorted(event.job_id for event in swept.events) == sorted([retrying.id, unwanted.id])
    retrying.refresh_from_db()
    assert (retrying.status, retrying.reason) == (Status.CANCELLED, "cancelled by ann: no")
    assert (status_of(ended), status_of(running)) == (Status.SUCCEEDED, Status.RUNNING)
    assert not Job.objects.filter(id=unwanted.id).exists()
    assert [request.job_id for request in CancelRequest.objects.all()] == [running.id]


def test_a_job_that_can_not_be_deleted_costs_nobody_else_the_sweep(caplog: pytest.LogCaptureFixture) -> None:
    bad, good, late = make_job(), make_job(), make_job()
    for job in (bad, good):
        CancelRequest.objects.create(job=job, delete_job=True)
    CancelRequest.objects.create(job=late)

    def refuse(instance: Job, **kwargs: Any) -> None:
        if instance.id == bad.id:
            raise ProtectedError("something of the site's refers to it", set())

    pre_delete.connect(refuse, sender=Job)
    try:
        events = run(sweep.apply_requests).events
    finally:
        pre_delete.disconnect(refuse, sender=Job)
    assert len(events) == 3
    assert {job.id: job.status for job in Job.objects.all()} == {bad.id: Status.CANCELLED, late.id: Status.CANCELLED}
    assert not CancelRequest.objects.exists(), "it would be tried again every second"
    assert str(bad.id) in caplog.text


# -- unknown tasks -------------------------------------------------------------------------------


def parked(task: str, since: float) -> Job:
    return make_job(task=task, parked=Parked.UNKNOWN_TASK, last_started_at=ago(since))


def test_b22_a_process_brings_back_what_it_knows_and_nothing_else() -> None:
    known, unknown = parked("app.known", 10), parked("app.unknown", 10)
    swept = run(sweep.unpark_known, knows=lambda name: name == "app.known")
    assert (swept.touched, swept.queues) == (1, {"default"})
    assert dict(Job.objects.values_list("id", "parked")) == {known.id: "", unknown.id: "unknown_task"}


def test_b22_an_unknown_task_fails_after_its_grace_and_not_before() -> None:
    old, new = parked("app.gone", 100), parked("app.gone", 10)
    swept = run(sweep.give_up_unknown, grace=60)
    assert [(event.name, event.job_id) for event in swept.events] == [("job_failed", old.id)]
    old.refresh_from_db()
    assert (old.status, old.parked) == (Status.FAILED, "")
    assert old.error_class == "django_jobs.exceptions.UnknownTask"
    assert "app.gone" in old.error_message
    assert status_of(new) == Status.READY


def test_a_job_that_waited_long_before_it_was_parked_has_its_whole_grace() -> None:
    job = make_job(task="app.gone", parked=Parked.UNKNOWN_TASK, due_at=ago(10_000), last_started_at=ago(1))
    assert run(sweep.give_up_unknown, grace=60).touched == 0
    assert status_of(job) == Status.READY


# -- paused queues -------------------------------------------------------------------------------


def test_jobs_that_a_claim_parks_late_come_back_too() -> None:
    pause_queue("a")
    resume_queue("a")
    late = make_job(queue="a.b", parked=Parked.PAUSED)
    assert run(pause.release_resumed).touched == 1
    assert Job.objects.get(id=late.id).parked == ""
    assert Queue.objects.get(name="a").paused_at is not None, "a claim may still have seen the pause"
    Queue.objects.update(paused_until=ago(pause.LATE_SECONDS + 1))
    run(pause.release_resumed)
    assert Queue.objects.get(name="a").paused_at is None


def test_a_pause_ends_by_itself() -> None:
    pause_queue("a", until=ago(-60))
    job = make_job(queue="a", parked=Parked.PAUSED)
    assert run(pause.release_resumed).touched == 0
    Queue.objects.update(paused_until=ago(1))
    assert run(pause.release_resumed).touched == 1
    assert Job.objects.get(id=job.id).parked == ""


def test_jobs_of_a_deleted_queue_row_come_back() -> None:
    """Also while another queue is paused for good."""
    job, still = make_job(queue="a.b", parked=Parked.PAUSED), make_job(queue="other.c")
    pause_queue("other")
    assert run(pause.release_resumed).touched == 1
    assert dict(Job.objects.values_list("id", "parked")) == {job.id: "", still.id: "paused"}
    assert run(pause.release_resumed).touched == 0


def test_what_comes_to_a_paused_queue_is_parked_in_pieces() -> None:
    """Else each claim from the other queues would pass them all."""
    pause_queue("a")
    pause_queue("over", until=ago(-60))
    Queue.objects.filter(name="over").update(paused_until=ago(1))
    paused = [make_job(queue=queue) for queue in ("a", "a.b", "a.b.c")]
    others = [make_job(queue=queue) for queue in ("ab", "b.a", "over", "over.x")]
    others.append(make_job(Status.SCHEDULED, queue="a", due_at=ago(-60)))
    unknown = make_job(queue="a", parked=Parked.UNKNOWN_TASK)
    assert run(pause.park_paused, limit=2).touched == 2
    assert run(pause.park_paused, limit=2).touched == 1
    assert run(pause.park_paused, limit=2).touched == 0
    assert {job.id for job in Job.objects.filter(parked=Parked.PAUSED)} == {job.id for job in paused}
    assert {job.id for job in Job.objects.filter(parked="")} == {job.id for job in others}
    assert Job.objects.get(id=unknown.id).parked == Parked.UNKNOWN_TASK


@needs_row_locks
@commits
def test_parking_waits_for_no_locked_job() -> None:
    pause_queue("a")
    held, free = make_job(queue="a"), make_job(queue="a")
    with locked(db.JOB, "id", held.id, "FOR UPDATE"):
        assert run(pause.park_paused).touched == 1
    assert dict(Job.objects.values_list("id", "parked")) == {held.id: "", free.id: "paused"}


# -- pruner --------------------------------------------------------------------------------------


def test_prune_deletes_what_is_due_with_all_that_belongs_to_it() -> None:
    old, new, kept = (make_job(Status.SUCCEEDED, prune_at=at) for at in (ago(1), ago(-60), None))
    JobAttempt.objects.create(job=old, number=1, ended_at=ago(5), outcome="succeeded")
    assert run(sweep.prune).touched == 1
    assert set(Job.objects.values_list("id", flat=True)) == {new.id, kept.id}
    assert not JobAttempt.objects.exists()


def test_a_projects_own_listeners_are_told_of_each_deleted_job() -> None:
    job = make_job(Status.SUCCEEDED, prune_at=ago(1))
    JobAttempt.objects.create(job=job, number=1, ended_at=ago(5), outcome="succeeded")
    deleted = []

    def listen(instance: Job, **kwargs: Any) -> None:
        deleted.append(instance.id)

    pre_delete.connect(listen, sender=Job)
    try:
        run(sweep.prune)
    finally:
        pre_delete.disconnect(listen, sender=Job)
    assert deleted == [job.id]
    assert not Job.objects.exists()
    assert not JobAttempt.objects.exists()


def test_prune_takes_the_oldest_first_up_to_its_limit() -> None:
    jobs = [make_job(Status.SUCCEEDED, prune_at=ago(age)) for age in (10, 30, 20)]
    assert run(sweep.prune, limit=2).touched == 2
    assert [job.id for job in Job.objects.all()] == [jobs[0].id]


@needs_row_locks
@commits
def test_b56_no_lock_stalls_the_pruner() -> None:
    job, held, free = (make_job(Status.SUCCEEDED, prune_at=ago(age)) for age in (30, 20, 10))
    running = running_job()
    JobLock.objects.filter(job=running).update(job=held)
    share = db.dialect(connection).for_fence
    with locked(db.JOB, "id", job.id, share), locked(db.LOCK, "job_id", held.id, "FOR UPDATE"):
        assert run(sweep.prune, limit=1).touched == 1
    assert not Job.objects.filter(id=free.id).exists()
    assert Job.objects.filter(id__in=[job.id, held.id]).count() == 2


def test_one_job_that_cant_be_deleted_costs_itself_only(monkeypatch: pytest.MonkeyPatch) -> None:
    bad, good = (make_job(Status.SUCCEEDED, prune_at=ago(age)) for age in (20, 10))
    real = moves.delete_rows

    def refuse(using: str, jobs: list[Job]) -> Any:
        if any(job.id == bad.id for job in jobs):
            raise DatabaseError("a project's reference protects it")
        return real(using, jobs)

    monkeypatch.setattr(sweep, "delete_rows", refuse)
    assert run(sweep.prune).touched == 2
    assert [job.id for job in Job.objects.all()] == [bad.id]
    assert run(sweep.prune).touched == 0, "it comes again much later"
    assert not Job.objects.filter(id=good.id).exists()


@commits
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_b56_two_pruners_at_once_delete_a_hundred_thousand_in_batches() -> None:
    total = 100_000
    fill(5)
    assert Job.objects.count() == total
    keep = make_job(Status.FAILED)

    def prune_all() -> int:
        counts: list[int | None] = []
        while 0 not in counts and len(counts) < 2 * total // 1000:
            counts.append(prune_or_lose(1000))
        assert all(count is None or count <= 1000 for count in counts)
        return sum(count or 0 for count in counts)

    found = in_threads(prune_all, prune_all, timeout=240)
    assert sum(found) == total
    assert [job.id for job in Job.objects.all()] == [keep.id]


def prune_or_lose(limit: int) -> int | None:
    """Prune, and return how many; None if the race was lost: MariaDB may choose a scan that meets the other's rows."""
    try:
        with transaction.atomic():
            return sweep.prune(using="default", limit=limit).touched
    except DatabaseError as error:
        if is_database_conflict(error):
            return None
        raise


def fill(doublings: int, first: int = 3125) -> None:
    """Insert `first` old jobs, and double them so many times."""
    at = ago(1)
    values = {"task": "t", "status": Status.SUCCEEDED, "due_at": at, "enqueued_at": at, "finished_at": at, "prune_at": at}
    Job.objects.bulk_create([Job(**values) for _ in range(first)], batch_size=250)
    columns = [field.column for field in Job._meta.concrete_fields if not field.primary_key]
    new_id = {"postgresql": "gen_random_uuid()", "mysql": "UUID()", "sqlite": "lower(hex(randomblob(16)))"}[connection.vendor]
    names = ", ".join(connection.ops.quote_name(column) for column in columns)
    with connection.cursor() as cursor:
        for _ in range(doublings):
            cursor.execute(f"INSERT INTO {db.JOB} (id, {names}) SELECT {new_id}, {names} FROM {db.JOB}")

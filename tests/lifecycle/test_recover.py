"""Ending the attempts of dead workers: who is taken, how it ends, what is left alone."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import pytest
from django.db import connection, transaction

from django_jobs import db
from django_jobs.lifecycle.recover import Recovered, lock_free, recover, recover_missing, recover_worker, unclaim
from django_jobs.lifecycle.sweep import apply_requests
from django_jobs.models import CancelRequest, Job, JobAttempt, JobLock
from django_jobs.outcomes import ErrorInfo, TimedOut
from django_jobs.statuses import Status
from tests.support.jobs import claim_jobs, in_threads, locked, make_job, running_job

pytestmark = pytest.mark.django_db
#: For commits that listeners, threads or other sessions are to see.
commits = pytest.mark.django_db(transaction=True)
needs_row_locks = pytest.mark.skipif(
    not connection.features.has_select_for_update_skip_locked, reason="this database has no row locks"
)


def recover_all(jobs: Sequence[Job], **options: Any) -> Recovered:
    with transaction.atomic():
        rows = lock_free("default", [job.id for job in jobs])
        return recover(rows, using="default", **{"cause": "it was killed by SIGKILL", **options})


def test_a_dead_attempt_runs_again_at_once_with_a_record() -> None:
    job = running_job()
    events = recover_all([job])
    job.refresh_from_db()
    assert (job.status, job.deaths, job.attempts_used, job.starts) == (Status.READY, 1, 1, 1)
    assert job.finished_at is None
    assert not JobLock.objects.exists()
    record = JobAttempt.objects.get()
    assert (record.number, record.outcome, record.counted, record.worker) == (1, "lost", True, job.worker)
    assert "SIGKILL" in record.cause
    assert record.token == job.last_token
    assert [(event.name, event.job_id, event.status) for event in events] == [("job_retrying", job.id, Status.READY)]


def test_b08_a_death_on_the_last_attempt_fails_the_job_with_the_reason() -> None:
    job = running_job(max_attempts=1)
    events = recover_all([job])
    job.refresh_from_db()
    assert job.status == Status.FAILED
    assert "worker died" in job.reason
    assert "SIGKILL" in job.reason
    assert job.finished_at is not None
    assert job.prune_at is None, "failed jobs are kept for ever by default"
    assert not JobLock.objects.exists(), "its slot is free"
    assert [event.name for event in events] == ["job_failed"]


def test_b31_no_bound_on_attempts_survives_any_number_of_deaths() -> None:
    job = running_job(max_attempts=None, backoff=0)
    for death in range(1, 7):
        recover_all([job])
        job.refresh_from_db()
        assert (job.status, job.deaths, job.attempts_used) == (Status.READY, death, death)
        claim_jobs()
    assert JobAttempt.objects.filter(job=job).count() == 6


def test_b18_a_job_that_kills_its_worker_ends_after_max_attempts_starts() -> None:
    job = running_job(max_attempts=3, backoff=0)
    for _ in range(5):
        recover_all([job])
        claim_jobs()
    job.refresh_from_db()
    assert (job.status, job.starts) == (Status.FAILED, 3)
    assert JobAttempt.objects.filter(job=job).count() == 3


def test_the_second_death_in_a_row_waits() -> None:
    job = running_job(backoff=[60])
    recover_all([job])
    claim_jobs()
    recover_all([job])
    job.refresh_from_db()
    assert (job.status, job.deaths) == (Status.SCHEDULED, 2)
    assert (job.due_at - db.server_now(connection)).total_seconds() > 50


def test_max_deaths_ends_a_poisonous_job() -> None:
    job = running_job(max_attempts=None, max_deaths=1)
    recover_all([job])
    job.refresh_from_db()
    assert job.status == Status.FAILED
    assert "max_deaths" in job.reason


def test_a_bystander_is_not_counted() -> None:
    job = running_job(max_attempts=1)
    recover_all([job], counts=False)
    job.refresh_from_db()
    assert (job.status, job.attempts_used, job.deaths) == (Status.READY, 0, 0)
    assert JobAttempt.objects.get().counted is False


def test_guilty_and_bystanders_of_one_kill() -> None:
    worker = uuid.uuid4()
    jobs = [make_job(max_attempts=1) for _ in range(3)]
    attempts = {attempt.job_id: attempt for attempt in claim_jobs(worker)}
    guilty, bystander, unstarted = jobs
    outcome = TimedOut(ErrorInfo("django_jobs.exceptions.JobTimeout", "ran longer than 1 s"))
    started = {attempts[guilty.id].token: 1.5, attempts[bystander.id].token: 0.5}
    recover_worker("default", worker, cause="killed for its time", started=started, guilty={attempts[guilty.id].token: outcome})
    for job in jobs:
        job.refresh_from_db()
    assert (guilty.status, guilty.run_seconds) == (Status.TIMED_OUT, 1.5)
    assert guilty.finished_at is not None
    assert (bystander.status, bystander.attempts_used) == (Status.READY, 0)
    assert (unstarted.status, unstarted.attempts_used, unstarted.starts) == (Status.READY, 0, 0)
    assert not JobAttempt.objects.filter(job=unstarted).exists(), "it never began"
    assert not JobLock.objects.exists()


def test_a_prefetched_job_is_handed_back_without_a_trace() -> None:
    job = running_job(free=0, max_attempts=1)
    assert JobLock.objects.get().prefetched
    recover_all([job])
    job.refresh_from_db()
    assert (job.status, job.starts, job.attempts_used, job.started_at) == (Status.READY, 0, 0, None)
    assert not JobAttempt.objects.exists()


@pytest.mark.parametrize("max_attempts", [1, 5])
def test_b45_a_job_with_a_cancel_request_is_cancelled_when_its_worker_dies(max_attempts: int) -> None:
    job = running_job(max_attempts=max_attempts)
    CancelRequest.objects.create(job=job, requested_by="ann", reason="wrong month")
    events = recover_all([job])
    job.refresh_from_db()
    assert job.status == Status.CANCELLED
    assert "wrong month" in job.reason
    assert job.prune_at is not None
    assert not CancelRequest.objects.exists()
    assert [event.name for event in events] == ["job_cancelled"]


def test_a_forced_delete_happens_when_the_attempt_ends() -> None:
    job = running_job()
    CancelRequest.objects.create(job=job, force=True, delete_job=True)
    recover_all([job])
    assert Job.objects.get().status == Status.CANCELLED
    with transaction.atomic():
        apply_requests(using="default", limit=10)  # maintenance, at once: it sees the request
    assert not JobLock.objects.exists()
    assert not JobAttempt.objects.exists()


def test_recover_worker_takes_its_own_rows_only_and_whatever_their_expiry() -> None:
    mine, other = uuid.uuid4(), uuid.uuid4()
    job = running_job(mine)
    theirs = running_job(other)
    recovered = recover_worker("default", mine, cause="exit status 9")
    assert recovered.left == 0
    job.refresh_from_db()
    theirs.refresh_from_db()
    assert (job.status, theirs.status) == (Status.READY, Status.RUNNING)
    assert list(JobLock.objects.values_list("job_id", flat=True)) == [theirs.id]


def test_recover_worker_of_a_worker_without_rows_does_nothing() -> None:
    assert recover_worker("default", uuid.uuid4(), cause="") == []


@needs_row_locks
@commits
def test_recover_worker_leaves_and_counts_what_is_locked() -> None:
    worker = uuid.uuid4()
    job = running_job(worker)
    free = running_job(worker)
    with locked(db.LOCK, "job_id", job.id, "FOR UPDATE"):
        assert recover_worker("default", worker, cause="exit").left == 1
        job.refresh_from_db()
        free.refresh_from_db()
        assert (job.status, free.status) == (Status.RUNNING, Status.READY)
    assert recover_worker("default", worker, cause="exit").left == 0
    job.refresh_from_db()
    assert job.status == Status.READY


@needs_row_locks
@commits
def test_a_job_that_a_person_has_locked_waits_and_stalls_nobody() -> None:
    worker = uuid.uuid4()
    job = running_job(worker)
    free = running_job(worker)
    with locked(db.JOB, "id", job.id, "FOR UPDATE"):
        recovered = recover_worker("default", worker, cause="exit")
    assert recovered.left == 1
    assert [event.job_id for event in recovered] == [free.id]
    assert JobLock.objects.get().job_id == job.id, "its lock row stays for the next time"


def test_a_lock_row_without_a_running_job_is_rubbish() -> None:
    ended, taken_over = running_job(), running_job()
    Job.objects.filter(id=ended.id).update(status=Status.SUCCEEDED, finished_at=ended.enqueued_at)
    Job.objects.filter(id=taken_over.id).update(last_token=uuid.uuid4())
    assert recover_all([ended, taken_over]) == []
    ended.refresh_from_db()
    taken_over.refresh_from_db()
    assert (ended.status, taken_over.status) == (Status.SUCCEEDED, Status.RUNNING)
    assert not JobLock.objects.exists()


def test_one_bad_row_costs_one_row() -> None:
    bad, good = running_job(), running_job()
    # The record of this attempt is there already, so that it can't be written: a fault that must not happen, and must not spread.
    JobAttempt.objects.create(job=bad, number=1, ended_at=bad.enqueued_at, outcome="failed")
    recovered = recover_all([bad, good])
    good.refresh_from_db()
    bad.refresh_from_db()
    assert good.status == Status.READY
    assert (bad.status, recovered.left) == (Status.RUNNING, 1)
    assert JobLock.objects.get().job_id == bad.id


@commits
def test_two_that_recover_the_same_rows_end_them_once() -> None:
    worker = uuid.uuid4()
    for _ in range(30):
        make_job()
    assert len(claim_jobs(worker)) == 30
    found = in_threads(*[lambda: recover_worker("default", worker, cause="exit")] * 2)
    ids = [event.job_id for events in found for event in events]
    assert len(ids) == len(set(ids)) == 30
    assert set(Job.objects.values_list("deaths", flat=True)) == {1}
    assert JobAttempt.objects.count() == 30


def test_a_running_job_without_a_lock_row_is_recovered() -> None:
    job, held = running_job(), running_job()
    JobLock.objects.filter(job=job).delete()
    assert job.last_token is not None
    assert held.last_token is not None
    with transaction.atomic():
        events = recover_missing({job.id: job.last_token, held.id: held.last_token}, using="default", cause="no lock row")
    assert [event.job_id for event in events] == [job.id]
    job.refresh_from_db()
    held.refresh_from_db()
    assert (job.status, held.status) == (Status.READY, Status.RUNNING)
    assert JobLock.objects.get().job_id == held.id


def test_a_job_that_was_started_again_is_not_taken_for_missing() -> None:
    job = running_job()
    JobLock.objects.filter(job=job).delete()
    with transaction.atomic():
        assert recover_missing({job.id: uuid.uuid4()}, using="default", cause="no lock row") == []
    job.refresh_from_db()
    assert job.status == Status.RUNNING


# -- what was claimed and never learnt of ------------------------------------------------------------


def give_back(worker: uuid.UUID, *keep: uuid.UUID) -> int:
    with transaction.atomic():
        return unclaim(connection, worker, keep=set(keep))


def test_what_was_claimed_and_never_learnt_of_is_given_back_uncounted() -> None:
    worker = uuid.uuid4()
    again = make_job(starts=1, attempts_used=1, started_at=db.server_now(connection))
    fresh, kept = make_job(), make_job()
    claim_jobs(worker)
    assert give_back(worker, JobLock.objects.get(job=kept).token) == 2
    rows = {job.id: job for job in Job.objects.all()}
    assert [(rows[job.id].status, rows[job.id].starts) for job in (again, fresh, kept)] == [
        ("ready", 1),
        ("ready", 0),
        ("running", 1),
    ]
    assert rows[again.id].started_at == again.started_at, "it has started once, so its deadline is kept"
    assert rows[fresh.id].started_at is None
    assert [row.job_id for row in JobLock.objects.all()] == [kept.id]
    assert give_back(worker, JobLock.objects.get(job=kept).token) == 0


@needs_row_locks
@commits
def test_what_another_has_claimed_meanwhile_is_not_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look and the writes the attempt is recovered, and claimed by another: else both would run it."""
    worker = uuid.uuid4()
    job = running_job(worker, expired=True)
    batches = db.batches

    def meanwhile() -> None:
        recover_all([job])
        claim_jobs()

    def after_the_look(items: Sequence[Any], size: int) -> Any:
        monkeypatch.setattr(db, "batches", batches)
        in_threads(meanwhile)
        return batches(items, size)

    monkeypatch.setattr(db, "batches", after_the_look)
    assert give_back(worker) == 0
    job.refresh_from_db()
    assert (job.status, job.starts) == (Status.RUNNING, 2)
    assert JobLock.objects.get().token == job.last_token


@needs_row_locks
@commits
def test_what_a_sweep_has_locked_is_left_to_it() -> None:
    worker = uuid.uuid4()
    job = running_job(worker)
    with locked(db.LOCK, "job_id", job.id, "FOR UPDATE"):
        assert give_back(worker) == 0
    assert give_back(worker) == 1

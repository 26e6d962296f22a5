"""What a person may do to jobs: each verb, per job, never waiting for somebody else's transaction."""

from __future__ import annotations

import logging
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, transaction

from django_jobs import db
from django_jobs.exceptions import InvalidOption
from django_jobs.lifecycle import control
from django_jobs.lifecycle.recover import recover_worker
from django_jobs.models import CancelRequest, Job, JobAttempt, JobLock, LockKind, Queue
from django_jobs.outcomes import Event
from django_jobs.signals import EVENTS
from django_jobs.statuses import FINAL, LIVE, Parked, Status
from tests.support.jobs import claim_jobs, expire, in_threads, locked, make_job, running_job

pytestmark = pytest.mark.django_db
#: For commits that listeners, threads or other sessions are to see.
commits = pytest.mark.django_db(transaction=True)
needs_row_locks = pytest.mark.skipif(
    not connection.features.has_select_for_update_skip_locked, reason="this database has no row locks"
)

UNSTARTED = [Status.WAITING, Status.SCHEDULED, Status.READY]
DAY = 86_400


@pytest.fixture
def told() -> Iterator[list[Event]]:
    """Collect the events that listeners get."""
    events: list[Event] = []

    def listen(event: Event, **kwargs: Any) -> None:
        events.append(event)

    for signal in EVENTS.values():
        signal.connect(listen)
    yield events
    for signal in EVENTS.values():
        signal.disconnect(listen)


def status_of(job: Job) -> str:
    return Job.objects.values_list("status", flat=True).get(id=job.id)


# -- cancel --------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", UNSTARTED)
@commits
def test_cancel_before_the_start_takes_effect_at_once(status: Status, told: list[Event]) -> None:
    job = make_job(status, unique_key="k", retention={"cancelled": DAY})
    report = control.cancel([job.id], by="ann", reason="wrong month")
    assert (report.changed, report.requested, report.refused) == ([job.id], [], {})
    job.refresh_from_db()
    assert job.status == Status.CANCELLED
    assert job.reason == "cancelled by ann: wrong month"
    assert job.finished_at is not None
    assert job.prune_at is not None
    assert (job.prune_at - job.finished_at).total_seconds() == DAY
    assert [(event.name, event.job_id) for event in told] == [("job_cancelled", job.id)]
    make_job(unique_key="k")  # the key is free


def test_cancel_of_a_running_job_is_a_request() -> None:
    job = running_job()
    report = control.cancel([job.id], by="ann", reason="enough", force=True)
    assert (report.changed, report.requested, report.refused, report.events) == ([job.id], [job.id], {}, [])
    assert status_of(job) == Status.RUNNING
    request = CancelRequest.objects.get()
    assert (request.job_id, request.requested_by, request.reason, request.force) == (job.id, "ann", "enough", True)
    control.cancel([job.id])
    assert CancelRequest.objects.count() == 1, "the same is not asked for twice"


def test_a_forced_cancel_after_a_plain_one_is_a_new_request() -> None:
    job = running_job()
    control.cancel([job.id])
    control.cancel([job.id], force=True)
    assert list(CancelRequest.objects.order_by("id").values_list("force", flat=True)) == [False, True]


@pytest.mark.parametrize("status", [Status.FAILED, Status.TIMED_OUT])
def test_cancel_of_a_failure_acknowledges_it_and_it_ages_from_then(status: Status) -> None:
    job = make_job(status, finished_at=datetime(2020, 1, 1, tzinfo=UTC))
    assert control.cancel([job.id], by="ann").changed == [job.id]
    job.refresh_from_db()
    assert job.status == Status.CANCELLED
    assert job.finished_at is not None
    assert job.finished_at.year > 2020
    assert job.prune_at is not None


@pytest.mark.parametrize("status", [Status.SUCCEEDED, Status.CANCELLED])
def test_b45_cancel_of_what_has_ended_is_too_late(status: Status) -> None:
    job = make_job(status)
    report = control.cancel([job.id])
    assert report.changed == []
    assert "too late" in report.refused[job.id]
    assert status_of(job) == status


@commits
def test_cancel_of_a_lease_is_done_at_once(told: list[Event]) -> None:
    job = running_job()
    JobLock.objects.update(kind=LockKind.HTTP)
    report = control.cancel([job.id], by="ann")
    assert (report.changed, report.requested) == ([job.id], [])
    assert status_of(job) == Status.CANCELLED
    assert not JobLock.objects.exists()
    assert JobAttempt.objects.get().outcome == "cancelled"
    assert [event.name for event in told] == ["job_cancelled"]


@needs_row_locks
@commits
def test_cancel_in_an_open_web_transaction_stalls_no_worker() -> None:
    """The request is inserted and not committed; the worker's outcome goes through beside it."""
    worker = uuid.uuid4()
    job = running_job(worker)
    with transaction.atomic():
        control.cancel([job.id], by="ann")
        begin = time.monotonic()
        [recovered] = in_threads(lambda: recover_worker("default", worker, cause="exit"))
        assert time.monotonic() - begin < 5
        assert [event.job_id for event in recovered] == [job.id]
    # The job went back to the queue while the request was in the open transaction: maintenance acts on what is left.
    assert status_of(job) == Status.READY
    assert CancelRequest.objects.get().job_id == job.id


@needs_row_locks
@commits
def test_cancel_of_a_locked_job_is_left_as_a_request() -> None:
    job = make_job()
    with locked(db.JOB, "id", job.id, "FOR UPDATE"):
        report = control.cancel([job.id])
    assert report.requested == [job.id]
    assert CancelRequest.objects.get().job_id == job.id


@commits
def test_a_rolled_back_cancel_tells_nobody(told: list[Event]) -> None:
    job = make_job()
    with transaction.atomic():
        assert control.cancel([job.id]).changed == [job.id]
        transaction.set_rollback(True)
    assert status_of(job) == Status.READY
    assert told == []


@commits
def test_cancel_against_a_claim_has_one_winner() -> None:
    """Each job is either cancelled without a lock row, or running with one and a request to stop."""
    jobs = [make_job() for _ in range(60)]
    report, _claimed = in_threads(lambda: control.cancel([job.id for job in jobs]), lambda: claim_jobs(count=60))
    assert sorted(report.changed) == sorted(job.id for job in jobs)
    held = set(JobLock.objects.values_list("job_id", flat=True))
    asked = set(CancelRequest.objects.values_list("job_id", flat=True))
    for job in Job.objects.all():
        if job.status == Status.CANCELLED:
            assert job.id not in held
        else:
            assert job.id in asked


# -- requeue -------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", sorted(FINAL))
@commits
def test_requeue_starts_afresh_and_keeps_what_the_job_is(status: Status, told: list[Event]) -> None:
    past = datetime(2020, 1, 1, tzinfo=UTC)
    job = make_job(
        status,
        queue="billing",
        priority=7,
        timeout=30.0,
        max_attempts=3,
        attempts_used=3,
        starts=3,
        deaths=2,
        due_at=past,
        run_after=past,
        start_by=past,
        started_at=past,
        last_started_at=past,
        last_heartbeat_at=past,
        result={"a": 1},
        output=[1],
        progress={"done": 1},
        error_class="ValueError",
        error_message="bad",
        fingerprint="f",
        run_seconds=2.0,
        finished_at=past,
        prune_at=past,
        worker="w",
    )
    JobAttempt.objects.create(job=job, number=3, ended_at=past, outcome="failed")
    CancelRequest.objects.create(job=job)
    report = control.requeue([job.id], by="ann", reason="fixed")
    assert (report.changed, report.refused) == ([job.id], {})
    job.refresh_from_db()
    assert (job.status, job.reason) == (Status.READY, "requeued by ann: fixed")
    assert (job.queue, job.priority, job.timeout, job.max_attempts) == ("billing", 7, 30.0, 3)
    assert (job.attempts_used, job.deaths, job.starts) == (0, 0, 3)
    assert job.due_at > past, "it goes to the back of its queue"
    cleared = (
        "run_after start_by started_at last_started_at last_heartbeat_at result output progress run_seconds finished_at prune_at"
    )
    assert {name: getattr(job, name) for name in cleared.split()} == dict.fromkeys(cleared.split())
    assert (job.error_class, job.error_message, job.fingerprint, job.worker) == ("", "", "", "")
    assert JobAttempt.objects.filter(job=job).exists(), "its history stays"
    assert not CancelRequest.objects.exists(), "an old wish does not stop the new run"
    assert [event.name for event in told] == ["job_requeued"]
    assert [attempt.number for attempt in claim_jobs()] == [4]


def test_requeue_can_go_on_counting() -> None:
    job = make_job(Status.FAILED, attempts_used=2, starts=2)
    control.requeue([job.id], keep_attempts=True)
    job.refresh_from_db()
    assert job.attempts_used == 2


def test_b09_bulk_requeue_reports_per_job_and_counts_what_changed() -> None:
    running = running_job()
    jobs = {status: make_job(status) for status in (Status.SUCCEEDED, Status.TIMED_OUT, Status.CANCELLED)}
    jobs[Status.TIMED_OUT] = make_job(Status.TIMED_OUT, attempts_used=5, starts=5, timeout=9.0)
    waiting = make_job(Status.SCHEDULED)
    gone = uuid.uuid4()
    token = running.last_token
    ids = [running.id, *[job.id for job in jobs.values()], waiting.id, gone]
    report = control.requeue(ids)
    assert sorted(report.changed) == sorted(job.id for job in jobs.values())
    assert "running" in report.refused[running.id]
    assert "scheduled" in report.refused[waiting.id]
    assert "no such job" in report.refused[gone]
    running.refresh_from_db()
    assert (running.status, running.last_token, running.starts) == (Status.RUNNING, token, 1)
    assert set(report.changed).isdisjoint(report.refused)


def test_a_unique_key_that_another_job_holds_costs_that_one_job() -> None:
    first, second = make_job(Status.FAILED, unique_key="a"), make_job(Status.FAILED, unique_key="b")
    rival = make_job(unique_key="a")
    report = control.requeue([first.id, second.id])
    assert report.changed == [second.id]
    assert str(rival.id) in report.refused[first.id]
    assert (status_of(first), status_of(second)) == (Status.FAILED, Status.READY)


def test_two_jobs_with_one_key_requeued_together() -> None:
    first, second = make_job(Status.FAILED, unique_key="a"), make_job(Status.SUCCEEDED, unique_key="a")
    report = control.requeue([first.id, second.id])
    assert (len(report.changed), len(report.refused)) == (1, 1)
    assert Job.objects.filter(unique_key="a", status__in=LIVE).count() == 1


@commits
def test_requeue_twice_at_once_happens_once() -> None:
    job = make_job(Status.FAILED)
    reports = in_threads(*[lambda: control.requeue([job.id])] * 2)
    assert sorted(len(report.changed) for report in reports) == [0, 1]
    assert status_of(job) == Status.READY


@needs_row_locks
@commits
def test_requeue_of_a_locked_job_is_refused_without_waiting() -> None:
    job, other = make_job(Status.FAILED), make_job(Status.FAILED)
    with locked(db.JOB, "id", job.id, "FOR UPDATE"):
        report = control.requeue([job.id, other.id])
    assert report.changed == [other.id]
    assert "try again" in report.refused[job.id]


def test_more_jobs_than_one_batch() -> None:
    now = db.server_now(connection)
    jobs = [Job(task="t", status=Status.FAILED, due_at=now, enqueued_at=now, finished_at=now) for _ in range(1203)]
    Job.objects.bulk_create(jobs, batch_size=200)
    report = control.requeue(job.id for job in jobs)
    assert len(report.changed) == 1203
    assert Job.objects.filter(status=Status.READY).count() == 1203


# -- done, run now ---------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [*UNSTARTED, Status.FAILED, Status.TIMED_OUT])
@commits
def test_done_by_hand_is_a_success_that_says_who_and_why(status: Status, told: list[Event]) -> None:
    job = make_job(status)
    assert control.done([job.id], by="ann", reason="by phone").changed == [job.id]
    job.refresh_from_db()
    assert (job.status, job.reason) == (Status.SUCCEEDED, "marked as done by ann: by phone")
    assert job.finished_at is not None
    assert job.prune_at is not None
    assert [event.name for event in told] == ["job_succeeded"]


@pytest.mark.parametrize("status", [Status.SUCCEEDED, Status.CANCELLED])
def test_done_of_what_has_ended_well_or_was_cancelled_is_refused(status: Status) -> None:
    job = make_job(status)
    assert list(control.done([job.id]).refused) == [job.id]
    assert status_of(job) == status


def test_done_of_a_running_job_is_refused() -> None:
    job = running_job()
    assert "running" in control.done([job.id]).refused[job.id]
    assert status_of(job) == Status.RUNNING


def test_run_now_makes_a_scheduled_job_ready() -> None:
    later = db.server_now(connection) + timedelta(days=1)
    job, ready = make_job(Status.SCHEDULED, due_at=later), make_job()
    report = control.run_now([job.id, ready.id])
    assert report.changed == [job.id]
    assert list(report.refused) == [ready.id]
    job.refresh_from_db()
    assert job.status == Status.READY
    assert job.due_at < later


# -- delete ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [*UNSTARTED, *sorted(FINAL)])
def test_delete_takes_all_that_belongs_to_the_job(status: Status) -> None:
    job, other = make_job(status), make_job()
    JobAttempt.objects.create(job=job, number=1, ended_at=job.enqueued_at, outcome="failed")
    CancelRequest.objects.create(job=job)
    assert control.delete([job.id]).changed == [job.id]
    assert [job.id for job in Job.objects.all()] == [other.id]
    assert not JobAttempt.objects.exists()
    assert not CancelRequest.objects.exists()


def test_delete_of_a_running_job_is_refused() -> None:
    job = running_job(expired=True)
    report = control.delete([job.id])
    assert report.changed == []
    assert "force" in report.refused[job.id]
    assert status_of(job) == Status.RUNNING
    assert JobLock.objects.exists()


def test_a_forced_delete_of_a_held_job_asks_its_worker() -> None:
    job = running_job()
    report = control.delete([job.id], by="ann", force=True)
    assert report.requested == [job.id]
    request = CancelRequest.objects.get()
    assert (request.force, request.delete_job, request.requested_by) == (True, True, "ann")
    assert status_of(job) == Status.RUNNING


def test_a_forced_delete_of_a_job_that_nobody_holds_is_done_at_once() -> None:
    job = running_job(expired=True)
    report = control.delete([job.id], force=True)
    assert (report.changed, report.requested) == ([job.id], [])
    assert not Job.objects.exists()
    assert not JobLock.objects.exists()


@needs_row_locks
@pytest.mark.parametrize("lock", ["hold", "fence"])
@commits
def test_a_forced_delete_leaves_a_row_that_is_locked_though_it_has_expired(lock: str) -> None:
    job = running_job(expired=True)
    dialect = db.dialect(connection)
    with locked(db.LOCK, "job_id", job.id, dialect.for_hold_skip if lock == "hold" else dialect.for_fence):
        report = control.delete([job.id], force=True)
    assert report.requested == [job.id]
    assert status_of(job) == Status.RUNNING


@needs_row_locks
@commits
def test_delete_does_not_wait_for_a_lock_row_that_somebody_still_holds() -> None:
    job = running_job()
    Job.objects.filter(id=job.id).update(status=Status.SUCCEEDED, finished_at=job.enqueued_at)
    with locked(db.LOCK, "job_id", job.id, db.dialect(connection).for_hold_skip):
        report = control.delete([job.id])
    assert "try again" in report.refused[job.id]
    assert control.delete([job.id]).changed == [job.id]


def test_delete_of_a_job_that_is_gone_is_refused() -> None:
    gone = uuid.uuid4()
    assert list(control.delete([gone]).refused) == [gone]


# -- edit ------------------------------------------------------------------------------------------


def test_edit_changes_fields_and_nothing_else() -> None:
    job = make_job()
    changes = {
        "priority": 9,
        "queue": "other.queue",
        "timeout": "10m",
        "max_attempts": None,
        "tags": ["x", "x"],
        "metadata": {"a": 1},
    }
    assert control.edit([job.id], by="ann", **changes).changed == [job.id]
    job.refresh_from_db()
    assert (job.priority, job.queue, job.timeout, job.max_attempts) == (9, "other.queue", 600.0, None)
    assert (job.tags, job.metadata) == (["x"], {"a": 1})


def test_edit_moves_the_start() -> None:
    job = make_job()
    later = db.server_now(connection) + timedelta(hours=1)
    control.edit([job.id], run_after=later)
    job.refresh_from_db()
    assert (job.status, job.due_at) == (Status.SCHEDULED, later)
    control.edit([job.id], run_after=later - timedelta(hours=2))
    job.refresh_from_db()
    assert job.status == Status.READY


def test_edit_of_the_limits_of_a_running_job() -> None:
    job = running_job()
    assert control.edit([job.id], max_attempts=1).changed == [job.id]
    assert list(control.edit([job.id], queue="other").refused) == [job.id]
    job.refresh_from_db()
    assert (job.max_attempts, job.queue) == (1, "default")


def test_edit_of_what_has_ended_is_refused() -> None:
    job = make_job(Status.FAILED)
    assert "requeue" in control.edit([job.id], priority=1).refused[job.id]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("priority", 101),
        ("priority", True),
        ("priority", "high"),
        ("queue", "no spaces"),
        ("queue", ""),
        ("run_after", datetime(2020, 1, 1)),
        ("max_attempts", 0),
        ("timeout", -1),
        ("tags", ["", "x"]),
        ("tags", "x"),
        ("metadata", {"a": float("nan")}),
        ("status", "ready"),
        ("unique_key", "x"),
    ],
)
def test_edit_refuses_bad_values_by_name(field: str, value: object) -> None:
    job = make_job()
    with pytest.raises(InvalidOption) as caught:
        control.edit([job.id], **{field: value, "timeout_grace": 1})
    assert caught.value.field == field
    job.refresh_from_db()
    assert job.timeout_grace is None


# -- pause -----------------------------------------------------------------------------------------


def test_pause_and_resume_keep_who_why_and_until_when(caplog: pytest.LogCaptureFixture) -> None:
    until = db.server_now(connection) + timedelta(hours=1)
    with caplog.at_level(logging.INFO, "django_jobs.pause"):
        queue = control.pause_queue("billing", by="ann", reason="month end", until=until)
        assert (queue.paused_by, queue.pause_reason, queue.paused_until) == ("ann", "month end", until)
        assert control.resume_queue("billing", by="ben", reason="all is paid") is True
        assert control.resume_queue("billing") is False
    assert caplog.messages == [
        "The queue billing was paused by ann: month end.",
        "The queue billing was resumed by ben: all is paid.",
    ]
    queue = Queue.objects.get(name="billing")
    assert queue.paused_until is not None
    assert queue.paused_until <= db.server_now(connection)


def test_pausing_again_replaces_the_pause() -> None:
    control.pause_queue("billing", by="ann", until=db.server_now(connection) + timedelta(hours=1))
    control.pause_queue("billing", by="ben")
    queue = Queue.objects.get(name="billing")
    assert (queue.paused_by, queue.paused_until) == ("ben", None)


def test_pause_parks_what_is_ready_below() -> None:
    """The claim's index leaves parked jobs out: however many wait, they slow nobody's claim."""
    mine, below, cousin = make_job(queue="a"), make_job(queue="a.b"), make_job(queue="ab")
    control.pause_queue("a")
    assert dict(Job.objects.values_list("id", "parked")) == {mine.id: "paused", below.id: "paused", cousin.id: ""}


def test_resume_brings_the_parked_jobs_of_the_subtree_back() -> None:
    parked: dict[str, Any] = {"parked": Parked.PAUSED}
    mine, below = make_job(queue="a", **parked), make_job(queue="a.b", **parked)
    still, cousin = make_job(queue="a.c", **parked), make_job(queue="ab", **parked)
    unknown = make_job(queue="a", parked=Parked.UNKNOWN_TASK)
    for name in ("a", "a.c", "ab"):
        control.pause_queue(name)
    control.resume_queue("a")
    left = dict(Job.objects.exclude(parked="").values_list("id", "parked"))
    assert left == {still.id: "paused", cousin.id: "paused", unknown.id: "unknown_task"}
    assert {attempt.job_id for attempt in claim_jobs()} == {mine.id, below.id}


@pytest.mark.parametrize("name", ["", "a b", "a..b", "x" * 101])
def test_pause_refuses_a_bad_name(name: str) -> None:
    with pytest.raises(InvalidOption):
        control.pause_queue(name)
    assert not Queue.objects.exists()


def test_pause_refuses_a_time_that_has_passed_or_is_naive() -> None:
    for until in (datetime(2020, 1, 1, tzinfo=UTC), datetime(2999, 1, 1)):
        with pytest.raises(InvalidOption):
            control.pause_queue("a", until=until)


# -- all -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["a\x00b", "caf\udce9.txt"])
def test_who_and_why_can_be_stored_whatever_they_are(text: str) -> None:
    jobs = [running_job(), make_job()]
    assert len(control.cancel([job.id for job in jobs], by=text, reason=text).changed) == 2
    assert control.pause_queue("a", by=text, reason=text).pause_reason
    shown = text.encode(errors="backslashreplace").decode().replace("\x00", "\\x00")
    assert Job.objects.get(id=jobs[1].id).reason == f"cancelled by {shown}: {shown}"
    assert (CancelRequest.objects.get().requested_by, CancelRequest.objects.get().reason) == (shown, shown)


@pytest.mark.parametrize("verb", [control.cancel, control.requeue, control.done, control.run_now, control.delete])
def test_b22_no_verb_imports_the_task(
    verb: Callable[..., control.Report], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trap_for_verbs.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    jobs = [make_job(status, task="trap_for_verbs.task") for status in Status if status != Status.RUNNING]
    report = verb([job.id for job in jobs])
    assert "trap_for_verbs" not in sys.modules
    assert report.changed
    assert sorted([*report.changed, *report.refused]) == sorted(job.id for job in jobs)


@pytest.mark.parametrize("verb", [control.cancel, control.requeue, control.done, control.run_now, control.delete])
def test_no_ids_nothing_happens(verb: Callable[..., control.Report]) -> None:
    report = verb([])
    assert (report.changed, report.refused, report.events) == ([], {}, [])


def test_expired_lock_rows_of_other_jobs_are_left_alone() -> None:
    job, other = running_job(), running_job()
    expire(other)
    control.delete([job.id], force=True)
    assert JobLock.objects.count() == 2

"""The control loop when its connection is lost at the worst moments, and when others have locked what it wants to write."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest
from django.db import DatabaseError, OperationalError, connection, transaction

from django_jobs import db
from django_jobs.lifecycle.control import delete
from django_jobs.lifecycle.fence import fence_success
from django_jobs.lifecycle.record import record
from django_jobs.lifecycle.recover import attempt_of
from django_jobs.lifecycle.sweep import apply_requests
from django_jobs.models import CancelRequest, Job, JobAttempt, JobLock
from django_jobs.outcomes import Attempt, Cancelled, Event, Finished, HandedBack, Succeeded
from django_jobs.statuses import Status
from django_jobs.worker import claims as claims_module
from django_jobs.worker.child import Child
from django_jobs.worker.control import Control
from django_jobs.worker.options import ControlOptions, WorkerOptions
from django_jobs.worker.pool import Pool
from django_jobs.worker.queues import QueueWatch
from django_jobs.worker.recovery import Death, Recovery
from tests.support.jobs import make_job, other_connection, running_job
from tests.support.worker import until

pytestmark = pytest.mark.django_db(transaction=True)
has_row_locks = pytest.mark.skipif(connection.vendor == "sqlite", reason="this database has no row locks")


class Executor:
    """Runs nothing; notes what it is told to stop."""

    def __init__(self) -> None:
        self.cancelled: list[UUID] = []

    def run(self, attempt: Attempt) -> Finished:
        return Finished(attempt, Succeeded(1), 0.01)

    async def arun(self, attempt: Attempt) -> Finished:
        return Finished(attempt, Succeeded(1), 0.01)

    def is_async(self, attempt: Attempt) -> bool:
        return False

    def cancel(self, token: UUID, reason: str = "") -> bool:
        self.cancelled.append(token)
        return True


class Bench:
    """A control loop whose cycles the test turns by hand; its pool's threads never start."""

    def __init__(self) -> None:
        self.told: list[Event] = []
        self.executor = Executor()
        self.pool = Pool(self.executor, threads=2, async_jobs=0, on_finished=lambda: None)
        self.control = Control(
            options=ControlOptions(alias="default", grace=10.0, slice=3.0, poll=0.05),
            worker=uuid.uuid4(),
            name="w",
            pool=self.pool,
            executor=self.executor,
            queues=QueueWatch(),
            dispatch=self.told.extend,
            settled=lambda tokens: None,
            force_stop=lambda attempt, reason: None,
        )
        self.control._connect()

    def lose(self) -> DatabaseError:
        """Cut the session, and say so as a driver does."""
        self.control.connection.connection.close()
        return OperationalError("server closed the connection unexpectedly")

    def turn_and_lose(self) -> None:
        """Turn a cycle that loses its connection, and connect again."""
        with pytest.raises(OperationalError) as caught:
            self.control._cycle()
        self.control._disconnect(caught.value)
        self.control.claims.next_poll = time.monotonic() + 100
        self.control._connect()


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.control._disconnect(None)


def test_a_claim_whose_answer_is_lost_is_given_back_uncounted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    job = make_job()
    real = claims_module.claim

    def lost(*args: Any, **kwargs: Any) -> Any:
        real(*args, **kwargs)
        raise bench.lose()

    monkeypatch.setattr(claims_module, "claim", lost)
    bench.turn_and_lose()
    job.refresh_from_db()
    assert (job.status, job.starts, job.attempts_used) == (Status.READY, 0, 0)
    assert not JobLock.objects.exists()


@pytest.mark.parametrize("landed", [True, False])
def test_a_commit_whose_answer_is_lost_is_settled_after_the_reconnect(bench: Bench, landed: bool) -> None:
    control = bench.control
    job = make_job()
    control._cycle()
    (attempt,) = [item.attempt for item in control.hands.items.values()]
    bench.pool._inbox.clear()
    bench.pool._finished.append(Finished(attempt, Succeeded(7), 0.1))
    real = control.hands.hold

    def lost(**kwargs: Any) -> None:
        if landed:
            real(**kwargs)
        raise bench.lose()

    control.hands.hold = lost  # type: ignore[method-assign]
    with pytest.raises(OperationalError) as caught:
        control._cycle()
    control.hands.hold = real  # type: ignore[method-assign]
    control._disconnect(caught.value)
    control._connect()
    if not landed:
        control._cycle()
    job.refresh_from_db()
    assert (job.status, job.result) == (Status.SUCCEEDED, 7)
    assert [event.name for event in bench.told] == ["job_succeeded"]
    assert (control.counters.fenced, control.counters.done, bench.executor.cancelled) == (0, 1, [])
    assert not control._to_record


@has_row_locks
def test_jobs_that_somebody_has_locked_cost_one_lock_timeout_together() -> None:
    jobs = [running_job() for _ in range(10)]
    finished = [Finished(attempt_of(job), Succeeded(1), 0.1) for job in jobs]
    blocked = {job.id for job in jobs[:8]}
    with other_connection() as theirs, other_connection() as ours:
        dialect = db.dialect(ours)
        dialect.prepare_session(ours, name="test", by_key=True)
        with theirs.cursor() as cursor:
            cursor.execute("BEGIN")
            marks, params = dialect.marks(blocked)
            cursor.execute(f"SELECT id FROM {db.JOB} WHERE id IN ({marks}) ORDER BY id FOR UPDATE", params)
        with ours.cursor() as cursor:
            cursor.execute("BEGIN")
            began = time.monotonic()
            recorded = record(ours, finished, worker_name="w")
            took = time.monotonic() - began
            cursor.execute("COMMIT")
        with theirs.cursor() as cursor:
            cursor.execute("ROLLBACK")
    assert {item.attempt.job_id for item in recorded.later} == blocked
    assert Job.objects.filter(status=Status.SUCCEEDED).count() == 2
    assert took < 8 * 0.5, f"{took:.1f} s"


def test_a_death_is_dealt_with_once_whatever_fails_behind_it() -> None:
    looks: list[int] = []
    enough = threading.Event()

    def registry() -> None:
        looks.append(1)
        if len(looks) == 2:
            raise OperationalError("a blip")
        if len(looks) > 4:
            enough.set()

    recovery = Recovery(
        alias="default",
        direct_alias="default",
        supervisor=uuid.uuid4(),
        queues=[],
        teller=lambda events: None,
        entries=list,
        recovered=lambda: None,
    )
    recovery._keep_registry = registry  # type: ignore[method-assign]
    recovery.start()
    recovery.add(Death(uuid.uuid4(), "django_jobs x", "c", True, {}, {}, True))
    assert enough.wait(10)
    assert recovery.is_settled
    assert recovery._pending == 0
    recovery.close(5)


def test_a_later_attempt_that_never_began_leaves_the_first_start_alone() -> None:
    job = running_job(starts=1, attempts_used=1, started_at=db.server_now(connection))
    with transaction.atomic():
        record(connection, [Finished(attempt_of(job), HandedBack("not begun"))], worker_name="w")
    job.refresh_from_db()
    assert (job.status, job.starts, job.attempts_used) == (Status.READY, 1, 1)
    assert job.started_at is not None


def test_the_success_of_a_transactional_job_keeps_its_time_its_note_and_its_logs() -> None:
    job = running_job()
    attempt = attempt_of(job)
    with transaction.atomic():
        fence_success(attempt, 1, using="default")
    with transaction.atomic():
        record(connection, [Finished(attempt, Succeeded(1, "a note"), 0.5, "a line", confirmed_by_task=True)], worker_name="w")
    job.refresh_from_db()
    assert (job.status, job.run_seconds, job.reason) == (Status.SUCCEEDED, 0.5, "a note")
    assert JobAttempt.objects.get().logs == "a line"
    assert not JobLock.objects.exists()


def test_a_job_that_was_to_be_deleted_ends_even_if_it_can_not_be_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    job = running_job()
    delete([job.id], force=True)
    with transaction.atomic():
        recorded = record(connection, [Finished(attempt_of(job), Cancelled("asked"), 0.1)], worker_name="w")
    assert (len(recorded.done), recorded.later) == (1, [])
    job.refresh_from_db()
    assert job.status == Status.CANCELLED

    def refuse(using: str, jobs: Any) -> Any:
        raise DatabaseError("it is referred to")

    with monkeypatch.context() as patched:
        patched.setattr("django_jobs.lifecycle.sweep.delete_rows", refuse)
        with transaction.atomic():
            apply_requests(using="default", limit=10)
    assert Job.objects.filter(pk=job.id).exists()
    CancelRequest.objects.get_or_create(job=job, defaults={"delete_job": True})
    with transaction.atomic():
        apply_requests(using="default", limit=10)
    assert not Job.objects.filter(pk=job.id).exists()


def test_a_process_that_reads_nothing_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its standard input is full after some thousand words: they are dropped, and a stop still reaches it as a signal."""
    real: Callable[..., Any] = __import__("subprocess").Popen

    def sleeps(command: list[str], **kwargs: Any) -> Any:
        return real(["sleep", "60"], **{**kwargs, "pass_fds": ()})

    monkeypatch.setattr("django_jobs.worker.child.subprocess.Popen", sleeps)
    child = Child(WorkerOptions(), uuid.uuid4(), "w/1", grace=5.0, max_jobs=None)
    try:
        began = time.monotonic()
        for _ in range(20_000):
            child.say("wake default")
        assert time.monotonic() - began < 5
        child.board.header(1, 0, 0, 0, 0.0, idle=False)
        child.stop()
        assert child.process.wait(10) == -15
    finally:
        child.process.kill()
        child.process.wait(10)
        child.close()


#: What a hand may write into the times of a row and Python can't read: by database.
UNREADABLE = {
    "postgresql": ["0001-01-01 00:00:00+00 BC", "infinity", "-infinity"],
    "sqlite": ["2020-13-45 00:00:00", "0000-00-00 00:00:00"],
    "mysql": [],
}[connection.vendor]


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("moment", UNREADABLE)
def test_a_row_that_can_not_be_read_is_failed_and_stops_no_other(bench: Bench, moment: str, busy: bool) -> None:
    if busy:
        make_job()
        bench.control._cycle()
        assert len(bench.control.hands.items) == 1
    others = [make_job() for _ in range(2)]
    bad = make_job(priority=5)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE django_jobs_job SET run_after = %s WHERE id = %s", [moment, db.dialect(connection).uuid(bad.id)])
    control = bench.control
    worker = threading.Thread(target=control.run, daemon=True)
    worker.start()
    try:
        until(
            lambda: Job.objects.defer("run_after").get(pk=bad.pk).status == Status.FAILED, "the bad row to be failed", within=20
        )
        until(lambda: bench.pool.waiting + len(control.hands.items) > 0, "the others to be claimed")
    finally:
        control.drain()
        worker.join(10)
    bad.refresh_from_db()
    assert (bad.status, bad.run_after, bad.starts) == (Status.FAILED, None, 0)
    assert "can't be read" in bad.reason
    assert bad.finished_at is not None
    assert [event.name for event in bench.told if event.job_id == bad.id] == ["job_failed"]
    assert all(Job.objects.get(pk=job.pk).status == Status.READY for job in others), "handed back by the drain"

"""Somebody asks a running job to stop: whatever it does then, it is cancelled, once, and the worker goes on."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from django_jobs.lifecycle.control import cancel, delete
from django_jobs.models import Job, JobAttempt
from django_jobs.statuses import Status
from tests.process.conftest import Runners
from tests.project import jobs
from tests.support.worker import Ledger, Runner, ended, never, row, until

pytestmark = pytest.mark.usefixtures("together")


@pytest.fixture(scope="module")
def worker(shared: Runners) -> Runner:
    runner = shared.start("--threads=3", "--async-jobs=3", TIMEOUT_GRACE=1.2)
    ended(jobs.noop.enqueue())
    return runner


@pytest.fixture
def book(shared: Runners) -> Ledger:
    return shared.ledger


@pytest.mark.promise
@pytest.mark.parametrize("task", [jobs.stubborn, jobs.astubborn], ids=["thread", "coroutine"])
def test_a_cancel_reaches_a_running_job_within_two_seconds(worker: Runner, book: Ledger, task) -> None:
    job = task.enqueue("except Exception" if task is jobs.stubborn else "await")
    book.started(job)
    asked = time.monotonic()
    report = cancel([job.job_id], by="anna", reason="no longer wanted")
    assert report.requested == [job.job_id]
    found = ended(job)[0]
    assert time.monotonic() - asked < 2
    assert found.status == Status.CANCELLED
    assert found.reason == "no longer wanted (by anna)"
    assert JobAttempt.objects.get(job=found).outcome == "cancelled"
    assert book.ends(job) == []


PROMISED = [pytest.param(then, marks=pytest.mark.promise) for then in ("raise", "die")]


@pytest.mark.parametrize("then", [*PROMISED, "return", "time out", "retry"])
def test_b45_a_job_that_was_asked_to_stop_is_cancelled_however_it_ends(
    worker: Runner, book: Ledger, tmp_path: Path, then: str
) -> None:
    job = jobs.when_told_retried.using(timeout=2.5 if then == "time out" else None).enqueue(str(tmp_path / "told"), then)
    book.started(job)
    cancel([job.job_id], reason="enough")
    until(lambda: book.lines("CAUGHT JobCancelled", job), "the task to be told", within=3)
    if then == "time out":
        until(lambda: len(book.lines(key=job)) > 2, "the time-out, which it also catches")
    (tmp_path / "told").touch()
    found = ended(job)[0]
    assert found.status == Status.CANCELLED
    assert found.reason == "enough"
    assert found.result is None
    if then != "die":
        assert book.lines("THEN True", job)
    never(lambda: len(book.starts(job)) > 1, "it was started again", during=0.3)
    assert ended(jobs.add.enqueue(1, 2))[0].result == 3
    late = cancel([job.job_id])
    assert late.changed == []
    assert "too late" in late.refused[job.job_id]


def test_a_task_that_ignores_a_plain_cancel_is_left_to_end(worker: Runner, book: Ledger, tmp_path: Path) -> None:
    pid = worker.child()
    job = jobs.when_told.enqueue(str(tmp_path / "told"), "return")
    book.started(job)
    cancel([job.job_id])
    until(lambda: book.lines("CAUGHT JobCancelled", job), "the task to be told", within=3)
    never(lambda: row(job).status != Status.RUNNING, "it was not left to end", during=1)
    assert worker.child() == pid
    (tmp_path / "told").touch()
    assert ended(job)[0].status == Status.CANCELLED


@pytest.mark.promise
def test_a_forced_cancel_kills_the_process_and_hands_back_the_bystanders(worker: Runner, book: Ledger, tmp_path: Path) -> None:
    pid = worker.child()
    bystander = jobs.gate.enqueue(str(tmp_path / "gate"))
    job = jobs.stubborn.enqueue("sleep")
    book.started(bystander)
    book.started(job)
    cancel([job.job_id], force=True)
    found = ended(job)[0]
    assert found.status == Status.CANCELLED
    book.started(bystander, 2)
    assert not JobAttempt.objects.get(job_id=bystander.id).counted
    (tmp_path / "gate").touch()
    assert ended(bystander)[0].attempts_used == 1
    assert worker.child() != pid
    assert len(book.starts(job)) == 1


def test_a_forced_cancel_of_an_isolated_job_kills_its_process_alone(worker: Runner, book: Ledger) -> None:
    pid = worker.child()
    job = jobs.alone.enqueue("bare except")
    book.started(job)
    cancel([job.job_id], force=True)
    assert ended(job)[0].status == Status.CANCELLED
    assert worker.child() == pid


@pytest.mark.promise
def test_a_forced_delete_ends_the_job_and_then_deletes_it(worker: Runner, book: Ledger) -> None:
    job = jobs.stubborn.enqueue("except Exception")
    book.started(job)
    assert delete([job.job_id]).changed == []
    assert delete([job.job_id], force=True).requested == [job.job_id]
    until(lambda: not Job.objects.filter(id=job.id).exists(), "its row to be gone")
    assert ended(jobs.add.enqueue(1, 2))[0].result == 3


@pytest.mark.promise
def test_a_transactional_job_that_is_cancelled_leaves_nothing(worker: Runner, book: Ledger, tmp_path: Path) -> None:
    from django_jobs.models import Queue

    job = jobs.paid.enqueue(str(tmp_path / "gate"))
    book.started(job)
    cancel([job.job_id])
    assert ended(job)[0].status == Status.CANCELLED
    assert not Queue.objects.filter(name=f"paid.{job.id}").exists()
    (tmp_path / "gate").touch()
    kept = ended(jobs.paid.enqueue(str(tmp_path / "gate")))[0]
    assert (kept.status, kept.result) == (Status.SUCCEEDED, "paid")
    assert Queue.objects.filter(name=f"paid.{kept.id}").exists()

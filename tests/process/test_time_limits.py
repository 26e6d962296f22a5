"""A time limit holds whatever the task does: in threads, coroutines and processes of their own; what it launched goes with it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from django.db import connection

from django_jobs.lifecycle.control import cancel
from django_jobs.models import JobAttempt
from django_jobs.statuses import Status
from tests.process.conftest import Runners, Start
from tests.project import jobs
from tests.support.worker import Ledger, Runner, ended, is_alive, processes_with, ps, until

pytestmark = pytest.mark.usefixtures("together")

TIMEOUT = 0.5
GRACE = 0.5
#: Above the limits: how late a kill may be noticed, the row written, and the cores be shared. Seconds.
SLACK = 3.0
no_sleep_on_server = pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite can't sleep")


def promised(value: str, *marks: pytest.MarkDecorator):
    return pytest.param(value, marks=[pytest.mark.promise, *marks])


SOFT = [promised("except Exception"), "bare except", "python"]
HARD = [promised("sleep"), "regex", "queue", promised("sql", no_sleep_on_server), "hog"]


@pytest.fixture(scope="module")
def worker(shared: Runners) -> Runner:
    runner = shared.start("--threads=2", "--async-jobs=2", TIMEOUT_GRACE=GRACE)
    ended(jobs.noop.enqueue())
    return runner


@pytest.fixture
def book(shared: Runners) -> Ledger:
    return shared.ledger


def limited(task, kind: str):
    return task.using(timeout=TIMEOUT, max_attempts=2, backoff=0.05).enqueue(kind)


def assert_timed_out_twice(worker: Runner, book: Ledger, enqueued) -> None:
    """Two attempts, each within its limit, one after the other; then the slot is free."""
    job = ended(enqueued)[0]
    assert (job.status, job.starts, job.attempts_used) == (Status.TIMED_OUT, 2, 2)
    attempts = list(JobAttempt.objects.filter(job=job).order_by("number"))
    assert [attempt.outcome for attempt in attempts] == ["timed_out"] * 2
    for attempt in attempts:
        assert attempt.error_class == "django_jobs.exceptions.JobTimeout"
        assert TIMEOUT <= attempt.run_seconds < TIMEOUT + GRACE + SLACK
    first, second = book.starts(job)
    assert second.at - first.at >= TIMEOUT, "a retry overlaps the old copy"
    assert book.ends(job) == []
    beats = len(book.lines("BEAT", job))
    assert ended(jobs.add.enqueue(1, 2))[0].result == 3
    assert len(book.lines("BEAT", job)) == beats, "its body goes on"
    assert worker.is_running


@pytest.mark.parametrize("kind", SOFT)
def test_b28_a_thread_is_stopped_at_its_limit_softly(worker: Runner, book: Ledger, kind: str) -> None:
    pid = worker.child()
    enqueued = limited(jobs.stubborn, kind)
    if kind == "bare except":
        job = ended(enqueued)[0]
        assert (job.status, job.starts) == (Status.TIMED_OUT, 2)
        assert worker.child() != pid, "it caught the interruption: only the end of its process stops it"
        return
    assert_timed_out_twice(worker, book, enqueued)
    assert worker.child() == pid


@pytest.mark.parametrize("kind", HARD)
def test_b28_a_thread_in_native_code_is_ended_with_its_process(worker: Runner, book: Ledger, kind: str) -> None:
    assert_timed_out_twice(worker, book, limited(jobs.stubborn, kind))


@pytest.mark.parametrize("kind", [promised("await"), "bare except", "sleep", "hog"])
def test_b28_a_coroutine_is_stopped_at_its_limit(worker: Runner, book: Ledger, kind: str) -> None:
    assert_timed_out_twice(worker, book, limited(jobs.astubborn, kind))


@pytest.mark.parametrize("kind", [promised("sleep"), "bare except"])
def test_b28_a_process_of_its_own_is_ended_alone(worker: Runner, book: Ledger, kind: str) -> None:
    pid = worker.child()
    enqueued = limited(jobs.alone, kind)
    job = ended(enqueued)[0]
    assert (job.status, job.starts) == (Status.TIMED_OUT, 2)
    until(lambda: not any(is_alive(line.pid) for line in book.starts(job)), "the end of its processes")
    assert worker.child() == pid


@pytest.mark.promise
def test_bystanders_of_a_kill_are_handed_back_uncounted(worker: Runner, book: Ledger, tmp_path: Path) -> None:
    bystanders = [jobs.gate.enqueue(str(tmp_path / "gate")), jobs.agate.enqueue(str(tmp_path / "gate"))]
    for job in bystanders:
        book.started(job)
    hog = jobs.stubborn.using(timeout=TIMEOUT, max_attempts=1).enqueue("sleep")
    assert ended(hog)[0].status == Status.TIMED_OUT
    for job in bystanders:
        book.started(job, 2)
        lost = JobAttempt.objects.get(job_id=job.id)
        assert (lost.outcome, lost.counted) == ("lost", False)
        assert "killed" in lost.cause
    (tmp_path / "gate").touch()
    for job in ended(*bystanders):
        assert (job.status, job.starts, job.attempts_used) == (Status.SUCCEEDED, 2, 1)


@pytest.mark.parametrize(("how", "words"), [("python", "CPU"), ("C", "cpu_timeout"), ("rlimit", "SIGXCPU")])
def test_cpu_seconds_are_bounded(worker: Runner, book: Ledger, how: str, words: str) -> None:
    limit = 30 if how == "rlimit" else 0.3
    job = ended(jobs.burn.using(cpu_timeout=limit, max_attempts=1).enqueue(how))[0]
    assert job.status == Status.TIMED_OUT
    assert words in job.error_message
    assert JobAttempt.objects.get(job=job).outcome == "timed_out"
    assert ended(jobs.add.enqueue(1, 2))[0].result == 3


@pytest.mark.promise
def test_silence_longer_than_the_heartbeat_is_a_time_out(worker: Runner, book: Ledger) -> None:
    job = ended(jobs.stubborn.using(heartbeat_timeout=0.3, max_attempts=1).enqueue("sleep"))[0]
    assert job.status == Status.TIMED_OUT
    assert "heartbeat" in job.error_message


# -- programs that a job has started


def launched(runner: Runner, wanted: int) -> list[int]:
    """Wait until the job's programs run, and return their process ids."""

    def programs() -> list[int]:
        tree = {runner.pid, *runner.children()}
        found = [pid for pid in processes_with(runner.mark) if pid not in tree and is_alive(pid)]
        return found if len(found) >= wanted else []

    return until(programs, "the programs that the job starts")


def assert_gone(runner: Runner, programs: list[int]) -> None:
    until(lambda: not any(is_alive(pid) for pid in programs), "the end of what the job has started", within=10)
    tree = [found for pid in processes_with(runner.mark) if (found := ps(pid))]
    until(lambda: not [one for one in tree if (found := ps(one.pid)) and found.state == "Z"], "no zombies", within=10)


#: How many programs each kind starts. "session": in a session of its own, out of reach of what is sent to the group.
PROGRAMS = {"shell": 2, "pool": 3, "stubborn": 1, "session": 1}


@pytest.mark.parametrize("how", [promised("shell"), "pool", "stubborn", "session"])
def test_b30_programs_end_with_the_job_that_is_out_of_time(worker: Runner, book: Ledger, how: str) -> None:
    job = jobs.launch.using(timeout=2.5, max_attempts=1).enqueue(how)
    programs = launched(worker, PROGRAMS[how])
    assert ended(job)[0].status == Status.TIMED_OUT
    assert_gone(worker, programs)
    assert ended(jobs.add.enqueue(1, 2))[0].result == 3


@pytest.mark.parametrize("how", ["shell", "stubborn"])
def test_b30_programs_end_with_the_job_that_is_cancelled(worker: Runner, book: Ledger, how: str) -> None:
    job = jobs.launch.enqueue(how)
    programs = launched(worker, PROGRAMS[how])
    cancel([job.job_id])
    assert ended(job)[0].status == Status.CANCELLED
    assert_gone(worker, programs)
    assert ended(jobs.add.enqueue(1, 2))[0].result == 3


def test_b30_programs_end_with_their_worker(start: Start, ledger: Ledger) -> None:
    runner = start("--threads=3", "--stop-timeout=0.5s")
    enqueued = [jobs.launch.enqueue(how) for how in ("shell", "stubborn", "session")]
    programs = launched(runner, 4)
    began = time.monotonic()
    assert runner.stop() == 0
    assert time.monotonic() - began < 0.5 + SLACK
    assert_gone(runner, programs)
    for job in enqueued:
        found = jobs.launch.get_result(job.id).job
        assert (found.status, found.attempts_used) == (Status.READY, 0)

"""Jobs in a process of their own: the same outcomes, and a death or a kill that harms nobody else."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from django_jobs.execution.executor import Executor
from django_jobs.outcomes import Attempt, Cancelled, Failed, Lost, Succeeded, TimedOut
from tests.execution import tasks
from tests.execution.support import Recorder, Slot, arun, attempt_of, wait_until
from tests.execution.test_children import is_running

pytestmark = pytest.mark.process


def test_it_runs_elsewhere_and_reports_as_here(slot: Slot, recorder: Recorder) -> None:
    attempt = attempt_of(tasks.isolated, "say")
    finished = slot.run(attempt, 30)
    assert isinstance(finished.outcome, Succeeded)
    pid, group, job_id, has_settings = finished.outcome.result
    assert pid == group != os.getpid()
    assert (job_id, has_settings) == (str(attempt.job_id), True)
    assert ("progress", 1, 2, "half") in recorder.told
    assert ("save", [1]) in recorder.told
    assert finished.logs.endswith("from inside")
    assert finished.run_seconds is not None
    assert not is_running(pid)


def test_an_exception_comes_over_whole(slot: Slot) -> None:
    outcome = slot.run(attempt_of(tasks.isolated, "raise"), 30).outcome
    assert isinstance(outcome, Failed)
    assert (outcome.error.exception_class, outcome.error.message) == ("builtins.ValueError", "from inside")
    assert "tests/execution/tasks.py" in outcome.error.traceback


@pytest.mark.parametrize(("how", "cause"), [("exit", "ended with exit code 3"), ("kill", "SIGKILL"), ("segfault", "SIGSEGV")])
def test_its_death_is_its_own(slot: Slot, how: str, cause: str) -> None:
    outcome = slot.run(attempt_of(tasks.isolated, how), 30).outcome
    assert isinstance(outcome, Lost)
    assert outcome.counts
    assert cause in outcome.cause
    assert slot.run(attempt_of(tasks.add, 1, 2)).outcome == Succeeded(3)


def test_what_it_leaves_behind_is_killed(slot: Slot) -> None:
    outcome = slot.run(attempt_of(tasks.isolated, "orphan"), 30).outcome
    assert isinstance(outcome, Succeeded)
    wait_until(lambda: not is_running(outcome.result), 5)


@pytest.mark.parametrize("how", ["sleep", "queue", "hold", "stubborn"])
def test_b28_no_code_outlives_its_limit(slot: Slot, recorder: Recorder, how: str) -> None:
    start = time.monotonic()
    outcome = slot.run(attempt_of(tasks.isolated_sleep, how), 30).outcome
    assert isinstance(outcome, TimedOut)
    assert outcome.limit == "timeout"
    assert outcome.error.exception_class == "django_jobs.exceptions.JobTimeout"
    assert ("killed" in outcome.error.message) == (how in ("hold", "stubborn"))
    assert time.monotonic() - start < 15
    # Nobody else needs to enforce its limits.
    assert [entry[2] for entry in recorder.told if entry[0] == "begin"] == [None]


def test_cpu_time_of_the_process(slot: Slot) -> None:
    outcome = slot.run(attempt_of(tasks.isolated_burn), 30).outcome
    assert isinstance(outcome, TimedOut)
    assert outcome.limit == "cpu_timeout"


@pytest.mark.parametrize("by_force", [False, True])
def test_cancelling(slot: Slot, executor: Executor, tmp_path: Path, by_force: bool) -> None:
    path = tmp_path / "pid"
    attempt = attempt_of(tasks.isolated_wait, str(path))
    running = slot.start(attempt)
    wait_until(lambda: path.exists() and path.read_text(), 20)
    stop = executor.kill if by_force else executor.cancel
    assert stop(attempt.token, "enough")
    outcome = running.result(10).outcome
    assert isinstance(outcome, Cancelled)
    assert outcome.reason == "enough"
    assert not is_running(int(path.read_text()))


def test_cancelling_one_that_has_not_begun(slot: Slot, executor: Executor, tmp_path: Path) -> None:
    attempt = attempt_of(tasks.isolated_wait, str(tmp_path / "pid"))
    running = slot.start(attempt)
    wait_until(lambda: executor.cancel(attempt.token))
    assert isinstance(running.result(30).outcome, Cancelled)


def test_only_isolated_jobs_can_be_killed_alone(slot: Slot, executor: Executor) -> None:
    attempt = attempt_of(tasks.waits_for_gate)
    running = slot.start(attempt)
    assert tasks.begun.wait(5)
    assert executor.kill(attempt.token) is False
    tasks.gate.set()
    assert running.result(5).outcome == Succeeded("through")


def test_a_coroutine_in_a_process_of_its_own(executor: Executor) -> None:
    attempt = attempt_of(tasks.isolated_async)
    assert executor.is_async(attempt) is False
    (finished,) = arun(executor, attempt)
    assert isinstance(finished.outcome, Succeeded)
    assert finished.outcome.result != os.getpid()


WORKER = """
import os, sys, threading
import django
django.setup()
from django_jobs.execution.executor import Executor
from tests.execution import tasks
from tests.execution.support import Recorder, attempt_of, find
Executor(Recorder(), find_task=find).run(attempt_of(tasks.isolated_wait, sys.argv[1]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs PR_SET_PDEATHSIG")
def test_it_does_not_outlive_its_worker(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "PYTHONPATH": os.pathsep.join(sys.path)}
    worker = subprocess.Popen([sys.executable, "-c", WORKER, str(path)], env=environment)
    try:
        wait_until(lambda: path.exists() and path.read_text(), 30)
    finally:
        worker.kill()
        worker.wait(5)
    wait_until(lambda: not is_running(int(path.read_text())), 5)


def test_a_worker_whose_parts_cannot_be_found_says_so(recorder: Recorder) -> None:
    def find(name: str) -> Any:
        return tasks.isolated

    attempt: Attempt = attempt_of(tasks.isolated, "say")
    outcome = Executor(recorder, find_task=find).run(attempt).outcome
    assert isinstance(outcome, Failed)
    assert "another process" in outcome.error.message

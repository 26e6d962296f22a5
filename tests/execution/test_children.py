"""A job that is stopped takes the programs with it that it started."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from django_jobs.execution.executor import Executor
from django_jobs.outcomes import Cancelled, Succeeded, TimedOut
from tests.execution import tasks
from tests.execution.support import Slot, attempt_of, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux says which thread started a process")


def state_of(pid: int) -> str:
    """Return the state of a process: "" if there is none, "Z" for a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def is_running(pid: int) -> bool:
    return state_of(pid) not in ("", "Z")


def pids_in(path: Path) -> list[int]:
    return [int(text) for text in path.read_text().split()] if path.exists() else []


TREE = "sleep 61 & echo $! >> {path}; echo $$ >> {path}; sleep 62"
DEAF = """trap "" TERM; echo $$ >> {path}; while true; do sleep 0.1; done"""


@pytest.mark.parametrize("command", [TREE, DEAF], ids=["tree", "ignores SIGTERM"])
@pytest.mark.parametrize("how", ["timeout", "cancel"])
def test_b30_what_a_stopped_job_started_is_ended(slot: Slot, executor: Executor, tmp_path: Path, command: str, how: str) -> None:
    path = tmp_path / "pids"
    task = tasks.runs_child if how == "timeout" else tasks.runs_child_unbounded
    attempt = attempt_of(task, command.format(path=path))
    running = slot.start(attempt)
    wait_until(lambda: len(pids_in(path)) == command.count("echo"))
    if how == "cancel":
        assert executor.cancel(attempt.token)
    outcome = running.result(10).outcome
    assert isinstance(outcome, TimedOut if how == "timeout" else Cancelled)
    wait_until(lambda: not any(is_running(pid) for pid in pids_in(path)), 5)
    assert slot.run(attempt_of(tasks.add, 1, 2)).outcome == Succeeded(3)


def test_b30_a_child_started_after_the_stop_is_ended_and_collected(slot: Slot, tmp_path: Path) -> None:
    assert isinstance(slot.run(attempt_of(tasks.starts_child_after_stop, str(tmp_path))).outcome, TimedOut)
    (pid,) = tasks.seen
    wait_until(lambda: state_of(pid) == "", 8)


def test_children_of_others_live_on(slot: Slot, tmp_path: Path) -> None:
    """Those of this thread, of another job in it, and of other threads."""
    mine = subprocess.Popen(["sleep", "60"])
    earlier = slot.pool.submit(subprocess.Popen, ["sleep", "60"]).result(5)
    time.sleep(0.05)  # a tick of the clock that tells processes apart
    path = tmp_path / "pids"
    slot.run(attempt_of(tasks.runs_child, TREE.format(path=path)))
    wait_until(lambda: not any(is_running(pid) for pid in pids_in(path)), 5)
    try:
        assert mine.poll() is None
        assert earlier.poll() is None
    finally:
        for child in (mine, earlier):
            child.kill()
            child.wait(5)


def test_no_descriptor_is_left_open(slot: Slot) -> None:
    slot.run(attempt_of(tasks.runs_child, "sleep 60"))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        slot.run(attempt_of(tasks.runs_child, "sleep 60", timeout=0.05))
    assert len(os.listdir("/proc/self/fd")) <= before

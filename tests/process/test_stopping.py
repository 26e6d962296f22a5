"""How a worker ends: in order, in a hurry, when there is nothing left, when its supervisor is gone; and what others see of it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from django_jobs.models import Job, JobAttempt, JobLock, Worker
from django_jobs.statuses import Status
from tests.process.conftest import Start
from tests.project import jobs
from tests.support.worker import Ledger, ended, is_alive, never, row, until


@pytest.mark.promise
def test_b07_an_orderly_stop_finishes_what_runs_and_leaves_the_rest_to_others(
    start: Start, ledger: Ledger, tmp_path: Path
) -> None:
    first = start("--threads=2", "--async-jobs=1", "--no-maintenance")
    held = [task.enqueue(str(tmp_path / "gate")) for task in (jobs.gate, jobs.gate, jobs.agate)]
    for job in held:
        ledger.started(job)
    second = start("--threads=1").works()
    first.signal(signal.SIGTERM)
    first.says("stops: running jobs have")
    waiting = [jobs.ledger.enqueue() for _ in range(5)]
    ended(*waiting)
    child = first.child()
    assert child not in {line.pid for job in waiting for line in ledger.starts(job)}, "it claimed while it was stopping"
    # Longer than the grace: it goes on holding what it has.
    never(lambda: len(ledger.starts()) > 8, "a job of the stopping worker was started again", during=3)
    (tmp_path / "gate").touch()
    assert first.wait() == 0
    for job in ended(*held):
        assert (job.status, job.starts) == (Status.SUCCEEDED, 1)
        assert len(ledger.ends(job)) == 1
    assert second.is_running
    assert not JobLock.objects.exists()
    assert Worker.objects.filter(stopped_at=None, pid=child).count() == 0


@pytest.mark.promise
@pytest.mark.parametrize("hurry", ["the time is over", "a second signal"])
def test_b07_what_outlasts_the_stop_is_available_at_once_and_not_counted(start: Start, ledger: Ledger, hurry: str) -> None:
    runner = start("--threads=2", "--stop-timeout=1s" if hurry == "the time is over" else "--stop-timeout=1h", GRACE=30)
    held = [jobs.ledger.enqueue(3600), jobs.aledger.enqueue(3600), jobs.alone.enqueue("except Exception")]
    for job in held:
        ledger.started(job)
    asked = time.monotonic()
    runner.signal(signal.SIGTERM)
    if hurry == "a second signal":
        runner.says("stops: running jobs have")
        runner.signal(signal.SIGTERM)
    assert runner.wait() == 0
    assert time.monotonic() - asked < 5
    for job in held:
        found = row(job)
        assert (found.status, found.starts, found.attempts_used) == (Status.READY, 1, 0)
        record = JobAttempt.objects.get(job_id=job.id)
        assert (record.outcome, record.counted) == ("handed_back", False)
        assert record.cause == found.reason == "its worker was stopped"
    assert not JobLock.objects.exists()
    assert "died" not in runner.text()
    assert "What outlasted the stop runs again elsewhere, uncounted: 3 started." in runner.text()


def test_drain_works_until_nothing_is_ready_and_ends(start: Start, ledger: Ledger) -> None:
    several = [jobs.ledger.enqueue(0.05) for _ in range(20)] + [jobs.aledger.enqueue() for _ in range(5)]
    failing = jobs.boom.enqueue()
    dying = jobs.die.enqueue("kill", times=1)
    later = jobs.noop.using(run_after=3600).enqueue()
    runner = start("--drain", "--threads=2", "--processes=2")
    assert runner.wait(60) == 0
    assert all(job.status == Status.SUCCEEDED for job in ended(*several, dying, within=1))
    assert row(failing).status == Status.FAILED
    assert row(later).status == Status.SCHEDULED
    assert Job.objects.filter(status=Status.RUNNING).count() == 0


def test_children_of_a_supervisor_that_was_killed_finish_and_end(start: Start, ledger: Ledger, tmp_path: Path) -> None:
    runner = start("--threads=2")
    job = jobs.gate.enqueue(str(tmp_path / "gate"))
    pid = ledger.started(job).pid
    os.kill(runner.pid, signal.SIGKILL)
    runner.wait()
    after = jobs.ledger.enqueue()
    never(lambda: ledger.starts(after), "an orphan claimed", during=1)
    assert is_alive(pid)
    (tmp_path / "gate").touch()
    assert ended(job)[0].status == Status.SUCCEEDED
    until(lambda: not is_alive(pid), "the end of the orphan")
    assert len(ledger.starts(job)) == 1


def test_recycled_processes_cost_no_capacity(start: Start, ledger: Ledger, tmp_path: Path) -> None:
    """By number of jobs: the successor is there before the predecessor has ended its last one."""
    runner = start("--threads=2", "--max-jobs=3")
    gate = jobs.gate.enqueue(str(tmp_path / "gate"))
    old = ledger.started(gate).pid
    several = [jobs.ledger.enqueue() for _ in range(7)]
    ended(*several)
    pids = {line.pid for job in several for line in ledger.starts(job)}
    assert len(pids) >= 3
    assert is_alive(old), "it ends its last job"
    for pid in pids:
        assert len({line.key for line in ledger.starts() if line.pid == pid}) <= 3
    (tmp_path / "gate").touch()
    ended(gate)
    until(lambda: not is_alive(old), "the end of the recycled process")
    assert runner.is_running
    assert not JobAttempt.objects.exists()


@pytest.mark.parametrize("limit", ["memory", "age"])
def test_recycling_by_memory_and_age_loses_nothing(start: Start, ledger: Ledger, limit: str) -> None:
    runner = start("--threads=1", "--max-memory=200" if limit == "memory" else "--max-age=2s")
    first = ended(jobs.values.enqueue())[0].result["pid"]
    if limit == "memory":
        ended(jobs.grow.enqueue(200))
    until(lambda: not is_alive(first), "the old process to go", within=30)
    assert limit in runner.text()
    assert ended(jobs.values.enqueue())[0].result["pid"] != first
    assert not JobAttempt.objects.exists()


# -- what others see


def ask(port: int, path: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)
    except urllib.error.URLError:
        return 0, {}


def test_the_health_port_and_systemd_are_told_how_it_is(start: Start, ledger: Ledger, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(0.2)
        heard: list[str] = []

        def told(word: str) -> bool:
            try:
                heard.extend(systemd.recv(4096).decode().splitlines())
            except TimeoutError:
                pass
            return word in heard

        runner = start("--threads=1", f"--health-port={port}", env={"NOTIFY_SOCKET": str(tmp_path / "notify")})
        until(lambda: told("READY=1"), "READY=1")
        until(lambda: ask(port, "/ready")[0] == 200, "it to be ready")
        until(lambda: told("WATCHDOG=1"), "WATCHDOG=1")
        job = jobs.gate.enqueue(str(tmp_path / "gate"))
        ledger.started(job)
        status, body = until(lambda: (found := ask(port, "/"))[1]["processes"][0]["running"] == 1 and found, "the running job")
        assert (status, body["live"], body["ready"], body["database"]) == (200, True, True, "connected")
        assert body["processes"][0]["pid"] == runner.child()
        assert body["maintenance"]["failures"] == 0
        assert ask(port, "/live")[0] == 200
        assert ask(port, "/nothing")[0] == 404
        runner.signal(signal.SIGTERM)
        until(lambda: told("STOPPING=1"), "STOPPING=1")
        (tmp_path / "gate").touch()
        assert runner.wait() == 0
    assert row(job).status == Status.SUCCEEDED


def test_a_worker_prints_no_warning(start: Start, ledger: Ledger) -> None:
    runner = start("--threads=1", "--async-jobs=1")
    several = [
        jobs.ledger.enqueue(),
        jobs.aledger.enqueue(),
        jobs.alone.enqueue("nothing"),
        jobs.ledger.using(run_after=0.5).enqueue(),
    ]
    ended(*several, jobs.boom.enqueue(), jobs.again.using(max_attempts=2, backoff=0.05).enqueue())
    ended(jobs.stubborn.using(timeout=0.2, max_attempts=1).enqueue("python"))
    assert runner.stop() == 0
    assert re.findall(r".*Warning\b.*", runner.text()) == []


def test_usr1_shows_what_every_job_is_doing(start: Start, ledger: Ledger) -> None:
    runner = start("--threads=1")
    job = jobs.ledger.enqueue(60)
    ledger.started(job)
    runner.signal(signal.SIGUSR1)
    runner.says(rf"Job {job.id}, tests.project.jobs.ledger, running for")
    runner.says(r"time\.sleep\(seconds\)")


def test_the_registry_shows_the_tree_and_its_end(start: Start, ledger: Ledger) -> None:
    runner = start("--threads=3", "--name=shown")
    ended(jobs.noop.enqueue())
    until(lambda: Worker.objects.filter(kind="process", stopped_at=None).exists(), "the process in the registry")
    tree = Worker.objects.get(kind="supervisor")
    process = Worker.objects.get(kind="process")
    assert (tree.pid, tree.name, tree.parent) == (runner.pid, "shown", None)
    assert (process.pid, process.parent, process.name) == (runner.child(), tree.id, "shown/1")
    assert process.slots >= 3
    assert runner.stop() == 0
    assert not Worker.objects.filter(stopped_at=None).exists()

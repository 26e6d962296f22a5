"""What dies, and how soon its jobs run again: the table of promises, kept by killing real processes."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from django.db import connection

from django_jobs.models import JobAttempt, JobLock
from django_jobs.statuses import Status
from tests.process.conftest import Start
from tests.project import jobs
from tests.support.worker import Ledger, ended, never, row, until

#: A child process, dead for whatever reason: its jobs run again within this. Seconds; on an idle machine it is a tenth.
CHILD = 2.0
has_row_locks = pytest.mark.skipif(
    not connection.features.has_select_for_update_skip_locked or connection.vendor != "postgresql",
    reason="without a lock that outlives a stalled process, its lease ends with the grace",
)


# -- a child process


@pytest.mark.promise
def test_a_child_that_dies_has_its_jobs_run_again_within_two_seconds(start: Start, ledger: Ledger) -> None:
    runner = start("--processes=2", "--threads=1", GRACE=10)
    causes = {"kill": "SIGKILL", "segfault": "SIGSEGV", "0": "exit code 0", "9": "exit code 9"}
    for number, (how, cause) in enumerate(causes.items()):
        runner.works(2 + number)
        job = jobs.die.enqueue(how, times=1)
        death = ledger.started(job)
        assert ledger.started(job, 2).at - death.at < CHILD, how
        assert ended(job)[0].status == Status.SUCCEEDED
        lost = JobAttempt.objects.get(job_id=job.id)
        assert (lost.outcome, lost.counted, lost.number) == ("lost", True, 1)
        assert cause in lost.cause
        assert lost.worker != row(job).worker
        assert ledger.starts(job)[0].pid != ledger.starts(job)[1].pid


@pytest.mark.promise
def test_b18_a_job_that_kills_its_process_each_time_has_failed_after_its_attempts(
    start: Start, ledger: Ledger, tmp_path: Path
) -> None:
    runner = start("--processes=4", "--threads=1").works(4)
    innocent = [jobs.gate.enqueue(str(tmp_path / "gate")) for _ in range(2)]
    for job in innocent:
        ledger.started(job)
    cases = {"kill": "SIGKILL", "0": "exit code 0"}
    crashers = {how: jobs.die.using(max_attempts=3, backoff=0.1).enqueue(how) for how in cases}
    for how, job in zip(cases, ended(*crashers.values(), within=60), strict=True):
        assert job.status == Status.FAILED
        assert len(ledger.starts(job)) == job.starts == 3
        assert cases[how] in job.reason
        assert JobAttempt.objects.filter(job=job, outcome="lost").count() == 3
    (tmp_path / "gate").touch()
    for job in ended(*innocent):
        assert job.status == Status.SUCCEEDED
        assert len(ledger.starts(job)) == len(ledger.ends(job)) == 1
    assert runner.is_running
    until(lambda: len(runner.children()) == 4, "all processes to be there again")
    assert ended(jobs.add.enqueue(1, 2))[0].result == 3


@pytest.mark.promise
def test_a_process_shot_from_outside_is_replaced_and_its_jobs_run_again(start: Start, ledger: Ledger) -> None:
    began = time.monotonic()
    runner = start("--threads=3", GRACE=10)
    held = [jobs.ledger.enqueue(3600) for _ in range(3)]
    for job in held:
        ledger.started(job)
    boot = time.monotonic() - began  # of two processes, one after the other
    killed = time.monotonic()
    os.kill(runner.child(), signal.SIGKILL)
    for job in held:
        # Nobody else is there: the time that a new process takes comes on top.
        assert ledger.started(job, 2).at - killed < CHILD + boot
        assert row(job).attempts_used == 2
    assert JobLock.objects.filter(job_id__in=[job.id for job in held]).count() == 3


def test_max_deaths_ends_a_job_that_kills_its_workers(start: Start, ledger: Ledger) -> None:
    start("--processes=2", "--threads=1")
    job = ended(jobs.die.using(max_attempts=10, max_deaths=2, backoff=0.1).enqueue("kill"))[0]
    assert (job.status, job.starts) == (Status.FAILED, 2)
    assert "max_deaths=2" in job.reason


def test_b31_deaths_count_as_attempts_and_without_a_bound_a_job_survives_five(start: Start, ledger: Ledger) -> None:
    start("--processes=3", "--threads=1")  # one: a death counts for all that has begun in the process
    one = jobs.die.using(max_attempts=1).enqueue("kill")
    endless = jobs.die.using(max_attempts=None, backoff=0.05).enqueue("9", times=5)
    job = ended(one)[0]
    assert (job.status, job.starts, len(ledger.starts(one))) == (Status.FAILED, 1, 1)
    job = ended(endless, within=40)[0]
    assert (job.status, job.starts, len(ledger.starts(endless))) == (Status.SUCCEEDED, 6, 6)
    gaps = [b.at - a.at for a, b in zip(ledger.starts(endless), ledger.starts(endless)[1:], strict=False)]
    assert min(gaps) > 0


# -- the whole tree


@pytest.mark.promise
def test_a_tree_that_dies_has_its_jobs_run_by_another_within_the_grace(start: Start, ledger: Ledger) -> None:
    grace = 2
    other = start("--queue=nothing", GRACE=grace).works()
    lived_since = time.monotonic()
    doomed = start("--threads=2", "--processes=2", "--no-maintenance", GRACE=grace).works(2)
    held = [jobs.ledger.enqueue(3600) for _ in range(3)]
    for job in held:
        ledger.started(job)
    rescuer = start("--threads=4", "--no-maintenance", GRACE=grace).works()
    until(lambda: time.monotonic() - lived_since > grace, "the looker to have lived one grace")
    killed = time.monotonic()
    doomed.kill_tree()
    for job in held:
        again = ledger.started(job, 2, within=grace + 10)
        assert again.at - killed < grace + 2
        assert row(job).worker != ""
        lost = JobAttempt.objects.get(job_id=job.id)
        assert (lost.outcome, lost.counted) == ("lost", True)
        assert "held" in lost.cause
    assert other.is_running
    assert rescuer.is_running
    never(lambda: len(ledger.starts()) > 6, "a job was started a third time", during=1)


def test_b08_a_killed_worker_of_the_same_name_frees_what_it_had(start: Start, ledger: Ledger, site) -> None:
    environment = site(
        here=True,
        jobs=(
            "from django_jobs import job\nfrom tests.project.jobs import say, write_ledger\nimport time\n"
            "def hook(result): write_ledger('HOOK', result.id)\n"
            "@job(takes_context=True, max_attempts=1, on_failure=hook)\n"
            "def last(context):\n    say(context, 'START'); time.sleep(3600)\n"
        ),
    )
    import site_app.jobs as own

    doomed = start("--threads=1", "--name=same", env=environment)
    job = own.last.enqueue()
    ledger.started(job)
    behind = jobs.ledger.enqueue()
    with_attempts_left = jobs.ledger.using(max_attempts=2).enqueue()
    doomed.kill_tree()
    killed = time.monotonic()
    start("--threads=1", "--name=same", env=environment)
    failed = ended(job)[0]
    assert failed.status == Status.FAILED
    assert "died" in failed.reason
    assert [found.status for found in ended(behind, with_attempts_left)] == [Status.SUCCEEDED] * 2
    # It had nobody to watch it: twice the grace, and the start of the other.
    assert time.monotonic() - killed < 2 * 2 + 2 + 6
    until(lambda: ledger.lines("HOOK", job), "the hook of the task")
    never(lambda: len(ledger.lines("HOOK", job)) > 1, "the hook ran twice", during=0.3)
    assert len(ledger.starts(job)) == 1


# -- what is merely slow


@pytest.mark.promise
@has_row_locks
def test_a_stopped_process_keeps_its_jobs_while_its_connection_lives(start: Start, ledger: Ledger) -> None:
    doomed = start("--threads=1", "--no-maintenance")
    job = jobs.ledger.enqueue(1)
    ledger.started(job)
    start("--threads=2")
    pid = doomed.child()
    os.kill(pid, signal.SIGSTOP)
    never(lambda: len(ledger.starts(job)) > 1, "a stopped process lost its job", during=5)
    assert JobLock.objects.expired().count() == 1, "it could not refresh its lease, and yet"
    os.kill(pid, signal.SIGCONT)
    assert ended(job)[0].status == Status.SUCCEEDED
    assert (len(ledger.starts(job)), len(ledger.ends(job))) == (1, 1)
    assert doomed.child() == pid


@has_row_locks
def test_a_job_that_hogs_the_interpreter_is_not_taken_over(start: Start, ledger: Ledger) -> None:
    doomed = start("--threads=2", "--no-maintenance")
    beside = jobs.ledger.enqueue(0.2)
    ledger.started(beside)
    hog = jobs.hog.enqueue(5)
    ledger.started(hog)
    start("--threads=2")
    never(lambda: len(ledger.starts(hog)) > 1, "a busy process lost its job", during=4)
    assert [job.status for job in ended(hog, beside)] == [Status.SUCCEEDED] * 2
    assert len(ledger.starts()) == 2
    assert doomed.is_running

"""Hooks and signals when processes die: each final outcome is told once, by whoever is left to tell it."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import pytest

from django_jobs.statuses import Status
from tests.process.conftest import Site, Start
from tests.support.worker import Ledger, ended, never, row, until

JOBS = """
import os, time
from django_jobs import job, signals
from tests.project.jobs import say, write_ledger


def hook(result):
    write_ledger(f"HOOK {result.job_status}", result.id)
    raise ValueError("a hook that fails")


def listener(sender, event, **kwargs):
    write_ledger(f"SIGNAL {event.name}", event.job_id)


for name in ("job_failed", "job_timed_out", "job_cancelled"):
    signals.EVENTS[name].connect(listener)


def stuck(context):
    say(context, "START")
    while True:
        try:
            time.sleep(3600)
        except BaseException:
            pass


last = job(takes_context=True, max_attempts=1, on_failure=hook)(stuck)


@job(takes_context=True, max_attempts=1, on_failure=hook, isolate=True)
def alone(context):
    stuck(context)


@job(takes_context=True, max_attempts=2, on_failure=hook)
def again(context):
    say(context, "START")
    os._exit(3)


@job(max_attempts=1, on_failure=hook)
def plain():
    raise ValueError("no")
"""


def told_once(ledger: Ledger, job: Any, status: Status, event: str) -> None:
    """Wait until hook and listener know of the end of `job`; see that neither hears of it twice."""
    wanted = {f"HOOK {status}", f"SIGNAL {event}"}
    until(lambda: wanted <= {line.word for line in ledger.lines(key=job)}, f"{wanted} of {job.id}")
    never(lambda: len([line for line in ledger.lines(key=job) if line.word != "START"]) > 2, "told twice", during=0.3)
    assert row(job).status == status


@pytest.fixture
def own(site: Site) -> Any:
    environment = site(name="hooked_app", jobs=JOBS, here=True)
    module: Any = sys.modules["hooked_app.jobs"]
    module.environment = environment
    yield module
    from django_jobs import signals

    for name in ("job_failed", "job_timed_out", "job_cancelled"):
        signals.EVENTS[name].disconnect(module.listener)


@pytest.mark.promise
def test_every_way_to_die_is_told_once(start: Start, ledger: Ledger, own: Any) -> None:
    runner = start("--threads=1", env=own.environment)
    job = own.last.enqueue()
    os.kill(ledger.started(job).pid, signal.SIGKILL)
    assert ended(job)[0].status == Status.FAILED
    told_once(ledger, job, Status.FAILED, "job_failed")

    job = own.again.enqueue()
    assert (ended(job)[0].status, ended(job)[0].starts) == (Status.FAILED, 2)
    told_once(ledger, job, Status.FAILED, "job_failed")

    job = own.last.using(timeout=0.3, timeout_grace=0.3).enqueue()
    assert ended(job)[0].status == Status.TIMED_OUT
    told_once(ledger, job, Status.TIMED_OUT, "job_timed_out")

    job = own.alone.using(timeout=0.3, timeout_grace=0.3).enqueue()
    assert ended(job)[0].status == Status.TIMED_OUT
    told_once(ledger, job, Status.TIMED_OUT, "job_timed_out")

    job = own.last.enqueue()
    ledger.started(job)
    job.cancel(force=True)
    assert ended(job)[0].status == Status.CANCELLED
    told_once(ledger, job, Status.CANCELLED, "job_cancelled")

    job = own.plain.enqueue()
    assert ended(job)[0].status == Status.FAILED
    told_once(ledger, job, Status.FAILED, "job_failed")
    assert runner.is_running

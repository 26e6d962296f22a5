"""However a task ends, its job comes to its documented end, and the worker goes on."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from django.db import connection

from django_jobs.exceptions import InvalidOption
from django_jobs.models import JobAttempt
from django_jobs.statuses import Status
from tests.process.conftest import Runners, Site, Start
from tests.project import jobs
from tests.support.worker import Ledger, Runner, cpu_seconds, ended, row, until

pytestmark = pytest.mark.usefixtures("together")

ODD = {
    "exit 0": "builtins.SystemExit",
    "exit 3": "builtins.SystemExit",
    "interrupt": "builtins.KeyboardInterrupt",
    "generator": "builtins.GeneratorExit",
    "cancelled": "asyncio.exceptions.CancelledError",
    "timeout": "builtins.TimeoutError",
    "futures": "builtins.TimeoutError",
    "stop": "builtins.StopIteration",
}
UNTELLABLE = {
    "unprintable": "tests.project.failures.Unprintable",
    "two arguments": "tests.project.failures.TwoArguments",
    "holding": "tests.project.failures.Holding",
    "cause itself": "builtins.ValueError",
    "cause loop": "builtins.ValueError",
    "deep group": "builtins.ExceptionGroup",
    "recursion": "builtins.RecursionError",
    "local": "tests.project.failures._local.<locals>.Local",
}


@pytest.fixture(scope="module")
def worker(shared: Runners) -> Runner:
    """A worker with one slot of each kind, the same for every test here."""
    runner = shared.start("--threads=1", "--async-jobs=1")
    ended(jobs.noop.enqueue())
    return runner


@pytest.fixture
def book(shared: Runners) -> Ledger:
    return shared.ledger


@pytest.mark.parametrize("task", [jobs.raises, jobs.araises], ids=["thread", "coroutine"])
def test_b17_exceptions_outside_the_ordinary_hierarchy_are_failures_like_others(worker: Runner, book: Ledger, task) -> None:
    pid = worker.child()
    pairs = [(kind, task.enqueue(kind), jobs.add.enqueue(1, 2)) for kind in ODD]
    for kind, failing, healthy in pairs:
        job, after = ended(failing, healthy)
        assert (job.status, job.starts) == (Status.FAILED, 1), kind
        assert job.error_class == ODD[kind]
        assert len(book.starts(job)) == 1
        assert after.result == 3
    assert worker.child() == pid
    before = cpu_seconds(pid) + cpu_seconds(worker.pid)
    time.sleep(1)
    assert cpu_seconds(pid) + cpu_seconds(worker.pid) - before < 0.3, "it spins"


@pytest.mark.parametrize("task", [jobs.raises, jobs.araises], ids=["thread", "coroutine"])
def test_b19_a_failure_that_can_hardly_be_told_is_told(worker: Runner, book: Ledger, task) -> None:
    pid = worker.child()
    once = {kind: task.enqueue(kind) for kind in UNTELLABLE}
    retried = {kind: task.using(max_attempts=3, backoff=0.02).enqueue(kind) for kind in UNTELLABLE}
    for kind, failing in once.items():
        job = ended(failing)[0]
        assert (job.status, job.error_class, job.starts) == (Status.FAILED, UNTELLABLE[kind], 1)
        assert job.error_message
        assert JobAttempt.objects.get(job=job).traceback
    for kind, failing in retried.items():
        # None of them is named in `retry_for`: the attempts that are left are not used.
        assert ended(failing)[0].starts == 1, kind
    assert ended(jobs.add.enqueue(1, 2))[0].result == 3
    assert worker.child() == pid


def test_b19_and_is_retried_by_the_same_rules_as_others(worker: Runner, book: Ledger) -> None:
    for kind in UNTELLABLE:
        job = jobs.raises_retried.enqueue(kind)
        found = ended(job)[0]
        assert (found.status, found.starts, found.error_class) == (Status.FAILED, 3, UNTELLABLE[kind])
        assert len(book.starts(job)) == JobAttempt.objects.filter(job=found).count() == 3


def test_b26_a_result_that_json_cannot_hold_fails_the_job_once(worker: Runner, book: Ledger) -> None:
    from tests.project.failures import RETURNED

    returned = {kind: jobs.returns.using(max_attempts=3).enqueue(kind) for kind in RETURNED}
    for kind, enqueued in returned.items():
        job = ended(enqueued)[0]
        assert len(book.starts(job)) == 1, kind
        if kind in ("zero byte", "surrogate"):
            assert job.status in (Status.SUCCEEDED, Status.FAILED)
            continue
        assert job.status == Status.FAILED, kind
        assert job.error_class == "django_jobs.exceptions.InvalidResult", kind
        assert job.error_message, kind
        assert job.result is None


def test_b27_each_attempt_sees_the_arguments_as_they_were(worker: Runner, book: Ledger) -> None:
    items, opts = ["a"], {"k": 1}
    job = jobs.mutate.enqueue(items, opts)
    items.append("later")
    opts["later"] = 1
    found = ended(job)[0]
    assert (found.status, found.starts) == (Status.FAILED, 3)
    words = [line.word for line in book.lines(key=job)]
    assert words == ["START 1 ['k']"] * 3
    assert (found.args, found.kwargs) == ([["a"], {"k": 1}], {})


def test_b31_the_limit_counts_starts_and_postponing_counts_none(worker: Runner, book: Ledger) -> None:
    with pytest.raises(InvalidOption):
        jobs.again.using(max_attempts=0)
    one = jobs.again.using(max_attempts=1, backoff=0.05).enqueue()
    three = jobs.again.using(max_attempts=3, backoff=[0.1, 0.3]).enqueue()
    put_off = jobs.postpone.enqueue(20)
    for job, starts in zip(ended(one, three, put_off), (1, 3, 22), strict=True):
        assert (job.status, job.starts, len(book.starts(job))) == (Status.FAILED, starts, starts)
    assert ended(put_off)[0].attempts_used == 2
    first, second, third = (line.at for line in book.starts(three))
    assert second - first >= 0.1
    assert third - second >= 0.3


def test_b31_time_outs_count_like_deaths_and_errors(worker: Runner, book: Ledger) -> None:
    job = jobs.stubborn.using(max_attempts=2, timeout=0.2, backoff=0.05).enqueue("except Exception")
    found = ended(job)[0]
    assert (found.status, found.starts, len(book.starts(job))) == (Status.TIMED_OUT, 2, 2)
    assert "no attempts left" in found.reason


def test_what_a_job_reports_is_seen_while_it_runs_and_kept(worker: Runner, book: Ledger, tmp_path: Path) -> None:
    job = jobs.report.enqueue(str(tmp_path / "gate"))
    found = until(lambda: (now := row(job)).progress and now.output and now, "its report", within=5)
    assert found.status == Status.RUNNING
    assert found.progress == {"done": 1, "total": 2, "message": "half"}
    assert found.output == {"part": 1}
    assert found.last_heartbeat_at >= found.started_at
    (tmp_path / "gate").touch()
    assert ended(job)[0].output == {"part": 1}


APPS = """
from django.apps import AppConfig

class Config(AppConfig):
    name = "watched"
    default = True

    def ready(self):
        from django.db import connection
        from django_jobs import signals
        from tests.project.jobs import write_ledger

        def raises(**kwargs):
            raise ValueError("an observer's own error")

        def breaks(**kwargs):
            with connection.cursor() as cursor:
                cursor.execute("SELECT no_such_column FROM nowhere")

        for name, signal in signals.EVENTS.items():
            def records(event_name=name, **kwargs):
                write_ledger(event_name, kwargs.get("job_id"))
            signal.connect(raises, weak=False)
            signal.connect(breaks, weak=False)
            signal.connect(records, weak=False)
"""


def test_b20_listeners_that_raise_change_nothing(start: Start, ledger: Ledger, site: Site) -> None:
    runner = start("--threads=1", env=site(name="watched", apps=APPS))
    good = jobs.ledger.enqueue()
    bad = jobs.again.using(max_attempts=2, backoff=0.05).enqueue()
    found = ended(good, bad)
    assert [(job.status, job.starts, job.result) for job in found] == [
        (Status.SUCCEEDED, 1, "done"),
        (Status.FAILED, 2, None),
    ]
    until(lambda: ledger.lines("job_failed", bad), "the third listener of the last event")
    heard = {(line.key, line.word) for line in ledger.lines() if line.word.startswith("job_")}
    assert {(str(good.id), "job_succeeded"), (str(bad.id), "job_retrying"), (str(bad.id), "job_failed")} <= heard
    assert ended(jobs.add.enqueue(1, 2))[0].result == 3
    text = runner.text()
    assert f"job_succeeded of job {good.id} failed: ValueError" in text
    assert f"of job {bad.id} failed: " in text
    assert connection.in_atomic_block is False
    assert runner.stop() == 0
    assert ledger.lines("worker_started")
    assert ledger.lines("worker_stopped")

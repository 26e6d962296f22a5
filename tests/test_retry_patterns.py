"""Retries as a task sees them, from its exception to the row: patterns, `Retry`, `Fail`, `Skip`, and what a queue says."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import override_settings

from django_jobs import Fail, Retry, Skip, job
from django_jobs.lifecycle import control
from django_jobs.models import Job, JobAttempt
from django_jobs.statuses import Status
from django_jobs.testing import run_jobs

pytestmark = pytest.mark.django_db


@job(retry_for=(ConnectionError,), backoff={1: 10, 3: 60, 5: (100, 300)}, max_attempts=8)
def flaky(kind: str = "cable") -> str:
    match kind:
        case "cable":
            raise ConnectionError(kind)
        case "subclass":
            raise ConnectionResetError(kind)
        case "fail":
            raise Fail("never again") from ConnectionError(kind)
        case "skip":
            raise Skip("nothing to do")
        case "retry":
            raise Retry("please")
        case "retry soon":
            raise Retry("please", after=7)
        case "retry for free":
            raise Retry("please", after=7, count=False)
        case "retry at once":
            raise Retry("please", after=0, count=False)
        case "caused":
            raise ValueError(kind) from ConnectionError(kind)
    return kind


@job(retry_for=Exception, max_attempts=3, backoff=1)
def all_kinds(kind: str) -> None:
    flaky.func(kind)


@job
def plain(kind: str) -> None:
    flaky.func(kind)


def pause(row: Job) -> float:
    """Return the seconds between the end of the last attempt and the next one."""
    return (row.due_at - JobAttempt.objects.filter(job=row).latest("number").ended_at).total_seconds()


def test_a_pattern_by_attempt_down_to_the_last_one() -> None:
    result = flaky.enqueue()
    pauses = []
    for number in range(1, 8):
        assert run_jobs() == 1
        row = result.job
        assert (row.status, row.attempts_used, row.starts) == (Status.SCHEDULED, number, number)
        pauses.append(pause(row))
        control.run_now([row.id])
    assert run_jobs() == 1
    row = result.job
    assert (row.status, row.attempts_used, row.error_class) == (Status.FAILED, 8, "builtins.ConnectionError")
    assert pauses[:4] == pytest.approx([10, 10, 60, 60], abs=1)
    assert all(99 <= seconds <= 301 for seconds in pauses[4:])
    assert len({round(seconds, 3) for seconds in pauses[4:]}) > 1


@pytest.mark.parametrize(
    ("kind", "status", "used", "seconds"),
    [
        ("subclass", Status.SCHEDULED, 1, 10),
        ("retry", Status.SCHEDULED, 1, 10),
        ("retry soon", Status.SCHEDULED, 1, 7),
        ("retry for free", Status.SCHEDULED, 0, 7),
        ("fail", Status.FAILED, 1, None),
        ("caused", Status.FAILED, 1, None),
        ("skip", Status.SUCCEEDED, 1, None),
        ("fine", Status.SUCCEEDED, 1, None),
    ],
)
def test_what_a_task_says_of_its_end(kind: str, status: Status, used: int, seconds: float | None) -> None:
    result = flaky.enqueue(kind)
    run_jobs()
    row = result.job
    assert (row.status, row.attempts_used, row.starts) == (status, used, 1)
    if seconds is not None:
        assert pause(row) == pytest.approx(seconds, abs=1)
    assert row.result == ("fine" if kind == "fine" else None)
    assert row.reason == ("nothing to do" if kind == "skip" else "")


def test_a_retry_that_does_not_count_may_go_on_for_ever() -> None:
    result = flaky.using(max_attempts=1).enqueue("retry at once")
    assert run_jobs(limit=20) == 20
    row = result.job
    assert (row.status, row.attempts_used, row.starts) == (Status.READY, 0, 20)


def test_a_retry_that_counts_is_bounded() -> None:
    result = plain.using(max_attempts=1).enqueue("retry")
    run_jobs()
    assert (result.job.status, result.job.error_message) == (Status.FAILED, "please")


@pytest.mark.parametrize(("kind", "starts"), [("fail", 1), ("skip", 1), ("caused", 3)])
def test_retrying_everything_leaves_fail_and_skip_alone(kind: str, starts: int) -> None:
    result = all_kinds.using(backoff=0).enqueue(kind)
    run_jobs()
    assert result.job.starts == starts


QUEUES = {
    "net": {"retry_for": ["builtins.ConnectionError"], "backoff": 20},
    "net.slow": {"backoff": [0]},
    "net.own": {"retry_for": []},
}


@pytest.mark.parametrize(
    ("task", "queue", "kind", "status"),
    [
        (plain, "net", "cable", Status.SCHEDULED),
        (plain, "net.slow", "subclass", Status.FAILED),
        (plain, "net.own", "cable", Status.FAILED),
        (plain, "elsewhere", "cable", Status.FAILED),
        (plain, "net", "caused", Status.FAILED),
        (plain, "net", "fail", Status.FAILED),
        (flaky, "net", "caused", Status.FAILED),
    ],
)
def test_a_queue_says_what_is_retried_where_the_task_does_not(task: Any, queue: str, kind: str, status: Status) -> None:
    with override_settings(DJANGO_JOBS={"QUEUES": QUEUES}):
        result = task.using(queue_name=queue, max_attempts=3).enqueue(kind)
        run_jobs()
    assert result.job.status == status
    assert result.job.starts == (3 if queue == "net.slow" else 1)


def test_a_queue_that_names_what_is_not_there_retries_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with override_settings(DJANGO_JOBS={"QUEUES": {"net": {"retry_for": ["no.such.Error"]}}}):
        result = plain.using(queue_name="net").enqueue("cable")
        run_jobs()
    assert result.job.status == Status.FAILED
    assert "can't be used" in caplog.text

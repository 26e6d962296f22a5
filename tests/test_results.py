"""Results: statuses as Django has them, errors, waiting, and the verbs."""

from __future__ import annotations

import pickle
import threading
import time
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from unittest import mock

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, connections
from django.utils import timezone

from django_jobs.compat import TaskResultDoesNotExist, TaskResultStatus, task_backends
from django_jobs.exceptions import InvalidResult, InvalidTransition, JobDoesNotExist, JobsError, WaitTimeout
from django_jobs.lifecycle.report import BUSY, Report
from django_jobs.models import Job, JobAttempt
from django_jobs.results import DJANGO_STATUS, for_attempt
from django_jobs.statuses import FINAL, Status
from django_jobs.testing import arun_jobs, run_jobs
from tests.support.tasks import add, add_async, double, fail, keep, report, retry_once, unstorable

pytestmark = pytest.mark.django_db
commits = pytest.mark.django_db(transaction=True)


def run(result: Any) -> Any:
    assert run_jobs(limit=1) == 1
    result.refresh()
    return result


def test_a_success() -> None:
    for task in (add, add_async):
        result = run(task.enqueue(1, b=2))
        assert (result.status, result.job_status, result.return_value) == (TaskResultStatus.SUCCESSFUL, Status.SUCCEEDED, 3)
        assert (result.attempts, len(result.worker_ids), result.errors) == (1, 1, [])
        assert result.enqueued_at <= result.started_at <= result.last_attempted_at <= result.finished_at
        assert result == task.get_result(result.id)


def test_a_failure_has_the_exception() -> None:
    result = run(fail.enqueue("no\x01"))
    assert (result.status, result.job_status, result.attempts) == (TaskResultStatus.FAILED, Status.FAILED, 1)
    assert [error.exception_class for error in result.errors] == [ValueError]
    assert "ValueError: no" in result.errors[0].traceback
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value


def test_b26_a_result_that_json_can_not_hold_is_django_s_error() -> None:
    result = run(unstorable.enqueue())
    assert (result.status, result.errors[0].exception_class, result.attempts) == (TaskResultStatus.FAILED, TypeError, 1)
    assert InvalidResult.__name__ in result.errors[0].traceback


def test_b27_a_retry_is_ready_again_with_its_error_and_the_same_arguments() -> None:
    result = run(retry_once.enqueue([]))
    assert (result.status, result.job_status, result.attempts) == (TaskResultStatus.READY, Status.READY, 1)
    assert len(result.errors) == 1
    assert result.args == [[]]
    with pytest.raises(ValueError, match="not finished"):
        _ = result.return_value
    run(result)
    assert (result.job_status, result.attempts, len(result.errors)) == (Status.FAILED, 2, 2)


def test_progress_and_partial_output_are_seen() -> None:
    result = run(report.enqueue("x"))
    assert result.progress == {"done": 1, "total": 2, "message": "half"}
    assert result.output == {"name": "x"}
    assert result.return_value == [1, result.id]


def test_typed_results_come_back_as_they_were() -> None:
    result = run(double.enqueue(Decimal("1.10")))
    assert result.return_value == Decimal("2.20")


def test_every_status_is_one_of_django_s() -> None:
    result = keep.enqueue()
    ready, running, failed = TaskResultStatus.READY, TaskResultStatus.RUNNING, TaskResultStatus.FAILED
    expected = {
        "waiting": ready,
        "scheduled": ready,
        "ready": ready,
        "running": running,
        "succeeded": TaskResultStatus.SUCCESSFUL,
        "failed": failed,
        "timed_out": failed,
        "cancelled": failed,
    }
    assert {status.value: django for status, django in DJANGO_STATUS.items()} == expected
    for status in Status:
        finished = timezone.now() if status in FINAL else None
        Job.objects.filter(pk=result.id).update(status=status, finished_at=finished, last_token=uuid.uuid4(), result=5)
        result.refresh()
        assert (result.job_status, result.status) == (status, expected[status])
        assert result.is_finished is (status in FINAL)
        assert result._return_value == (5 if status is Status.SUCCEEDED else None)


@pytest.mark.parametrize(
    ("status", "outcome", "name"),
    [("failed", "lost", "AttemptLost"), ("timed_out", "timed_out", "JobTimeout"), ("cancelled", "cancelled", "JobCancelled")],
)
def test_an_attempt_without_an_exception_gets_one_that_says_what_happened(status: str, outcome: str, name: str) -> None:
    result = keep.enqueue()
    now = timezone.now()
    Job.objects.filter(pk=result.id).update(status=status, finished_at=now, starts=2, worker="host/b/2")
    JobAttempt.objects.create(job_id=result.id, number=1, worker="host/a/1", ended_at=now, outcome="handed_back")
    JobAttempt.objects.create(job_id=result.id, number=2, worker="host/b/2", ended_at=now, outcome=outcome, cause="because")
    result.refresh()
    assert [error.exception_class.__name__ for error in result.errors] == [name]
    assert result.errors[0].traceback == "because"
    assert result.worker_ids == ["host/a/1", "host/b/2"]


def test_cancelled_before_it_started() -> None:
    result = keep.enqueue()
    assert result.cancel("no longer wanted", by="7") is True
    result.refresh()
    assert (result.job_status, result.attempts) == (Status.CANCELLED, 0)
    assert [error.exception_class.__name__ for error in result.errors] == ["JobCancelled"]
    assert "no longer wanted" in result.errors[0].traceback
    assert run_jobs() == 0


def test_verbs_say_why_not() -> None:
    result = run(add.enqueue(1))
    with pytest.raises(InvalidTransition, match=f"Job {result.id} is succeeded: it can't become cancelled"):
        result.cancel()
    assert result.requeue("again") is True
    result.refresh()
    assert (result.job_status, result._return_value) == (Status.READY, None)
    with pytest.raises(InvalidTransition) as refused:
        result.requeue()
    assert (refused.value.source, refused.value.target, refused.value.job_id) == ("ready", "ready", result.id)


def test_what_is_refused_for_now_is_no_invalid_transition() -> None:
    result = add.enqueue(1)
    report = Report(refused={result.job_id: BUSY})
    with (
        mock.patch("django_jobs.lifecycle.control.cancel", return_value=report),
        pytest.raises(JobsError, match="try again") as error,
    ):
        result.cancel()
    assert not isinstance(error.value, InvalidTransition)
    Job.objects.all().delete()
    with pytest.raises(JobDoesNotExist):
        result.cancel()


def test_a_job_that_is_gone() -> None:
    result = add.enqueue(1)
    assert result.job.pk == result.job_id
    Job.objects.all().delete()
    with pytest.raises(TaskResultDoesNotExist):
        result.refresh()
    with pytest.raises(JobDoesNotExist):
        _ = result.job
    with pytest.raises(TaskResultDoesNotExist):
        result.wait(5)


def test_waiting_has_an_end() -> None:
    result = add.enqueue(1)
    start = time.monotonic()
    with pytest.raises(WaitTimeout, match=result.id):
        result.wait(0.2)
    assert 0.15 < time.monotonic() - start < 5
    run_jobs()
    assert result.wait(0.2) is result
    assert result.return_value == 1


def in_thread(function: Callable[[], Any]) -> threading.Thread:
    def work() -> None:
        try:
            function()
        finally:
            connections.close_all()

    thread = threading.Thread(target=work)
    thread.start()
    return thread


@pytest.mark.skipif(connection.vendor == "sqlite", reason="the test database of SQLite may be in this connection's memory")
@commits
def test_waiting_sees_what_a_worker_did() -> None:
    result = add.enqueue(2, 2)
    thread = in_thread(run_jobs)
    try:
        assert result.wait(20).return_value == 4
    finally:
        thread.join(20)


@commits
def test_waiting_on_an_event_loop() -> None:
    async def both() -> Any:
        result = await add_async.aenqueue(2, 3)
        with pytest.raises(WaitTimeout):
            await result.await_result(0.05)
        assert await arun_jobs() == 1
        assert await result.await_result(10) is result
        assert await result.arequeue() is True
        assert await result.acancel("enough") is True
        return result

    assert async_to_sync(both)()._return_value == 5


def test_results_can_be_pickled() -> None:
    result = add.using(priority=2).enqueue(1)
    assert pickle.loads(pickle.dumps(result)) == result


def test_the_result_of_a_running_attempt_needs_no_query(django_assert_num_queries: Any) -> None:
    from django_jobs.outcomes import Attempt

    attempt = Attempt(uuid.uuid4(), uuid.uuid4(), "tests.support.tasks.add", [1], {}, 1, 1, worker_ids=("a", "b"))
    with django_assert_num_queries(0):
        result = for_attempt(add, attempt)
    assert (result.status, result.job_status, result.attempts) == (TaskResultStatus.RUNNING, Status.RUNNING, 2)


def test_a_look_up_takes_one_query_before_the_first_start_and_two_after(django_assert_num_queries: Any) -> None:
    result = add.enqueue(1)
    backend = task_backends["default"]
    with django_assert_num_queries(1):
        backend.get_result(result.id)
    run_jobs()
    with django_assert_num_queries(2):
        backend.get_result(result.id)


@pytest.mark.parametrize("value", [5, None, ["why"], b"why"])
def test_a_reason_is_text(value: Any) -> None:
    result = add.enqueue(1)
    for call in (result.cancel, result.requeue):
        with pytest.raises(TypeError, match=r"^reason must be text, not"):
            call(value)
        with pytest.raises(TypeError, match=r"^by must be text, not"):
            call(by=value)
    assert result.job.status == Status.READY


@pytest.mark.parametrize("value", ["a", "5", True, float("nan"), [1]])
def test_the_end_of_a_wait_is_a_number_of_seconds(value: Any) -> None:
    result = add.enqueue(1)
    with pytest.raises(TypeError, match=r"^timeout must be a number of seconds"):
        result.wait(value)
    with pytest.raises(TypeError, match=r"^timeout must be a number of seconds"):
        async_to_sync(result.await_result)(value)

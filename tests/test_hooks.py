"""A task's hooks are called once for each final outcome, whoever brought it about, and whatever they do themselves."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.db import connection, transaction
from django.utils import timezone, translation

from django_jobs import as_user, current_user, db, graph, job, signals
from django_jobs.compat import task_finished
from django_jobs.lifecycle import control, lease, sweep
from django_jobs.lifecycle.record import record
from django_jobs.lifecycle.recover import lock_free, recover, writing
from django_jobs.models import CancelRequest, Job, JobLock
from django_jobs.outcomes import Cancelled, ErrorInfo, Failed, Finished, Outcome, Succeeded, TimedOut
from django_jobs.statuses import Status
from django_jobs.testing import run_jobs
from tests.support.jobs import claim_jobs, expire, make_job

pytestmark = pytest.mark.django_db(transaction=True)
ERROR = ErrorInfo("builtins.ValueError", "no")

told: list[tuple[str, str]] = []


def hook(result: Any) -> None:
    told.append(("hook", result.job_status.value))


async def ahook(result: Any) -> None:
    told.append(("async hook", result.job_status.value))


def exits(result: Any) -> None:
    told.append(("exits", result.job_status.value))
    raise SystemExit("a hook that ends")


def breaks(result: Any) -> None:
    told.append(("breaks", result.job_status.value))
    Group.objects.create(name="by the hook")
    with connection.cursor() as cursor:
        cursor.execute("SELECT nothing FROM nowhere")


@job(on_failure=hook, on_success=hook, max_attempts=1)
def hooked(fails: bool = False) -> None:
    if fails:
        raise ValueError("no")


@job(on_failure=ahook)
def ahooked() -> None:
    pass


@job(on_failure=exits)
def exiting() -> None:
    pass


@job(on_failure=breaks)
def breaking() -> None:
    pass


def where(result: Any) -> None:
    user = current_user()
    told.append((user.username if user else "nobody", f"{translation.get_language()} {timezone.get_current_timezone_name()}"))


@job(on_failure=where)
def says_where() -> None:
    pass


@pytest.fixture(autouse=True)
def _nothing_told() -> Iterator[None]:
    told.clear()
    yield
    told.clear()


def stored(task: Any = hooked, **values: Any) -> Job:
    return make_job(task=task.module_path, **values)


def attempt(task: Any = hooked, **values: Any) -> Any:
    """Return a claimed attempt."""
    found = stored(task, **{"max_attempts": 1, **values})
    return next(each for each in claim_jobs() if each.job_id == found.id)


def recorded(*finished: Finished) -> None:
    with transaction.atomic():
        events = record(connection, finished, worker_name="w").events
    signals.dispatch(events)


def died(attempts: int = 1) -> None:
    made = attempt(max_attempts=attempts)
    with writing("default"):
        events = recover(lock_free("default", [made.job_id]), using="default", cause="SIGKILL")
    signals.dispatch(events)


def killed_as_timed_out() -> None:
    made = attempt()
    guilty: dict[uuid.UUID, Outcome] = {made.token: TimedOut(ERROR)}
    with writing("default"):
        events = recover(lock_free("default", [made.job_id]), using="default", cause="killed", guilty=guilty)
    signals.dispatch(events)


def lease_of(**values: Any) -> lease.Lease:
    stored(queue="web", is_http=True, max_attempts=1, **values)
    return lease.claim_http("web", limit=1, using="default")[0]


def lapses() -> None:
    held = lease_of(heartbeat_timeout=5)
    expire(Job.objects.get(pk=held.attempt.job_id))
    # A private server may have been up for less than what every lease gets after a restart.
    with transaction.atomic(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(lease, "AFTER_RESTART_SECONDS", 0.0)
        swept = lease.lapse(using="default", limit=10)
    signals.dispatch(swept.events)


def reports(outcome: Outcome) -> None:
    held = lease_of()
    lease.finish(held.attempt.job_id, held.attempt.token, outcome, using="default")


def starts_too_late() -> None:
    stored(start_by=db.server_now(connection) - timedelta(seconds=5))
    with transaction.atomic():
        swept = sweep.cancel_late(using="default", limit=10)
    signals.dispatch(swept.events)


def cancelled_by_somebody() -> None:
    control.cancel([stored().id])


def cancelled_while_it_was_to_be_retried() -> None:
    made = attempt(max_attempts=5)
    CancelRequest.objects.create(job_id=made.job_id)
    recorded(Finished(made, Failed(ERROR, final=False)))


def marked_done() -> None:
    control.done([stored().id])


def told_otherwise() -> None:
    """The executor told of a success, which could not be written."""
    recorded(Finished(attempt(), Failed(ERROR), told=Status.SUCCEEDED))


ENDS = {
    "death": (died, "failed"),
    "hard kill": (killed_as_timed_out, "timed_out"),
    "lease": (lapses, "timed_out"),
    "HTTP failure": (lambda: reports(Failed(ERROR)), "failed"),
    "HTTP cancel": (lambda: reports(Cancelled("no")), "cancelled"),
    "HTTP success": (lambda: reports(Succeeded(1)), "succeeded"),
    "late": (starts_too_late, "cancelled"),
    "cancelled": (cancelled_by_somebody, "cancelled"),
    "cancelled for a retry": (cancelled_while_it_was_to_be_retried, "cancelled"),
    "done by hand": (marked_done, "succeeded"),
    "another outcome": (told_otherwise, "failed"),
}


@pytest.mark.parametrize("kind", ENDS)
def test_the_hook_is_called_once_whoever_ends_the_job(kind: str) -> None:
    finished: list[Any] = []

    def receiver(task_result: Any, **kwargs: Any) -> None:
        finished.append(task_result.job_status.value)

    end, status = ENDS[kind]
    task_finished.connect(receiver)
    try:
        end()
    finally:
        task_finished.disconnect(receiver)
    assert told == [("hook", status)]
    assert finished == [status]
    assert Job.objects.get().status == status
    assert not JobLock.objects.exists()


def test_what_the_executor_has_told_is_not_told_again() -> None:
    hooked.enqueue_many([(False,), (True,)])
    run_jobs()
    assert told == [("hook", "succeeded"), ("hook", "failed")]


def test_a_job_that_is_cancelled_with_its_parent_is_told_once_too() -> None:
    plan = graph()
    parent = plan.add(hooked.s(True))
    child = plan.add(hooked.s(), after=[parent], on_parent_failure="cancel")
    plan.add(hooked.s(), after=[child])
    plan.enqueue()
    run_jobs()
    assert sorted(Job.objects.values_list("status", flat=True)) == ["cancelled", "cancelled", "failed"]
    assert sorted(told) == [("hook", "cancelled"), ("hook", "cancelled"), ("hook", "failed")]


def test_nothing_is_told_of_a_job_that_runs_again() -> None:
    died(attempts=5)
    assert told == []


def test_who_acknowledges_a_failure_does_not_call_the_hook_again() -> None:
    died()
    assert control.cancel([Job.objects.get().id]).changed
    assert Job.objects.get().status == Status.CANCELLED
    assert told == [("hook", "failed")]


def test_a_requeued_job_that_fails_again_calls_it_again() -> None:
    result = hooked.enqueue(True)
    run_jobs()
    result.requeue()
    run_jobs()
    assert told == [("hook", "failed")] * 2


@pytest.mark.parametrize("task", [exiting, breaking], ids=["exits", "breaks"])
def test_a_hook_that_fails_changes_nothing(task: Any, caplog: pytest.LogCaptureFixture) -> None:
    first, second = stored(task), stored()
    with caplog.at_level(logging.ERROR), transaction.atomic():
        Group.objects.create(name="the caller's own")
        control.cancel([first.id, second.id])
    assert [status for _, status in told] == ["cancelled", "cancelled"]
    assert set(Job.objects.values_list("status", flat=True)) == {Status.CANCELLED}
    assert Group.objects.filter(name="the caller's own").exists()
    assert f"A hook of the task {task.module_path} raised, for job {first.id}." in caplog.text
    assert connection.get_autocommit()


def test_a_coroutine_may_be_a_hook_here_too() -> None:
    control.cancel([stored(ahooked).id])
    assert told == [("async hook", "cancelled")]


def test_a_hook_finds_the_language_zone_and_user_of_its_job() -> None:
    ada, bob = User.objects.create_user("ada"), User.objects.create_user("bob")
    context = {"language": "de", "timezone": "Asia/Kolkata", "user": str(ada.pk), "gone.function": 1}
    job_id = stored(says_where, context=context, created_by="ada").id
    with as_user(bob), translation.override("fr"):
        control.cancel([job_id, stored(says_where).id])
        assert (translation.get_language(), current_user()) == ("fr", bob)
    assert told == [("ada", "de Asia/Kolkata"), ("nobody", "en-us UTC")]


def test_a_rollback_tells_nobody() -> None:
    made = stored()
    with transaction.atomic():
        control.cancel([made.id])
        transaction.set_rollback(True)
    assert told == []


def test_jobs_of_unknown_tasks_and_jobs_that_are_gone_end_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    control.cancel([make_job(task="no.such.task").id])
    made = stored()
    with transaction.atomic():
        control.cancel([made.id])
        Job.objects.filter(id=made.id).delete()
    assert told == []
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]

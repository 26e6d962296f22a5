"""Connections between jobs, and jobs that are one transaction with their own success."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connection, connections, transaction

from django_jobs.exceptions import AttemptLost
from django_jobs.execution.executor import Executor
from django_jobs.outcomes import Cancelled, Failed, HandedBack, Succeeded
from tests.execution import tasks
from tests.execution.support import Recorder, Slot, arun, attempt_of, find

pytestmark = pytest.mark.django_db(transaction=True)


def test_b15_a_connection_stays_open_between_jobs(slot: Slot, settings: Any) -> None:
    settings.DEBUG = True
    for _ in range(3):
        assert slot.run(attempt_of(tasks.which_session)).outcome == Succeeded(False)
    wrappers, sessions = tasks.seen[::2], tasks.seen[1::2]
    assert len({id(each) for each in sessions}) == 1
    assert not wrappers[0].queries_log


def test_b15_an_old_connection_is_closed(slot: Slot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_jobs.execution.cleanup.MIN_AGE", 0.0)
    for _ in range(2):
        slot.run(attempt_of(tasks.which_session))
    assert tasks.seen[1] is not tasks.seen[3]


@pytest.mark.parametrize("kind", ["atomic", "autocommit", "begin", "closed"])
def test_a_mess_is_cleaned_up(slot: Slot, kind: str) -> None:
    if kind == "begin" and connection.vendor == "mysql":
        kind = "autocommit"  # BEGIN is seen there once the server has answered
    assert slot.run(attempt_of(tasks.leaves_mess, kind)).outcome == Succeeded(None)
    mess = tasks.seen[0]
    assert slot.run(attempt_of(tasks.which_session)).outcome == Succeeded(False)
    assert tasks.seen[-1] is not mess


def test_a_tidy_connection_is_left_alone(slot: Slot) -> None:
    slot.run(attempt_of(tasks.leaves_mess, "nothing"))
    slot.run(attempt_of(tasks.which_session))
    assert tasks.seen[-1] is tasks.seen[0]


def test_an_interrupted_job_leaves_no_connection(slot: Slot, executor: Executor) -> None:
    slot.run(attempt_of(tasks.which_session))
    slot.run(attempt_of(tasks.spins, timeout=0.05))
    slot.run(attempt_of(tasks.which_session))
    assert tasks.seen[1] is not tasks.seen[3]


@pytest.mark.skipif(connection.vendor == "sqlite", reason="a file that was opened does not go away")
def test_an_idle_connection_is_checked_before_its_next_use(slot: Slot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_jobs.execution.cleanup.IDLE", 0.0)
    slot.run(attempt_of(tasks.which_session))
    with connection.cursor() as cursor:  # as when the server has gone and come back
        if connection.vendor == "postgresql":
            cursor.execute("SELECT pg_terminate_backend(%s)", [tasks.seen[1].info.backend_pid])
        else:
            cursor.execute(f"KILL {tasks.seen[1].thread_id()}")
    assert slot.run(attempt_of(tasks.which_session)).outcome == Succeeded(False)


def test_the_tests_own_transaction_is_left_alone(executor: Executor) -> None:

    with transaction.atomic():
        Group.objects.create(name="outer")
        assert executor.run(attempt_of(tasks.which_session)).outcome == Succeeded(True)
        assert executor.run(attempt_of(tasks.spins, timeout=0.05)).outcome != Succeeded(None)
        assert Group.objects.filter(name="outer").exists()


# --- atomic=True


class Fence:
    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.error: Exception | None = None

    def __call__(self, attempt: Any, result: Any) -> None:
        assert connection.in_atomic_block
        self.calls.append(result)
        if self.error is not None:
            raise self.error


@pytest.fixture
def fence() -> Fence:
    return Fence()


@pytest.fixture
def atomic(recorder: Recorder, fence: Fence) -> Iterator[Slot]:
    tasks.reset()
    slot = Slot(Executor(recorder, find_task=find, database="default", fence=fence))
    yield slot
    slot.pool.submit(connections.close_all).result(10)
    slot.pool.shutdown()


def test_success_is_recorded_in_the_jobs_own_transaction(atomic: Slot, fence: Fence) -> None:
    finished = atomic.run(attempt_of(tasks.writes, "a"))
    assert finished.outcome == Succeeded("written")
    assert finished.confirmed_by_task
    assert fence.calls == ["written"]
    assert Group.objects.filter(name="a").exists()


@pytest.mark.parametrize("end", ["raise", "bad result"])
def test_a_failure_rolls_back(atomic: Slot, fence: Fence, end: str) -> None:
    finished = atomic.run(attempt_of(tasks.writes, "a", end))
    assert isinstance(finished.outcome, Failed)
    assert not finished.confirmed_by_task
    assert fence.calls == []
    assert not Group.objects.exists()


def test_skip_is_a_success_so_its_writes_stay(atomic: Slot, fence: Fence) -> None:
    finished = atomic.run(attempt_of(tasks.writes, "a", "skip"))
    assert finished.outcome == Succeeded(None, "written all the same")
    assert finished.confirmed_by_task
    assert fence.calls == [None]
    assert Group.objects.exists()


def test_an_attempt_that_was_taken_over_writes_nothing(atomic: Slot, fence: Fence) -> None:
    fence.error = AttemptLost("taken over")
    finished = atomic.run(attempt_of(tasks.writes, "a"))
    assert isinstance(finished.outcome, HandedBack)
    assert finished.outcome.started
    assert not finished.confirmed_by_task
    assert not Group.objects.exists()


def test_a_cancelled_one_rolls_back(atomic: Slot, fence: Fence) -> None:
    attempt = attempt_of(tasks.writes, "a", "spin")
    running = atomic.start(attempt)
    assert tasks.begun.wait(5)
    assert atomic.executor.cancel(attempt.token)
    assert isinstance(running.result(10).outcome, Cancelled)
    assert fence.calls == []
    assert not Group.objects.exists()


def test_what_fails_on_commit_does_not_undo_the_success(atomic: Slot, fence: Fence) -> None:
    finished = atomic.run(attempt_of(tasks.writes, "a", "bad hook"))
    assert finished.outcome == Succeeded("written")
    assert finished.confirmed_by_task
    assert Group.objects.exists()


def test_without_a_fence_it_is_a_plain_transaction(slot: Slot) -> None:
    finished = slot.run(attempt_of(tasks.writes, "a"))
    assert finished.outcome == Succeeded("written")
    assert not finished.confirmed_by_task
    assert isinstance(slot.run(attempt_of(tasks.writes, "b", "raise")).outcome, Failed)
    assert Group.objects.count() == 1


def test_a_coroutine_can_not_be_one_transaction(executor: Executor) -> None:
    (finished,) = arun(executor, attempt_of(tasks.awrites))
    assert isinstance(finished.outcome, Failed)
    assert "ordinary function" in finished.outcome.error.message


def test_a_partial_of_a_function_can_be_found_by_another_process() -> None:
    from django_jobs.execution.isolation import reference_to

    assert reference_to(functools.partial(find, name="x")) == ("tests.execution.support.find", {"name": "x"})
    assert reference_to(find) == ("tests.execution.support.find", {})
    assert reference_to(lambda: None) is None
    assert reference_to(Fence()) is None
    assert reference_to(None) is None

"""Django's task signals and the task's hooks: told of the end, and unable to change it."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from django_jobs.backend import JobsBackend
from django_jobs.compat import TaskResultStatus, task_finished, task_started
from django_jobs.execution import announce
from django_jobs.execution.executor import Executor
from django_jobs.outcomes import Failed, Succeeded
from tests.execution import tasks
from tests.execution.support import Slot, arun, attempt_of

Heard = list[tuple[Any, ...]]


@pytest.fixture
def heard() -> Iterator[Heard]:
    entries: Heard = []

    def bad(**kwargs: Any) -> None:
        raise SystemExit("a receiver that fails")

    def on_start(sender: Any, task_result: Any, **kwargs: Any) -> None:
        entries.append(("started", sender, task_result.id, task_result.status))

    def on_finish(sender: Any, task_result: Any, **kwargs: Any) -> None:
        entries.append(("finished", sender, task_result.id, task_result.status, sys.exc_info()[0]))

    connected = [(task_started, bad), (task_started, on_start), (task_finished, bad), (task_finished, on_finish)]
    for signal, receiver in connected:
        signal.connect(receiver)
    yield entries
    for signal, receiver in connected:
        signal.disconnect(receiver)


def test_the_signals_of_a_success(slot: Slot, heard: Heard) -> None:
    attempt = attempt_of(tasks.add, 1, 2)
    assert slot.run(attempt).outcome == Succeeded(3)
    job = str(attempt.job_id)
    assert heard == [
        ("started", JobsBackend, job, TaskResultStatus.RUNNING),
        ("finished", JobsBackend, job, TaskResultStatus.SUCCESSFUL, None),
    ]


def test_the_signals_of_a_failure_show_the_exception(slot: Slot, heard: Heard) -> None:
    assert isinstance(slot.run(attempt_of(tasks.raises, "NeedsTwo")).outcome, Failed)
    assert heard[-1][3:] == (TaskResultStatus.FAILED, tasks.NeedsTwo)


def test_no_end_is_told_of_a_job_that_runs_again(slot: Slot, heard: Heard) -> None:
    slot.run(attempt_of(tasks.raises_retried, "NeedsTwo", attempts_used=1, max_attempts=2))
    assert [entry[0] for entry in heard] == ["started"]
    slot.run(attempt_of(tasks.raises_retried, "NeedsTwo", attempts_used=2, max_attempts=2))
    assert [entry[0] for entry in heard] == ["started", "started", "finished"]


def test_the_signals_of_a_coroutine(executor: Executor, heard: Heard) -> None:
    (finished,) = arun(executor, attempt_of(tasks.aadd, 1, 2))
    assert finished.outcome == Succeeded(3)
    assert [entry[0] for entry in heard] == ["started", "finished"]


def test_hooks_are_called_after_a_final_outcome_and_change_nothing(slot: Slot, caplog: pytest.LogCaptureFixture) -> None:
    assert slot.run(attempt_of(tasks.hooked, "fine")).outcome == Succeeded("fine")
    slot.run(attempt_of(tasks.hooked, "key", attempts_used=1, max_attempts=2))
    assert isinstance(slot.run(attempt_of(tasks.hooked, "key", attempts_used=2, max_attempts=2)).outcome, Failed)
    assert tasks.seen == [
        ("success", TaskResultStatus.SUCCESSFUL, "fine"),
        ("failure", TaskResultStatus.FAILED, ["builtins.KeyError"]),
    ]
    assert "A hook of the task" in caplog.text


@pytest.mark.parametrize("on_loop", [True, False])
def test_a_hook_may_be_a_coroutine(executor: Executor, slot: Slot, on_loop: bool) -> None:
    attempt = attempt_of(tasks.ahooked)
    finished = arun(executor, attempt)[0] if on_loop else slot.run(attempt)
    assert finished.outcome == Succeeded("x")
    assert tasks.seen == [("async", TaskResultStatus.SUCCESSFUL)]


def test_a_log_line_that_nobody_would_see_is_not_written(slot: Slot) -> None:
    logger = announce._TASKS_LOGGER
    records: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    keep = Keep(level=logging.INFO)
    logger.addHandler(keep)
    level = logger.level
    logger.setLevel(logging.INFO)
    try:
        slot.run(attempt_of(tasks.add, 1, 2))
        lines = len(records)
        logger.setLevel(logging.ERROR)
        assert not announce.is_started_heard()
        assert announce.is_finished_heard(True)
        slot.run(attempt_of(tasks.add, 1, 2))
    finally:
        logger.setLevel(level)
        logger.removeHandler(keep)
    assert lines == len(records) > 0

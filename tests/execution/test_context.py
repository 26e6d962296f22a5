"""What a task sees of its job, and what surrounds it."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import override_settings
from django.utils import timezone, translation

from django_jobs import conf
from django_jobs.compat import TaskContext
from django_jobs.exceptions import AttemptLost, InvalidArguments
from django_jobs.execution.context import JobContext, LogLines, current_job
from django_jobs.execution.executor import Executor
from django_jobs.outcomes import Failed, Succeeded
from tests.execution import tasks
from tests.execution.support import Recorder, Slot, arun, attempt_of

tenant = threading.local()


class Bound(AbstractContextManager[None]):
    """A context manager that a restoring function may return."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __enter__(self) -> None:
        tenant.name = self.value

    def __exit__(self, *error: object) -> None:
        del tenant.name


def capture() -> Any:
    return getattr(tenant, "name", None)


def bring_back(value: Any) -> Any:
    if value == "bad":
        raise LookupError("no such tenant")
    return Bound(value)


def test_the_context_says_and_tells(slot: Slot, recorder: Recorder) -> None:
    attempt = attempt_of(tasks.uses_context, number=3, metadata={"a": 1}, timeout=60)
    finished = slot.run(attempt)
    assert isinstance(finished.outcome, Succeeded)
    job_id, number, token, metadata, is_cancelled, remaining = finished.outcome.result
    assert (job_id, number, token) == (str(attempt.job_id), 3, str(attempt.token))
    assert (metadata, is_cancelled) == ({"a": 1}, False)
    assert 0 < remaining <= 60
    assert recorder.names() == ["begin", "beat", "progress", "beat", "heartbeat", "save", "end"]
    assert ("progress", 1, 4, "a quarter") in recorder.told
    assert ("save", {"half": [1, 2]}) in recorder.told
    first, second = finished.logs.splitlines()
    assert first.endswith(" line 1")
    assert second.endswith(" line two")
    datetime.fromisoformat(first.split()[0])


def test_it_is_a_task_context_with_the_result_of_its_task(slot: Slot) -> None:
    attempt = attempt_of(tasks.uses_context)
    slot.run(attempt)
    (context,) = tasks.seen
    assert isinstance(context, TaskContext)
    assert isinstance(context, JobContext)
    assert context.task_result.id == str(attempt.job_id)
    assert context.task_result.task is tasks.uses_context
    assert context.task_result.worker_ids == ["host/worker/1-abcdef01"]
    assert context.expires is None
    assert context.remaining_seconds is None
    assert str(attempt.job_id) in repr(context)
    assert len({context}) == 1


def test_it_says_nothing_once_the_attempt_is_over(slot: Slot) -> None:
    slot.run(attempt_of(tasks.uses_context))
    (context,) = tasks.seen
    for call in (context.heartbeat, context.progress, lambda: context.save(1), lambda: context.log("x")):
        with pytest.raises(AttemptLost, match="is over"):
            call()


def test_it_refuses_what_can_not_be_stored(executor: Executor, slot: Slot) -> None:
    refused: list[type] = []

    def use(context: JobContext) -> None:
        for call in (
            lambda: context.progress("1"),  # type: ignore[arg-type]
            lambda: context.progress(True),
            lambda: context.progress(1, float("nan")),
            lambda: context.save({1}),
        ):
            try:
                call()
            except Exception as error:
                refused.append(type(error))
        soon = context.expires
        assert soon is not None
        assert timedelta(0) < soon - datetime.now(UTC) <= timedelta(seconds=60)

    tasks.seen.append(use)
    assert slot.run(attempt_of(tasks.calls_seen, timeout=60)).outcome == Succeeded(None)
    assert refused == [TypeError, TypeError, ValueError, InvalidArguments]


def test_there_is_no_job_outside(slot: Slot) -> None:
    slot.run(attempt_of(tasks.noop))
    assert current_job() is None
    assert slot.pool.submit(current_job).result(5) is None


@pytest.mark.parametrize("limit", [100, 2_000])
def test_logs_keep_head_and_tail(limit: int) -> None:
    lines = LogLines(limit)
    for number in range(10_000):
        lines.add(f"line {number}")
    text = lines.text()
    assert text.startswith("line 0\n")
    assert text.endswith("line 9999")
    assert "lines left out" in text
    assert len(text) <= limit + 50
    lines.add("x" * 1_000_000)
    assert len(lines.text()) <= limit + 50


def test_each_job_finds_the_language_and_zone_of_the_settings(slot: Slot, executor: Executor) -> None:
    with translation.override("de"), timezone.override("Europe/Berlin"):
        for _ in range(2):
            assert slot.run(attempt_of(tasks.says_where)).outcome == Succeeded(["en-us", "UTC"])
            assert arun(executor, attempt_of(tasks.asays_where))[0].outcome == Succeeded(["en-us", "UTC"])


def test_or_those_it_was_enqueued_with(slot: Slot, executor: Executor) -> None:
    carried = {"language": "de", "timezone": "Europe/Berlin"}
    outcome = slot.run(attempt_of(tasks.says_where, context=carried)).outcome
    assert outcome == Succeeded(["de", "Europe/Berlin"])
    (finished,) = arun(executor, attempt_of(tasks.asays_where, context=carried))
    assert finished.outcome == outcome
    assert slot.run(attempt_of(tasks.says_where)).outcome == Succeeded(["en-us", "UTC"])


@override_settings(DJANGO_JOBS={"CONTEXT": [(capture, bring_back)]})
def test_a_projects_own_context_is_brought_back_and_taken_away(slot: Slot, executor: Executor) -> None:
    name = f"{capture.__module__}.{capture.__qualname__}"
    assert conf.context_pairs() == ((capture, bring_back),)
    tasks.seen.append(lambda context: tasks.seen.append(capture()))
    assert slot.run(attempt_of(tasks.calls_seen, context={name: "acme", "gone.function": 1})).outcome == Succeeded(None)
    assert slot.run(attempt_of(tasks.calls_seen)).outcome == Succeeded(None)
    assert tasks.seen[1:] == ["acme", None]
    outcome = slot.run(attempt_of(tasks.calls_seen, context={name: "bad"})).outcome
    assert isinstance(outcome, Failed)
    assert outcome.error.exception_class == "builtins.LookupError"
    assert len(tasks.seen) == 3
    (finished,) = arun(executor, attempt_of(tasks.aadd, 1, 2, context={name: "acme"}))
    assert finished.outcome == Succeeded(3)


def test_jobs_of_a_thread_share_a_cache(slot: Slot) -> None:
    """A cache made for each job would open connections of its own each time."""
    first, second = (slot.run(attempt_of(tasks.which_cache)).outcome for _ in range(2))
    assert first == second
    assert isinstance(first, Succeeded)


def test_an_idle_executor_costs_little(executor: Executor) -> None:
    """A job that does nothing: 15 µs on a desktop. The best of many batches, as others share the machine."""
    logging.disable()
    attempts = [attempt_of(tasks.noop) for _ in range(100)]
    best = 1.0
    for _ in range(60):
        start = time.perf_counter()
        for attempt in attempts:
            executor.run(attempt)
        best = min(best, (time.perf_counter() - start) / len(attempts))
    logging.disable(logging.NOTSET)
    assert best < 0.000_05

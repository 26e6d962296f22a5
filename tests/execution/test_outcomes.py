"""Every way in which a function can end is one outcome, and the slot takes the next job."""

from __future__ import annotations

import gc
import logging
import weakref
from typing import Any

import pytest
from django.db import OperationalError

from django_jobs.compat import task_finished
from django_jobs.outcomes import Cancelled, Failed, HandedBack, RetryAsked, Succeeded
from django_jobs.retry import decide
from tests.execution import tasks
from tests.execution.support import Slot, arun, attempt_of

NAMES = {
    "SystemExit(0)": "builtins.SystemExit",
    "SystemExit(3)": "builtins.SystemExit",
    "CancelledError": "asyncio.exceptions.CancelledError",
    "TimeoutError": "builtins.TimeoutError",
    "futures.TimeoutError": "builtins.TimeoutError",
    "Rude": "tests.execution.tasks.Rude",
    "JobTimeout": "django_jobs.exceptions.JobTimeout",
    "Unprintable": "tests.execution.tasks.Unprintable",
    "NeedsTwo": "tests.execution.tasks.NeedsTwo",
    "deep_group": "builtins.ExceptionGroup",
    "deeper_group": "builtins.ExceptionGroup",
    "local_class": "tests.execution.tasks.local_class.<locals>.LocalError",
    "recursion": "builtins.RecursionError",
    **dict.fromkeys(("holding_things", "own_cause", "each_other", "long_chain", "nul", "huge"), "builtins.ValueError"),
}


@pytest.mark.parametrize("name", tasks.ERRORS)
@pytest.mark.parametrize("kind", ["thread", "thread, coroutine", "loop"])
def test_b17_b19_any_exception_is_a_final_failure_and_the_slot_lives(slot: Slot, name: str, kind: str) -> None:
    thread = slot.thread_id()
    task = tasks.raises if kind == "thread" else tasks.araises
    if kind == "loop":
        failed, healthy = arun(slot.executor, attempt_of(task, name), attempt_of(tasks.aadd, 1, 2))
    else:
        failed, healthy = slot.run(attempt_of(task, name)), slot.run(attempt_of(tasks.add, 1, 2))
    outcome = failed.outcome
    assert isinstance(outcome, Failed)
    assert outcome.final
    assert outcome.error.exception_class == NAMES.get(name, f"builtins.{name}")
    assert "\x00" not in outcome.error.message + outcome.error.traceback
    outcome.error.traceback.encode()
    assert len(outcome.error.message) <= 10_000
    assert len(outcome.error.traceback) <= 100_000
    assert len(outcome.error.fingerprint) == 16
    assert failed.run_seconds is not None
    assert healthy.outcome == Succeeded(3)
    assert slot.thread_id() == thread


def test_b19_an_error_without_text_gets_a_placeholder(slot: Slot) -> None:
    outcome = slot.run(attempt_of(tasks.raises, "Unprintable")).outcome
    assert isinstance(outcome, Failed)
    assert "can't be shown" in outcome.error.message
    assert "RuntimeError" in outcome.error.message


@pytest.mark.parametrize("name", ["Unprintable", "own_cause", "deeper_group", "recursion"])
def test_b19_such_an_error_is_retried_where_the_task_says_so(slot: Slot, name: str) -> None:
    for used in (1, 2, 3):
        attempt = attempt_of(tasks.raises_retried, name, attempts_used=used, max_attempts=3)
        end = decide(slot.run(attempt).outcome, attempt)
        assert end.is_end == (used == 3)


def test_an_exception_is_let_go_of(slot: Slot) -> None:
    class Thing:
        pass

    things = [Thing()]
    gone = weakref.ref(things[0])

    def holding() -> Exception:
        error = ValueError("holds a thing")
        error.thing = things[0]  # type: ignore[attr-defined]
        return error

    def listen(**kwargs: object) -> None:
        heard.append(kwargs["task_result"])

    heard: list[object] = []
    tasks.ERRORS["holding a thing"] = holding
    logging.disable()  # the records that pytest keeps hold the exception, too
    task_finished.connect(listen)
    try:
        slot.run(attempt_of(tasks.raises, "holding a thing"))
    finally:
        task_finished.disconnect(listen)
        logging.disable(logging.NOTSET)
    assert len(heard) == 1
    del tasks.ERRORS["holding a thing"], holding, things[0]
    gc.collect()
    assert gone() is None


def test_the_traceback_begins_at_the_task(slot: Slot) -> None:
    outcome = slot.run(attempt_of(tasks.raises, "TimeoutError")).outcome
    assert isinstance(outcome, Failed)
    lines = outcome.error.traceback.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "tests/execution/tasks.py" in lines[1]


def test_equal_failures_have_equal_fingerprints(slot: Slot) -> None:
    def fingerprint(task: object, name: str) -> str:
        outcome = slot.run(attempt_of(task, name)).outcome
        assert isinstance(outcome, Failed)
        return outcome.error.fingerprint

    assert fingerprint(tasks.raises, "NeedsTwo") == fingerprint(tasks.raises, "NeedsTwo")
    assert (
        len(
            {
                fingerprint(tasks.raises, "NeedsTwo"),
                fingerprint(tasks.raises, "Rude"),
                fingerprint(tasks.raises_retried, "NeedsTwo"),
            }
        )
        == 3
    )


def test_what_a_task_asks_for(slot: Slot) -> None:
    def ask(what: str) -> object:
        return slot.run(attempt_of(tasks.asks, what)).outcome

    retry = ask("retry")
    assert isinstance(retry, RetryAsked)
    assert (retry.delay, retry.count, retry.error.message) == (12.0, False, "later")
    by_backoff = ask("retry by back-off")
    assert isinstance(by_backoff, RetryAsked)
    assert (by_backoff.delay, by_backoff.count) == (None, True)
    badly = ask("retry badly")
    assert isinstance(badly, RetryAsked)
    assert badly.delay is None
    failed = ask("fail")
    assert isinstance(failed, Failed)
    assert failed.final
    assert ask("skip") == Succeeded(None, "nothing to do")
    key = ask("key")
    assert isinstance(key, Failed)
    assert (key.final, key.delay) == (False, 7.0)
    value = ask("value")
    assert isinstance(value, Failed)
    assert value.final
    cancelled = ask("cancelled")
    assert isinstance(cancelled, Cancelled)
    assert cancelled.reason == "by myself"
    assert ask("nothing") == Succeeded(None)


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("skip a file", "caf\\udce9.txt \\x00 xxx"),
        ("skip unprintable", "<this Unprintable can't be shown: its __str__ raised RuntimeError>"),
        ("cancelled over a file", "caf\\udce9.txt \\x00"),
    ],
)
def test_what_a_task_says_of_its_end_can_be_stored(slot: Slot, what: str, text: str) -> None:
    """A file's name with a byte that is no text ended the worker's process: no database takes it."""
    outcome = slot.run(attempt_of(tasks.asks, what)).outcome
    said = outcome.note if isinstance(outcome, Succeeded) else outcome.reason if isinstance(outcome, Cancelled) else ""
    assert said.startswith(text)
    assert len(said) <= 500


def test_a_task_that_raises_attempt_lost_has_failed(slot: Slot) -> None:
    """Handed back it would run again at once, uncounted, for ever."""
    outcome = slot.run(attempt_of(tasks.asks, "lost")).outcome
    assert isinstance(outcome, Failed)
    assert outcome.final
    assert outcome.error.exception_class == "django_jobs.exceptions.AttemptLost"


def test_a_backoff_that_raises_leaves_the_pause_to_the_default(slot: Slot, caplog: pytest.LogCaptureFixture) -> None:
    outcome = slot.run(attempt_of(tasks.with_bad_backoff)).outcome
    assert isinstance(outcome, Failed)
    assert (outcome.final, outcome.delay) == (False, None)
    assert "back-off" in caplog.text


@pytest.mark.parametrize("given", [None, 5.0, [1.0, 2.0]])
def test_a_backoff_that_the_job_was_given_wins_over_the_function_of_its_task(slot: Slot, given: Any) -> None:
    outcome = slot.run(attempt_of(tasks.asks, "key", backoff=given)).outcome
    assert isinstance(outcome, Failed)
    assert (outcome.final, outcome.delay) == (False, None), "the job's own pattern is asked when the outcome is recorded"


def test_a_database_conflict_is_tried_again_after_five_seconds(slot: Slot) -> None:
    class Deadlock(Exception):
        sqlstate = "40P01"

    Deadlock.__module__ = "psycopg.errors"

    def conflict() -> Exception:
        error = OperationalError("deadlock detected")
        error.__cause__ = Deadlock("deadlock detected")
        return error

    tasks.ERRORS["conflict"] = conflict
    try:
        outcome = slot.run(attempt_of(tasks.raises, "conflict")).outcome
    finally:
        del tasks.ERRORS["conflict"]
    assert isinstance(outcome, Failed)
    assert (outcome.final, outcome.delay) == (False, 5.0)


@pytest.mark.parametrize("name", tasks.RESULTS)
def test_b26_a_result_that_json_cannot_hold_fails_the_job_once(slot: Slot, name: str) -> None:
    attempt = attempt_of(tasks.returns, name, max_attempts=3)
    outcome = slot.run(attempt).outcome
    assert isinstance(outcome, Failed)
    assert outcome.error.exception_class == "django_jobs.exceptions.InvalidResult"
    assert "result" in outcome.error.message.lower()
    assert decide(outcome, attempt).is_end
    assert tasks.calls[name] == 1


def test_b27_a_task_that_changes_its_arguments_changes_a_copy(slot: Slot) -> None:
    attempt = attempt_of(tasks.changes_arguments, ["a"], {"k": 1})
    for _ in range(3):
        slot.run(attempt)
    assert tasks.seen == [(["a"], {"k": 1})] * 3
    assert attempt.args == [["a"], {"k": 1}]


def test_an_unknown_task_is_handed_back_parked(slot: Slot) -> None:
    attempt = attempt_of(tasks.noop)
    attempt.task = "tests.nowhere.gone"
    finished = slot.run(attempt)
    assert isinstance(finished.outcome, HandedBack)
    assert finished.outcome.parked == "unknown_task"
    assert not finished.outcome.started
    assert finished.run_seconds is None
    assert arun(slot.executor, attempt)[0].outcome == finished.outcome
    assert slot.executor.is_async(attempt) is False


def test_arguments_that_no_longer_fit_are_a_final_failure(slot: Slot) -> None:
    outcome = slot.run(attempt_of(tasks.add, 1, 2, 3)).outcome
    assert isinstance(outcome, Failed)
    assert outcome.final
    assert outcome.error.exception_class == "builtins.TypeError"


@pytest.mark.parametrize("changes", [{"attempts_used": 3, "max_attempts": 2}, {"deaths": 2, "max_deaths": 2}])
def test_a_bound_that_was_lowered_meanwhile_holds(slot: Slot, changes: dict[str, int]) -> None:
    attempt = attempt_of(tasks.changes_arguments, [], {}, **changes)
    finished = slot.run(attempt)
    assert isinstance(finished.outcome, Failed)
    assert "not started" in finished.outcome.error.message
    assert decide(finished.outcome, attempt).is_end
    assert finished.run_seconds is None
    assert tasks.seen == []

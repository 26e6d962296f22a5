"""Limits of time: who is stopped, how that is recorded, and that nobody else is hit."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import queue
import random
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from django_jobs.exceptions import JobTimeout
from django_jobs.execution.executor import Executor
from django_jobs.execution.running import CANCELLED
from django_jobs.outcomes import Attempt, Cancelled, Failed, HandedBack, Succeeded, TimedOut
from tests.execution import tasks
from tests.execution.support import Recorder, Slot, arun, attempt_of, wait_until

JOB_TIMEOUT = "django_jobs.exceptions.JobTimeout"


@pytest.mark.parametrize(
    "attempt",
    [
        attempt_of(tasks.spins),
        attempt_of(tasks.spins_over_exceptions),
        attempt_of(tasks.swallows),
        attempt_of(tasks.raises_another),
        attempt_of(tasks.sleeps, 0.6),
        attempt_of(tasks.sleeps_holding_the_lock, 0.5),
        attempt_of(tasks.waits_for_queue),
        attempt_of(tasks.matches_badly),
    ],
    ids=lambda attempt: attempt.task.rpartition(".")[2],
)
def test_b28_a_function_past_its_limit_is_stopped(slot: Slot, recorder: Recorder, attempt: Attempt) -> None:
    start = time.monotonic()
    finished = slot.run(attempt)
    assert isinstance(finished.outcome, TimedOut)
    assert finished.outcome.limit == "timeout"
    assert finished.outcome.error.exception_class == JOB_TIMEOUT
    assert "out of time after" in finished.outcome.error.message
    assert finished.outcome.error.traceback
    assert time.monotonic() - start < 5
    assert recorder.names() == ["begin", "end"]
    assert slot.run(attempt_of(tasks.add, 1, 2)).outcome == Succeeded(3)


def test_b28_the_time_out_is_no_ordinary_exception(slot: Slot) -> None:
    outcome = slot.run(attempt_of(tasks.swallows)).outcome
    assert isinstance(outcome, TimedOut)
    assert "caught" in outcome.error.traceback
    (caught,) = tasks.seen
    assert issubclass(caught, JobTimeout)
    assert not issubclass(caught, Exception)
    assert caught.limit == "timeout"


def test_the_error_raised_while_stopping_is_in_the_traceback(slot: Slot) -> None:
    outcome = slot.run(attempt_of(tasks.raises_another)).outcome
    assert isinstance(outcome, TimedOut)
    assert "ValueError: while stopping" in outcome.error.traceback
    assert "JobTimeout" in outcome.error.traceback


def test_within_its_limit_a_job_is_left_alone(slot: Slot) -> None:
    assert slot.run(attempt_of(tasks.sleeps, 0.01)).outcome == Succeeded("slept")
    assert slot.run(attempt_of(tasks.sleeps, 0.4, timeout=None)).outcome == Succeeded("slept")
    assert slot.run(attempt_of(tasks.sleeps, 0.4, timeout=0)).outcome == Succeeded("slept")


def test_a_later_job_with_an_earlier_limit_is_stopped_in_time(slot: Slot, executor: Executor) -> None:
    long = slot.start(attempt_of(tasks.waits_for_gate, timeout=3_600))
    assert tasks.begun.wait(5)
    start = time.monotonic()
    other = Slot(executor)
    assert isinstance(other.run(attempt_of(tasks.spins, timeout=0.1)).outcome, TimedOut)
    assert time.monotonic() - start < 3
    other.pool.shutdown()
    tasks.gate.set()
    assert long.result(5).outcome == Succeeded("through")


def test_silence_longer_than_the_heartbeat_time_out(slot: Slot, recorder: Recorder) -> None:
    start = time.monotonic()
    outcome = slot.run(attempt_of(tasks.falls_silent, 4)).outcome
    assert isinstance(outcome, TimedOut)
    assert outcome.limit == "heartbeat_timeout"
    assert time.monotonic() - start >= 0.6
    assert recorder.names().count("heartbeat") == recorder.names().count("beat") == 4


def test_progress_is_a_heartbeat(slot: Slot) -> None:
    assert slot.run(attempt_of(tasks.beats_by_progress)).outcome == Succeeded("done")


def test_cpu_time_is_what_the_thread_used(slot: Slot) -> None:
    outcome = slot.run(attempt_of(tasks.burns)).outcome
    assert isinstance(outcome, TimedOut)
    assert outcome.limit == "cpu_timeout"
    assert slot.run(attempt_of(tasks.idles)).outcome == Succeeded("idle")


def test_coroutines_have_the_same_limits(executor: Executor) -> None:
    finished = arun(
        executor,
        attempt_of(tasks.anaps, 30),
        attempt_of(tasks.aswallows),
        attempt_of(tasks.afalls_silent),
        attempt_of(tasks.anaps, 0.01),
        attempt_of(tasks.anaps, 0.4, timeout=None),
    )
    limits = [getattr(each.outcome, "limit", None) for each in finished]
    assert limits == ["timeout", "timeout", "heartbeat_timeout", None, None]
    first = finished[0].outcome
    assert isinstance(first, TimedOut)
    assert first.error.exception_class == JOB_TIMEOUT
    assert finished[3].outcome == finished[4].outcome == Succeeded("napped")


def test_a_coroutine_in_a_thread_has_them_too(slot: Slot) -> None:
    outcome = slot.run(attempt_of(tasks.anaps, 30)).outcome
    assert isinstance(outcome, TimedOut)
    assert slot.run(attempt_of(tasks.aadd, 1, 2)).outcome == Succeeded(3)


# --- cancelling


@pytest.mark.parametrize("task", [tasks.polls, tasks.ignores_cancel])
def test_cancelling_raises_inside_the_task(slot: Slot, executor: Executor, task: Any) -> None:
    attempt = attempt_of(task)
    running = slot.start(attempt)
    assert tasks.begun.wait(5)
    assert executor.cancel(attempt.token, "not needed any more")
    outcome = running.result(5).outcome
    assert isinstance(outcome, Cancelled)
    assert outcome.reason == "not needed any more"
    assert outcome.error is not None
    assert outcome.error.exception_class == "django_jobs.exceptions.JobCancelled"
    assert executor.cancel(attempt.token) is False
    assert slot.run(attempt_of(tasks.add, 1, 2)).outcome == Succeeded(3)


def test_the_context_says_that_the_job_is_cancelled(slot: Slot, executor: Executor) -> None:
    attempt = attempt_of(tasks.polls)
    running = slot.start(attempt)
    assert tasks.begun.wait(5)
    executor.cancel(attempt.token)
    assert isinstance(running.result(5).outcome, Cancelled)
    assert tasks.seen == [True]


def test_cancelling_a_coroutine(executor: Executor) -> None:
    attempt = attempt_of(tasks.await_gate)

    async def main() -> Any:
        running = asyncio.create_task(executor.arun(attempt))
        assert await asyncio.to_thread(tasks.begun.wait, 5)
        told = await asyncio.to_thread(executor.cancel, attempt.token, "enough")
        return told, await running

    told, finished = asyncio.run(main())
    assert told
    assert isinstance(finished.outcome, Cancelled)
    assert finished.outcome.reason == "enough"


def test_cancelling_what_does_not_run_here(executor: Executor) -> None:
    assert executor.cancel(attempt_of(tasks.noop).token) is False


def test_the_end_of_the_loop_hands_a_coroutine_back(executor: Executor) -> None:
    async def main() -> Any:
        running = asyncio.create_task(executor.arun(attempt_of(tasks.await_gate)))
        assert await asyncio.to_thread(tasks.begun.wait, 5)
        running.cancel()
        return await running

    finished = asyncio.run(main())
    assert isinstance(finished.outcome, HandedBack)
    assert finished.outcome.started


def test_what_runs_is_shown(slot: Slot, executor: Executor, recorder: Recorder) -> None:
    attempt = attempt_of(tasks.waits_for_gate)
    running = slot.start(attempt)
    assert tasks.begun.wait(5)
    (info,) = executor.running()
    assert (info.token, info.job_id, info.task) == (attempt.token, attempt.job_id, attempt.task)
    assert info.native_thread == recorder.told[0][3]
    assert info.started <= time.monotonic()
    assert "gate.wait" in executor.stacks()
    assert str(attempt.job_id) in executor.stacks()
    tasks.gate.set()
    running.result(5)
    assert executor.running() == []
    assert executor.stacks() == ""


def test_the_stack_of_a_coroutine_is_shown(executor: Executor) -> None:
    async def main() -> str:
        running = asyncio.create_task(executor.arun(attempt_of(tasks.await_gate, 0.2)))
        assert await asyncio.to_thread(tasks.begun.wait, 5)
        stacks = executor.stacks()
        await running
        return stacks

    assert "asyncio.sleep(seconds)" in asyncio.run(main())


# --- races


@pytest.fixture
def race() -> Iterator[None]:
    """Let threads take turns at nearly every bytecode, and write no log lines, which would slow them down."""
    interval, callbacks = sys.getswitchinterval(), gc.callbacks[:]
    sys.setswitchinterval(0.000_01)
    logging.disable()
    # What is raised within the callbacks that test tools hang into the garbage collector, nobody gets to see: Python prints it.
    gc.callbacks.clear()
    yield
    gc.callbacks[:] = callbacks
    logging.disable(logging.NOTSET)
    sys.setswitchinterval(interval)


class Canary:
    """Runs jobs in a thread of its own, and pure Python between them: whatever is raised there has leaked."""

    def __init__(self, executor: Executor, make: Any, seconds: float) -> None:
        self.executor, self.make, self.end = executor, make, time.monotonic() + seconds
        self.outcomes: list[tuple[Any, bool]] = []
        self.leaks: list[BaseException] = []
        self.token: Any = None
        self.thread = threading.Thread(target=self.work)
        self.thread.start()

    def work(self) -> None:
        while time.monotonic() < self.end:
            try:
                tasks.calls.pop(str(threading.get_ident()), None)
                attempt = self.make()
                self.token = attempt.token
                finished = self.executor.run(attempt)
                for _ in range(20):
                    _idle()
                self.outcomes.append((finished.outcome, str(threading.get_ident()) in tasks.calls))
            except BaseException as leak:
                self.leaks.append(leak)


def _idle() -> None:
    for _ in range(3):
        pass


def test_b28_a_time_out_at_the_very_end_hits_nobody_else(executor: Executor, race: None) -> None:
    dice = random.Random(1)

    def make() -> Attempt:
        limit = dice.uniform(0.001, 0.003)
        return attempt_of(tasks.spins_for, limit + dice.uniform(-0.0003, 0.0006), timeout=limit)

    canaries = [Canary(executor, make, 6.0) for _ in range(2)]
    _check(canaries, TimedOut)


def test_b28_interruptions_at_any_moment_hit_nobody_else(executor: Executor, race: None) -> None:
    """Each job is timed out and cancelled by other threads just as it ends: thousands of races."""
    dice = random.Random(2)
    canary = Canary(executor, lambda: attempt_of(tasks.ends_under_fire, dice.choice([0, 1, 3, 10, 100, 1_000])), 6.0)

    def interrupt(fire: queue.SimpleQueue[None], limit: str) -> None:
        while canary.thread.is_alive():
            with contextlib.suppress(queue.Empty):
                fire.get(timeout=0.5)
                if (run := executor._stage.runs.get(canary.token)) is not None:
                    run.interrupt(limit, "now")

    hunters = [threading.Thread(target=interrupt, args=pair) for pair in zip(tasks.fires, ("timeout", CANCELLED), strict=True)]
    for hunter in hunters:
        hunter.start()
    for hunter in hunters:
        hunter.join(60)
    _check([canary], TimedOut, Cancelled)


def _check(canaries: list[Canary], *stopped: type) -> None:
    for canary in canaries:
        canary.thread.join(60)
        assert canary.leaks == []
        kinds = {type(outcome) for outcome, _ in canary.outcomes}
        assert kinds <= {Succeeded, *stopped}
        assert {Succeeded, *stopped} <= kinds  # else it was no race
        assert len(canary.outcomes) > 500
        assert all(came_to_its_end for outcome, came_to_its_end in canary.outcomes if isinstance(outcome, Succeeded))


def test_b28_coroutines_that_end_as_their_time_is_up(executor: Executor, race: None) -> None:
    async def main() -> list[Any]:
        dice = random.Random(3)
        found = []
        for _ in range(40):
            limits = [dice.uniform(0.001, 0.004) for _ in range(50)]
            attempts = [attempt_of(tasks.anaps, limit + dice.uniform(-0.0005, 0.0005), timeout=limit) for limit in limits]
            found += await asyncio.gather(*(executor.arun(attempt) for attempt in attempts))
            await asyncio.sleep(0)
        return found

    finished = asyncio.run(main())
    assert {type(each.outcome) for each in finished} == {Succeeded, TimedOut}
    assert executor.running() == []


def test_a_task_that_raises_a_time_out_itself_has_failed(slot: Slot) -> None:
    outcome = slot.run(attempt_of(tasks.raises, "JobTimeout", timeout=60)).outcome
    assert isinstance(outcome, Failed)


def test_the_watchdog_sleeps_while_nothing_is_due(slot: Slot, executor: Executor) -> None:
    for _ in range(300):
        slot.run(attempt_of(tasks.noop, timeout=60))
    watchdog = executor._watchdog
    wait_until(lambda: watchdog._thread is not None and watchdog._runs == {})
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.1

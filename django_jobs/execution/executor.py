"""Run the function of an attempt and say with which outcome it ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, Protocol
from uuid import UUID

from asgiref.sync import async_to_sync, sync_to_async
from django.db import transaction

from .. import conf, retry, serializers
from ..compat import Task
from ..exceptions import JobsError, Skip, UnknownTask
from ..outcomes import Attempt, Failed, Finished, HandedBack, Outcome, Succeeded
from ..statuses import Status
from . import announce, cleanup, surroundings
from .context import JobContext, Link
from .errors import describe
from .plan import Plan, plan_for
from .running import CANCELLED, STOPPED, LoopRun, Run, RunInfo, ThreadRun, current_run
from .verdict import convert_result, judge

logger = logging.getLogger("django_jobs.execution")

#: Why a job whose task is not registered here is parked.
UNKNOWN_TASK = "unknown_task"
#: Seconds between two clean-ups of the thread that coroutines share for their database work.
_SHARED_TIDY = 1.0


class BoardLike(Protocol):
    """Where a process shows its supervisor what it runs."""

    def begin(self, attempt: Attempt, thread_id: int) -> None: ...

    def beat(self, attempt: Attempt) -> None: ...

    def end(self, attempt: Attempt) -> None: ...


class Executor:
    """Runs attempts, in pool threads (`run`) or on an event loop (`arun`); any number at once. One for each process.

    `find_task` returns the task of a name, or raises `UnknownTask`; `fence` records the success of an `atomic=True` job in
    that job's transaction (raises `AttemptLost`); `database` is the alias that holds the jobs.
    """

    def __init__(
        self,
        link: Link,
        *,
        find_task: Callable[[str], Task],
        watchdog: Any = None,
        database: str | None = None,
        fence: Callable[[Attempt, Any], None] | None = None,
        board: BoardLike | None = None,
    ) -> None:
        self._link = link
        self._find_task = find_task
        self._watchdog = watchdog
        self._database = database
        self._fence = fence
        self._board = board
        self._plans: dict[str, Plan] = {}
        self._runs: dict[UUID, Run] = {}
        self._place = surroundings.Place(surroundings.base_context())
        self._shared_tidied = 0.0

    # -- asked by pool and control

    def is_async(self, attempt: Attempt) -> bool:
        """Whether this attempt belongs on an event loop."""
        try:
            plan = self._plan(attempt)
        except UnknownTask:
            return False
        return plan.is_async and not plan.is_isolated

    def cancel(self, token: UUID, reason: str = "") -> bool:
        """Raise `JobCancelled` in the attempt with this token. Return whether it runs here and was not told before."""
        run = self._runs.get(token)
        return run is not None and run.interrupt(CANCELLED, reason or "cancelled on request")

    def running(self) -> list[RunInfo]:
        """Return what runs now."""
        return [run.info() for run in list(self._runs.values())]

    def stacks(self) -> str:
        """Return where each running job is, for people."""
        frames = sys._current_frames()
        parts = []
        for run in list(self._runs.values()):
            lines = run.stack(frames)
            seconds = time.monotonic() - run.started
            parts.append(f"Job {run.attempt.job_id}, {run.attempt.task}, running for {seconds:.1f} s:\n{''.join(lines)}")
        return "\n".join(parts)

    # -- run by the pool

    def run(self, attempt: Attempt) -> Finished:
        """Run `attempt` in this thread. Never raises: whatever happens is an outcome."""
        try:
            plan = self._plan(attempt)
            if plan.is_async and not plan.is_isolated:
                return async_to_sync(self.arun)(attempt)
            run = ThreadRun(attempt, plan)
            return self._place.base.copy().run(self._run_here, run)
        except UnknownTask as error:
            return Finished(attempt, HandedBack(str(error), parked=UNKNOWN_TASK))
        except BaseException as error:
            return _own_fault(attempt, error)

    async def arun(self, attempt: Attempt) -> Finished:
        """Run `attempt` on the running loop.

        Never raises, with one exception. When the caller's task is cancelled, the coroutine is cancelled, and the attempt is
        handed back unless it comes to an outcome of its own; a second cancellation while it still runs is raised.
        """
        try:
            plan = self._plan(attempt)
            loop = asyncio.get_running_loop()
            if plan.is_isolated or not plan.is_async:
                return await loop.run_in_executor(None, self.run, attempt)
            run = LoopRun(attempt, plan, loop)
            return await self._on_loop(run)
        except UnknownTask as error:
            return Finished(attempt, HandedBack(str(error), parked=UNKNOWN_TASK))
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            return _own_fault(attempt, error)

    # -- within

    def _plan(self, attempt: Attempt) -> Plan:
        task = self._find_task(attempt.task)
        plan = self._plans.get(attempt.task)
        if plan is None or plan.task is not task:
            plan = self._plans[attempt.task] = plan_for(task)
        return plan

    def _run_here(self, run: ThreadRun) -> Finished:
        place = self._place
        kept = cleanup.open_transactions()
        cleanup.prepare(time.monotonic() - place.last_used)
        run.native_id = place.native_id
        is_confirmed = False
        try:
            arguments = self._begin(run)
            if arguments is None:
                is_confirmed = False
            elif run.plan.is_atomic:
                is_confirmed = self._call_atomic(run, *arguments)
            else:
                self._call(run, *arguments)
                convert_result(run)
            return self._end(run, is_confirmed)
        finally:
            run.has_ended = True
            run.error = None  # its frames hold whatever the task had in hand
            cleanup.tidy(kept, discard=bool(run.stops))
            place.last_used = time.monotonic()

    def _begin(self, run: Run) -> tuple[Any, Any] | None:
        """Get ready to call: return (args, kwargs), or None with `run.error` set."""
        attempt = run.attempt
        current_run.set(run)
        context = run.context = JobContext(run, self._link)
        try:
            if retry.exceeded(attempt):
                raise JobsError(_exceeded(attempt))
            args = serializers.from_json(attempt.args, serializer=attempt.serializer)
            kwargs = serializers.from_json(attempt.kwargs, serializer=attempt.serializer)
            if run.plan.takes_context:
                args = [context, *args]
            if attempt.context:
                surroundings.restore(attempt.context)
            if announce.is_started_heard():
                announce.started(run)
        except BaseException as error:
            run.error = error
            return None
        return args, kwargs

    def _call(self, run: ThreadRun, args: Any, kwargs: Any) -> None:
        """Call the task's function, in everybody's sight."""
        self._enter(run)
        run.call(run.plan.function, args, kwargs)
        self._leave(run)

    def _call_atomic(self, run: ThreadRun, args: Any, kwargs: Any) -> bool:
        """Call it in a transaction that also records its success. Return whether that was committed."""
        is_committed: list[bool] = []
        try:
            with transaction.atomic(using=self._alias()):
                transaction.on_commit(lambda: is_committed.append(True), using=self._alias(), robust=True)
                self._call(run, args, kwargs)
                convert_result(run)
                if run.stop is not None or not (run.error is None or isinstance(run.error, Skip)):
                    raise _RolledBack
                if self._fence is not None:
                    self._fence(run.attempt, run.result)
        except _RolledBack:
            return False
        except BaseException as error:
            if not is_committed:
                run.error, run.result = error, None
                return False
            logger.exception("What job %s left to do on commit failed; the job itself is done.", run.attempt.job_id)
        return self._fence is not None

    def _enter(self, run: Run) -> None:
        attempt = run.attempt
        if self._board is not None:
            run.on_beat = self._board.beat
            self._board.begin(attempt, run.native_id)
        run.started = run.last_beat = time.monotonic()
        self._runs[attempt.token] = run
        if self._watchdog is not None:
            self._watchdog.watch(run)

    def _leave(self, run: Run) -> None:
        run.seconds = time.monotonic() - run.started
        attempt = run.attempt
        self._runs.pop(attempt.token, None)
        if self._watchdog is not None:
            self._watchdog.forget(run)
        if self._board is not None:
            self._board.end(attempt)

    def _end(self, run: Run, is_confirmed: bool) -> Finished:
        outcome = judge(run)
        status = self._final_status(run, outcome)
        if status is not None:
            announce.finished(run, outcome, status)
        logs = "" if run.logs is None else serializers.clean_text(run.logs.text(), conf.jobs_settings().max_log_chars)
        return Finished(run.attempt, outcome, run.seconds, logs, is_confirmed)

    def _final_status(self, run: Run, outcome: Outcome) -> Status | None:
        """Return the job's final status; None if it will run again."""
        if type(outcome) is Succeeded:
            return Status.SUCCEEDED
        end = retry.decide(outcome, run.attempt, cancel_requested=run.cancellation is not None)
        return end.status if end.is_end else None

    def _alias(self) -> str:
        return self._database or conf.jobs_database()

    # -- on an event loop

    async def _on_loop(self, run: LoopRun) -> Finished:
        """Run the coroutine in a task and a context of its own, so that neither a cancellation nor a variable leaks out."""
        job = _start_task(self._arun_here(run), run.loop, self._place.base.copy())
        run.task = job
        if not job.done():
            try:
                await _until_done(job)
            except asyncio.CancelledError:
                run.interrupt(STOPPED, "the worker stopped")
                await _until_done(job)
        return job.result()

    async def _arun_here(self, run: LoopRun) -> Finished:
        run.task = asyncio.current_task()
        run.native_id = self._place.native_id
        has_database_types = run.attempt.serializer != "json"
        begin = sync_to_async(self._begin) if has_database_types else None
        try:
            if run.plan.is_atomic:
                run.error = JobsError("atomic=True needs an ordinary function: Django's transactions can't span an await.")
                arguments = None
            else:
                arguments = self._begin(run) if begin is None else await begin(run)
            if arguments is not None:
                current_run.set(run)
                await self._acall(run, *arguments)
                if has_database_types:
                    await sync_to_async(convert_result)(run)
                else:
                    convert_result(run)
            return await self._aend(run)
        finally:
            run.has_ended = True
            failed, run.error = run.error is not None, None
            await self._tidy_shared(failed)

    async def _acall(self, run: LoopRun, args: Any, kwargs: Any) -> None:
        self._enter(run)
        try:
            run.is_armed = True
            run.value = await run.plan.function(*args, **kwargs)
            run.has_returned = True
        except BaseException as error:
            run.error = _unwrapped(error)
        run.is_armed = False
        self._leave(run)
        while run.task is not None and run.task.cancelling():
            run.task.uncancel()

    async def _aend(self, run: LoopRun) -> Finished:
        if announce.has_listeners(run):
            return await sync_to_async(self._end)(run, False)
        return self._end(run, False)

    async def _tidy_shared(self, has_failed: bool) -> None:
        """Clean up the thread that coroutines share for their database work: now and then, and after a failure."""
        now = time.monotonic()
        if not has_failed and now - self._shared_tidied < _SHARED_TIDY:
            return
        self._shared_tidied = now
        with contextlib.suppress(Exception):
            await sync_to_async(_tidy_shared)()


class _RolledBack(Exception):  # noqa: N818
    """Leaves the transaction of an `atomic=True` job whose error is known already."""


def _tidy_shared() -> None:
    cleanup.tidy(cleanup.open_transactions())


def _own_fault(attempt: Attempt, error: BaseException) -> Finished:
    logger.exception("Running job %s failed outside of its task.", attempt.job_id)
    return Finished(attempt, Failed(describe(error)))


def _exceeded(attempt: Attempt) -> str:
    return (
        f"not started: attempt {attempt.attempts_used} of at most {attempt.max_attempts}, "
        f"{attempt.deaths} deaths of at most {attempt.max_deaths} (a bound was lowered meanwhile)"
    )


def _unwrapped(error: BaseException) -> BaseException:
    """A coroutine can't raise StopIteration: Python turns it into a RuntimeError."""
    if type(error) is RuntimeError and isinstance(error.__cause__, StopIteration):
        return error.__cause__
    return error


def _start_task(coroutine: Any, loop: asyncio.AbstractEventLoop, context: Any) -> asyncio.Task[Finished]:
    """Start a task; from Python 3.12 on at once, so that a coroutine that never waits costs no round through the loop."""
    if sys.version_info >= (3, 12):
        return asyncio.Task(coroutine, loop=loop, context=context, eager_start=True)
    return loop.create_task(coroutine, context=context)


async def _until_done(task: asyncio.Task[Any]) -> None:
    """Wait for `task`, as `await task` does, but without cancelling it when the waiter is cancelled."""
    if task.done():
        return
    waiter = task.get_loop().create_future()

    def wake(_task: Any) -> None:
        if not waiter.done():
            waiter.set_result(None)

    task.add_done_callback(wake)
    try:
        await waiter
    finally:
        task.remove_done_callback(wake)

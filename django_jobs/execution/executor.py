"""Run the function of an attempt and say with which outcome it ended."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

from asgiref.sync import async_to_sync

from ..compat import Task
from ..exceptions import JobsError, UnknownTask
from ..outcomes import Attempt, Failed, Finished, HandedBack
from . import announce
from .context import Link, ParentReader
from .errors import describe
from .in_thread import run_in_thread
from .isolation import ProcessRun, reference_to
from .on_loop import run_on_loop
from .plan import Plan, plan_for
from .running import CANCELLED, LoopRun, RunInfo, Stop, ThreadRun
from .stage import BoardLike, Stage
from .timeouts import Watchdog

logger = logging.getLogger("django_jobs.execution")

#: Why a job whose task is not registered here is parked.
UNKNOWN_TASK = "unknown_task"


class Executor:
    """Runs attempts, in pool threads (`run`) or on an event loop (`arun`); any number at once. One for each process.

    `find_task` returns the task of a name, or raises `UnknownTask`; `fence` records the success of an `atomic=True` job in
    that job's transaction (raises `AttemptLost`); `parents` reads the results of a job's parents; `database` is the alias that
    holds the jobs. Isolated jobs find these functions in their own process: there they must be functions of a module, or
    `functools.partial` of one with named arguments. `isolates` is False in that process.
    """

    def __init__(
        self,
        link: Link,
        *,
        find_task: Callable[[str], Task[..., Any]],
        watchdog: Watchdog | None = None,
        database: str | None = None,
        fence: Callable[[Attempt, Any], None] | None = None,
        parents: ParentReader | None = None,
        board: BoardLike | None = None,
        isolates: bool = True,
    ) -> None:
        self._find_task = find_task
        self._database = database
        self._isolates = isolates
        self._watchdog = watchdog if watchdog is not None else Watchdog()
        self._stage = Stage(link, watchdog=self._watchdog, board=board, database=database, fence=fence, parents=parents)
        self._plans: dict[str, Plan] = {}

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
        run = self._stage.runs.get(token)
        if run is None or not run.interrupt(CANCELLED, reason or "cancelled on request"):
            return False
        self._watchdog.end_children(run)
        return True

    def kill(self, token: UUID, reason: str = "") -> bool:
        """Kill the process of an isolated attempt, as cancelled. Return False if it is none: then its worker has to be killed."""
        run = self._stage.runs.get(token)
        return isinstance(run, ProcessRun) and run.kill(Stop(CANCELLED, reason or "cancelled by force"))

    def is_alone(self, token: UUID) -> bool:
        """Whether this attempt runs in a process of its own."""
        return isinstance(self._stage.runs.get(token), ProcessRun)

    def running(self) -> list[RunInfo]:
        """Return what runs now."""
        return [run.info() for run in list(self._stage.runs.values())]

    def stacks(self) -> str:
        """Return where each running job is, for people."""
        frames = sys._current_frames()
        parts = []
        for run in list(self._stage.runs.values()):
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
            if plan.is_isolated:
                return self._run_isolated(ProcessRun(attempt, plan))
            run = ThreadRun(attempt, plan)
            return self._stage.fresh_context().run(run_in_thread, self._stage, run)
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
            return await run_on_loop(self._stage, run)
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
            plan = self._plans[attempt.task] = plan_for(task, can_isolate=self._isolates)
        return plan

    def _run_isolated(self, run: ProcessRun) -> Finished:
        """Run in a process of its own, with an executor of its own; here it is only watched."""
        attempt, board = run.attempt, self._stage.board
        find_task, fence = reference_to(self._find_task), reference_to(self._stage.fence)
        order = {
            "find_task": find_task,
            "fence": fence,
            "parents": reference_to(self._stage.parents),
            "database": self._database,
        }
        if find_task is None or (run.plan.is_atomic and self._stage.fence is not None and fence is None):
            raise JobsError("isolate=True: this worker's own functions can't be found by another process.")
        run.native_id = self._stage.place.native_id
        run.started = time.monotonic()
        self._stage.runs[attempt.token] = run
        if board is not None:
            # Its limits are seen to here: nobody needs to kill this whole process for them.
            board.begin(replace(attempt, timeout=None, heartbeat_timeout=None, cpu_timeout=None), run.native_id)
        try:
            finished = run.execute(self._stage.link, order)
        finally:
            self._stage.runs.pop(attempt.token, None)
            if board is not None:
                board.end(attempt)
        if run.is_told:
            return finished
        status = self._stage.final_status(run, finished.outcome)
        if status is not None:
            self._stage.fresh_context().run(announce.finished, run, finished.outcome, status)
            finished.told = status
        return finished


def _own_fault(attempt: Attempt, error: BaseException) -> Finished:
    logger.error("Running job %s failed outside of its task.", attempt.job_id, exc_info=error)
    return Finished(attempt, Failed(describe(error)))

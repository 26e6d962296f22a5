"""Run a coroutine function on the running event loop, as a task of its own."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from typing import Any, Final

from asgiref.sync import sync_to_async

from ..exceptions import JobsError
from ..outcomes import Finished
from . import announce, cleanup, surroundings
from .running import STOPPED, LoopRun, current_run
from .stage import Stage
from .verdict import convert_result, judge

#: Seconds between two clean-ups of the thread that coroutines share for their database work.
_SHARED_TIDY: Final = 1.0
#: From Python 3.12 on a task can start at once: a coroutine that never waits costs no round through the loop.
_EAGER: Final[dict[str, Any]] = {"eager_start": True} if sys.version_info >= (3, 12) else {}


async def run_on_loop(stage: Stage, run: LoopRun) -> Finished:
    """Run the coroutine in a task and a context of its own, so that neither a cancellation nor a variable leaks out."""
    job = asyncio.Task(_run_here(stage, run), loop=run.loop, context=stage.fresh_context(), **_EAGER)
    run.task = job
    if not job.done():
        try:
            await _until_done(job)
        except asyncio.CancelledError:
            run.interrupt(STOPPED, "the worker stopped")
            await _until_done(job)
    if job.cancelled():  # by somebody who kept hold of it, past the end of the function
        return Finished(run.attempt, judge(run), run.seconds)
    return job.result()


async def _run_here(stage: Stage, run: LoopRun) -> Finished:
    run.task = asyncio.current_task()
    run.native_id = stage.place.native_id
    has_database_types = run.attempt.serializer != "json"
    runs_site_code = has_database_types or announce.has_start_listeners() or surroundings.has_own(run.attempt.context)
    try:
        if run.plan.is_atomic:
            run.error = JobsError("atomic=True needs an ordinary function: Django's transactions can't span an await.")
            arguments = None
        else:
            arguments = await sync_to_async(stage.begin)(run) if runs_site_code else stage.begin(run)
        if arguments is not None:
            current_run.set(run)
            await _call(stage, run, *arguments)
            if has_database_types:
                await sync_to_async(convert_result)(run)
            else:
                convert_result(run)
        return await _end(stage, run)
    finally:
        has_failed = run.error is not None
        if run.restored is None:
            run.close()
        else:
            await sync_to_async(run.close)()  # where it was brought back
        await _tidy_shared(stage, has_failed)


async def _call(stage: Stage, run: LoopRun, args: Any, kwargs: Any) -> None:
    stage.enter(run)
    try:
        run.is_armed = True
        run.value = await run.plan.function(*args, **kwargs)
        run.has_returned = True
    except BaseException as error:
        run.error = _unwrapped(error)
    run.is_armed = False
    stage.leave(run)
    while run.task is not None and run.task.cancelling():
        run.task.uncancel()


async def _end(stage: Stage, run: LoopRun) -> Finished:
    if announce.has_listeners(run):
        return await sync_to_async(stage.end)(run)
    return stage.end(run)


async def _tidy_shared(stage: Stage, has_failed: bool) -> None:
    """Clean up the thread that coroutines share for their database work: now and then, and after a failure."""
    now = time.monotonic()
    if not has_failed and now - stage.shared_tidied < _SHARED_TIDY:
        return
    stage.shared_tidied = now
    with contextlib.suppress(Exception):
        await sync_to_async(_tidy)()


def _tidy() -> None:
    cleanup.tidy(cleanup.open_transactions())


def _unwrapped(error: BaseException) -> BaseException:
    """A coroutine can't raise StopIteration: Python turns it into a RuntimeError."""
    if type(error) is RuntimeError and isinstance(error.__cause__, StopIteration):
        return error.__cause__
    return error


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

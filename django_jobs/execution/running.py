"""One attempt while it runs in this process, and how it is interrupted without ever hitting what comes after it.

State model of a run in a thread: *armed* from just before the task's function is called until just after it came back.
Only an armed run is interrupted, and both the interruption (look at `armed`, then `PyThreadState_SetAsyncExc`) and the
disarming (clear `armed`, then take back what is pending) are done under the run's lock. So:

* before the disarming an interruption reaches the function, or the few lines around it that expect one;
* after it there is none pending, and none can come: the pool's code and the next job never see one.

CPython raises such an exception at a call, at the start of a function or at a backward jump, never inside one C call: a
lock taken by `with` is always given back, and `disarm()` may be interrupted and simply called again. Each kind of stop
(out of time, cancelled) happens at most once in a run, so at most two interruptions can get in its way.

The exception that is raised is a class made for that one stop; it notes that it was really raised, as one that was taken
back while still pending has not stopped anybody: then the function returned in time, and what it returned stands.

Code of ours that a task calls (its context) may hold a lock that the whole process needs: it is run between `hold_off()` and
`let_in()`, and an interruption that comes meanwhile is raised after it.

A run on an event loop is stopped by `Task.cancel()` on that loop, in the task that holds nothing but the job's coroutine.
"""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import logging
import signal
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from ..exceptions import Interruption, JobCancelled, JobTimeout
from ..outcomes import Attempt
from .results import result_for

if TYPE_CHECKING:
    from .context import JobContext
    from .plan import Plan

logger = logging.getLogger("django_jobs.execution")

#: The run that the current code belongs to.
current_run: contextvars.ContextVar[Run | None] = contextvars.ContextVar("django_jobs_run", default=None)


def retry_also(classes: type[BaseException] | tuple[type[BaseException], ...]) -> None:
    """Have the run that this code belongs to retried for these exceptions, beside those that its task declares."""
    run = current_run.get()
    if run is not None and classes:
        more = classes if isinstance(classes, tuple) else (classes,)
        run.plan = replace(run.plan, retry_for=(*run.plan.retry_for, *more))


CANCELLED = "cancelled"
#: The loop that the coroutine runs on is being closed.
STOPPED = "stopped"


#: A signal with a Python handler, in a process whose main thread runs a job: it makes that thread's system calls return.
wake_signal: int | None = None


class RunInfo(NamedTuple):
    """What runs in this process now. `started` is by the monotonic clock; `thread` is None for a coroutine not begun."""

    token: UUID
    job_id: UUID
    task: str
    thread: int
    native_thread: int
    started: float


class Stop:
    """One request to stop a run. `limit` is "timeout", "heartbeat_timeout", "cpu_timeout" or `CANCELLED`."""

    __slots__ = ("is_delivered", "limit", "reason")

    def __init__(self, limit: str, reason: str) -> None:
        self.limit, self.reason = limit, reason
        self.is_delivered = False


class Run:
    """What is known of an attempt while its function runs. `value` or `error` is set once it has come back."""

    __slots__ = (
        "_task_result",
        "attempt",
        "context",
        "cpu_clock",
        "cpu_limit",
        "deadline",
        "error",
        "has_ended",
        "has_returned",
        "ident",
        "is_armed",
        "is_refused",
        "last_beat",
        "lock",
        "logs",
        "native_id",
        "on_beat",
        "plan",
        "restored",
        "result",
        "seconds",
        "started",
        "stops",
        "value",
    )

    def __init__(self, attempt: Attempt, plan: Plan) -> None:
        self.attempt, self.plan = attempt, plan
        self.lock = threading.Lock()
        self.is_armed = self.has_returned = self.has_ended = False
        self.is_refused = False  # an atomic job's success: the attempt is no longer ours, or is to be cancelled
        self.value: Any = None
        self.error: BaseException | None = None
        self.stops: tuple[Stop, ...] = ()
        self.ident = threading.get_ident()
        self.native_id = 0
        self.started = self.last_beat = 0.0
        self.seconds: float | None = None
        self.deadline: float | None = None
        self.cpu_clock: int | None = None
        self.cpu_limit: float | None = None
        self.context: JobContext | None = None
        self.result: Any = None
        self._task_result: Any = None
        self.logs: Any = None
        self.restored: ExitStack | None = None
        self.on_beat: Callable[[Attempt], None] | None = None

    @property
    def cancellation(self) -> Stop | None:
        """The request to cancel this run, if there was one."""
        for stop in self.stops:
            if stop.limit == CANCELLED:
                return stop
        return None

    @property
    def stop(self) -> Stop | None:
        """The stop that reached the function; a cancellation wins over a time-out, which might be retried."""
        found = None
        for stop in self.stops:
            if stop.is_delivered:
                if stop.limit == CANCELLED:
                    return stop
                found = found or stop
        return found

    def task_result(self) -> Any:
        """Return the `TaskResult` of this attempt, made when it is first asked for."""
        if self._task_result is None:
            self._task_result = result_for(self.plan, self.attempt)
        return self._task_result

    def beat(self) -> None:
        """Note a sign of life of the task."""
        self.last_beat = time.monotonic()
        if self.on_beat is not None:
            self.on_beat(self.attempt)

    def close(self) -> None:
        """Let go of what the task had in hand, and of what was brought back for it."""
        self.has_ended = True
        self.error = self.value = None
        if self.restored is not None:
            try:
                self.restored.close()
            except Exception:
                logger.exception("Taking back what job %s found around it failed.", self.attempt.job_id)

    def hold_off(self) -> bool:
        """Put off interruptions until `let_in()`. Return False where there is nothing to put off."""
        return False

    def let_in(self) -> None:
        """End what `hold_off()` began."""

    def info(self) -> RunInfo:
        """Describe this run for the worker."""
        return RunInfo(self.attempt.token, self.attempt.job_id, self.attempt.task, self.ident, self.native_id, self.started)

    def stack(self, frames: Mapping[int, FrameType]) -> list[str]:
        """Return where the function is, as lines of text."""
        frame = frames.get(self.ident)
        return traceback.format_stack(frame) if frame is not None else []

    def interrupt(self, limit: str, reason: str) -> bool:
        """Stop the function because of `limit`. Return False if it is not running (any more), or was stopped so before."""
        with self.lock:
            if not self.is_armed or any((stop.limit == CANCELLED) == (limit == CANCELLED) for stop in self.stops):
                return False
            stop = Stop(limit, reason)
            self.stops = (*self.stops, stop)
            return self._deliver(stop)

    def _deliver(self, stop: Stop) -> bool:
        raise NotImplementedError


class ThreadRun(Run):
    """A run in the thread that made this object."""

    __slots__ = ("_deferred", "_holds")

    def __init__(self, attempt: Attempt, plan: Plan) -> None:
        super().__init__(attempt, plan)
        self._holds = 0
        self._deferred: Stop | None = None

    def hold_off(self) -> bool:
        """Put off interruptions until `let_in`, if this is the run's own thread; none is pending after this."""
        if threading.get_ident() != self.ident:
            return False
        with self.lock:
            self._holds += 1
        return True

    def let_in(self) -> None:
        """Raise what was put off."""
        with self.lock:
            self._holds -= 1
            stop = self._deferred
            if stop is not None and not self._holds and self.is_armed:
                self._deferred = None
                self._raise(stop)

    def call(self, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        """Call `function`; set `value` or `error`. Never raises, and leaves no interruption pending.

        Every call up to the last `disarm()` stands in a `try`; between one `try` and the next, and in the `except` clauses,
        there is neither a call nor a backward jump: no place from which an interruption could escape.
        """
        late = later = latest = None
        try:
            try:
                self.is_armed = True
                self.value = function(*args, **kwargs)
                self.has_returned = True
            except BaseException as error:
                self.error = error
            self.disarm()
        except BaseException as error:
            late = error
        if self.is_armed:
            try:
                self.disarm()
            except BaseException as error:
                later = error
        if self.is_armed:
            try:
                self.disarm()
            except BaseException as error:
                latest = error
        if late is not None:
            self._note_late(late, later, latest)
            late = later = latest = None  # their tracebacks hold this frame

    def disarm(self) -> None:
        """Let nobody interrupt this run from now on, and take back an interruption that is still pending."""
        with self.lock:
            self.is_armed = False
            if self.stops:
                _set_async_exception(self.ident, None)

    def _note_late(self, *errors: BaseException | None) -> None:
        """See to interruptions raised after the function had come back: what it returned or raised stands."""
        for error in errors:
            stop = getattr(error, "stop", None)
            if isinstance(stop, Stop):
                stop.is_delivered = False
            elif error is not None and not self.has_returned and self.error is None:
                self.error = error

    def _deliver(self, stop: Stop) -> bool:
        if self._holds:
            self._deferred = stop
            return True
        return self._raise(stop)

    def _raise(self, stop: Stop) -> bool:
        is_set = _set_async_exception(self.ident, _interruption(stop)) == 1
        if wake_signal is not None and self.ident == threading.main_thread().ident:
            signal.pthread_kill(self.ident, wake_signal)
        return is_set


class LoopRun(Run):
    """A run of a coroutine, as a task of its own on `loop`."""

    __slots__ = ("loop", "task")

    def __init__(self, attempt: Attempt, plan: Plan, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(attempt, plan)
        self.loop = loop
        self.task: asyncio.Task[Any] | None = None

    def stack(self, frames: Mapping[int, FrameType]) -> list[str]:
        """Return where the coroutine waits."""
        lines: list[str] = []
        link: Any = self.task.get_coro() if self.task is not None else None
        while link is not None:
            frame = getattr(link, "cr_frame", None) or getattr(link, "gi_frame", None)
            if frame is not None:
                lines += traceback.format_stack(frame, limit=1)
            link = getattr(link, "cr_await", None) or getattr(link, "gi_yieldfrom", None)
        return lines

    def _deliver(self, stop: Stop) -> bool:
        try:
            self.loop.call_soon_threadsafe(self._cancel, stop)
        except RuntimeError:  # the loop is closed: nothing of it runs
            return False
        return True

    def _cancel(self, stop: Stop) -> None:
        if self.is_armed and self.task is not None:
            stop.is_delivered = self.task.cancel(stop.reason)


def _interruption(stop: Stop) -> type[Interruption]:
    """Return a class to raise for `stop`: to the task it is `JobTimeout` or `JobCancelled`, with the reason as its text."""
    base = JobCancelled if stop.limit == CANCELLED else JobTimeout

    def __init__(self: BaseException, *_args: object) -> None:
        stop.is_delivered = True
        BaseException.__init__(self, stop.reason)

    namespace = {"__init__": __init__, "__module__": base.__module__, "__qualname__": base.__qualname__}
    return type(base.__name__, (base,), {**namespace, "limit": stop.limit, "stop": stop})


def _set_async_exception(ident: int, exception: type[BaseException] | None) -> int:
    """Make the thread `ident` raise `exception` at its next bytecode; None takes back one that is pending."""
    value = None if exception is None else ctypes.py_object(exception)
    return int(ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), value))

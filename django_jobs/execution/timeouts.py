"""The watchdog: one thread per process that stops functions which run out of time.

It looks at the runs it was given, never at rows. A soft stop is all that it can do: `JobTimeout` is raised in the thread at
its next bytecode, or the coroutine is cancelled, and the sub-processes that the thread started are ended, so that a thread
that waits for one comes back. A function that stays in native code is ended by whoever supervises the process, who reads the
board; as is this whole process when such code keeps the interpreter's lock, since this thread does not run then either.

Runs without a limit never come here, and one with a limit costs two look-ups: the thread sleeps until the earliest limit of
the runs that it saw, however many came and went meanwhile.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from typing import Final

from ..durations import format_duration
from ..outcomes import Attempt
from .processes import CHILD_GRACE, Doomed, children_of_thread
from .running import CANCELLED, Run, ThreadRun

logger = logging.getLogger("django_jobs.execution")

#: Seconds between two looks at least, however close to each other the limits lie.
_MIN_PAUSE: Final = 0.002


class Watchdog:
    """Stops runs that are out of time. Starts its thread when it is first needed; `stop()` ends that.

    `cpu_clock` is the clock for `cpu_timeout`; without it each thread's own.
    """

    def __init__(self, *, cpu_clock: int | None = None) -> None:
        self._cpu_clock = cpu_clock
        self._runs: dict[int, Run] = {}
        self._doomed: list[Doomed] = []
        self._condition = threading.Condition()
        self._wake_at = math.inf
        self._is_stopping = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, unless it runs."""
        with self._condition:
            if self._thread is None:
                self._is_stopping = False
                self._thread = threading.Thread(target=self._watch, name="job-watchdog", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """End the thread, and sub-processes that are to be killed right now."""
        with self._condition:
            thread, self._thread = self._thread, None
            self._is_stopping = True
            self._condition.notify()
        if thread is not None:
            thread.join(CHILD_GRACE)
        for doomed in self._doomed:
            doomed.kill()

    def watch(self, run: Run) -> None:
        """Stop `run`, which begins now, when it reaches one of its limits."""
        attempt = run.attempt
        first = min(attempt.timeout or math.inf, attempt.heartbeat_timeout or math.inf)
        if attempt.timeout:
            run.deadline = run.started + attempt.timeout
        if attempt.cpu_timeout and isinstance(run, ThreadRun):
            run.cpu_clock = self._cpu_clock or time.pthread_getcpuclockid(run.ident)
            run.cpu_limit = time.clock_gettime(run.cpu_clock) + attempt.cpu_timeout
            first = min(first, attempt.cpu_timeout)
        if first == math.inf:
            return
        if self._thread is None:
            self.start()
        self._runs[id(run)] = run
        # Read without the lock: the thread sets `_wake_at` to infinity before it looks at `_runs`. It sees it or is woken.
        if run.started + first < self._wake_at:
            with self._condition:
                self._condition.notify()

    def forget(self, run: Run) -> None:
        """Leave `run` alone: its function has come back. Nothing else runs in its thread yet."""
        self._runs.pop(id(run), None)
        if run.stops:
            self.end_children(run)

    def end_children(self, run: Run) -> None:
        """Send SIGTERM to the sub-processes that the thread of `run` started since it began, and SIGKILL a second later."""
        if not isinstance(run, ThreadRun):
            return
        children = children_of_thread(run.native_id, run.started)
        if not children:
            return
        doomed = Doomed(children, lambda: run.seconds is not None)
        with self._condition:
            self._doomed.append(doomed)
            self._condition.notify()
        self.start()

    def _watch(self) -> None:
        while True:
            try:
                with self._condition:
                    self._wake_at = math.inf
                    now = time.monotonic()
                    late, due = self._late(now)
                    if not late:
                        self._wake_at = due
                        if self._is_stopping:
                            return
                        pause = min(due - now, threading.TIMEOUT_MAX)
                        self._condition.wait(max(pause, _MIN_PAUSE) if pause < threading.TIMEOUT_MAX else None)
                        continue
                for run, limit in late:
                    self._stop_run(run, limit)
            except Exception:
                logger.exception("The watchdog stumbled; it goes on.")
            time.sleep(_MIN_PAUSE)

    def _late(self, now: float) -> tuple[list[tuple[Run, str]], float]:
        """Return the runs that are out of time, each with its limit; and when to look again."""
        late: list[tuple[Run, str]] = []
        due = math.inf
        for run in list(self._runs.values()):
            if any(stop.limit != CANCELLED for stop in run.stops):
                continue  # told already: more it can't be
            limit, next_due = _first_limit(run, now)
            if next_due <= now:
                late.append((run, limit))
            due = min(due, next_due)
        self._doomed = [doomed for doomed in self._doomed if doomed.advance(now)]
        return late, min([due, *(doomed.due for doomed in self._doomed)])

    def _stop_run(self, run: Run, limit: str) -> None:
        if not run.interrupt(limit, reason(limit, run.attempt)):
            return  # it comes back this moment, or has not begun: looked at again soon
        logger.info("Job %s (%s): %s.", run.attempt.job_id, run.attempt.task, reason(limit, run.attempt))
        self.end_children(run)


def reason(limit: str, attempt: Attempt) -> str:
    """Say for people which limit an attempt has reached."""
    seconds = format_duration(getattr(attempt, limit))
    match limit:
        case "heartbeat_timeout":
            return f"no heartbeat for {seconds}"
        case "cpu_timeout":
            return f"used {seconds} of CPU time"
        case _:
            return f"out of time after {seconds}"


def _first_limit(run: Run, now: float) -> tuple[str, float]:
    """Return the limit that `run` reaches first, and when that may be."""
    limit, due = "timeout", math.inf if run.deadline is None else run.deadline
    attempt = run.attempt
    if attempt.heartbeat_timeout and (silent := run.last_beat + attempt.heartbeat_timeout) < due:
        limit, due = "heartbeat_timeout", silent
    if run.cpu_clock is not None and run.cpu_limit is not None:
        # A thread can't use more than a second of CPU time in a second.
        spent = now + run.cpu_limit - time.clock_gettime(run.cpu_clock)
        if spent < due:
            limit, due = "cpu_timeout", spent
    return limit, due

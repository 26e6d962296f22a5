"""`Worker`: claims jobs of one queue over HTTP and runs a handler for each, until it is told to stop."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from .api import Client
from .attempt import Attempt, Handler
from .errors import ApiError, LeaseLost, Throttled, Unavailable
from .jobs import ClaimedJob
from .wire import Pauses

logger = logging.getLogger("django_jobs.client")

#: How long handlers that were told to end at once may take for it, before the worker leaves them. Seconds.
_LAST_SECONDS: Final = 5.0
#: How soon a stop is noticed by what waits. Seconds.
_LOOK_SECONDS: Final = 0.1


class Worker:
    """Runs `handler(job, context)` for jobs of `queue`, `concurrency` at once, each in a thread of its own.

    What the handler returns is the job's output (None leaves what it saved); an exception is a failure, tried again while
    attempts remain; `Fail` is one for good. While it runs, heartbeats are sent at a third of the job's shortest limit, and at
    least every `heartbeat_every` seconds, by which a cancel is noticed: then `context.is_cancelled` is true and
    `context.check()` raises; what the handler returns after that is not recorded.

    `wait`: seconds of one long poll; an idle worker needs as long to stop. `stop_timeout`: seconds that running handlers have
    after SIGTERM, SIGINT or `stop()`. `pauses`: the shortest and longest pause between looks that find nothing, or no server.
    """

    def __init__(
        self,
        client: Client,
        queue: str,
        handler: Handler,
        *,
        concurrency: int = 1,
        name: str = "",
        wait: float = 10.0,
        stop_timeout: float = 30.0,
        heartbeat_every: float = 10.0,
        pauses: tuple[float, float] = (0.5, 15.0),
    ) -> None:
        if concurrency < 1:
            raise ValueError("concurrency must be 1 or more")
        self.client, self.queue, self.handler = client, queue, handler
        self.concurrency, self.wait, self.stop_timeout, self.heartbeat_every = concurrency, wait, stop_timeout, heartbeat_every
        self.name = name or f"{socket.gethostname()}-{os.getpid()}"
        self._empty, self._away = Pauses(*pauses), Pauses(*pauses)
        self._running: dict[str, Attempt] = {}
        self._changed = threading.Condition()
        # Plain flags, looked at often: a handler of signals that takes a lock, as of an Event, can come to wait for itself.
        self._stopping = self._at_once = False

    def run(self, *, drain: bool = False) -> None:
        """Work until stopped; with `drain` until nothing is left to claim. In the main thread it minds SIGTERM and SIGINT: the
        first stops it, the second at once.

        Raises `ApiError` if the server refuses to hand out jobs at all (no such queue, a token without the right), after what
        runs has ended. Handlers that did not end within `stop_timeout` are left behind, so end the program when this returns.
        """
        with self._signals():
            try:
                self._work(drain)
            finally:
                self._finish()

    def stop(self, *, now: bool = False) -> None:
        """Claim nothing more, finish what runs within `stop_timeout` (or not at all, if `now`), and return from `run`."""
        self._at_once = self._at_once or now
        self._stopping = True

    # --- claim ---

    def _work(self, drain: bool) -> None:
        while free := self._free():
            asked = time.monotonic()
            try:
                jobs = self.client.claim(self.queue, limit=free, wait=0.0 if drain else self.wait, worker=self.name, retry=False)
            except ApiError as error:
                self._pause(self._back_off(error))
                continue
            self._away.reset()
            for job in jobs:
                self._start(job, asked)
            if jobs:
                self._empty.reset()
            elif drain and not self._running:
                return
            elif drain or time.monotonic() - asked < self.wait / 2:  # a server that does not let us wait
                self._pause(self._empty.next())

    def _pause(self, seconds: float) -> None:
        limit = time.monotonic() + seconds
        while not self._stopping and (left := limit - time.monotonic()) > 0:
            time.sleep(min(left, _LOOK_SECONDS))

    def _free(self) -> int:
        """Wait for a free slot, and return how many there are; 0 when it is time to stop."""
        while not self._stopping:
            with self._changed:
                if free := self.concurrency - len(self._running):
                    return free
                self._changed.wait(_LOOK_SECONDS)
        return 0

    def _back_off(self, error: ApiError) -> float:
        """Return how long to wait before the next claim; raise what waiting does not mend."""
        passing = isinstance(error, (Unavailable, Throttled)) or error.code.startswith("http_")
        if not passing:
            raise error
        pause = self._away.next(error.retry_after)
        logger.warning("No jobs can be claimed, next try in %.1f s: %s", pause, error)
        return pause

    def _start(self, job: ClaimedJob, claimed_at: float) -> None:
        if self._stopping:  # the stop came while the server made up its mind
            self._hand_back(job)
            return
        attempt = Attempt(
            self.client, job, self.handler, claimed_at=claimed_at, heartbeat_every=self.heartbeat_every, ended=self._note_end
        )
        with self._changed:
            self._running[job.token] = attempt
        attempt.start()

    def _note_end(self, attempt: Attempt) -> None:
        with self._changed:
            self._running.pop(attempt.job.token, None)
            self._changed.notify_all()

    # --- stop ---

    def _finish(self) -> None:
        self._stopping = True
        for attempt in self._left():
            attempt.context.stop()
        self._wait_for_ends(self.stop_timeout, unless_at_once=True)
        for attempt in self._left():
            attempt.abandon()
        self._wait_for_ends(_LAST_SECONDS)
        for attempt in self._left():
            logger.error("Job %s: its handler does not end; it is left behind.", attempt.job.id)
            if attempt.context.lease_ends_at is None:
                self._hand_back(attempt.job)  # else the lease lapses, and nobody runs it before

    def _left(self) -> list[Attempt]:
        with self._changed:
            return list(self._running.values())

    def _wait_for_ends(self, seconds: float, *, unless_at_once: bool = False) -> None:
        limit = time.monotonic() + seconds
        while (left := limit - time.monotonic()) > 0 and not (unless_at_once and self._at_once):
            with self._changed:
                if not self._running:
                    return
                self._changed.wait(min(left, _LOOK_SECONDS))

    def _hand_back(self, job: ClaimedJob) -> None:
        try:
            self.client.hand_back(job)
        except LeaseLost:
            pass  # it is elsewhere already
        except ApiError as error:
            logger.error("Job %s could not be handed back; it runs again when its lease lapses: %s", job.id, error)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def told(number: int, frame: Any) -> None:
            self.stop(now=self._stopping)

        before = {number: signal.signal(number, told) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

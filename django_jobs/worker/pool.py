"""The pool: threads, and coroutines on one loop, that run attempts; meets the control loop in two in-process queues.

`put` hands attempts in, `take_finished` takes them out. An attempt that no slot has begun can be taken back at any time;
beginning one and taking it back are both a `popleft` of the same deque, so exactly one of them gets it.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from django_jobs.outcomes import Attempt, Finished

logger = logging.getLogger("django_jobs.worker")


class Runs(Protocol):
    """What the pool asks of an executor."""

    def run(self, attempt: Attempt) -> Finished: ...

    async def arun(self, attempt: Attempt) -> Finished: ...

    def is_async(self, attempt: Attempt) -> bool: ...


class Pool:
    """`threads` slots for functions, `async_jobs` for coroutines. `on_finished` is called, rarely, to wake the control loop."""

    def __init__(self, executor: Runs, *, threads: int, async_jobs: int, on_finished: Callable[[], None]) -> None:
        self.executor = executor
        self.threads = threads
        self.async_jobs = async_jobs
        self._on_finished = on_finished
        self._tickets: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._inbox: deque[tuple[float, Attempt]] = deque()
        self._async_inbox: deque[tuple[float, Attempt]] = deque()
        self._finished: deque[Finished] = deque()
        self._running = 0
        self._async_running = 0
        self._count_lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing = False
        #: Seconds that a job takes, as a moving average; None while nothing has finished.
        self.mean_seconds: float | None = None
        self._finished_at = 0.0

    def start(self) -> None:
        """Start the threads and, where coroutines may run, the loop."""
        for number in range(self.threads):
            thread = threading.Thread(target=self._work, name=f"job-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)
        if self.async_jobs:
            ready = threading.Event()
            thread = threading.Thread(target=self._run_loop, args=(ready,), name="job-loop", daemon=True)
            thread.start()
            self._threads.append(thread)
            ready.wait()

    # -- asked by the control loop

    def put(self, attempts: Iterable[Attempt]) -> None:
        """Hand in attempts whose lock rows are held."""
        now = time.monotonic()
        has_async = False
        for attempt in attempts:
            if self.async_jobs and self.executor.is_async(attempt):
                self._async_inbox.append((now, attempt))
                has_async = True
            else:
                self._inbox.append((now, attempt))
                self._tickets.put(True)
        if has_async and self._loop is not None:
            self._loop.call_soon_threadsafe(self._fill)

    def take_finished(self) -> list[Finished]:
        """Return what has finished since the last call."""
        taken = []
        while self._finished:
            taken.append(self._finished.popleft())
        return taken

    def take_back(self, older_than: float = 0.0) -> list[Attempt]:
        """Take back attempts that have waited for `older_than` seconds without a slot (0: all)."""
        limit = time.monotonic() - older_than
        taken = []
        for inbox in (self._inbox, self._async_inbox):
            while inbox:
                try:
                    since, _ = inbox[0]
                    if since > limit:
                        break
                    popped = inbox.popleft()
                except IndexError:
                    break
                taken.append(popped[1])
        return taken

    @property
    def has_finished(self) -> bool:
        """Whether `take_finished` would return something."""
        return bool(self._finished)

    @property
    def waiting(self) -> int:
        """How many attempts wait for a thread."""
        return len(self._inbox)

    @property
    def free_threads(self) -> int:
        """How many threads have nothing to do, what waits for them counted as begun."""
        return max(0, self.threads - self._running - len(self._inbox))

    @property
    def free_async(self) -> int:
        """How many more coroutines may run."""
        return max(0, self.async_jobs - self._async_running - len(self._async_inbox))

    @property
    def running(self) -> int:
        """How many functions run now."""
        return self._running + self._async_running

    def lookahead(self, seconds: float, most: int) -> int:
        """Return how many attempts, beyond free threads, are likely to begin within `seconds`.

        0 while nothing finishes, however quick earlier jobs were: to claim ahead again and again would keep others from them.
        """
        if self.mean_seconds is None or time.monotonic() - self._finished_at > seconds:
            return 0
        return min(most, int(self.threads * seconds / max(self.mean_seconds, 0.000_1)))

    def close(self) -> None:
        """Ask the threads to end once they are idle. Does not wait."""
        self._closing = True
        for _ in self._threads:
            self._tickets.put(False)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)

    # -- the slots

    def _work(self) -> None:
        run, inbox, tickets = self.executor.run, self._inbox, self._tickets
        while tickets.get():
            with self._count_lock:
                try:
                    _, attempt = inbox.popleft()
                except IndexError:
                    continue  # taken back
                self._running += 1
            finished = run(attempt)
            with self._count_lock:
                self._running -= 1
            self._finish(finished)

    def _finish(self, finished: Finished) -> None:
        self._finished_at = time.monotonic()
        seconds = finished.run_seconds
        if seconds is not None:
            mean = self.mean_seconds
            self.mean_seconds = seconds if mean is None else 0.9 * mean + 0.1 * seconds
        self._finished.append(finished)
        # While enough is left to begin, results may pile up a little: one cycle then records and claims many.
        if len(self._inbox) <= self.threads:
            self._on_finished()

    def _run_loop(self, ready: threading.Event) -> None:
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        self._loop = loop
        self._tasks: set[asyncio.Task[None]] = set()
        loop.call_soon(ready.set)
        try:
            while not self._closing:
                try:
                    loop.run_forever()  # comes back early if a job has stopped the loop, which is everybody's
                except (SystemExit, KeyboardInterrupt) as error:
                    # asyncio lets these out, whoever raised them: a task that a job has made, a callback. Nobody else is harmed.
                    logger.error("A job raised %s on the loop, which goes on.", type(error).__name__, exc_info=error)
        finally:
            loop.close()

    def _fill(self) -> None:
        """Start coroutines while there is room; runs on the loop."""
        while self._async_running < self.async_jobs:
            try:
                _, attempt = self._async_inbox.popleft()
            except IndexError:
                return
            self._async_running += 1
            assert self._loop is not None
            task = self._loop.create_task(self._arun(attempt))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _arun(self, attempt: Attempt) -> None:
        finished = await self.executor.arun(attempt)
        self._async_running -= 1
        self._finish(finished)
        self._fill()

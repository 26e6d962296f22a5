"""Claims that wait: each in the thread that its server gave the request, all told by one thread of this process.

A `Hub` (one a database) has one listener: a thread that hears of new jobs by LISTEN where the database has it, and that asks for
all waiting queues in one query each POLL_INTERVAL anyhow. It wakes one waiting claim a queue; whoever then finds jobs wakes the
next one, so that a burst is shared out and a single job wakes a single claim. A waiting claim holds no database connection.
The thread starts with the first claim that waits, ends when nobody has waited for a while, and is started anew in a forked child;
claims see to it now and then that it lives.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from django.db import DatabaseError, InterfaceError, connections

from .. import wakeup
from ..conf import direct_database, jobs_settings
from ..models import Job
from ..statuses import Status

logger = logging.getLogger("django_jobs.api")

#: The thread ends when nobody has waited for so long. Seconds.
IDLE_SECONDS: Final = 10.0
#: A waiting claim makes sure that the thread lives so often. Seconds.
CHECK_SECONDS: Final = 5.0
#: A lost LISTEN is opened again after so long. Seconds.
RETRY_SECONDS: Final = 5.0
_EVERY_QUEUE: Final = "*"


class Waiter:
    """A claim that waits."""

    __slots__ = ("event", "queue")

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.event = threading.Event()


class Hub:
    """The waiting claims of this process on one database, and the thread that wakes them."""

    def __init__(self, using: str) -> None:
        self.using = using
        self._lock = threading.Lock()
        self._waiters: list[Waiter] = []
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._idle_since = time.monotonic()

    # For the claims.

    @contextmanager
    def waiting(self, queue: str) -> Iterator[Waiter | None]:
        """Wait among the others in the block; None if as many wait as may."""
        waiter = self._join(queue)
        try:
            yield waiter
        finally:
            if waiter is not None and self._leave(waiter):
                self.wake(queue)  # it was woken too late to look: somebody else should

    def wait(self, waiter: Waiter, seconds: float) -> bool:
        """Wait until it is worth while to look, or for `seconds`: return whether it is. Holds no database connection."""
        for connection in connections.all(initialized_only=True):
            if not connection.in_atomic_block:
                connection.close()
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if waiter.event.wait(min(left, CHECK_SECONDS)):
                waiter.event.clear()
                return True
            if self._start():
                return True  # the thread was gone: who knows since when
        return False

    def wake(self, queue: str) -> None:
        """Wake one claim that waits for `queue` and is not woken yet, the one that has waited longest."""
        with self._lock:
            for waiter in self._waiters:
                if waiter.queue == queue and not waiter.event.is_set():
                    waiter.event.set()
                    return

    def stop(self) -> None:
        """End the thread, and wait for that; it starts again with the next claim that waits."""
        with self._lock:
            thread = self._thread
            self._stopping.set()
        if thread is not None:
            thread.join(10.0)

    @property
    def count(self) -> int:
        """How many wait."""
        return len(self._waiters)

    def _join(self, queue: str) -> Waiter | None:
        waiter = Waiter(queue)
        with self._lock:
            if len(self._waiters) >= jobs_settings().api_waiting_max:
                return None
            self._waiters.append(waiter)
        self._start()
        return waiter

    def _leave(self, waiter: Waiter) -> bool:
        with self._lock:
            self._waiters.remove(waiter)
            self._idle_since = time.monotonic()
            return waiter.event.is_set()

    def _start(self) -> bool:
        """Start the thread unless it lives; return whether it was started."""
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                return False
            self._stopping.clear()
            self._thread = threading.Thread(target=self._run, name=f"django_jobs long poll {self.using}", daemon=True)
            self._thread.start()
            return True

    # The thread.

    def _run(self) -> None:
        ear = _Ear(self.using)
        try:
            while self._is_wanted():
                ear.open()
                self._look()
                self._listen(ear, time.monotonic() + jobs_settings().poll_interval)
        except Exception:
            logger.exception("The thread that wakes waiting claims has ended: the next one starts it again.")
        finally:
            ear.close()
            connections.close_all()

    def _is_wanted(self) -> bool:
        with self._lock:
            is_idle = not self._waiters and time.monotonic() - self._idle_since > IDLE_SECONDS
            if is_idle or self._stopping.is_set():
                self._thread = None
                return False
            return True

    def _look(self) -> None:
        """Wake a claim for each waiting queue in which a job is ready. Index django_jobs_claim_queue."""
        queues = self._queues()
        if not queues:
            return
        try:
            ready = Job.objects.using(self.using).filter(status=Status.READY, parked="", is_http=True, queue__in=sorted(queues))
            found = set(ready.order_by().values_list("queue", flat=True).distinct())
        except (DatabaseError, InterfaceError) as error:
            logger.warning("Waiting claims can't be looked after at the moment: %s", error)
            with contextlib.suppress(DatabaseError, InterfaceError):
                connections[self.using].close()
            return
        for queue in found:
            self.wake(queue)

    def _listen(self, ear: _Ear, until: float) -> None:
        """Wake claims as notifications come, until the next look is due: soon after one, to find what it does not tell of."""
        while (left := until - time.monotonic()) > 0 and not self._stopping.is_set():
            queue = ear.hear(min(left, 1.0), self._stopping)
            if queue is None:
                continue
            for name in self._queues() if queue == _EVERY_QUEUE else {queue} & self._queues():
                self.wake(name)
                until = min(until, time.monotonic() + wakeup.SECOND_LOOK_SECONDS)

    def _queues(self) -> set[str]:
        with self._lock:
            return {waiter.queue for waiter in self._waiters}


class _Ear:
    """Hears notifications, where there are any; keeps silent for as long as it is asked elsewhere."""

    def __init__(self, using: str) -> None:
        self.alias = direct_database(using)
        self._listener: wakeup.Listener | None = None
        self._again = 0.0

    def open(self) -> None:
        """Listen, if that is possible and not done yet."""
        if self._listener is not None or time.monotonic() < self._again:
            return
        self._again = time.monotonic() + RETRY_SECONDS
        if not (jobs_settings().listen and wakeup.can_listen_alias(self.alias)):
            return
        listener = wakeup.Listener(self.alias)
        try:
            listener.open()
        except (DatabaseError, InterfaceError) as error:
            logger.warning("The API can't listen for new jobs, and polls instead: %s", error)
            listener.close()
            return
        self._listener = listener

    def hear(self, seconds: float, stopping: threading.Event) -> str | None:
        """Return the queue of the next notification; None if there is none within `seconds`."""
        if self._listener is None:
            stopping.wait(seconds)
            return None
        try:
            return next(iter(self._listener.wait(seconds)), None)
        except Exception as error:  # the driver's own errors, too: the session is lost
            logger.warning("The API has lost its session that listens for new jobs, and polls until it is back: %s", error)
            self.close()
            return None

    def close(self) -> None:
        """Listen no more."""
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(Exception):
                listener.close()


_hubs: dict[str, Hub] = {}
_hubs_lock = threading.Lock()


def hub(using: str) -> Hub:
    """Return the hub of a database."""
    with _hubs_lock:
        if using not in _hubs:
            _hubs[using] = Hub(using)
        return _hubs[using]


def _forget() -> None:
    """A forked child has no thread, and nobody who waits; its parent's session is not its own to close."""
    global _hubs_lock
    _hubs_lock = threading.Lock()
    _hubs.clear()


os.register_at_fork(after_in_child=_forget)

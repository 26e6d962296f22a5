"""What a handler is given beside its job: how to show signs of life, and to learn that it shall stop."""

from __future__ import annotations

import threading
import time
from typing import Any, Final

from .api import Client
from .errors import LeaseLost
from .jobs import ClaimedJob

#: What `log` keeps of an attempt. Characters.
LOG_CHARS: Final = 64_000


class Context:
    """One attempt, seen from its handler. Its methods may be called from any thread of the handler's."""

    def __init__(self, client: Client, job: ClaimedJob, *, claimed_at: float | None = None) -> None:
        self.job = job
        self._client = client
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._progress: dict[str, Any] | None = None
        self._logs: list[str] = []
        self._log_chars = 0
        self._lost: LeaseLost | None = None
        self._ended = self._told = False
        self._stopping = threading.Event()
        # All by this machine's own clock, from when the request was sent: never later than the server's.
        self._claimed_at = self._confirmed_at = time.monotonic() if claimed_at is None else claimed_at

    # --- for the handler ---

    @property
    def attempt(self) -> int:
        """The number of the attempt, from 1."""
        return self.job.attempt

    @property
    def is_cancelled(self) -> bool:
        """Whether to stop, because the attempt is no longer this worker's: what it does now is not recorded."""
        self._told = self._told or self._lost is not None
        return self._told

    @property
    def is_stopping(self) -> bool:
        """Whether the worker was asked to stop: a long job may save what it has and end early."""
        return self._stopping.is_set()

    def check(self) -> None:
        """Raise `LeaseLost`, with the reason, if the attempt is no longer this worker's. Let it pass through the handler."""
        if self._lost is not None:
            self._told = True
            raise self._lost

    @property
    def remaining_seconds(self) -> float | None:
        """How long the attempt may go on; None = without limit. Heartbeats are sent by themselves and don't count here."""
        timeout = self.job.timeout
        return None if timeout is None else max(0.0, self._claimed_at + timeout - time.monotonic())

    def progress(self, done: float | None = None, total: float | None = None, message: str = "") -> None:
        """Show how far the job is. Sent in the background, about once a second: call it as often as you like."""
        with self._changed:
            self._progress = {"done": done, "total": total, "message": message}
            self._changed.notify_all()

    def save(self, output: Any) -> None:
        """Store a partial result at once, replacing the one before. Raises `LeaseLost`, `ApiError`."""
        self.check()
        sent = time.monotonic()
        try:
            self._client.save(self.job, output)
        except LeaseLost as error:
            self.lose(error)
            self._told = True
            raise
        self.confirm(sent)

    def log(self, line: object) -> None:
        """Keep a line with the attempt. What is more than fits is dropped, and a last line says so."""
        text = f"{line}\n"
        with self._lock:
            if self._log_chars <= LOG_CHARS:
                self._logs.append(text if self._log_chars + len(text) <= LOG_CHARS else "(more lines were dropped)\n")
            self._log_chars += len(text)

    # --- for the worker ---

    @property
    def logs(self) -> str:
        """What was logged so far."""
        with self._lock:
            return "".join(self._logs)

    @property
    def lost(self) -> LeaseLost | None:
        """Why the attempt is no longer this worker's, or None while it is."""
        return self._lost

    @property
    def told(self) -> bool:
        """Whether the handler has seen that the attempt is lost: then what it returns may be half of the work."""
        return self._told

    def lose(self, error: LeaseLost) -> None:
        """Tell the handler to stop."""
        with self._changed:
            self._lost = self._lost or error
            self._changed.notify_all()

    def stop(self) -> None:
        """Tell the handler that the worker was asked to stop."""
        self._stopping.set()

    def confirm(self, sent_at: float) -> None:
        """Note that a sign of life, sent at `sent_at` (monotonic seconds), was answered."""
        with self._lock:
            self._confirmed_at = max(self._confirmed_at, sent_at)

    @property
    def lease_ends_at(self) -> float | None:
        """The monotonic time at which the lease is over, unless another sign of life is answered; None = never."""
        timeout, silence = self.job.timeout, self.job.heartbeat_timeout
        ends = [self._claimed_at + timeout] if timeout else []
        ends += [self._confirmed_at + silence] if silence else []
        return min(ends, default=None)

    def take_progress(self) -> dict[str, Any] | None:
        """Return progress that has not been sent, once."""
        with self._lock:
            taken, self._progress = self._progress, None
            return taken

    def put_back(self, progress: dict[str, Any]) -> None:
        """Keep progress that could not be sent for the next time, unless there is newer."""
        with self._lock:
            self._progress = self._progress or progress

    def end(self) -> None:
        """Note that the handler has returned or raised."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def wait(self, until: float, *, or_progress: bool = False) -> bool:
        """Wait until a monotonic time, or until there is progress to send; return early and True once the attempt is over."""

        def over() -> bool:
            return self._ended or self._lost is not None

        with self._changed:
            seconds = max(0.0, until - time.monotonic())
            self._changed.wait_for(lambda: over() or (or_progress and self._progress is not None), seconds)
            return over()

"""What a running task can see of its job and say about it: `JobContext`, and `current_job()` to reach it from anywhere."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation

from .. import conf, serializers
from ..compat import TaskContext
from ..exceptions import AttemptLost
from ..outcomes import Attempt
from .running import Run, current_run


class Link(Protocol):
    """How a context reaches the worker. Every method may be called from any thread and returns at once."""

    def progress(self, attempt: Attempt, done: float | None, total: float | None, message: str) -> None:
        """Show how far the attempt is."""

    def heartbeat(self, attempt: Attempt) -> None:
        """Show that the attempt lives."""

    def save(self, attempt: Attempt, output: Any) -> None:
        """Store a partial result: JSON, checked already."""


#: Returns (id, result) of each parent of a job, in the order in which they were named.
ParentReader = Callable[[UUID], list[tuple[UUID, Any]]]

if TYPE_CHECKING:
    _TaskContext = TaskContext[..., Any]
else:
    _TaskContext = TaskContext  # generic in the type stubs only


class JobContext(_TaskContext):
    """The job that is running, as its task sees it.

    Every method may be called from any thread that the task started. Once the attempt is over they raise `AttemptLost`.
    """

    __slots__ = ("_link", "_parents", "_read_parents", "_run")
    _link: Link
    _run: Run
    _parents: list[Any] | None
    _read_parents: ParentReader | None

    def __init__(self, run: Run, link: Link, read_parents: ParentReader | None = None) -> None:
        # The base class is a frozen dataclass; its one field is computed here when it is first asked for.
        for name, value in (("_run", run), ("_link", link), ("_read_parents", read_parents), ("_parents", None)):
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        return f"<JobContext: job {self.job_id}, attempt {self.attempt}>"

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    @property
    def task_result(self) -> Any:  # type: ignore[override]
        """The `TaskResult` of this job, as Django's Tasks have it."""
        return self._run.task_result()

    @property
    def attempt(self) -> int:
        """The number of this attempt: 1 for the first."""
        return self._run.attempt.number

    @property
    def job_id(self) -> UUID:
        """The id of the job."""
        return self._run.attempt.job_id

    @property
    def token(self) -> UUID:
        """The token of this attempt: new for every attempt, so fit to tell a copy that was taken over from its successor."""
        return self._run.attempt.token

    @property
    def metadata(self) -> dict[str, Any]:
        """The job's metadata."""
        return self._run.attempt.metadata

    @property
    def batch_id(self) -> UUID | None:
        """The id of the batch that the job belongs to, if any; see `current_batch()`."""
        return self._run.attempt.batch

    @property
    def parent_results(self) -> list[Any]:
        """The results of the jobs that this one came after, in the order in which they were named; empty if there are none.

        None for a parent that did not succeed, where this job runs all the same. Read from the database when it is first asked
        for. Raises `SynchronousOnlyOperation` in a coroutine: there use `aparent_results()`.
        """
        if self._parents is None:
            try:
                object.__setattr__(self, "_parents", self._read_results())
            except SynchronousOnlyOperation:
                raise SynchronousOnlyOperation("In a coroutine, use `await context.aparent_results()`.") from None
        assert self._parents is not None
        return self._parents

    async def aparent_results(self) -> list[Any]:
        """Return what `parent_results` is, without blocking the event loop."""
        if self._parents is None:
            object.__setattr__(self, "_parents", await sync_to_async(self._read_results)())
        return self.parent_results

    def _read_results(self) -> list[Any]:
        attempt, read = self._run.attempt, self._read_parents
        if attempt.graph is None or read is None:
            return []
        self._check()
        return [value for _, value in read(attempt.job_id)]

    @property
    def is_cancelled(self) -> bool:
        """Whether somebody asked for this job to be cancelled."""
        return self._run.cancellation is not None

    @property
    def remaining_seconds(self) -> float | None:
        """Seconds until the attempt runs out of time, 0 if it has; None without a `timeout`."""
        deadline = self._run.deadline
        return None if deadline is None else max(0.0, deadline - time.monotonic())

    @property
    def expires(self) -> datetime | None:
        """When the attempt runs out of time, as an aware datetime by this host's clock; None without a `timeout`."""
        remaining = self.remaining_seconds
        return None if remaining is None else datetime.now(UTC) + timedelta(seconds=remaining)

    def heartbeat(self) -> None:
        """Say that the task is alive: a task with a `heartbeat_timeout` must do so at least that often."""
        self._check()
        with _Undisturbed(self._run):
            self._run.beat()
            self._link.heartbeat(self._run.attempt)

    def progress(self, done: float | None = None, total: float | None = None, message: str = "") -> None:
        """Show how far the task is; counts as a heartbeat. Raises `TypeError` or `ValueError` for what is no finite number."""
        self._check()
        for name, number in (("done", done), ("total", total)):
            if number is None:
                continue
            if isinstance(number, bool) or not isinstance(number, int | float):
                raise TypeError(f"progress(): {name} must be a number, not {type(number).__name__}")
            if not math.isfinite(number):
                raise ValueError(f"progress(): {name} must be finite, not {number}")
        text = serializers.clean_text(str(message), conf.jobs_settings().max_message_chars) if message else ""
        with _Undisturbed(self._run):
            self._run.beat()
            self._link.progress(self._run.attempt, done, total, text)

    def save(self, output: Any) -> None:
        """Store a partial result, replacing the one before. Raises `InvalidArguments` for what JSON can't hold."""
        self._check()
        value = serializers.to_json(output, serializer=self._run.attempt.serializer, path="output")
        with _Undisturbed(self._run):
            self._link.save(self._run.attempt, value)

    def log(self, message: object, *args: object) -> None:
        """Keep a line with the attempt. `args` are merged as `logging` does; what does not fit in is cut out of the middle."""
        self._check()
        text = str(message)
        if args:
            text = text % args
        run = self._run
        limit = conf.jobs_settings().max_log_chars
        with _Undisturbed(run):
            with run.lock:
                if run.logs is None:
                    run.logs = LogLines(limit)
            run.logs.add(f"{datetime.now(UTC).isoformat(timespec='milliseconds')} {text}")

    def _check(self) -> None:
        if self._run.has_ended:
            raise AttemptLost(f"Attempt {self.attempt} of job {self.job_id} is over: it can say nothing any more.")


class _Undisturbed:
    """Keeps interruptions out of a few lines that use the worker's own locks."""

    __slots__ = ("_holds", "_run")

    def __init__(self, run: Run) -> None:
        self._run = run
        self._holds = False

    def __enter__(self) -> None:
        self._holds = self._run.hold_off()

    def __exit__(self, *_error: object) -> None:
        if self._holds:
            self._run.let_in()


class LogLines:
    """Lines up to `limit` characters: the first half of that from the start, the other half from the end."""

    def __init__(self, limit: int) -> None:
        self._lock = threading.Lock()
        self._half = max(1, limit // 2)
        self._head: list[str] = []
        self._tail: deque[str] = deque()
        self._head_size = self._tail_size = self._dropped = 0

    def add(self, line: str) -> None:
        """Add a line."""
        line = line[: self._half - 1]
        size = len(line) + 1
        with self._lock:
            if not self._tail and not self._dropped and self._head_size + size <= self._half:
                self._head.append(line)
                self._head_size += size
                return
            self._tail.append(line)
            self._tail_size += size
            while self._tail_size > self._half:
                self._tail_size -= len(self._tail.popleft()) + 1
                self._dropped += 1

    def text(self) -> str:
        """Return the lines kept."""
        with self._lock:
            gap = [f"... {self._dropped} lines left out ..."] if self._dropped else []
            return "\n".join([*self._head, *gap, *self._tail])


def current_job() -> JobContext | None:
    """Return the context of the job that this code runs in; None outside of one.

    It follows `contextvars`: it works in coroutines, `asyncio.to_thread` and `sync_to_async`, but a bare `threading.Thread`
    starts without it.
    """
    run = current_run.get()
    return None if run is None else run.context

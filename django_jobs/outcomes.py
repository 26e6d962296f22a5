"""An attempt as the worker hands it to the executor, and the outcomes that an attempt can have.

Plain values: the only thing that passes between the code that knows rows (`lifecycle`) and the code that knows functions
(`execution`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from .statuses import FINAL, Status


@dataclass(slots=True)
class Attempt:
    """One claimed job: what a worker needs to run it. Durations are seconds."""

    job_id: UUID
    token: UUID
    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    number: int  # Job.starts: numbers the attempt records, ever rising
    attempts_used: int  # this attempt included
    max_attempts: int | None = None
    deaths: int = 0
    max_deaths: int | None = None
    queue: str = "default"
    priority: int = 0
    backend: str = "default"
    serializer: str = "json"
    timeout: float | None = None
    timeout_grace: float | None = None
    heartbeat_timeout: float | None = None
    cpu_timeout: float | None = None
    backoff: Any = None
    metadata: dict[str, Any] = field(default_factory=dict)
    tags: list[str] = field(default_factory=list)
    context: dict[str, Any] = field(default_factory=dict)
    created_by: str | None = None
    retention: dict[str, float | None] | None = None
    run_after: datetime | None = None
    enqueued_at: datetime | None = None
    started_at: datetime | None = None  # of this attempt, by the database's clock
    worker_ids: tuple[str, ...] = ()
    prefetched: bool = False
    graph: UUID | None = None
    batch: UUID | None = None


@dataclass(slots=True, frozen=True)
class ErrorInfo:
    """A recorded exception: text only, already capped and free of NUL and lone surrogates."""

    exception_class: str  # an importable dotted path
    message: str
    traceback: str = ""
    fingerprint: str = ""  # equal for equal failures: class + the place in the site's code


@dataclass(slots=True, frozen=True)
class Succeeded:
    """The task returned. `result` has passed the strict JSON check; `note` is what `Skip` said."""

    result: Any = None
    note: str = ""


@dataclass(slots=True, frozen=True)
class Failed:
    """The task raised. `final`: not to be retried. `delay`: seconds before a retry, None = the job's back-off decides."""

    error: ErrorInfo
    final: bool = True
    delay: float | None = None


@dataclass(slots=True, frozen=True)
class RetryAsked:
    """The task raised `Retry`. `count`: whether this attempt is spent."""

    error: ErrorInfo
    delay: float | None = None
    count: bool = True


@dataclass(slots=True, frozen=True)
class TimedOut:
    """The attempt ran out of `limit`: "timeout", "heartbeat_timeout" or "cpu_timeout"."""

    error: ErrorInfo
    limit: str = "timeout"
    delay: float | None = None


@dataclass(slots=True, frozen=True)
class Cancelled:
    """The attempt was stopped on request."""

    reason: str = ""
    error: ErrorInfo | None = None


@dataclass(slots=True, frozen=True)
class Lost:
    """The worker died under the attempt. `counts`: False for a bystander of a kill; `cause` names signal or exit."""

    cause: str
    counts: bool = True


@dataclass(slots=True, frozen=True)
class HandedBack:
    """The attempt ends without an outcome (orderly stop, prefetched and never started, unknown task): not counted.

    `parked` parks the job with that reason; `started` says whether its function had begun (then a record is kept).
    """

    reason: str = ""
    parked: str = ""
    started: bool = False


Outcome = Succeeded | Failed | RetryAsked | TimedOut | Cancelled | Lost | HandedBack


@dataclass(slots=True)
class Finished:
    """An attempt with its outcome, on its way from the pool to the control loop."""

    attempt: Attempt
    outcome: Outcome
    run_seconds: float | None = None  # monotonic; None if the function never began
    logs: str = ""  # lines of context.log(), capped
    confirmed_by_task: bool = False  # `atomic=True`: the executor committed `succeeded` itself, control only clears the lock
    told: Status | None = None  # the end that the executor has told the task's hooks of


@dataclass(slots=True, frozen=True)
class Event:
    """Something that happened to a job, told to listeners after the commit. `name` is one of `signals.EVENTS`."""

    name: str
    job_id: UUID
    task: str
    queue: str
    status: Status
    backend: str = "default"
    attempt: int = 0
    run_seconds: float | None = None
    error: ErrorInfo | None = None
    reason: str = ""
    told: bool = False  # the task's hooks know of this end already

    @property
    def is_untold_end(self) -> bool:
        """Whether the job has ended, and nobody has told the task's hooks."""
        return not self.told and self.status in FINAL

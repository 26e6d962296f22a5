"""Results: what is known of a job, as a `TaskResult` of Django's and more."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeVar
from uuid import UUID

from asgiref.sync import sync_to_async

from . import conf, serializers
from .compat import Task, TaskError, TaskResult, TaskResultStatus
from .exceptions import InvalidTransition, JobDoesNotExist, JobsError, UnknownTask, WaitTimeout
from .options import shown
from .outcomes import Attempt
from .registry import find_task
from .statuses import FINAL, Move, Status, sources
from .task import JobTask, placeholder

if TYPE_CHECKING:
    from .lifecycle.report import Report
    from .models import Job, JobAttempt

P = ParamSpec("P")
R = TypeVar("R")

if TYPE_CHECKING:
    _ResultBase = TaskResult
else:

    class _ResultBase(TaskResult, Generic[P, R]):
        """Django's TaskResult, which is generic in its type stubs only, or, in the back-port, by the type of the result alone."""

        __slots__ = ()


#: Which of Django's four statuses a job's status is.
DJANGO_STATUS: Final = {
    Status.WAITING: TaskResultStatus.READY,
    Status.SCHEDULED: TaskResultStatus.READY,
    Status.READY: TaskResultStatus.READY,
    Status.RUNNING: TaskResultStatus.RUNNING,
    Status.SUCCEEDED: TaskResultStatus.SUCCESSFUL,
    Status.FAILED: TaskResultStatus.FAILED,
    Status.TIMED_OUT: TaskResultStatus.FAILED,
    Status.CANCELLED: TaskResultStatus.FAILED,
}

#: The exception that stands for an attempt that ended without one of its own, by its outcome.
_STAND_INS: Final = {
    "timed_out": "django_jobs.exceptions.JobTimeout",
    "cancelled": "django_jobs.exceptions.JobCancelled",
    "lost": "django_jobs.exceptions.AttemptLost",
}
#: What Django's own back ends raise where ours raise something more telling.
_FOR_DJANGO: Final = {"django_jobs.exceptions.InvalidResult": "builtins.TypeError"}
#: Attempts that ended so have no error to tell.
_WITHOUT_ERROR: Final = frozenset({"succeeded", "handed_back"})

#: How often `wait` looks (seconds): at first, and once it has waited a while.
_FIRST_LOOK, _LAST_LOOK = 0.01, 0.5

_REFRESHED: Final = (
    "errors",
    "_return_value",
    "finished_at",
    "started_at",
    "last_attempted_at",
    "status",
    "enqueued_at",
    "worker_ids",
    "job_status",
    "progress",
    "output",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult(_ResultBase[P, R]):  # type: ignore[misc]  # frozen in Django, but not in its type stubs
    """What was known of a job when it was enqueued, looked up or last refreshed.

    Has all that Django's `TaskResult` has: `id`, `status`, `return_value`, `errors`, `enqueued_at`, `started_at`,
    `finished_at`, `last_attempted_at`, `attempts`, `worker_ids`, `refresh()` and so on. Django knows four statuses;
    `job_status` has the full one: a job that was cancelled or ran out of time is FAILED for Django, one that waits for its
    time or for a retry is READY.
    """

    job_status: Status
    #: What the task last reported by `context.progress()`: {"done", "total", "message"}; None so far.
    progress: dict[str, Any] | None = None
    #: What the task last kept by `context.save()`.
    output: Any = None
    using: str = field(default="default", compare=False, repr=False)

    def __post_init__(self) -> None:
        """Nothing: the arguments are JSON already, and a copy of their own."""

    @property
    def job_id(self) -> UUID:
        """The id as a UUID."""
        return UUID(self.id)

    @property
    def job(self) -> Job:
        """The job's row, read anew each time. Raises `JobDoesNotExist` once it is gone."""
        from .models import Job

        try:
            return Job.objects.using(self.using).get(pk=self.job_id)
        except Job.DoesNotExist:
            raise JobDoesNotExist(f"No job has the id {self.id} (any more).") from None

    def refresh(self) -> None:
        """Read the job's state again. Raises `TaskResultDoesNotExist` once the job is gone."""
        self.take(self.task.get_backend().get_result(self.id))

    async def arefresh(self) -> None:
        """See `refresh`."""
        self.take(await self.task.get_backend().aget_result(self.id))

    def take(self, fresh: TaskResult[..., Any]) -> None:
        """Take the state from another result of the same job."""
        for name in _REFRESHED:
            object.__setattr__(self, name, getattr(fresh, name))

    def wait(self, timeout: float | None = None) -> JobResult[P, R]:
        """Wait until the job has finished, however it ends, and return this result, refreshed.

        Looks often at first, then twice a second. Raises `WaitTimeout` after `timeout` seconds; None waits for ever. Within
        a transaction this is of no use for a job enqueued there: no worker sees it before the commit. Raises TypeError for a
        `timeout` that is no number.
        """
        deadline = deadline_of(timeout)
        for pause in pauses():
            if self._look():
                break
            time.sleep(self._pause(deadline, pause))
        self.refresh()
        return self

    async def await_result(self, timeout: float | None = None) -> JobResult[P, R]:  # noqa: ASYNC109 - mirrors wait()
        """Do what `wait` does, without blocking the event loop."""
        deadline = deadline_of(timeout)
        for pause in pauses():
            if await sync_to_async(self._look)():
                break
            await asyncio.sleep(self._pause(deadline, pause))
        await self.arefresh()
        return self

    def _look(self) -> bool:
        """Whether the job has finished: the cheapest question, by primary key."""
        status = self._status()
        return status is None or status in FINAL

    def _status(self) -> str | None:
        from .models import Job

        return Job.objects.using(self.using).filter(pk=self.job_id).values_list("status", flat=True).first()

    def _pause(self, deadline: float, pause: float) -> float:
        left = deadline - time.monotonic()
        if left <= 0:
            raise WaitTimeout(f"Job {self.id} ({self.task.module_path}) had not finished in time.")
        return min(pause, left)

    def cancel(self, reason: str = "", *, by: str = "", force: bool = False) -> bool:
        """Cancel the job; return whether that changed anything.

        One that has not started is cancelled at once. A running one is asked to stop and ends within seconds, or when its
        task lets it; `force` kills its process. Raises `InvalidTransition` for one that has ended well, or is cancelled, and
        `JobsError` with the reason where it can't be cancelled now.
        """
        from .lifecycle import control

        check_texts(reason=reason, by=by)
        report = control.cancel([self.job_id], by=by, reason=reason, force=force, using=self.using)
        return self._tell(report, Move.CANCEL, Status.CANCELLED)

    def requeue(self, reason: str = "", *, by: str = "") -> bool:
        """Run the finished job again, under its id; return whether that changed anything.

        Raises `InvalidTransition` for one that has not ended, and `JobsError` with the reason where it can't be done now.
        """
        from .lifecycle import control

        check_texts(reason=reason, by=by)
        report = control.requeue([self.job_id], by=by, reason=reason, using=self.using)
        return self._tell(report, Move.REQUEUE, Status.READY)

    async def acancel(self, reason: str = "", *, by: str = "", force: bool = False) -> bool:
        """See `cancel`."""
        return await sync_to_async(self.cancel)(reason, by=by, force=force)

    async def arequeue(self, reason: str = "", *, by: str = "") -> bool:
        """See `requeue`."""
        return await sync_to_async(self.requeue)(reason, by=by)

    def _tell(self, report: Report, move: Move, target: Status) -> bool:
        if (refusal := report.refused.get(self.job_id)) is None:
            return self.job_id in report.changed
        status = self._status()
        if status is None:
            raise JobDoesNotExist(f"No job has the id {self.id} (any more).")
        if status not in sources(move, target):
            raise InvalidTransition(status, target, move=move, job_id=self.id)
        raise JobsError(f"Job {self.id}: {refusal}")


def pauses() -> Iterator[float]:
    """Yield the seconds between one look and the next, without end."""
    pause = _FIRST_LOOK
    while True:
        yield pause
        pause = min(pause * 1.5, _LAST_LOOK)


def deadline_of(timeout: Any) -> float:
    """Return when a wait of `timeout` seconds is over, by the monotonic clock. Raises TypeError."""
    if timeout is None:
        return float("inf")
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or math.isnan(timeout):
        raise TypeError(f"timeout must be a number of seconds, or None to wait for ever, not {shown(timeout)}")
    return time.monotonic() + timeout


def check_texts(**texts: Any) -> None:
    """Raise TypeError for what is no text."""
    for name, value in texts.items():
        if not isinstance(value, str):
            raise TypeError(f"{name} must be text, not {shown(value)}")


def for_attempt(task: Task[P, R], attempt: Attempt) -> JobResult[P, R]:
    """Return the result of a running attempt, from what the attempt says: no query."""
    return JobResult(
        task=task,
        id=str(attempt.job_id),
        status=TaskResultStatus.RUNNING,
        job_status=Status.RUNNING,
        enqueued_at=attempt.enqueued_at,
        started_at=attempt.started_at,
        finished_at=None,
        last_attempted_at=attempt.started_at,
        args=attempt.args,
        kwargs=attempt.kwargs,
        backend=attempt.backend,
        errors=[],
        worker_ids=list(attempt.worker_ids),
        using=conf.backend_options(attempt.backend).database,
    )


def from_row(job: Job, attempts: Iterable[JobAttempt]) -> JobResult[..., Any]:
    """Return the result that `job` and the records of its attempts, in their order, make."""
    records = list(attempts)
    status = Status(job.status)
    result: JobResult[..., Any] = JobResult(
        task=_task_of(job),
        id=str(job.pk),
        status=DJANGO_STATUS[status],
        job_status=status,
        enqueued_at=job.enqueued_at,
        started_at=job.started_at,
        finished_at=job.finished_at,
        last_attempted_at=job.last_started_at,
        args=job.args,
        kwargs=job.kwargs,
        backend=job.backend,
        errors=_errors(job, records),
        worker_ids=_worker_ids(job, records),
        progress=job.progress,
        output=job.output,
        using=job._state.db or "default",
    )
    if status is Status.SUCCEEDED:
        object.__setattr__(result, "_return_value", serializers.from_json(job.result, serializer=job.serializer))
    return result


def _task_of(job: Job) -> Task[..., Any]:
    """Return the task as it was when the job was enqueued, as far as Django's own fields say it."""
    try:
        task = find_task(job.task)
    except UnknownTask:
        task = placeholder(job.task, job.backend)
    changes: dict[str, Any] = {
        name: value
        for name, value in (
            ("backend", job.backend),
            ("priority", job.priority),
            ("queue_name", job.queue),
            ("run_after", job.run_after),
        )
        if getattr(task, name) != value
    }
    if isinstance(task, JobTask) and task.delay is not None:
        changes["delay"] = None
    return replace(task, **changes) if changes else task


def _error(path: str, text: str) -> TaskError:
    return TaskError(exception_class_path=_FOR_DJANGO.get(path, path), traceback=text)


def _errors(job: Job, records: Sequence[JobAttempt]) -> list[TaskError]:
    errors = [
        _error(record.error_class or _STAND_INS[record.outcome], record.traceback or record.cause)
        for record in records
        if record.outcome not in _WITHOUT_ERROR and (record.error_class or record.outcome in _STAND_INS)
    ]
    if not errors and job.status in (Status.FAILED, Status.TIMED_OUT, Status.CANCELLED):
        # It ended without an attempt: cancelled before it started, or nobody knew its task.
        stand_in = _STAND_INS.get(job.status, "django_jobs.exceptions.JobsError")
        errors.append(_error(job.error_class or stand_in, job.error_message or job.reason))
    return errors


def _worker_ids(job: Job, records: Sequence[JobAttempt]) -> list[str]:
    """The worker of each attempt that was started: from its record, and for the last one, which may have none, from the job."""
    workers = [record.worker for record in records if record.worker]
    if job.starts and job.worker and (not records or records[-1].number < job.starts):
        workers.append(job.worker)
    return workers

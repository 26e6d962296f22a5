"""Every error that this package raises, as one tree."""

from __future__ import annotations

from typing import Any


class JobsError(Exception):
    """The base of every error that django_jobs raises on its own account."""


class InvalidTransition(JobsError):
    """A move that the table in `statuses` does not allow; nothing was changed."""

    def __init__(self, source: str, target: str, *, move: str = "", job_id: Any = None) -> None:
        self.source, self.target, self.move, self.job_id = source, target, move, job_id
        which = f"Job {job_id}" if job_id else "A job"
        super().__init__(f"{which} is {source}: it can't become {target}.")


class JobDoesNotExist(JobsError):
    """No job has this id (any more)."""


class BatchDoesNotExist(JobsError):
    """No batch has this id (any more)."""


class BatchIsFinished(InvalidTransition):
    """A batch that has finished takes no more jobs; nothing was stored."""

    def __init__(self, batch_id: Any) -> None:
        super().__init__("finished", "progress", move="add")
        self.batch_id = batch_id
        self.args = (f"Batch {batch_id} has finished: no jobs can be added to it any more.",)


class InvalidOption(JobsError, ValueError):
    """An option, a setting or a field whose value can't be used. `field` names it."""

    def __init__(self, field: str, message: str) -> None:
        self.field = field
        super().__init__(f"{field}: {message}")


class InvalidArguments(JobsError, TypeError):
    """Arguments that do not fit the task's signature, or that JSON can't hold. `path` says where."""

    def __init__(self, message: str, *, path: str = "", index: int | None = None) -> None:
        self.path, self.index = path, index
        super().__init__(message if index is None else f"item {index}: {message}")


class InvalidGraph(JobsError, ValueError):
    """A graph that can't be stored: it is empty, has a cycle, or a node that has no place in it. Nothing was stored."""


class JobExists(JobsError):
    """A live job has the unique key already, and `on_conflict="raise"`. Nothing was stored.

    `job_id` is that job's; `index` says which of several jobs was refused.
    """

    def __init__(self, unique_key: str, job_id: Any, *, index: int | None = None) -> None:
        self.unique_key, self.job_id, self.index = unique_key, job_id, index
        where = "" if index is None else f"item {index}: "
        super().__init__(f"{where}the job {job_id} has the unique key {unique_key!r}.")


class InvalidResult(JobsError, TypeError):
    """What a task returned can't be stored as JSON: the attempt fails, once, with this."""


class AttemptLost(JobsError):
    """The attempt was taken over: its lock row with this token is gone. Its writes are refused."""


class LeaseLost(AttemptLost):
    """An HTTP worker's attempt is over, or somebody else's by now. `status`: what the job is."""

    def __init__(self, message: str, *, status: str) -> None:
        self.status = status
        super().__init__(message)


class JobIsBusy(JobsError):
    """Somebody else's transaction has locked the job at this moment: nothing was changed, and the same may be asked again."""


class UnknownTask(JobsError):
    """No task of this name is registered in this process."""


class UnknownMethod(JobsError):
    """A method that `later` may not call: there is none of this name, or it is not marked with `allow_later`."""


class RelatedObjectGone(JobsError):
    """A model instance among the arguments no longer exists: a final failure."""


class WaitTimeout(JobsError, TimeoutError):
    """A job did not finish within the time that the caller was willing to wait."""


class ControlFlow(Exception):
    """What a task raises to say how its attempt ends; never logged as an error."""


class Retry(ControlFlow):
    """Run this job again: after `after` seconds (None: the task's back-off), spending an attempt if `count`."""

    def __init__(self, reason: str = "", *, after: float | None = None, count: bool = True) -> None:
        self.reason, self.after, self.count = reason, after, count
        super().__init__(reason or "the task asked to be run again")


class Fail(ControlFlow):
    """Fail this job for good, whatever `retry_for` says."""

    def __init__(self, reason: str = "") -> None:
        self.reason = reason
        super().__init__(reason or "the task gave up")


class Skip(ControlFlow):
    """End this job as succeeded, with a note instead of a result."""

    def __init__(self, note: str = "") -> None:
        self.note = note
        super().__init__(note or "the task had nothing to do")


class Interruption(BaseException):
    """What the worker raises inside a task to stop it. A BaseException, so that `except Exception` lets it pass."""


class JobTimeout(Interruption):
    """The attempt ran out of time (`timeout`, `heartbeat_timeout` or `cpu_timeout`; `limit` names which)."""

    limit = "timeout"


class JobCancelled(Interruption):
    """Somebody asked for this job to be cancelled."""

"""What the API says about jobs, attempts and queues: plain dicts, fit for JSON."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from .. import conf
from ..durations import format_duration
from ..inputs import INPUT_TASK
from ..models import Job, JobAttempt, Queue
from ..queues import JobOptions
from ..registry import docline
from ..statuses import FINAL, Status
from .errors import invalid
from .permissions import forbidden
from .rendering import time_text

if TYPE_CHECKING:
    from ..models.job import JobQuerySet
    from .permissions import Caller

#: Left out without the permission to see them.
PAYLOAD: Final = frozenset({"input", "args", "kwargs", "output", "result", "metadata", "related"})
#: Characters of an error's message in a list.
MAX_LISTED_MESSAGE: Final = 500


def duration(seconds: float | None) -> str | None:
    """Return a duration in its normal form; None: no limit, or for ever."""
    return None if seconds is None else format_duration(seconds)


def backoff(value: Any) -> Any:
    """Return a back-off in the shape in which it was given, with durations as text."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, int | float):
        return format_duration(value)
    if isinstance(value, list | tuple):
        return [backoff(step) for step in value]
    if "base" in value:
        return {key: format_duration(part) if key in ("base", "max") else part for key, part in value.items()}
    return {key: backoff(step) for key, step in value.items()}


def retention(own: Mapping[str, float | None] | None) -> dict[str, str | None]:
    """Return for how long a job is kept, by the status that it ends as; None: for ever."""
    return {status.value: duration(conf.retention_seconds(status, own)) for status in sorted(FINAL)}


def retries(max_attempts: int | None) -> int | None:
    """Return ocypod's word for it: the starts after the first; None: no bound."""
    return None if max_attempts is None else max_attempts - 1


def _is_free(job: Job) -> bool:
    return job.task == INPUT_TASK


def _error(job: Job) -> dict[str, str] | None:
    if not job.error_class and not job.error_message:
        return None
    return {"class": job.error_class, "message": job.error_message}


def _output(job: Job) -> Any:
    """Return the result if there is one, else what was written last: while the job runs, its partial output."""
    return job.output if job.result is None or job.status not in FINAL else job.result


#: Field -> (what it is read from, how). In the order in which they are shown.
_READERS: Final[Mapping[str, tuple[tuple[str, ...], Callable[[Job], Any]]]] = MappingProxyType(
    {
        "id": (("id",), lambda job: str(job.pk)),
        "queue": (("queue",), lambda job: job.queue),
        "task": (("task",), lambda job: None if _is_free(job) else job.task),
        "input": (("task", "args"), lambda job: job.args[0] if _is_free(job) and job.args else None),
        "args": (("task", "args"), lambda job: None if _is_free(job) else job.args),
        "kwargs": (("task", "kwargs"), lambda job: None if _is_free(job) else job.kwargs),
        "status": (("status",), lambda job: job.status),
        "ended": (("status",), lambda job: job.status in FINAL),
        "tags": (("tags",), lambda job: job.tags),
        "priority": (("priority",), lambda job: job.priority),
        "description": (("description", "task"), lambda job: job.description or docline(job.task)),
        "metadata": (("metadata",), lambda job: job.metadata),
        "created_at": (("enqueued_at",), lambda job: time_text(job.enqueued_at)),
        "run_after": (("run_after",), lambda job: time_text(job.run_after)),
        "due_at": (("due_at",), lambda job: time_text(job.due_at)),
        "start_by": (("start_by",), lambda job: time_text(job.start_by)),
        "started_at": (("started_at",), lambda job: time_text(job.started_at)),
        "last_started_at": (("last_started_at",), lambda job: time_text(job.last_started_at)),
        "ended_at": (("finished_at",), lambda job: time_text(job.finished_at)),
        "last_heartbeat": (("last_heartbeat_at",), lambda job: time_text(job.last_heartbeat_at)),
        "timeout": (("timeout",), lambda job: duration(job.timeout)),
        "heartbeat_timeout": (("heartbeat_timeout",), lambda job: duration(job.heartbeat_timeout)),
        "retries": (("max_attempts",), lambda job: retries(job.max_attempts)),
        "max_attempts": (("max_attempts",), lambda job: job.max_attempts),
        "attempts_used": (("attempts_used",), lambda job: job.attempts_used),
        "retries_attempted": (("attempts_used",), lambda job: max(0, job.attempts_used - 1)),
        "retry_delays": (("backoff",), lambda job: backoff(job.backoff)),
        "retention": (("retention",), lambda job: retention(job.retention)),
        "expires_after": (("retention",), lambda job: retention(job.retention)[Status.SUCCEEDED]),
        "output": (("status", "output", "result"), _output),
        "result": (("result",), lambda job: job.result),
        "progress": (("progress",), lambda job: job.progress),
        "last_outcome": (("last_outcome",), lambda job: job.last_outcome or None),
        "reason": (("reason",), lambda job: job.reason),
        "error": (("error_class", "error_message"), _error),
        "unique_key": (("unique_key",), lambda job: job.unique_key),
        "worker": (("worker",), lambda job: job.worker or None),
        "batch": (("batch_id",), lambda job: None if job.batch_id is None else str(job.batch_id)),
        "graph": (("graph",), lambda job: None if job.graph is None else str(job.graph)),
        "related": (("related",), lambda job: job.related),
        "created_by": (("created_by",), lambda job: job.created_by),
        "parked": (("parked",), lambda job: job.parked or None),
        "prune_at": (("prune_at",), lambda job: time_text(job.prune_at)),
    }
)
FIELDS: Final = tuple(_READERS)
#: What a list shows unless it is asked for more: nothing of unknown size.
LIST_FIELDS: Final = tuple(name for name in FIELDS if name not in PAYLOAD)


def fields_asked(text: str | None, caller: Caller, *, default: Collection[str] = FIELDS) -> tuple[str, ...]:
    """Return the fields that `?fields=` names, in its order; without it `default`, less what the caller may not see.

    Raises 400 for a field that there is not, and 403 for one of the payload without the permission.
    """
    may_see = caller.may("payload")
    if text is None:
        return tuple(name for name in default if may_see or name not in PAYLOAD)
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise invalid("fields", "names no field.")
    for name in names:
        if name not in _READERS:
            near = difflib.get_close_matches(name, FIELDS, 1)
            raise invalid("fields", f"there is no field {name[:50]!r}" + (f": did you mean {near[0]!r}?" if near else "."))
        if name in PAYLOAD and not may_see:
            raise forbidden("payload")
    return names


def columns(fields: Iterable[str]) -> tuple[str, ...]:
    """Return the columns that `fields` are read from."""
    return tuple(dict.fromkeys(column for name in fields for column in _READERS[name][0]))


def only(jobs: JobQuerySet, fields: Iterable[str], *order: str) -> JobQuerySet:
    """Return `jobs` without the columns that neither `fields` nor an order by the columns `order` need."""
    return jobs.only("id", *columns(fields), *order)


def render_job(job: Job, fields: Iterable[str], caller: Caller) -> dict[str, Any]:
    """Return these fields of a job, less what the caller may not see."""
    may_see = caller.may("payload")
    return {name: _READERS[name][1](job) for name in fields if may_see or name not in PAYLOAD}


def render_listed(job: Job, fields: Iterable[str], caller: Caller) -> dict[str, Any]:
    """Return these fields of a job in a list: its error's message is cut."""
    shown = render_job(job, fields, caller)
    if error := shown.get("error"):
        message = error["message"]
        cut = message if len(message) <= MAX_LISTED_MESSAGE else message[: MAX_LISTED_MESSAGE - 1] + "…"
        shown["error"] = error | {"message": cut}
    return shown


def render_claimed(job: Job) -> dict[str, Any]:
    """Return a job as its HTTP worker gets it, which has to see the input."""
    return {name: read(job) for name, (_columns, read) in _READERS.items()}


def render_attempt(attempt: JobAttempt) -> dict[str, Any]:
    """Return the record of an attempt."""
    error = None
    if attempt.error_class or attempt.error_message or attempt.traceback:
        error = {"class": attempt.error_class, "message": attempt.error_message, "traceback": attempt.traceback}
    return {
        "number": attempt.number,
        "worker": attempt.worker or None,
        "started_at": time_text(attempt.started_at),
        "ended_at": time_text(attempt.ended_at),
        "seconds": attempt.run_seconds,
        "outcome": attempt.outcome,
        "counted": attempt.counted,
        "cause": attempt.cause,
        "error": error,
        "logs": attempt.logs,
    }


def _settings(options: Any) -> dict[str, Any]:
    own = options.retention or {}
    kept = {status.value: duration(own[status]) for status in sorted(FINAL) if status in own}
    return {
        "timeout": duration(options.timeout),
        "heartbeat_timeout": duration(options.heartbeat_timeout),
        "retries": retries(options.max_attempts),
        "max_attempts": options.max_attempts,
        "retry_delays": backoff(options.backoff),
        "retention": kept or None,
        "expires_after": kept.get(Status.SUCCEEDED),
    }


def render_queue(queue: Queue, effective: JobOptions, *, is_paused: bool) -> dict[str, Any]:
    """Return a queue: what it says itself (null: inherited), and under `effective` what a job gets that says nothing."""
    paused = None
    if is_paused:
        paused = {
            "at": time_text(queue.paused_at),
            "until": time_text(queue.paused_until),
            "by": queue.paused_by,
            "reason": queue.pause_reason,
        }
    whole = retention(effective.retention)
    return {
        "name": queue.name,
        "description": queue.description,
        "is_http": queue.is_http,
        **_settings(queue),
        "effective": {
            **_settings(effective),
            "is_http": effective.is_http,
            "retention": whole,
            "expires_after": whole[Status.SUCCEEDED],
        },
        "paused": paused,
    }

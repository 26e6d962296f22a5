"""Change the options of jobs that have not ended: their place in the queue, their limits, what describes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

from django.db.backends.base.base import BaseDatabaseWrapper

from .. import db, wakeup
from ..conf import parse_duration, readers
from ..conf.backends import DEFAULT_BACKEND
from ..exceptions import InvalidOption
from ..inputs import INPUT_TASK
from ..models import PRIORITY_MAX, PRIORITY_MIN, Job
from ..models.stat import move_name
from ..options import MAX_DESCRIPTION, check_moment, shown
from ..queues import check_queue_name
from ..retry import normalise_backoff
from ..serializers import to_json
from ..statuses import LABELS, LIVE, PENDING, Move, Status, check
from . import tally
from .inherit import declared
from .recover import lock_jobs, writing
from .report import BUSY, NOT_FOUND, Report, in_batches, said
from .tags import replace_tags

_MAX_INTEGER: Final = 2**31 - 1
_MAX_TAG: Final = 100
_FREE_INPUT: Final = "It names no task, so it can only be in a queue for HTTP workers."


def _whole(low: int, high: int) -> Callable[[str, Any], int]:
    def read(field: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise InvalidOption(field, f"must be a whole number from {low} to {high}, not {value!r}.")
        return value

    return read


def _or_none(read: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
    return lambda field, value: None if value is None else read(field, value)


def _duration(field: str, value: Any) -> float | None:
    return parse_duration(value, field=field) or None


def _time(field: str, value: Any) -> datetime:
    if not isinstance(value, datetime):
        raise InvalidOption(field, f"must be an aware datetime, not {shown(value)}.")
    return check_moment(value, field)


def _json(field: str, value: Any) -> Any:
    try:
        return to_json(value, path=field)
    except TypeError as error:
        raise InvalidOption(field, str(error)) from error


def _tags(field: str, value: Any) -> list[str]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidOption(field, f"must be a list of strings, not {value!r}.")
    tags = list(dict.fromkeys(value))
    for tag in tags:
        if not isinstance(tag, str) or not tag.strip() or len(tag) > _MAX_TAG:
            raise InvalidOption(field, f"{shown(tag)} is no tag: use strings of 1 to {_MAX_TAG} characters.")
    return list(_json(field, tags))


def _description(field: str, value: Any) -> str:
    if not isinstance(value, str) or len(value) > MAX_DESCRIPTION:
        raise InvalidOption(field, f"must be a string of {MAX_DESCRIPTION} characters at most.")
    return str(_json(field, value))


def _metadata(field: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidOption(field, f"must be a dict, not {value!r}.")
    return dict(_json(field, dict(value)))


#: What a running attempt has already used.
_START: Final = frozenset({"queue", "run_after", "start_by"})
_FIELDS: Final[Mapping[str, Callable[[str, Any], Any]]] = MappingProxyType(
    {
        "queue": lambda field, value: check_queue_name(value, field=field),
        "priority": _whole(PRIORITY_MIN, PRIORITY_MAX),
        "run_after": _time,
        "start_by": _or_none(_time),
        "max_attempts": _or_none(_whole(1, _MAX_INTEGER)),
        "max_deaths": _or_none(_whole(1, _MAX_INTEGER)),
        "timeout": _or_none(_duration),
        "timeout_grace": _or_none(_duration),
        "heartbeat_timeout": _or_none(_duration),
        "cpu_timeout": _or_none(_duration),
        "backoff": lambda field, value: normalise_backoff(value, field=field),
        "tags": _tags,
        "metadata": _metadata,
        "description": _description,
        "retention": _or_none(lambda field, value: readers.retention(value, field)),
    }
)


def edit(job_ids: Iterable[UUID], *, by: str = "", reason: str = "", using: str = "default", **changes: Any) -> Report:
    """Change fields of jobs that have not ended. Durations are seconds or text such as "10m", times are aware.

    `queue`, `priority`, `run_after`, `start_by`, `max_attempts`, `max_deaths`, `timeout`, `timeout_grace`, `heartbeat_timeout`,
    `cpu_timeout`, `backoff`, `tags`, `metadata`, `description`, `retention` (a dict). A later `run_after` makes a ready job
    scheduled, a past one makes a scheduled job ready. Of a running job, what belongs to its next start can't be changed; limits
    hold from its next attempt on. A job moved between queues is for HTTP workers if its new queue is; one that names no task
    can't leave them. Raises `InvalidOption` for a field that there is not and for a bad value: then nothing was changed.
    """
    for field in changes:
        if field not in _FIELDS:
            raise InvalidOption(field, f"can't be edited: choose from {', '.join(_FIELDS)}.")
    values = {field: _FIELDS[field](field, value) for field, value in changes.items()}
    return in_batches(job_ids, using, partial(_edit, using, values, said("edited", by, reason)))


def _edit(using: str, values: Mapping[str, Any], why: str, ids: Sequence[UUID]) -> Report:
    report = Report()
    allowed = PENDING if _START & values.keys() else LIVE
    with writing(using) as connection:
        statuses = dict(Job.objects.using(using).filter(id__in=ids).values_list("id", "status"))
        candidates = [job_id for job_id in ids if statuses.get(job_id) in allowed]
        jobs = list(lock_jobs(using, candidates).filter(status__in=allowed))
        if "queue" in values:
            is_http = declared(using).options(values["queue"], DEFAULT_BACKEND).is_http
            values = {**values, "is_http": is_http}
            if not is_http:
                report.refused = {job.id: _FREE_INPUT for job in jobs if job.task == INPUT_TASK}
                jobs = [job for job in jobs if job.id not in report.refused]
        if jobs and values:
            rows = Job.objects.using(using).filter(id__in=[job.id for job in jobs], status__in=allowed)
            rows.filter(status__in=PENDING).update(reason=why)
            if "queue" in values:
                # The claim parks it again if the new queue is paused.
                rows.filter(status=Status.READY).update(parked="")
            rows.update(**values)
            moved = _move_start(using, jobs, values["run_after"], db.server_now(connection)) if "run_after" in values else {}
            _count(connection, jobs, moved, values.get("queue"))
            if "tags" in values:
                replace_tags(connection, [job.id for job in jobs], values["tags"])
            wakeup.wake(using, {str(values.get("queue", job.queue)) for job in jobs if job.status in PENDING})
        report.changed = [job.id for job in jobs]
        found = set(report.changed)
        for job_id in ids:
            if job_id not in found and job_id not in report.refused:
                status = statuses.get(job_id)
                report.refused[job_id] = NOT_FOUND if status is None else BUSY if status in allowed else _refusal(Status(status))
    return report


def _refusal(status: Status) -> str:
    if status == Status.RUNNING:
        return "It is running: what belongs to its start can't be changed now."
    return f"It has ended as {LABELS[status]}: requeue it first."


def _move_start(using: str, jobs: Sequence[Job], run_after: datetime, now: datetime) -> dict[str, str]:
    """Give jobs that wait their new time. One that waits for its parents keeps waiting. Return from where to where they moved."""
    rows = Job.objects.using(using).filter(id__in=[job.id for job in jobs])
    rows.filter(status__in=PENDING).update(due_at=run_after)
    source, target = (Status.READY, Status.SCHEDULED) if run_after > now else (Status.SCHEDULED, Status.READY)
    check(Move.STAGE, source, target)
    rows.filter(status=source).update(status=target, parked="")
    return {source: target}


def _count(connection: BaseDatabaseWrapper, jobs: Sequence[Job], moved: Mapping[str, str], queue: str | None) -> None:
    """Count that `jobs` have moved between statuses, and to another queue if there is one: created and deleted they were not."""
    changes: Counter[tally.Key] = Counter()
    for job in jobs:
        target = moved.get(job.status, job.status)
        if queue is not None and queue != job.queue:
            changes[job.queue, job.status, job.batch_id] -= 1
            changes[queue, target, job.batch_id] += 1
        elif target != job.status:
            changes[job.queue, move_name(job.status, target), job.batch_id] += 1
    with connection.cursor() as cursor:
        tally.write(cursor, changes)

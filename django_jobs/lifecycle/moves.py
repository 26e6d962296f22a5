"""The conditional updates that end or remove jobs that are not running. The caller's transaction has locked their rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from django.db import connections
from django.db.models import Model, QuerySet
from django.db.models.signals import post_delete, pre_delete

from .. import db
from ..conf import retention_seconds
from ..models import CancelRequest, Edge, Job, JobAttempt, JobLock, JobTag
from ..outcomes import Event
from ..statuses import Move, Status, sources
from . import tally
from .ended import leave_ended
from .report import event
from .tags import delete_tags

_DELETED_WITH_A_JOB: Final[frozenset[type[Model]]] = frozenset({JobAttempt, CancelRequest, Edge, JobLock, JobTag})


def cancel_locked(jobs: Sequence[Job], *, using: str, reason: str) -> list[Event]:
    """Cancel `jobs`, which the caller's transaction has locked in a status that may be cancelled. Return the events."""
    now = db.server_now(connections[using])
    finish(jobs, using, Move.CANCEL, Status.CANCELLED, now, reason)
    forget_requests(using, [job.id for job in jobs])
    # Whoever acknowledges a failure cancels a job whose hook was called when it failed.
    known = (Status.FAILED, Status.TIMED_OUT)
    return [event("job_cancelled", job, Status.CANCELLED, reason, told=job.status in known) for job in jobs]


def finish(jobs: Sequence[Job], using: str, move: Move, status: Status, now: datetime, reason: str) -> None:
    """End `jobs` as `status`, one statement for each time of pruning."""
    groups: dict[datetime | None, list[UUID]] = {}
    for job in jobs:
        groups.setdefault(prune_time(job, status, now), []).append(job.id)
    for prune_at, ids in groups.items():
        where(using, ids, move, status).update(status=status, parked="", reason=reason, finished_at=now, prune_at=prune_at)
    tally.moved(jobs, status, using=using)
    if graphs := [job.id for job in jobs if job.graph is not None]:
        connection = connections[using]
        with connection.cursor() as cursor:
            leave_ended(cursor, db.dialect(connection), graphs)


def where(using: str, ids: Sequence[UUID], move: Move, target: Status) -> QuerySet[Job]:
    """Return the rows of a conditional update: these jobs, if they may make this move."""
    return Job.objects.using(using).filter(id__in=ids, status__in=sources(move, target))


def prune_time(job: Job, status: Status, now: datetime) -> datetime | None:
    """Return when a job that ends as `status` at `now` is pruned; None: never."""
    seconds = retention_seconds(status.value, job.retention)
    return None if seconds is None else now + timedelta(seconds=seconds)


def delete_rows(using: str, jobs: Sequence[Job]) -> list[UUID]:
    """Delete `jobs` and what refers to them, by the rules of their foreign keys, a project's own included. Return the ids.

    Their `queue` and `status` are as the caller read them under its lock.
    """
    ids = [job.id for job in jobs]
    tally.moved(jobs, "", using=using)
    if not _is_all_ours():
        Job.objects.using(using).filter(id__in=ids).only("id").delete()
        return ids
    connection = connections[using]
    delete_tags(connection, ids)
    dialect = db.dialect(connection)
    with connection.cursor() as cursor:
        for chunk in db.batches(ids, min(dialect.max_params, 1000)):
            marks, params = dialect.marks(chunk)
            for table, column in _TABLES:
                cursor.execute(f"DELETE FROM {table} WHERE {column} IN ({marks})", params)
    return ids


#: What is deleted with a job, in this order: (table, the column that names the job).
_TABLES: Final = (
    (db.ATTEMPT, "job_id"),
    (db.CANCEL, "job_id"),
    (db.EDGE, "parent_id"),
    (db.EDGE, "child_id"),
    (db.LOCK, "job_id"),
    (db.JOB, "id"),
)


def _is_all_ours() -> bool:
    """Whether nothing of the project's refers to jobs or listens to their deletion, so Django's collector has nothing to add."""
    fields = Job._meta.get_fields(include_hidden=True)
    related = {field.related_model for field in fields if field.auto_created and field.is_relation and not field.concrete}
    return related <= _DELETED_WITH_A_JOB and not (pre_delete.has_listeners(Job) or post_delete.has_listeners(Job))


def forget_requests(using: str, ids: Iterable[UUID]) -> None:
    """Delete the cancel requests about these jobs: they have been acted on, or there is nothing to act on."""
    CancelRequest.objects.using(using).filter(job_id__in=list(ids)).delete()

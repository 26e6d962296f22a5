"""How long batches are kept: a batch goes as a whole, when every job of it is due, and then its row goes first.

As long as the row of a batch is there its jobs are kept; once it is gone they are jobs like others, and are pruned in small
pieces. So whether all are due is asked once for a batch and not for each piece of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from django.db import connections
from django.db.models import Exists, Max, OuterRef, QuerySet

from .. import db
from ..conf import retention_seconds
from ..models import Batch, BatchCount, Job
from ..statuses import Status
from .batch_look import look
from .follow import Followed, cancel_waiting

#: A batch that has not finished, or of which a job is kept for ever, is looked at again after as long as it has been so, within
#: these bounds. Seconds.
KEEP_SECONDS: Final = (86_400.0, 30 * 86_400.0)
#: Batches of which a process remembers that they are not due.
_MOST: Final = 10_000


class Keeper:
    """Says which jobs that are due to be pruned belong to batches that are not. It remembers that of batches, in its process."""

    def __init__(self) -> None:
        self._until: dict[UUID, datetime] = {}

    def kept(self, jobs: Sequence[Job], *, using: str, now: datetime) -> dict[UUID, datetime]:
        """Return those of `jobs` that are kept for their batch, each with the time to look again; remove batches that are due.

        In the caller's open transaction. Index django_jobs_in_batch.
        """
        batches = {job.batch_id for job in jobs if job.batch_id is not None}
        if not batches:
            return {}
        again = {batch: self._until[batch] for batch in batches if self._until.get(batch, now) > now}
        rows = Batch.objects.using(using).filter(id__in=batches - again.keys())
        for batch in list(rows):
            if at := _next_look(batch, using, now):
                again[batch.id] = at
            elif not remove(batch, using=using):
                again[batch.id] = now + timedelta(seconds=60)  # somebody has it locked
        if len(self._until) > _MOST:
            self._until.clear()
        self._until |= again
        return {job.id: again[job.batch_id] for job in jobs if job.batch_id in again}


def _next_look(batch: Batch, using: str, now: datetime) -> datetime | None:
    """Return when to look at a batch again; None: all of it is due."""
    members = Job.objects.using(using).filter(batch=batch.id)
    least, most = KEEP_SECONDS
    if batch.finished_at is None or members.filter(prune_at__isnull=True).exists():
        over = (now - (batch.finished_at or batch.created_at)).total_seconds()
        return now + timedelta(seconds=min(max(over, least), most))
    last: datetime | None = members.aggregate(last=Max("prune_at"))["last"]
    return last if last is not None and last > now else None


def remove(batch: Batch, *, using: str) -> bool:
    """Delete the row of a batch with its numbers, and cancel callbacks that still wait; its jobs stay. False: it is locked."""
    connection = connections[using]
    rows = Batch.objects.using(using).filter(id=batch.id)
    if db.dialect(connection).row_locks and not rows.select_for_update(skip_locked=True):
        return False
    callbacks = [job for job in (batch.on_success_id, batch.on_failure_id, batch.on_finish_id) if job is not None]
    dialect, followed = db.dialect(connection), Followed()
    with connection.cursor() as cursor:
        cancel_waiting(cursor, dialect, dict.fromkeys(callbacks, "cancelled: its batch was deleted"), followed)
        followed.write(cursor, dialect)
    BatchCount.objects.using(using).filter(batch=batch.id).delete()
    rows.delete()
    return True


class Walk:
    """Walks through all batches, a piece at a time: looks at those that have not finished, and removes old ones without jobs.

    Nothing forgets a batch; this is for rows that were changed by hand, and for batches whose jobs were all deleted.
    """

    def __init__(self) -> None:
        self._after: UUID | None = None

    def step(self, *, using: str, limit: int) -> set[str]:
        """Look at up to `limit` batches in the caller's open transaction. Return the queues with new work."""
        rows: QuerySet[Batch] = Batch.objects.using(using).order_by("id")
        if self._after is not None:
            rows = rows.filter(id__gt=self._after)
        part = list(rows[:limit])
        self._after = part[-1].id if len(part) == limit else None
        followed = look(connections[using], [batch.id for batch in part if batch.finished_at is None])
        for batch in _without_jobs([batch for batch in part if batch.finished_at is not None], using):
            remove(batch, using=using)
        return followed.queues


def _without_jobs(batches: Iterable[Batch], using: str) -> list[Batch]:
    """Return those of `batches` that have no job and ended longer ago than jobs that have succeeded are kept."""
    keep = retention_seconds(Status.SUCCEEDED.value, None)
    if keep is None:
        return []
    before = db.server_now(connections[using]) - timedelta(seconds=keep)
    old = [batch.id for batch in batches if batch.finished_at is not None and batch.finished_at <= before]
    members = Job.objects.using(using).filter(batch=OuterRef("pk"))
    return list(Batch.objects.using(using).filter(~Exists(members), id__in=old))

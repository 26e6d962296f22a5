"""Batches: store one with its callbacks, let jobs join it, seal it, and the verbs for all of its jobs.

A batch is open until it has finished: jobs may join it as long as it is not sealed, or one of its jobs lives. See `batch_look`
for how it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from django.db import connections
from django.db.models import Exists, OuterRef

from .. import db, wakeup
from ..db import DatabaseNow
from ..exceptions import BatchDoesNotExist, BatchIsFinished
from ..models import Batch, CancelRequest, Job
from ..statuses import LIVE, Status
from . import control, tally
from .batch_look import look
from .enqueue import NewJob, insert
from .recover import writing
from .report import BATCH, Report

if TYPE_CHECKING:
    from ..models.job import JobQuerySet

#: The columns that name the callbacks.
CALLBACKS: Final = ("on_success", "on_failure", "on_finish")
_FAILED: Final = frozenset({Status.FAILED, Status.TIMED_OUT})


@dataclass(slots=True, kw_only=True)
class NewBatch:
    """A batch to be stored. `callbacks`: jobs by the names in `CALLBACKS`."""

    id: UUID
    name: str
    metadata: Mapping[str, Any]
    created_by: str | None
    callbacks: Mapping[str, NewJob]


def create(batch: NewBatch, *, using: str) -> None:
    """Store `batch` and its callbacks, which wait for it, in the caller's transaction."""
    jobs = list(batch.callbacks.values())
    with writing(using):
        Batch(
            id=batch.id,
            name=batch.name,
            metadata=dict(batch.metadata),
            created_by=batch.created_by,
            **{f"{name}_id": job.id for name, job in batch.callbacks.items()},
        ).save(using=using, force_insert=True)
        for job in jobs:
            job.waits = True
        insert(jobs, using=using)
        if jobs:
            callbacks = Job.objects.using(using).filter(id__in=[job.id for job in jobs])
            callbacks.update(reason=f"waits for the batch {batch.name or batch.id}"[:500])


def join(batch: UUID, *, using: str) -> None:
    """Keep the batch from finishing until the caller's open transaction, which adds jobs to it, ends.

    Waits for nobody but a look that is just ending the batch. Raises `BatchDoesNotExist`, and `BatchIsFinished`.
    """
    connection = connections[using]
    dialect = db.dialect(connection)
    with connection.cursor() as cursor:
        if not dialect.row_locks:
            # The one lock there is, before anything is read: see `writing`.
            cursor.execute(f"UPDATE {db.BATCH} SET name = name WHERE 1 = 0")
        cursor.execute(f"SELECT finished_at FROM {db.BATCH} WHERE id = %s{dialect.for_fence}", [dialect.uuid(batch)])
        row = cursor.fetchone()
    if row is None:
        raise BatchDoesNotExist(f"There is no batch {batch} (any more).")
    if row[0] is not None:
        raise BatchIsFinished(batch)


def seal(batch: UUID, *, using: str) -> bool:
    """Say that the batch has all its jobs but those that its own will add; it ends with the last of them, or now.

    Return whether it was open. Raises `BatchDoesNotExist`. (MariaDB waits for transactions that are adding jobs.)
    """
    with writing(using) as connection:
        rows = Batch.objects.using(using).filter(id=batch)
        if not rows.filter(sealed_at__isnull=True).update(sealed_at=DatabaseNow()):
            if not rows.exists():
                raise BatchDoesNotExist(f"There is no batch {batch} (any more).")
            return False
        with connection.cursor() as cursor:
            # Whoever folds the end of its last job before this is committed does not see that it is sealed.
            tally.note_batches(cursor, [batch])
        _look(batch, using)
    return True


def _look(batch: UUID, using: str) -> None:
    wakeup.wake(using, look(connections[using], [batch]).queues)


def close_finished(batches: Collection[UUID], *, using: str) -> None:
    """Look at these batches now, in a transaction of its own; maintenance does within a second or two."""
    with writing(using) as connection:
        wakeup.wake(using, look(connection, batches).queues)


def cancel(
    batch: UUID, *, by: str = "", reason: str = "", force: bool = False, limit: int | None = None, using: str = "default"
) -> Report:
    """Seal the batch and cancel all its jobs that have not ended, up to `limit`. See `control.cancel`.

    Running jobs that were asked to stop before are not asked again, except with `force`.
    """
    seal(batch, using=using)
    asked = CancelRequest.objects.using(using).filter(job=OuterRef("pk"))
    jobs = _members(batch, LIVE, using)

    def verb(ids: Sequence[UUID]) -> Report:
        return control.cancel(ids, by=by, reason=reason, force=force, using=using)

    return _each(batch, jobs if force else jobs.filter(~Exists(asked)), verb, limit, using)


def requeue_failed(
    batch: UUID,
    *,
    by: str = "",
    reason: str = "",
    with_cancelled: bool = False,
    limit: int | None = None,
    using: str = "default",
) -> Report:
    """Requeue all jobs of the batch that have failed or timed out, up to `limit`, and open it again. See `control.requeue`.

    `with_cancelled`: and those that were cancelled. Callbacks that have run do not run again.
    """

    def verb(ids: Sequence[UUID]) -> Report:
        return control.requeue(ids, by=by, reason=reason, using=using)

    jobs = _members(batch, _FAILED | {Status.CANCELLED} if with_cancelled else _FAILED, using)
    return _each(batch, jobs, verb, limit, using)


def _members(batch: UUID, statuses: Collection[Status], using: str) -> JobQuerySet:
    """Return the jobs of the batch in these statuses. Index django_jobs_in_batch. Raises `BatchDoesNotExist`."""
    if not Batch.objects.using(using).filter(id=batch).exists():
        raise BatchDoesNotExist(f"There is no batch {batch} (any more).")
    return Job.objects.using(using).filter(batch=batch, status__in=[status.value for status in statuses]).order_by("id")


def _each(batch: UUID, jobs: JobQuerySet, verb: Callable[[Sequence[UUID]], Report], limit: int | None, using: str) -> Report:
    """Do `verb` to `jobs` of the batch, by id, a transaction for each part."""
    report, after, left = Report(), None, limit
    while left is None or left > 0:
        rows = jobs if after is None else jobs.filter(id__gt=after)
        ids = list(rows.values_list("id", flat=True)[: BATCH if left is None else min(BATCH, left)])
        if not ids:
            break
        with writing(using):
            report += verb(ids)
            _look(batch, using)
        after = ids[-1]
        left = None if left is None else left - len(ids)
    return report


def mark_read(batches: Collection[UUID], *, read: bool = True, using: str = "default") -> int:
    """Note that somebody has seen how these batches have ended, or take it back. Return how many were changed."""
    rows = Batch.objects.using(using).filter(id__in=list(batches), read_at__isnull=read)
    return rows.update(read_at=DatabaseNow() if read else None)

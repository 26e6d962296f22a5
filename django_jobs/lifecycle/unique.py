"""Store new jobs of which some have unique keys: the database's index decides, and whoever comes second is told who was first.

A job holds its key while it waits and runs; until it is started or, having succeeded, until it is pruned, if it says so. That is
the condition of the unique index (`models.job.HOLDS_ITS_KEY`), so there is no moment at which two hold one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from django.db import IntegrityError, connections, transaction

from .. import db, wakeup
from ..exceptions import JobExists
from ..models import HOLDS_ITS_KEY, Job
from ..statuses import PENDING, Move, Status, check
from . import tally
from .enqueue import NewJob, insert

#: A rival may come or go between the look and the insert, so often at most.
TRIES: Final = 5
_BATCH: Final = 500


def insert_or_find(jobs: Sequence[NewJob], *, using: str, on_conflict: str = "return") -> dict[UUID, UUID]:
    """Store `jobs`, all or none, except those whose unique key another job holds, or one before them in `jobs`.

    Return for each of those (by the id that it would have had) the id of the job that has its key. `on_conflict`: "return" that
    job; "raise" `JobExists`, with nothing stored; "replace" its arguments and start time by those of the last of the new ones, if
    it has not started. Raises a database error.
    """
    first: dict[str, NewJob] = {}
    last: dict[str, NewJob] = {}
    for job in jobs:
        if job.unique_key is not None:
            first.setdefault(job.unique_key, job)
            last[job.unique_key] = job
    if not first:
        insert(jobs, using=using)
        return {}
    if on_conflict == "replace":
        for key, job in first.items():
            job.args, job.kwargs, job.related = last[key].args, last[key].kwargs, last[key].related
    with transaction.atomic(using=using):
        owners = _insert(jobs, first, using)
        taken = {job.id: owners[job.unique_key] for job in jobs if job.unique_key and owners[job.unique_key] != job.id}
        if taken and on_conflict == "raise":
            index, job = next((index, job) for index, job in enumerate(jobs) if job.id in taken)
            raise JobExists(str(job.unique_key), taken[job.id], index=index if len(jobs) > 1 else None)
        if on_conflict == "replace":
            own = {job.id for job in jobs}
            for key, job in last.items():
                if owners[key] not in own:
                    replace_pending(owners[key], job, using)
    return taken


def _insert(jobs: Sequence[NewJob], first: Mapping[str, NewJob], using: str) -> dict[str, UUID]:
    """Store those of `jobs` whose keys are free; return who has which key."""
    for tried in range(TRIES):
        rivals = holders(first, using=using, locked=tried > 0)
        fresh = [job for job in jobs if job.unique_key is None or (job.unique_key not in rivals and first[job.unique_key] is job)]
        # In the order of the keys, so that two of these at once do not wait for each other.
        fresh.sort(key=lambda job: job.unique_key or "")
        try:
            with transaction.atomic(using=using):
                insert(fresh, using=using)
                _check_stored(fresh, using)
        except IntegrityError:
            if tried == TRIES - 1:
                raise
            continue
        return {key: rivals.get(key, job.id) for key, job in first.items()}
    raise AssertionError("the last try returns or raises")


def holders(keys: Iterable[str], *, using: str, locked: bool = False) -> dict[str, UUID]:
    """Return the jobs that hold these keys. Index django_jobs_job_unique.

    `locked`: on MariaDB, read what is committed by now: a transaction there sees the rows as they were at its first look.
    """
    found: dict[str, UUID] = {}
    rows = Job.objects.using(using).filter(HOLDS_ITS_KEY)
    if locked and connections[using].vendor == "mysql":
        rows = rows.select_for_update()
    for chunk in db.batches(sorted(keys), _BATCH):
        found |= {key: job_id for key, job_id in rows.filter(unique_key__in=chunk).values_list("unique_key", "id") if key}
    return found


def replace_pending(job_id: UUID, new: NewJob, using: str) -> None:
    """Give a job that has not started the arguments, the related object and the start time of `new`.

    Leave one that has started, or is of another task.
    """
    connection = connections[using]
    rows = Job.objects.using(using).filter(id=job_id)
    if db.dialect(connection).row_locks:
        rows = rows.select_for_update(no_key=connection.features.has_select_for_no_key_update)
    job = rows.first()
    # A key that the site has written may be shared by tasks: the arguments of one are not for another.
    if job is None or job.status not in PENDING or job.starts or job.task != new.spec.task:
        return
    now = db.server_now(connection)
    start = _moment(new.spec.run_after, now)
    status = job.status
    if status != Status.WAITING:
        status = Status.READY if start is None or start <= now else Status.SCHEDULED
        if status != job.status:
            check(Move.STAGE, job.status, status)
    due = now if start is None or start <= now else start
    Job.objects.using(using).filter(id=job_id, status=job.status).update(
        args=new.args,
        kwargs=new.kwargs,
        related=new.related or new.spec.related,
        run_after=start,
        due_at=due,
        status=status,
        reason="",
    )
    if status != job.status:
        tally.moved([job], status, using=using)
    if status == Status.READY:
        wakeup.wake(using, [job.queue])


def _moment(start: datetime | timedelta | None, now: datetime) -> datetime | None:
    return now + start if isinstance(start, timedelta) else start


def _check_stored(jobs: Sequence[NewJob], using: str) -> None:
    """Raise what the others raise: MariaDB's INSERT, made to be sent twice, leaves out a row with a doubled key, silently."""
    if connections[using].vendor != "mysql":
        return
    ids = [job.id for job in jobs if job.unique_key is not None]
    rows = Job.objects.using(using)
    stored = sum(rows.filter(id__in=chunk).count() for chunk in db.batches(ids, _BATCH))
    if stored != len(ids):
        raise IntegrityError("A unique key is held by another live job.")

"""Store new jobs of which some have unique keys: the database's index decides, and whoever comes second is told who was first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from uuid import UUID

from django.db import IntegrityError, connections, transaction

from .. import db
from ..models import Job
from ..statuses import LIVE
from .enqueue import NewJob, insert

#: A rival may come or go between the look and the insert, so often at most.
TRIES: Final = 5
_BATCH: Final = 500


def insert_or_find(jobs: Sequence[NewJob], *, using: str) -> dict[UUID, UUID]:
    """Store `jobs`, all or none, except those whose unique key another live job has, or one before them in `jobs`.

    Return for each of those (by the id that it would have had) the id of the job that has its key. Raises a database error.
    """
    first: dict[str, NewJob] = {}
    for job in jobs:
        if job.unique_key is not None:
            first.setdefault(job.unique_key, job)
    if not first:
        insert(jobs, using=using)
        return {}
    for remaining in reversed(range(TRIES)):
        rivals = _holders(first, using)
        fresh = [job for job in jobs if job.unique_key is None or (job.unique_key not in rivals and first[job.unique_key] is job)]
        # In the order of the keys, so that two of these at once do not wait for each other.
        fresh.sort(key=lambda job: job.unique_key or "")
        try:
            with transaction.atomic(using=using):
                insert(fresh, using=using)
                _check_stored(fresh, using)
        except IntegrityError:
            if not remaining:
                raise
            continue
        owners = {key: rivals.get(key, job.id) for key, job in first.items()}
        return {job.id: owners[job.unique_key] for job in jobs if job.unique_key and owners[job.unique_key] != job.id}
    raise AssertionError("the last try returns or raises")


def _holders(keys: Iterable[str], using: str) -> Mapping[str, UUID]:
    """Return the live jobs that have these keys. Index django_jobs_job_unique."""
    found: dict[str, UUID] = {}
    live = Job.objects.using(using).filter(status__in=sorted(LIVE))
    for chunk in db.batches(sorted(keys), _BATCH):
        found |= {key: job_id for key, job_id in live.filter(unique_key__in=chunk).values_list("unique_key", "id") if key}
    return found


def _check_stored(jobs: Sequence[NewJob], using: str) -> None:
    """Raise what the others raise: MariaDB's INSERT, made to be sent twice, leaves out a row with a doubled key, silently."""
    if connections[using].vendor != "mysql":
        return
    ids = [job.id for job in jobs if job.unique_key is not None]
    rows = Job.objects.using(using)
    stored = sum(rows.filter(id__in=chunk).count() for chunk in db.batches(ids, _BATCH))
    if stored != len(ids):
        raise IntegrityError("A unique key is held by another live job.")

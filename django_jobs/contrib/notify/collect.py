"""A look at the jobs that have failed: which groups, which users; each failure is counted once.

State model: `Progress` says up to when a database was looked at. A failure's time is written before its commit, so a look begins
a while (`OVERLAP`) before that time, and leaves out those of which there is a `Failure` row. That row, the counts and the notices
are written in one transaction, under the lock of the progress row: so a look that dies has counted nothing, and two at once count
nothing twice. A job that is requeued and fails again is another failure: its time of end is another.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import connections, router
from django.db.models import F, Q

from ... import conf, db
from ...lifecycle.recover import writing
from ...models import Job
from ...models.visibility import is_narrowed, visible_ids
from ...statuses import Status
from ...users import USER, find_user
from .listeners import is_own
from .models import Failure, FailureGroup, Notice, Progress, Subscription

#: How long before the end of the last look the next one begins: longer than any transaction takes that ends a job. Seconds.
OVERLAP: Final = 300.0
#: Failures in one transaction.
BATCH: Final = 500


def databases() -> list[str]:
    """Return the databases that hold jobs."""
    return list(dict.fromkeys(conf.backend_options(alias).database for alias in conf.jobs_aliases()))


def collect(database: str) -> int:
    """Count what has failed in `database` since the last look, and note whom to tell. Return how many failures there were."""
    ours = router.db_for_write(Notice)
    began = db.server_now(connections[database])
    with writing(ours):
        progress, _ = _locked(ours).get_or_create(database=database, defaults={"looked_until": began})
        since = progress.looked_until - timedelta(seconds=OVERLAP)
    count = 0
    subscriptions = list(Subscription.objects.select_related("user"))
    for page in _pages(database, since):
        with writing(ours):
            _locked(ours).get(database=database)
            seen = set(Failure.objects.filter(job_id__in=[job.id for job in page]).values_list("job_id", "finished_at"))
            fresh = [job for job in page if (job.id, job.finished_at) not in seen]
            if fresh:
                _count(fresh, subscriptions, database)
                count += len(fresh)
    with writing(ours):
        _locked(ours).filter(database=database, looked_until__lt=began).update(looked_until=began)
        Failure.objects.filter(finished_at__lt=began - timedelta(seconds=2 * OVERLAP)).delete()
    return count


def _locked(ours: str) -> Any:
    rows = Progress.objects.using(ours)
    return rows.select_for_update() if connections[ours].features.has_select_for_update else rows


def _pages(database: str, since: datetime) -> Iterator[Sequence[Job]]:
    """Yield the failed jobs of the window, in pages, by the time of their end. Index django_jobs_final."""
    jobs = Job.objects.using(database).only(
        "id", "task", "queue", "status", "context", "finished_at", "fingerprint", "error_class", "error_message", "reason"
    )
    for status in (Status.FAILED, Status.TIMED_OUT):
        after = Q(finished_at__gte=since)
        while page := list(jobs.filter(after, status=status).order_by("finished_at", "id")[:BATCH]):
            yield [job for job in page if not is_own(job.task)]
            last = page[-1]
            after = Q(finished_at__gte=last.finished_at) & (Q(finished_at__gt=last.finished_at) | Q(id__gt=last.id))


@dataclass(slots=True)
class _Told:
    """The failures of one group that one user is told of."""

    jobs: list[Job] = field(default_factory=list)


def _count(jobs: Sequence[Job], subscriptions: Sequence[Subscription], database: str) -> None:
    rows = [Failure(job_id=job.id, finished_at=_end(job)) for job in jobs]
    Failure.objects.bulk_create(rows, ignore_conflicts=True)
    groups: dict[tuple[str, str], list[Job]] = defaultdict(list)
    for job in jobs:
        groups[job.task, (job.fingerprint or job.error_class or job.status)].append(job)
    owners = _owners(jobs)
    for (task, key), members in groups.items():
        group = _grown(task, key, members)
        for user, found in _told(members, owners, subscriptions, database).items():
            _notice(user, group, found.jobs)


def _end(job: Job) -> datetime:
    assert job.finished_at is not None, "a job that has failed has ended"
    return job.finished_at


def _grown(task: str, key: str, jobs: Sequence[Job]) -> FailureGroup:
    last = jobs[-1]
    values = {
        "status": last.status,
        "queue": last.queue,
        "error_class": last.error_class,
        "error_message": last.error_message or last.reason,
        "last_job": last.id,
        "last_at": _end(last),
    }
    group, _ = FailureGroup.objects.get_or_create(task=task, key=key, defaults={**values, "first_at": _end(jobs[0])})
    FailureGroup.objects.filter(pk=group.pk).update(count=F("count") + len(jobs), **values)
    return group


def _owners(jobs: Iterable[Job]) -> dict[str, Any]:
    """Return the users who enqueued these jobs, by the key that the jobs carry."""
    keys = {str(key) for job in jobs if (key := job.context.get(USER)) is not None}
    return {key: user for key in keys if (user := find_user(key)) is not None}


def _told(jobs: Sequence[Job], owners: dict[str, Any], subscriptions: Sequence[Subscription], database: str) -> dict[Any, _Told]:
    told: dict[Any, _Told] = defaultdict(_Told)
    for job in jobs:
        users = {row.user for row in subscriptions if row.matches(job.task, job.queue)}
        if owner := owners.get(str(job.context.get(USER))):
            users.add(owner)
        for user in users:
            if getattr(user, "is_active", True):
                told[user].jobs.append(job)
    if is_narrowed():
        for user, found in list(told.items()):
            seen = set(visible_ids(user, [job.id for job in found.jobs], using=database))
            found.jobs = [job for job in found.jobs if job.id in seen]
            if not found.jobs:
                del told[user]
    return told


def _notice(user: Any, group: FailureGroup, jobs: Sequence[Job]) -> None:
    last = jobs[-1]
    defaults = {"last_job": last.id, "first_at": _end(jobs[0]), "last_at": _end(last)}
    notice, _ = Notice.objects.get_or_create(user=user, group=group, defaults=defaults)
    Notice.objects.filter(pk=notice.pk).update(count=F("count") + len(jobs), last_job=last.id, last_at=_end(last), read_at=None)

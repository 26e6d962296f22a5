"""A look at the jobs that have failed: which groups, which users; each failure is counted once.

State model: `Progress` says up to when a database was looked at. A failure's time is written before its commit, so a look begins
a while (`OVERLAP`) before that time, and leaves out those of which there is a `Failure` row. That row, the counts and the notices
are written in one transaction, under the lock of the progress row: so a look that dies has counted nothing, and two at once count
nothing twice. A job that is requeued and fails again is another failure: its time of end is another.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import connections, router
from django.db.models import Q

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
BATCH: Final = 1_000
#: Rows in one statement.
ROWS: Final = 200


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


def _count(jobs: Sequence[Job], subscriptions: Sequence[Subscription], database: str) -> None:
    """Write down a page of failures. The caller has the progress row locked: nobody else counts."""
    rows = [Failure(job_id=job.id, finished_at=_end(job)) for job in jobs]
    Failure.objects.bulk_create(rows, ignore_conflicts=True)
    members: dict[tuple[str, str], list[Job]] = defaultdict(list)
    for job in jobs:
        members[job.task, (job.fingerprint or job.error_class or job.status)].append(job)
    groups = _grown(members)
    owners = _owners(jobs)
    told: dict[tuple[Any, int], list[Job]] = {}
    for key, found in members.items():
        for user, theirs in _told(found, owners, subscriptions, database).items():
            told[user.pk, groups[key].pk] = theirs
    _tell(told)


def _end(job: Job) -> datetime:
    assert job.finished_at is not None, "a job that has failed has ended"
    return job.finished_at


def _grown(members: Mapping[tuple[str, str], Sequence[Job]]) -> dict[tuple[str, str], FailureGroup]:
    """Add failures to their groups; return the groups."""
    wanted = FailureGroup.objects.filter(task__in={task for task, _ in members}, key__in={key for _, key in members})
    found = {(group.task, group.key): group for group in wanted}
    new = [
        FailureGroup(task=key[0], key=key[1], first_at=_end(jobs[0]), last_at=_end(jobs[0]), last_job=jobs[0].id)
        for key, jobs in members.items()
        if key not in found
    ]
    if new:
        FailureGroup.objects.bulk_create(new)
        found = {(group.task, group.key): group for group in wanted.all()}
    for key, jobs in members.items():
        group, last = found[key], jobs[-1]
        group.count += len(jobs)
        group.status, group.queue, group.error_class = last.status, last.queue, last.error_class
        group.error_message = last.error_message or last.reason
        group.last_job, group.last_at = last.id, max(group.last_at, _end(last))
    fields = ["count", "status", "queue", "error_class", "error_message", "last_job", "last_at"]
    FailureGroup.objects.bulk_update([found[key] for key in members], fields, batch_size=ROWS)
    return found


def _owners(jobs: Iterable[Job]) -> dict[str, Any]:
    """Return the users who enqueued these jobs, by the key that the jobs carry."""
    keys = {str(key) for job in jobs if (key := job.context.get(USER)) is not None}
    return {key: user for key in keys if (user := find_user(key)) is not None}


def _told(
    jobs: Sequence[Job], owners: Mapping[str, Any], subscriptions: Sequence[Subscription], database: str
) -> dict[Any, list[Job]]:
    """Return who is told of which of these failures."""
    told: dict[Any, list[Job]] = defaultdict(list)
    for job in jobs:
        users = {row.user for row in subscriptions if row.matches(job.task, job.queue)}
        if owner := owners.get(str(job.context.get(USER))):
            users.add(owner)
        for user in users:
            if getattr(user, "is_active", True):
                told[user].append(job)
    if not is_narrowed():
        return told
    seen = {user: set(visible_ids(user, [job.id for job in found], using=database)) for user, found in told.items()}
    narrowed = {user: [job for job in found if job.id in seen[user]] for user, found in told.items()}
    return {user: found for user, found in narrowed.items() if found}


def _tell(told: Mapping[tuple[Any, int], Sequence[Job]]) -> None:
    """Add failures to the notices of (user, group)."""
    wanted = Notice.objects.filter(user__in={user for user, _ in told}, group__in={group for _, group in told})
    found = {(notice.user_id, notice.group_id): notice for notice in wanted}
    new = [
        Notice(user_id=user, group_id=group, first_at=_end(jobs[0]), last_at=_end(jobs[0]), last_job=jobs[0].id)
        for (user, group), jobs in told.items()
        if (user, group) not in found
    ]
    if new:
        Notice.objects.bulk_create(new)
        found = {(notice.user_id, notice.group_id): notice for notice in wanted.all()}
    for key, jobs in told.items():
        notice, last = found[key], jobs[-1]
        notice.count += len(jobs)
        notice.last_job, notice.last_at, notice.read_at = last.id, max(notice.last_at, _end(last)), None
    Notice.objects.bulk_update([found[key] for key in told], ["count", "last_job", "last_at", "read_at"], batch_size=ROWS)

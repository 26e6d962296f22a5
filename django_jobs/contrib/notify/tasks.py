"""The jobs of this app: look at what has failed, and send one mail."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from django.db import connections, router, transaction
from django.db.models import Q
from django.utils import timezone

from ... import db
from ...conf import jobs_aliases
from ...exceptions import Skip
from ...task import job
from . import collect
from .conf import notify_settings
from .mail import address_of, message_for
from .models import FailureGroup, Notice, Progress

_BACKEND: Final = next(iter(jobs_aliases()), "default")
#: A mail that was enqueued and not sent by then is enqueued again: its job was lost. Seconds.
LOST_AFTER: Final = 86_400.0
#: Mails enqueued by one look.
MAILS: Final = 1_000


@job(backend=_BACKEND, max_attempts=None, retry_for=Exception, backoff=[1, 5, 30, 60], timeout="10m", retention="1h")
def look() -> int:
    """Count new failures, enqueue the mails that are due, and see to it that there is another look later."""
    databases = collect.databases()
    found = sum(collect.collect(database) for database in databases)
    enqueue_mails()
    _forget_old()
    _look_again(databases[0])  # one chain of looks for all of them
    return found


def enqueue_mails() -> None:
    """Enqueue a mail for each notice with something new in it, at most one in the period."""
    settings = notify_settings()
    now = timezone.now()
    waited = Q(mailed_at=None) | Q(mailed_at__lte=now - timedelta(seconds=settings.period))
    free = Q(queued_at=None) | Q(queued_at__lte=now - timedelta(seconds=LOST_AFTER))
    ours = router.db_for_write(Notice)
    with transaction.atomic(using=ours):
        due = Notice.objects.using(ours).unmailed().filter(waited & free).select_related("user").order_by("last_at", "pk")
        keys = [notice.pk for notice in due[:MAILS] if address_of(notice.user)]
        Notice.objects.using(ours).filter(pk__in=keys).update(queued_at=now)
        if keys:
            send.using(queue_name=settings.queue, enqueue_on_commit=_beside(ours)).enqueue_many([(key,) for key in keys])


def _look_again(database: str) -> None:
    """Keep the chain of looks: each sees to one that comes later, whatever signals tell meanwhile."""
    settings = notify_settings()
    ours = router.db_for_write(Progress)
    with transaction.atomic(using=ours):
        now = db.server_now(connections[database])
        last_due = Progress.objects.using(ours).filter(Q(next_at=None) | Q(next_at__lte=now), database=database)
        if last_due.update(next_at=now + timedelta(seconds=settings.look_every)):
            later = look.using(queue_name=settings.queue, run_after=settings.look_every, enqueue_on_commit=_beside(ours))
            later.enqueue()


def _beside(ours: str) -> str | bool:
    """Return what says that a job is to wait for the commit on `ours`, where it is not stored there itself."""
    return False if getattr(look.get_backend(), "using", ours) == ours else ours


def _forget_old() -> None:
    """Delete groups, with their notices, to which nothing was added for long."""
    old = timezone.now() - timedelta(seconds=notify_settings().keep)
    FailureGroup.objects.filter(last_at__lt=old).delete()


def _gave_up(result: Any) -> None:
    """Let the next look try again."""
    Notice.objects.filter(pk=result.args[0]).update(queued_at=None)


@job(
    backend=_BACKEND,
    max_attempts=10,
    retry_for=Exception,
    backoff=[30, 120, 600, 3_600],
    timeout="2m",
    retention="1d",
    on_failure=_gave_up,
)
def send(notice_id: int) -> None:
    """Send one mail about the failures of a notice that no mail told of."""
    notice = Notice.objects.unmailed().select_related("user", "group").filter(pk=notice_id).first()
    if notice is None or not address_of(notice.user) or not getattr(notice.user, "is_active", True):
        Notice.objects.filter(pk=notice_id).update(queued_at=None)
        raise Skip("There is nothing to tell, or nobody who wants to hear it.")
    message_for(notice).send()
    Notice.objects.filter(pk=notice.pk).update(mailed_count=notice.count, mailed_at=timezone.now(), queued_at=None)

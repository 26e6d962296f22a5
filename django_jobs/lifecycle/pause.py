"""Pause and resume queues.

A queue is paused while `paused_at` is set and `paused_until` is null or in the future; it pauses its whole subtree. The claim
leaves such queues out at once. Their ready jobs are parked in pieces, by whoever pauses and by maintenance, so that the claim's
index leaves them out, too: however many they are, other queues are claimed from as fast as before. To resume is to end the
pause now, by `paused_until`: the row keeps its mark for a while, in which maintenance brings the parked jobs back in pieces, also
those that a sweep, which still saw the pause, parks late.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from functools import reduce
from operator import or_
from typing import Final

from django.db import connections
from django.db.models import Q, QuerySet

from .. import db, wakeup
from ..exceptions import InvalidOption
from ..models import Job, Queue
from ..options import check_moment
from ..queues import check_queue_name, lineage
from ..serializers import clean_text
from ..statuses import Parked, Status
from .claim import ready_queues
from .recover import skipping_locked, writing
from .report import BATCH, said
from .sweep import Swept, unpark

logger = logging.getLogger("django_jobs.pause")

#: Longer than any transaction of a sweep, which may have read the pause before it ended. Seconds.
LATE_SECONDS: Final = 60.0


def pause_queue(name: str, *, by: str = "", reason: str = "", until: datetime | None = None, using: str = "default") -> Queue:
    """Start no more jobs of the queue `name` and its subtree, until `until` (aware) or for good; what runs goes on.

    Raises `InvalidOption` for a name that can't be a queue's, and for an `until` that is naive or past.
    """
    check_queue_name(name, field="name")
    with writing(using) as connection:
        now = db.server_now(connection)
        if until is not None and check_moment(until, "until") <= now:
            raise InvalidOption("until", "the time has passed.")
        who, why = clean_text(by, 64), clean_text(reason, 500)
        values = {"paused_at": now, "paused_until": until, "paused_by": who, "pause_reason": why}
        queue, _made = Queue.objects.using(using).update_or_create(name=name, defaults=values)
        park_paused(using=using, limit=BATCH)
    logger.info("The queue %s was %s.", name, said("paused", by, reason))
    return queue


def resume_queue(name: str, *, by: str = "", reason: str = "", using: str = "default") -> bool:
    """End the pause of the queue `name` now. Return whether it was paused. A pause of a queue above it stays.

    Who and why go to the log alone: the row keeps nothing of a pause that is over.
    """
    with writing(using) as connection:
        now = db.server_now(connection)
        if not _paused(using, now).filter(name=name).update(paused_until=now):
            return False
        swept = _unpark_below([name], using, now, BATCH)
        wakeup.wake(using, swept.queues or {name})
    logger.info("The queue %s was %s.", name, said("resumed", by, reason))
    return True


def is_paused(name: str, *, using: str) -> bool:
    """Whether the queue `name` or one above it is paused now."""
    return _paused(using, db.server_now(connections[using])).filter(name__in=lineage(name)).exists()


def park_paused(*, using: str, limit: int) -> Swept:
    """Park up to `limit` ready jobs of paused queues and their subtrees, in the caller's open transaction.

    Index django_jobs_claim_queue: a step for each queue that has ready jobs, then those of the paused ones.
    """
    connection = connections[using]
    paused = set(_paused(using, db.server_now(connection)).values_list("name", flat=True))
    if not paused:
        return Swept()
    names = [name for name in ready_queues(connection) if not paused.isdisjoint(lineage(name))]
    if not names:
        return Swept()
    ready = Job.objects.using(using).filter(status=Status.READY, parked="")
    jobs = list(skipping_locked(ready.filter(queue__in=names).only("id"))[:limit])
    ready.filter(id__in=[job.id for job in jobs]).update(parked=Parked.PAUSED)
    return Swept(len(jobs))


def release_resumed(*, using: str, limit: int) -> Swept:
    """Bring back parked jobs of queues whose pause is over, up to `limit`, in the caller's open transaction.

    Index django_jobs_parked. Once nothing is left and no claim can park any more, the marks of the pause are cleared.
    """
    now = db.server_now(connections[using])
    over = Queue.objects.using(using).filter(paused_at__isnull=False, paused_until__lte=now)
    names = list(over.values_list("name", flat=True))
    if not names:
        return _release_strays(using, limit)
    swept = _unpark_below(names, using, now, limit)
    if not swept.touched:
        late = now - timedelta(seconds=LATE_SECONDS)
        over.filter(paused_until__lte=late).update(paused_at=None, paused_until=None, paused_by="", pause_reason="")
    return swept


def _release_strays(using: str, limit: int) -> Swept:
    """Bring back what is parked as paused although no queue above it has a mark: somebody deleted the queue's row."""
    parked = Job.objects.using(using).filter(parked=Parked.PAUSED)
    if not parked.exists():
        return Swept()
    if marked := list(Queue.objects.using(using).filter(paused_at__isnull=False).values_list("name", flat=True)):
        parked = parked.exclude(reduce(or_, map(_subtree, marked)))
    return unpark(list(skipping_locked(parked.only("id", "queue").order_by("id"))[:limit]), using=using)


def _paused(using: str, now: datetime) -> QuerySet[Queue]:
    rows = Queue.objects.using(using).filter(paused_at__isnull=False)
    return rows.filter(Q(paused_until__isnull=True) | Q(paused_until__gt=now))


def _unpark_below(names: list[str], using: str, now: datetime, limit: int) -> Swept:
    parked = Job.objects.using(using).filter(reduce(or_, map(_subtree, names)), parked=Parked.PAUSED)
    if still := list(_paused(using, now).values_list("name", flat=True)):
        parked = parked.exclude(reduce(or_, map(_subtree, still)))
    return unpark(list(skipping_locked(parked.only("id", "queue"))[:limit]), using=using)


def _subtree(name: str) -> Q:
    return Q(queue=name) | Q(queue__startswith=name + ".")

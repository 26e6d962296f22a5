"""Pause and resume queues.

A queue is paused while `paused_at` is set and `paused_until` is null or in the future; it pauses its whole subtree. The claim
leaves such queues out and parks their ready jobs, in pieces. To resume is to end the pause now, by `paused_until`: the row
keeps its mark for a while, in which maintenance brings the parked jobs back in pieces, also those that a claim, which still saw
the pause, parks late.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import reduce
from operator import or_
from typing import Final

from django.db import connections
from django.db.models import F, Q, QuerySet

from .. import db, wakeup
from ..exceptions import InvalidOption
from ..models import Job, Queue
from ..queues import check_queue_name
from ..statuses import Parked
from .recover import skipping_locked, writing
from .report import BATCH
from .sweep import Swept, unpark

#: Longer than any transaction of a claim, which may have read the pause before it ended. Seconds.
LATE_SECONDS: Final = 60.0


def pause_queue(name: str, *, by: str = "", reason: str = "", until: datetime | None = None, using: str = "default") -> Queue:
    """Start no more jobs of the queue `name` and its subtree, until `until` (aware) or for good; what runs goes on.

    Raises `InvalidOption` for a name that can't be a queue's, and for an `until` that is naive or past.
    """
    check_queue_name(name, field="name")
    with writing(using) as connection:
        now = db.server_now(connection)
        if until is not None and until.tzinfo is None:
            raise InvalidOption("until", "the time has no time zone.")
        if until is not None and until <= now:
            raise InvalidOption("until", "the time has passed.")
        values = {"paused_at": now, "paused_until": until, "paused_by": by[:64], "pause_reason": reason[:500]}
        queue, _made = Queue.objects.using(using).update_or_create(name=name, defaults=values)
    return queue


def resume_queue(name: str, *, by: str = "", using: str = "default") -> bool:
    """End the pause of the queue `name` now. Return whether it was paused. A pause of a queue above it stays."""
    with writing(using) as connection:
        now = db.server_now(connection)
        paused = _paused(using, now).filter(name=name)
        if not paused.update(paused_until=now, paused_by=F("paused_by") if not by else by[:64]):
            return False
        swept = _unpark_below([name], using, now, BATCH)
        wakeup.wake(using, swept.queues or {name})
    return True


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
    """Bring back what is parked as paused although no queue has a mark: somebody deleted the queue's row."""
    parked = Job.objects.using(using).filter(parked=Parked.PAUSED)
    if not parked.exists() or Queue.objects.using(using).filter(paused_at__isnull=False).exists():
        return Swept()
    return unpark(list(skipping_locked(parked.order_by("id"))[:limit]), using=using)


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

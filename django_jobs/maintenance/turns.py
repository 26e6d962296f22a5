"""Turns: a service's `Leader` row is locked while one process runs one bounded sweep of it, in the same transaction.

Nobody has to be the leader: whoever locks the row while it is due sweeps, and a dead one's lock goes with its connection. A
turn saves work and gives no safety: two sweeps of one service at once are correct. So a process that knows of work need not
wait until the service is due.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from django.db import DatabaseError, connections, transaction
from django.db.models import F

from .. import db, signals, wakeup
from ..lifecycle.recover import writing
from ..lifecycle.sweep import Swept
from ..models import Leader
from ..outcomes import Event
from ..retry import is_database_conflict

logger = logging.getLogger("django_jobs.maintenance")

_MAX_ERROR: Final = 500


@dataclass(frozen=True, slots=True)
class Service:
    """One kind of maintenance. Seconds."""

    name: str
    #: (using, limit) -> what was done: one bounded sweep in the caller's transaction.
    sweep: Callable[[str, int], Swept]
    #: Rows in one sweep.
    limit: int
    #: Until the next sweep, when the last one found less than its limit.
    interval: float
    #: Until the next sweep, when it was full.
    rest: float = 0.0


def ensure_rows(services: Iterable[Service], *, using: str) -> None:
    """Insert the `Leader` rows that are not there yet."""
    names = {service.name for service in services}
    if missing := names - set(Leader.objects.using(using).filter(name__in=names).values_list("name", flat=True)):
        now = db.server_now(connections[using])
        rows = [Leader(name=name, next_at=now) for name in sorted(missing)]
        Leader.objects.using(using).bulk_create(rows, ignore_conflicts=True)


def due_names(*, using: str) -> set[str]:
    """Return the names of the services whose next sweep is due."""
    now = db.server_now(connections[using])
    return set(Leader.objects.using(using).filter(next_at__lte=now).values_list("name", flat=True))


def take_turn(
    service: Service,
    *,
    using: str,
    worker: object,
    force: bool = False,
    tell: Callable[[Sequence[Event]], None] = signals.dispatch,
) -> Swept | None:
    """Run one sweep if the service is due (or `force`) and nobody else is at it; return what it did, None if it was not our turn.

    What was done is told to listeners, by `tell`, and to waiting workers after the commit. Raises what the sweep raised, noted
    in the row, and the service comes again after its interval; after a lost race (a deadlock) or a lost session it is due at
    once.
    """
    try:
        with writing(using) as connection:
            now = db.server_now(connection)
            rows = Leader.objects.using(using).filter(name=service.name)
            if not force:
                rows = rows.filter(next_at__lte=now)
            if db.dialect(connection).row_locks:
                rows = rows.select_for_update(skip_locked=True)
            if rows.first() is None:
                return None
            swept = service.sweep(using, service.limit)
            pause = service.rest if swept.touched >= service.limit else service.interval
            done = db.server_now(connection)
            Leader.objects.using(using).filter(name=service.name).update(
                worker=worker,
                ran_at=done,
                next_at=done + timedelta(seconds=pause),
                touched=F("touched") + swept.touched,
                error="",
            )
            wakeup.wake(using, swept.queues)
    except Exception as error:
        _note(service, using, error)
        raise
    tell(swept.events)
    return swept


def _note(service: Service, using: str, error: Exception) -> None:
    """Keep the error for people, and let the service rest: what fails at once would fail in a circle."""
    connection = connections[using]
    if is_database_conflict(error) or (isinstance(error, DatabaseError) and db.dialect(connection).is_connection_loss(error)):
        return
    try:
        with transaction.atomic(using=using):
            now = db.server_now(connection)
            Leader.objects.using(using).filter(name=service.name).update(
                error=f"{type(error).__name__}: {error}"[:_MAX_ERROR].replace("\x00", ""),
                next_at=now + timedelta(seconds=max(service.interval, 1.0)),
            )
    except DatabaseError:
        logger.warning("The error of the service %s could not be noted", service.name, exc_info=True)

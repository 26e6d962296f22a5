"""Requeuer: end the attempts that this process's looks have judged dead."""

from __future__ import annotations

from typing import Final

from django.db import connections

from .. import db
from ..lifecycle.recover import lock_free, recover, recover_missing
from ..lifecycle.sweep import Swept
from ..models import LockKind
from ..statuses import Status
from .looks import Looks

CAUSE: Final = "nobody held the attempt's lock any more"
CAUSE_MISSING: Final = "the attempt had lost its lock row"


def sweep(looks: Looks, using: str, limit: int) -> Swept:
    """Recover up to `limit` attempts that are dead by `looks`, if their lock rows still are free and as they were seen."""
    dead = dict(list(looks.dead().items())[:limit])
    missing = dict(list(looks.missing().items())[: limit - len(dead)])
    rows = lock_free(using, dead) if dead else []
    now = db.server_now(connections[using])
    rows = [
        row
        for row in rows
        if row.kind == LockKind.WORKER
        and row.token == (seen := dead[row.job_id]).token
        and row.expires_at == seen.expires_at
        # What had expired may not have by a clock that was set back since; then it is looked at anew.
        and (seen.ahead or row.expires_at < now)
    ]
    recovered = recover(rows, using=using, cause=CAUSE)
    events = list(recovered)
    touched = len(rows) - recovered.left
    if missing:
        lost = recover_missing(missing, using=using, cause=CAUSE_MISSING)
        events += lost
        touched += len(lost)
    # Also a row that was handed back without an event is work again: any queue of the rows may have some.
    queues = {row.queue for row in rows} | {event.queue for event in events if event.status == Status.READY}
    return Swept(touched, events=events, queues=queues)

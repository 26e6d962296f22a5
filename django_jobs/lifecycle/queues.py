"""Declare queues, change what they say, and delete them, with a defined fate for their jobs.

A queue's row is settings and nothing else: jobs know their queue by its name. So a queue can go while jobs of it are there; they
would go on under what is inherited. Whoever deletes one is therefore told of jobs that still have to run, or that somebody has
yet to deal with; or has them deleted, too.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from django.db import IntegrityError, connections, transaction

from .. import db
from ..models import Job, Queue
from ..models.selection import SEGMENTS, Segment
from ..queues import check_queue_name
from ..statuses import LIVE, Status
from .control import delete
from .inherit import forget_queues
from .recover import writing
from .report import BATCH

#: What a queue says: the columns that `put_queue` replaces. A pause is not among them.
SETTINGS: Final = ("description", "is_http", "timeout", "heartbeat_timeout", "max_attempts", "backoff", "retention")
#: A deletion with its jobs works for so long in one call. Seconds.
DELETE_SECONDS: Final = 10.0
#: Jobs in these have yet to run, or somebody has yet to deal with them. Those that succeeded or were cancelled just age.
UNFINISHED: Final = (*sorted(LIVE), Status.FAILED.value, Status.TIMED_OUT.value)


def put_queue(name: str, values: Mapping[str, Any], *, replace: bool = True, create: bool = True, using: str) -> bool | None:
    """Set what the queue `name` says (a part of `SETTINGS`, checked); with `replace` the rest becomes inherited again.

    Return whether it was created by this; None if it is not there and `create` is off. Jobs that are enqueued keep what they
    have. Raises `InvalidOption` for a name that can't be a queue's.
    """
    check_queue_name(name, field="name")
    reset: dict[str, Any] = dict.fromkeys(SETTINGS, None) | {"description": ""} if replace else {}
    try:
        with writing(using):
            rows = Queue.objects.using(using).filter(name=name)
            if _has_locks(using):
                rows = rows.select_for_update()
            queue = rows.first()
            is_new = queue is None
            if queue is None:
                if not create:
                    return None
                queue = Queue(name=name)
            changes = {**reset, **values}
            for column, value in changes.items():
                setattr(queue, column, value)
            with transaction.atomic(using=using):
                # Not the pause, which may have come meanwhile.
                queue.save(using=using, force_insert=is_new, update_fields=None if is_new else list(changes))
    except IntegrityError:  # somebody else has made it at this moment
        return put_queue(name, values, replace=replace, create=create, using=using)
    # Again after the commit: who read in between has kept what was.
    transaction.on_commit(forget_queues, using=using)
    return is_new


def _has_locks(using: str) -> bool:
    """Whether rows can be locked on this database."""
    return db.dialect(connections[using]).row_locks


@dataclass(slots=True)
class Deleted:
    """What a deletion of a queue came to."""

    is_gone: bool = False  # the queue's row
    jobs: int = 0  # deleted
    left: int = 0  # of those looked at: running, or locked by somebody else
    more: bool = False  # not all were looked at: call again


def unfinished(name: str, *, using: str) -> bool:
    """Whether the queue `name` has jobs that have yet to run or to be dealt with. Indexes claim_queue, live, trouble."""
    return any(
        part.of(Job.objects.using(using)).filter(queue=name).exists()
        for status, part in SEGMENTS.items()
        if status not in (Status.SUCCEEDED, Status.CANCELLED)
    )


def delete_queue(name: str, *, cascade: bool = False, by: str = "", using: str) -> Deleted:
    """Delete the queue `name`; with `cascade` its jobs first, in pieces, except running ones, which keep the queue.

    Without `cascade` a queue that has jobs which have yet to run, or which failed or timed out, stays; what has succeeded or
    was cancelled is left to its retention. Queues below it inherit from what is above it then.
    """
    found = Deleted()
    if cascade:
        _delete_jobs(name, found, by, using)
        if found.more or found.left:
            return found
    with writing(using):
        if unfinished(name, using=using):
            found.left += 1
            return found
        found.is_gone = bool(Queue.objects.using(using).filter(name=name).delete()[0])
    transaction.on_commit(forget_queues, using=using)
    return found


def _delete_jobs(name: str, found: Deleted, by: str, using: str) -> None:
    end = time.monotonic() + DELETE_SECONDS
    for part in SEGMENTS.values():
        last: Job | None = None
        while True:
            jobs = _next(part, name, last, using)
            if not jobs:
                break
            last = jobs[-1]
            report = delete([job.pk for job in jobs], by=by, reason="with its queue", using=using)
            found.jobs += len(report.changed)
            found.left += len(report.refused)
            if time.monotonic() > end:
                found.more = True
                return


def _next(part: Segment, name: str, last: Job | None, using: str) -> list[Job]:
    """Return the next jobs of the queue in this part, behind `last`: so each is looked at once, whatever is refused."""
    jobs = part.of(Job.objects.using(using)).filter(queue=name).only("id", *(term.lstrip("-") for term in part.order))
    if last is not None:
        jobs = jobs.filter(part.after(last))
    return list(jobs[:BATCH])

"""What a control verb did, and how the verbs write: bounded batches, conditional updates, one bad row costs one row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final
from uuid import UUID

from django.db import DatabaseError, connections, transaction

from .. import signals
from ..models import Job
from ..outcomes import ErrorInfo, Event
from ..serializers import clean_text
from ..statuses import Status
from .recover import is_transaction_lost

#: Jobs in one transaction of a bulk verb.
BATCH: Final = 500
NOT_FOUND: Final = "There is no such job (any more)."
BUSY: Final = "Another transaction is changing this job at the moment: try again."
_MAX_REASON: Final = 500


@dataclass(slots=True)
class Report:
    """What a verb did, job by job. Every id that was asked for is either in `changed` or in `refused`."""

    changed: list[UUID] = field(default_factory=list)
    #: Of those changed, the jobs that were asked to stop: it happens when their worker sees it.
    requested: list[UUID] = field(default_factory=list)
    #: Why nothing was changed, for people.
    refused: dict[UUID, str] = field(default_factory=dict)
    #: Told to listeners already, after the commit.
    events: list[Event] = field(default_factory=list)

    def __iadd__(self, other: Report) -> Report:
        self.changed += other.changed
        self.requested += other.requested
        self.refused |= other.refused
        self.events += other.events
        return self


def in_batches(job_ids: Iterable[UUID], using: str, verb: Callable[[Sequence[UUID]], Report]) -> Report:
    """Run `verb`, one transaction, over the ids in pieces, in order of id; its events are dispatched after each commit."""
    ids = sorted(set(job_ids))
    report = Report()
    for start in range(0, len(ids), BATCH):
        part = verb(ids[start : start + BATCH])
        report += part
        tell(part.events, using)
    return report


def tell(events: Sequence[Event], using: str) -> None:
    """Dispatch `events` to listeners when the transaction that is open on `using` commits, or now if there is none."""
    if events:
        transaction.on_commit(partial(signals.dispatch, list(events)), using=using, robust=True)


def write_each(
    jobs: Sequence[Job], using: str, write: Callable[[Sequence[Job]], Sequence[UUID]]
) -> tuple[list[UUID], dict[UUID, DatabaseError]]:
    """Let `write` change `jobs` in one savepoint, or, when the database refuses that, each in its own.

    `write` returns the ids that it changed. Returns those, and the errors of the others. Raises what ends the whole transaction.
    """
    if not jobs:
        return [], {}
    try:
        with transaction.atomic(using=using):
            return list(write(jobs)), {}
    except DatabaseError as error:
        if is_transaction_lost(connections[using], error):
            raise
        if len(jobs) == 1:
            return [], {jobs[0].id: error}
    changed: list[UUID] = []
    errors: dict[UUID, DatabaseError] = {}
    for job in jobs:
        ids, failed = write_each([job], using, write)
        changed += ids
        errors |= failed
    return changed, errors


def said(verb: str, by: str, reason: str) -> str:
    """Return the text that a job keeps about a person's act: what, who, why. Fit for every database, whatever it was."""
    text = f"{verb} by {by}" if by else verb
    return clean_text(f"{text}: {reason}" if reason else text, _MAX_REASON)


def event(name: str, job: Job, status: Status, reason: str = "", *, error: ErrorInfo | None = None, told: bool = False) -> Event:
    """Return the event that `job`, as it was read, became `status`."""
    return Event(
        name=name,
        job_id=job.id,
        task=job.task,
        queue=job.queue,
        status=status,
        backend=job.backend,
        attempt=job.starts,
        error=error,
        reason=reason,
        told=told,
    )

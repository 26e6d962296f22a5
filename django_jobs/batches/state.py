"""What is known of a batch at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from ..statuses import LIVE, PENDING, Status

#: Open and nothing has begun; sealed and nothing has begun; some job has begun or ended; all have ended.
BatchStatus = Literal["pending", "enqueued", "progress", "finished"]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a batch is. Percentages are of `total`, the jobs that there are; 100 and 0 where there are none."""

    total: int
    #: Jobs that have ended, whichever way.
    ended: int
    succeeded: int
    #: Jobs that have failed or timed out.
    failed: int

    @property
    def percent_complete(self) -> float:
        """How much has ended."""
        return 100.0 * self.ended / self.total if self.total else 100.0

    @property
    def percent_failed(self) -> float:
        """How much has failed or timed out."""
        return 100.0 * self.failed / self.total if self.total else 0.0


@dataclass(frozen=True, slots=True)
class State:
    """What was known of a batch at one moment."""

    counts: Mapping[Status, int]
    sealed_at: datetime | None
    finished_at: datetime | None
    read_at: datetime | None

    @property
    def progress(self) -> Progress:
        """How far it was."""
        failed = self.counts[Status.FAILED] + self.counts[Status.TIMED_OUT]
        total, live = sum(self.counts.values()), sum(self.counts[status] for status in LIVE)
        return Progress(total, total - live, self.counts[Status.SUCCEEDED], failed)

    @property
    def status(self) -> BatchStatus:
        """In which of the four states it was."""
        if self.finished_at is not None and not any(self.counts[status] for status in LIVE):
            return "finished"
        if any(self.counts[status] for status in Status if status not in PENDING):
            return "progress"
        return "pending" if self.sealed_at is None else "enqueued"


def state_of(row: Any, numbers: Mapping[str, int]) -> State:
    """Return the state that the row of a batch and its numbers describe."""
    counts = {status: max(0, numbers.get(status.value, 0)) for status in Status}
    return State(counts, row.sealed_at, row.finished_at, row.read_at)

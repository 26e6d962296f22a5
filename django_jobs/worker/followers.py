"""What comes after jobs that a process has recorded, in its next cycle, after the commit.

The children of jobs of graphs (see `lifecycle.follow`), and the ends of batches, which maintenance would find within a second or
two (see `lifecycle.batch_look`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from typing import Final
from uuid import UUID

from django_jobs import db, wakeup
from django_jobs.lifecycle.batch_look import look
from django_jobs.lifecycle.follow import follow_ended
from django_jobs.outcomes import Event, Finished
from django_jobs.worker.hold import Hands

#: Jobs followed in one cycle.
BATCH: Final = 200
#: Somebody has a child locked: look again after this.
AGAIN_SECONDS: Final = 0.05
#: How often a process looks at the batches of the jobs that it records: each look costs as much however many have ended.
LOOK_SECONDS: Final = 0.25


class Followers:
    """The children and batches of what has ended in one process, and the children of what others have left."""

    def __init__(self, hands: Hands) -> None:
        self._hands = hands
        self._children_due = self._batches_due = math.inf  # by the monotonic clock
        self._batches: set[UUID] = set()
        self.released = False  # there is new work

    @property
    def due(self) -> float:
        """When there is something to do, by the monotonic clock."""
        return min(self._children_due, self._batches_due)

    @property
    def is_due(self) -> bool:
        """Whether there is something to be followed."""
        return self.due < math.inf

    def told(self, has_ended: bool, finished: Iterable[Finished]) -> None:
        """The cycle that is being committed has ended jobs of graphs, or not, and has recorded `finished`."""
        if has_ended:
            self._children_due = 0.0
        before = len(self._batches)
        self._batches.update(item.attempt.batch for item in finished if item.attempt.batch is not None)
        if self._batches and not before:
            self._batches_due = time.monotonic() + LOOK_SECONDS

    def follow(self, now: float) -> list[Event]:
        """Do what is due, in this cycle's transaction. Return the events. Raises a database error."""
        self.released = False
        events: list[Event] = []
        if now >= self._children_due:
            events = self._follow_children(now)
        if now >= self._batches_due:
            self._look_at_batches()
        return events

    def _follow_children(self, now: float) -> list[Event]:
        connection = self._hands.connection
        self._hands.begin()
        with db.savepoint(connection, "followers"):
            followed = follow_ended(connection, limit=BATCH)
            wakeup.wake_over(connection, followed.queues)
        self.released |= bool(followed.queues)
        self._children_due = (
            (now if followed.touched >= BATCH else time.monotonic() + AGAIN_SECONDS) if followed.again else math.inf
        )
        return followed.events

    def _look_at_batches(self) -> None:
        connection = self._hands.connection
        batches, self._batches, self._batches_due = self._batches, set(), math.inf
        self._hands.begin()
        with db.savepoint(connection, "batches"):
            queues = look(connection, batches).queues
            wakeup.wake_over(connection, queues)
        self.released |= bool(queues)

"""What comes after jobs of graphs that a process has recorded: in its next cycle, after the commit (see `lifecycle.follow`)."""

from __future__ import annotations

import math
import time
from typing import Final

from django_jobs import db, wakeup
from django_jobs.lifecycle.follow import follow_ended
from django_jobs.outcomes import Event
from django_jobs.worker.hold import Hands

#: Jobs followed in one cycle.
BATCH: Final = 200
#: Somebody has a child locked: look again after this.
AGAIN_SECONDS: Final = 0.05


class Followers:
    """The children of what has ended in one process, and of what others have left."""

    def __init__(self, hands: Hands) -> None:
        self._hands = hands
        self.due = math.inf  # by the monotonic clock
        self.released = False  # there is new work

    @property
    def is_due(self) -> bool:
        """Whether there is something to be followed."""
        return self.due < math.inf

    def told(self, has_ended: bool) -> None:
        """The cycle that is being committed has ended jobs of graphs, or not."""
        if has_ended:
            self.due = 0.0

    def follow(self, now: float) -> list[Event]:
        """Release and cancel children, if it is time, in this cycle's transaction. Return the events. Raises a database error."""
        self.released = False
        if now < self.due:
            return []
        connection = self._hands.connection
        self._hands.begin()
        with db.savepoint(connection, "followers"):
            followed = follow_ended(connection, limit=BATCH)
            wakeup.wake_over(connection, followed.queues)
        self.released = bool(followed.queues)
        self.due = (now if followed.touched >= BATCH else time.monotonic() + AGAIN_SECONDS) if followed.again else math.inf
        return followed.events

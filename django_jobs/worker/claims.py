"""How many jobs a process wants, of which kind, and the claim of them.

A process asks for what its free threads and coroutines can begin now, and a little ahead for threads whose jobs are short. A kind
of which the last claim found less than it wanted is *empty*: it is asked for again at the next poll, or when a wake-up comes.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from uuid import UUID

from django.db import DatabaseError, DataError, InterfaceError
from django.db.backends.base.base import BaseDatabaseWrapper

from django_jobs import db, wakeup
from django_jobs.lifecycle.claim import QueueFilter, claim
from django_jobs.lifecycle.unreadable import fail_unreadable
from django_jobs.outcomes import Attempt, Event
from django_jobs.worker.hold import Hands
from django_jobs.worker.pool import Pool
from django_jobs.worker.queues import QueueWatch

#: Rows claimed in one cycle: more would make the commit, and with it the wait of a finished job, longer.
BATCH = 100
#: Claim ahead what is likely to begin within this time.
AHEAD_SECONDS = 0.05
#: A process whose sibling was woken first looks this much later, so that the two don't race for one job.
LATER_LOOK_SECONDS = 0.01
#: Kinds of slots.
THREADS, LOOP = "threads", "loop"


class Claims:
    """What one process claims."""

    def __init__(
        self, hands: Hands, pool: Pool, queues: QueueWatch, *, worker: UUID, name: str, poll: float, async_tasks: frozenset[str]
    ) -> None:
        self.hands, self.pool, self.queues = hands, pool, queues
        self.connection: BaseDatabaseWrapper = hands.connection
        self.worker, self.name = worker, name
        self.poll = poll
        self.async_tasks = async_tasks
        self.kinds = {THREADS, LOOP} if async_tasks else {THREADS}
        self.next_poll = 0.0
        self.look_again_at = 0.0
        self.count = 0
        self._empty: set[str] = set()
        self._failed: QueueFilter | None = None  # of the claim that failed last
        self._served = ""  # the kind that got something last: the other one has its turn first

    @property
    def is_empty(self) -> bool:
        """Whether the last claims found less than they wanted, of every kind."""
        return self._empty >= self.kinds

    def woken(self, queue: str, *, first: bool = True) -> None:
        """There is work in `queue`: claim at once, and look again a little later. Not `first`: another process looks first."""
        self.queues.seen(queue)
        if first:
            self.next_poll = 0.0
        now = time.monotonic()
        if first or not self.look_again_at:
            self.look_again_at = now + (wakeup.SECOND_LOOK_SECONDS if first else LATER_LOOK_SECONDS)

    def room(self) -> int:
        """Return how many attempts, beyond those that wait in the pool, are likely to begin soon."""
        return self.pool.free_threads + self.pool.lookahead(AHEAD_SECONDS, BATCH) - self.pool.waiting

    def wanted(self, ahead: int, left: int | None) -> dict[str, int]:
        """Return how many more attempts of each kind the process could begin soon.

        `ahead`: what is claimed and not yet in the pool; `left`: how many jobs it may still take at all.
        """
        wanted = {THREADS: min(BATCH, max(0, self.room() - ahead))}
        if self.async_tasks:
            wanted[LOOP] = min(BATCH, self.pool.free_async)
        if left is not None:
            for kind in wanted:
                wanted[kind] = max(0, min(wanted[kind], left))
                left -= wanted[kind]
        return {kind: count for kind, count in wanted.items() if count}

    def is_hungry(self, wanted: dict[str, int]) -> bool:
        """Whether there is something to claim as far as is known."""
        return any(kind not in self._empty for kind in wanted)

    def claim(self, now: float, wanted: dict[str, int]) -> list[Attempt]:
        """Claim what is wanted and either not known to be empty or due for a look."""
        is_due = now >= self.next_poll or bool(self.look_again_at and now >= self.look_again_at)
        if now >= self.look_again_at:
            self.look_again_at = 0.0
        wanted = {kind: count for kind, count in wanted.items() if is_due or kind not in self._empty}
        if not wanted:
            return []
        self.next_poll = now + self.poll
        if not self.hands.is_open and not self._is_work_likely():
            self._empty.update(wanted)
            return []
        self.queues.refresh(self.connection, now)
        # Never in autocommit: the commit of a claim and the hold of its rows are one message. Elsewhere it is several statements.
        self.hands.begin(writes=self.connection.vendor != "postgresql")
        claimed: list[Attempt] = []
        for kind in sorted(wanted, key=lambda kind: kind == self._served):
            if claimed:
                self._empty.discard(kind)  # its turn comes in the next cycle: what is claimed begins before another look
                continue
            claimed = self._claim_kind(kind, wanted[kind])
            if len(claimed) < wanted[kind]:
                self._empty.add(kind)
            else:
                self._empty.discard(kind)
            if claimed:
                self._served = kind
        self.count += len(claimed)
        return claimed

    def _claim_kind(self, kind: str, count: int) -> list[Attempt]:
        if kind == LOOP:
            free, queues = count, self.queues.filter(only=self.async_tasks)
        else:
            free, queues = self.pool.free_threads, self.queues.filter(skip=self.async_tasks)
        try:
            return claim(
                self.connection,
                worker=self.worker,
                worker_name=self.name,
                tokens=[uuid.uuid4() for _ in range(count)],
                free=free,
                grace=self.hands.grace,
                queues=queues,
            )
        except Exception as error:
            self._failed = queues
            if isinstance(error, DatabaseError | InterfaceError):
                raise
            raise DataError(f"{type(error).__name__}: {error}") from error  # a row that only Python could not read

    def mend(self, dispatch: Callable[[list[Event]], None]) -> None:
        """After a claim that failed, and was undone: fail the jobs whose rows can't be read. Raises a database error."""
        queues, self._failed = self._failed, None
        if queues is None:
            return
        self.next_poll = 0.0
        self.hands.begin()
        events = fail_unreadable(self.connection, queues, BATCH)
        self.hands.hold()
        dispatch(events)

    def _is_work_likely(self) -> bool:
        """Where a claim is several statements, look before taking a lock. On PostgreSQL the claim itself is the look."""
        if self.connection.vendor == "postgresql":
            return True
        with self.connection.cursor() as cursor:
            cursor.execute(f"SELECT 1 FROM {db.JOB} WHERE status = 'ready' AND parked = '' AND is_http = false LIMIT 1")
            return cursor.fetchone() is not None

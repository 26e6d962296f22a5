"""The rows in hand, and the transaction that holds them.

Everything here runs in the control loop's thread, on the control connection. `hold` commits what is open and locks the rows in
hand in the next transaction, which stays open; an attempt whose token the answer did not list is *unconfirmed*: it must not
start. Why a token may be missing is looked up by a plain read: another transaction has the row locked just now (tried again at
the next hold), or it is gone (taken over).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from uuid import UUID

from django.db import DatabaseError, InterfaceError
from django.db.backends.base.base import BaseDatabaseWrapper

from django_jobs import db
from django_jobs.lifecycle.fence import tokens_present
from django_jobs.outcomes import Attempt

logger = logging.getLogger("django_jobs.worker")


@dataclass(slots=True)
class InHand:
    """An attempt whose lock row is ours."""

    attempt: Attempt
    refreshed: float  # monotonic: when its `expires_at` was last written
    cancelled: bool = False


class Confirmation:
    """When the database last confirmed that the rows in hand are held; read by the guard in another thread.

    Counted on the clock that goes on while the machine sleeps, from the *sending* of the statement that was confirmed.
    """

    def __init__(self) -> None:
        self.at = boottime()
        self.has_rows = False

    def confirm(self, sent_at: float, *, has_rows: bool) -> None:
        """Take note of an answer."""
        self.at = sent_at
        self.has_rows = has_rows

    def age(self) -> float:
        """Return for how many seconds nothing was confirmed, 0 if nothing is in hand."""
        return boottime() - self.at if self.has_rows else 0.0


def boottime() -> float:
    """Return a clock that also counts while the machine is suspended, where there is one."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class Hands:
    """What a worker process has in hand. `on_taken` is told of attempts that were taken over."""

    def __init__(
        self, connection: BaseDatabaseWrapper, *, grace: float, slice_seconds: float, on_taken: Callable[[Iterable[InHand]], None]
    ) -> None:
        self.connection = connection
        self.dialect = db.dialect(connection)
        self.grace, self.slice = grace, slice_seconds
        self.items: dict[UUID, InHand] = {}
        self.unconfirmed: set[UUID] = set()  # tokens that the last hold did not list
        self.confirmation = Confirmation()
        self.is_open = False  # our transaction is open
        self.wrote = False  # it has written something, which must not wait for the slice's end
        self.last_hold = 0.0
        self._on_taken = on_taken

    def rows(self) -> dict[UUID, UUID]:
        """Return job id -> token of everything in hand."""
        return {item.attempt.job_id: token for token, item in self.items.items()}

    def take(self, attempts: Iterable[Attempt]) -> None:
        """Take attempts in hand that the open transaction has claimed, or that turn out to be still ours."""
        now = time.monotonic()
        for attempt in attempts:
            self.items.setdefault(attempt.token, InHand(attempt, now))

    def drop(self, tokens: Iterable[UUID]) -> None:
        """Let go of attempts."""
        for token in tokens:
            self.items.pop(token, None)
            self.unconfirmed.discard(token)

    def may_start(self, attempt: Attempt) -> bool:
        """Whether the last hold has listed this attempt's token."""
        return attempt.token in self.items and attempt.token not in self.unconfirmed

    @property
    def is_due(self) -> bool:
        """Whether the slice is over."""
        return not self.last_hold or time.monotonic() - self.last_hold >= self.slice

    # -- the transaction

    def begin(self, *, writes: bool = True) -> None:
        """Make sure that a transaction is open; `writes`: for a write, which is committed with this cycle."""
        self.wrote |= writes
        if not self.is_open:
            with self.connection.cursor() as cursor:
                cursor.execute(self.dialect.begin_sql)
            self.is_open = True

    def undo(self) -> None:
        """Undo the cycle and keep the holds where the savepoint still stands; else undo all. Raises a database error."""
        if not self.is_open:
            return
        with self.connection.cursor() as cursor:
            try:
                cursor.execute("ROLLBACK TO SAVEPOINT cycle")
            except (DatabaseError, InterfaceError):
                cursor.execute("ROLLBACK")
                self.is_open = False

    def lost(self) -> None:
        """The session is gone, and with it the transaction."""
        self.is_open = False

    def hold(self, *, everything: bool = False) -> None:
        """Commit, and hold what is in hand; `everything` also moves every `expires_at` on, else those that are due."""
        sent_at, now = boottime(), time.monotonic()
        rows = self.rows()
        refresh = rows if everything else self._due(now)
        held = self.dialect.hold(self.connection, refresh, rows, self.grace, is_open=self.is_open)
        self.is_open = bool(rows) and self.dialect.row_locks
        self.wrote = False
        self.last_hold = now
        for token in refresh.values():
            self.items[token].refreshed = now
        self.unconfirmed = set(rows.values()) - held
        self.confirmation.confirm(sent_at, has_rows=bool(rows))
        if self.unconfirmed:
            self._look_for_taken()

    def _due(self, now: float) -> dict[UUID, UUID]:
        """Return the rows whose `expires_at` must move on; those claimed just now are fresh."""
        limit = now - self.slice * 0.9
        return {
            item.attempt.job_id: token
            for token, item in self.items.items()
            if item.refreshed <= limit and token not in self.unconfirmed
        }

    def _look_for_taken(self) -> None:
        rows = {self.items[token].attempt.job_id: token for token in self.unconfirmed}
        present = tokens_present(self.connection, rows)
        gone = [self.items[token] for token in self.unconfirmed - present]
        if gone:
            self._on_taken(gone)
        self.drop(item.attempt.token for item in gone)
        self.unconfirmed = present

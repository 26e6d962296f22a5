"""`Dialect`: what one kind of database can do, and how it is told. One subclass a vendor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from django.db.backends.base.base import BaseDatabaseWrapper

#: A person's open transaction may hold a job's row: no statement of the control loop waits longer than this.
LOCK_TIMEOUT_SECONDS = 0.5
#: No statement of ours runs longer than this; a sweep that needs more is too big.
STATEMENT_TIMEOUT_SECONDS = 30
#: How soon a lost TCP session is noticed, on both ends (seconds): idle before the first probe, between probes, probes.
KEEPALIVE = (5, 3, 3)

_T = TypeVar("_T")


def batches(items: Sequence[_T], size: int) -> Iterator[Sequence[_T]]:
    """Cut `items` into pieces of at most `size`."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


class Dialect:
    """What one kind of database can do, and how it is told."""

    vendor: str
    #: Whether a row lock can be asked about. False: `expires_at` is all there is.
    row_locks = True
    #: SQL for the statement's time, UTC, in microseconds; moves within a transaction.
    now_sql: str
    begin_sql = "BEGIN"
    for_update_skip = " FOR UPDATE SKIP LOCKED"
    #: The lock that an attempt's holder keeps on its lock row.
    for_hold_skip = " FOR UPDATE SKIP LOCKED"
    #: The lock on rows about to be changed, which leaves foreign-key checks of others alone.
    for_change = " FOR UPDATE"
    for_change_skip = " FOR UPDATE SKIP LOCKED"
    #: Goes beside the holder's lock, and makes a FOR UPDATE SKIP LOCKED sweep skip the row.
    for_fence = " FOR UPDATE"
    #: Behind a table's name: look rows up by the primary key. InnoDB locks every row that it reads, and reads small tables whole.
    by_key = ""
    #: The greatest number of parameters in one statement.
    max_params = 30_000

    def delete_by_key(self, table: str, key: str, ids: Sequence[UUID]) -> tuple[str, list[Any]]:
        """Return a DELETE that finds its rows by the primary key `key`, and its parameters."""
        marks, params = self.marks(ids)
        return f"DELETE FROM {table} WHERE {key} IN ({marks})", params

    def delete_by_id(self, table: str, ids: Sequence[int]) -> tuple[str, list[Any]]:
        """Return a DELETE that finds its rows by the primary key `id`, a number, and its parameters."""
        return f"DELETE FROM {table} WHERE id IN ({', '.join(['%s'] * len(ids))})", list(ids)

    def now_plus(self, seconds: str = "%s") -> str:
        """Return SQL for "now plus that many seconds"; `seconds` is SQL too (a parameter by default)."""
        raise NotImplementedError

    def uuid(self, value: UUID) -> Any:
        """Return `value` as this database's driver takes it."""
        return value

    def to_uuid(self, value: Any) -> UUID:
        """Return what a raw query gave for a UUID column as a UUID."""
        return value if isinstance(value, UUID) else UUID(value)

    def prepare_session(self, connection: BaseDatabaseWrapper, *, name: str, by_key: bool = False) -> None:
        """Make a fresh connection fit for a loop of ours: time limits, keepalives, a name, which the server shows.

        `by_key`: its statements find their rows by index, whatever the statistics say.
        """

    def wait_at_most(self, connection: BaseDatabaseWrapper, seconds: float) -> str:
        """Bound each wait for another transaction's lock, in the open transaction. Return what there was, for `wait_again`."""
        return ""

    def wait_again(self, connection: BaseDatabaseWrapper, before: str) -> None:
        """Undo `wait_at_most`."""

    def options(self) -> dict[str, Any]:
        """Return connection options for the control connection, laid over the project's own."""
        return {}

    def session_id(self, connection: BaseDatabaseWrapper) -> int | None:
        """Return the server's id of this session, None where there is none."""
        return None

    def uptime(self, connection: BaseDatabaseWrapper) -> float | None:
        """Return for how many seconds the server has been up; None where there is no server."""
        return None

    def hold(
        self,
        connection: BaseDatabaseWrapper,
        refresh: Mapping[UUID, UUID],
        rows: Mapping[UUID, UUID],
        grace: float,
        is_open: bool = True,
    ) -> set[UUID]:
        """Commit what is open, then lock the rows in hand in a new transaction that stays open. Return the tokens that are held.

        `refresh` and `rows` map job ids to tokens; `refresh` (a part of `rows`) are those whose `expires_at` moves on, last
        before the commit. Never waits: a row that another transaction has locked is left out. With no rows: commit, open nothing.
        `is_open`: whether there is a transaction to commit. The new one has a savepoint `cycle`, for the next cycle's work.
        """
        raise NotImplementedError

    def is_below(self, queue: str, above: str) -> str:
        """Return SQL for "the queue named `queue` is below the one named `above`"; both are SQL.

        (LIKE would take `_` for a wildcard.)
        """
        return f"SUBSTR({queue}, 1, LENGTH({above}) + 1) = {above} || '.'"

    def time(self, value: datetime | None) -> Any:
        """Return an aware datetime as this database's driver takes it in a raw statement."""
        return value

    def marks(self, values: Iterable[UUID]) -> tuple[str, list[Any]]:
        """Return the placeholders and the parameters for `IN (...)`."""
        params = [self.uuid(value) for value in values]
        return ", ".join(["%s"] * len(params)), params

    def is_connection_loss(self, error: BaseException) -> bool:
        """Whether the session is gone (as against: the statement failed)."""
        return False

    def is_refusal(self, error: BaseException) -> bool:
        """Whether the server said that it is not available, so that no sweeper can judge either."""
        return False

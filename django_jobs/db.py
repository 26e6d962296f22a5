"""Everything that differs between databases: clocks, locks, transactions by hand, bulk statements, capabilities.

One `Dialect` per vendor; `dialect(connection)` finds it. Parameters are always passed apart from the SQL, except in `Dialect.hold`
on PostgreSQL, whose statements must travel as one message and whose literals are UUIDs and numbers that this package made.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, connections
from django.db.backends.base.base import BaseDatabaseWrapper

JOB = "django_jobs_job"
LOCK = "django_jobs_joblock"
ATTEMPT = "django_jobs_jobattempt"
CANCEL = "django_jobs_cancelrequest"
QUEUE = "django_jobs_queue"
WORKER = "django_jobs_worker"
LEADER = "django_jobs_leader"

#: A person's open transaction may hold a job's row: no statement of the control loop waits longer than this.
LOCK_TIMEOUT_SECONDS = 0.5
#: No statement of ours runs longer than this; a sweep that needs more is too big.
STATEMENT_TIMEOUT_SECONDS = 30
#: How soon a lost TCP session is noticed, on both ends (seconds): idle before the first probe, between probes, probes.
KEEPALIVE = (5, 3, 3)


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

    def delete_by_key(self, table: str, key: str, ids: Sequence[uuid.UUID]) -> tuple[str, list[Any]]:
        """Return a DELETE that finds its rows by the primary key `key`, and its parameters."""
        marks, params = self.marks(ids)
        return f"DELETE FROM {table} WHERE {key} IN ({marks})", params

    def now_plus(self, seconds: str = "%s") -> str:
        """Return SQL for "now plus that many seconds"; `seconds` is SQL too (a parameter by default)."""
        raise NotImplementedError

    def uuid(self, value: uuid.UUID) -> Any:
        """Return `value` as this database's driver takes it."""
        return value

    def to_uuid(self, value: Any) -> uuid.UUID:
        """Return what a raw query gave for a UUID column as a UUID."""
        return value if isinstance(value, uuid.UUID) else uuid.UUID(value)

    def prepare_session(self, connection: BaseDatabaseWrapper, *, name: str) -> None:
        """Make a fresh connection fit for the control loop: time limits, keepalives, a name. `name` is shown by the server."""

    def options(self) -> dict[str, Any]:
        """Return connection options for the control connection, laid over the project's own."""
        return {}

    def session_id(self, connection: BaseDatabaseWrapper) -> int | None:
        """Return the server's id of this session, None where there is none."""
        return None

    def hold(
        self,
        connection: BaseDatabaseWrapper,
        refresh: Mapping[uuid.UUID, uuid.UUID],
        rows: Mapping[uuid.UUID, uuid.UUID],
        grace: float,
        is_open: bool = True,
    ) -> set[uuid.UUID]:
        """Commit what is open, then lock the rows in hand in a new transaction that stays open. Return the tokens that are held.

        `refresh` and `rows` map job ids to tokens; `refresh` (a part of `rows`) are those whose `expires_at` moves on, last
        before the commit. Never waits: a row that another transaction has locked is left out. With no rows: commit, open nothing.
        `is_open`: whether there is a transaction to commit. The new one has a savepoint `cycle`, for the next cycle's work.
        """
        raise NotImplementedError

    def is_below(self, queue: str, above: str) -> str:
        """Return SQL for "the queue named `queue` is below the one named `above`"; both are SQL. (LIKE would take `_` for a wildcard.)"""
        return f"SUBSTR({queue}, 1, LENGTH({above}) + 1) = {above} || '.'"

    def time(self, value: datetime | None) -> Any:
        """Return an aware datetime as this database's driver takes it in a raw statement."""
        return value

    def marks(self, values: Iterable[uuid.UUID]) -> tuple[str, list[Any]]:
        """Return the placeholders and the parameters for `IN (...)`."""
        params = [self.uuid(value) for value in values]
        return ", ".join(["%s"] * len(params)), params

    def is_connection_loss(self, error: BaseException) -> bool:
        """Whether the session is gone (as against: the statement failed)."""
        return False

    def is_refusal(self, error: BaseException) -> bool:
        """Whether the server said that it is not available, so that no sweeper can judge either."""
        return False


class PostgreSQL(Dialect):
    """PostgreSQL 14 or newer, through psycopg 3 (psycopg2 for enqueuing only)."""

    vendor = "postgresql"
    now_sql = "clock_timestamp()"
    begin_sql = "BEGIN ISOLATION LEVEL READ COMMITTED"
    for_hold_skip = " FOR NO KEY UPDATE SKIP LOCKED"
    for_change = " FOR NO KEY UPDATE"
    for_change_skip = " FOR NO KEY UPDATE SKIP LOCKED"
    for_fence = " FOR KEY SHARE"

    def now_plus(self, seconds: str = "%s") -> str:
        return f"clock_timestamp() + ({seconds})::double precision * interval '1 second'"

    def is_below(self, queue: str, above: str) -> str:
        return f"starts_with({queue}, {above} || '.')"

    def options(self) -> dict[str, Any]:
        idle, interval, count = KEEPALIVE
        return {
            "keepalives": 1,
            "keepalives_idle": idle,
            "keepalives_interval": interval,
            "keepalives_count": count,
            "tcp_user_timeout": 1000 * (idle + interval * count),
            "connect_timeout": 5,
        }

    def prepare_session(self, connection: BaseDatabaseWrapper, *, name: str) -> None:
        idle, interval, count = KEEPALIVE
        settings = {
            "application_name": name[:63],
            "lock_timeout": f"{int(LOCK_TIMEOUT_SECONDS * 1000)}ms",
            "statement_timeout": f"{STATEMENT_TIMEOUT_SECONDS}s",
            "idle_in_transaction_session_timeout": "0",
            # The server's side of the session: ignored on a Unix socket.
            "tcp_keepalives_idle": str(idle),
            "tcp_keepalives_interval": str(interval),
            "tcp_keepalives_count": str(count),
            "tcp_user_timeout": str(1000 * (idle + interval * count)),
        }
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT " + ", ".join(["set_config(%s, %s, false)"] * len(settings)),
                [item for pair in settings.items() for item in pair],
            )
            # PostgreSQL 17 has a bound on whole transactions, too; older versions do not know the name.
            cursor.execute("SELECT set_config(name, '0', false) FROM pg_settings WHERE name = 'transaction_timeout'")

    def session_id(self, connection: BaseDatabaseWrapper) -> int | None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            return int(cursor.fetchone()[0])

    def hold(
        self,
        connection: BaseDatabaseWrapper,
        refresh: Mapping[uuid.UUID, uuid.UUID],
        rows: Mapping[uuid.UUID, uuid.UUID],
        grace: float,
        is_open: bool = True,
    ) -> set[uuid.UUID]:
        # One message to the server: no stall of this process can fall between the commit and the locks. The simple query
        # protocol takes several statements only without parameters. Uses the primary key of the lock table.
        parts = []
        if refresh and not is_open:
            parts.append(self.begin_sql)
            is_open = True
        if refresh:
            pairs = ",".join(f"('{job}'::uuid,'{token}'::uuid)" for job, token in refresh.items())
            parts.append(
                f"UPDATE {LOCK} l SET expires_at = clock_timestamp() + interval '{grace:.3f} s'"
                f" FROM (VALUES {pairs}) v(job, token) WHERE l.job_id = v.job AND l.token = v.token"
            )
        if is_open:
            parts.append("COMMIT")
        if rows:
            jobs = ",".join(f"'{job}'" for job in rows)
            parts.append(self.begin_sql)
            parts.append(f"SELECT l.token FROM {LOCK} l WHERE l.job_id IN ({jobs}) FOR NO KEY UPDATE SKIP LOCKED")
            parts.append("SAVEPOINT cycle")
        if not parts:
            return set()
        with connection.cursor() as cursor:
            cursor.execute("; ".join(parts))
            raw: Any = cursor.cursor
            held: set[uuid.UUID] = set()
            while True:
                if raw.description is not None:
                    wanted = set(rows.values())
                    held = {self.to_uuid(row[0]) for row in raw.fetchall()} & wanted
                if not raw.nextset():
                    return held

    def is_connection_loss(self, error: BaseException) -> bool:
        state = sqlstate(error)
        if state is not None:
            return state.startswith("08") or state in _PG_SHUTDOWN
        from django.db import InterfaceError, OperationalError

        return isinstance(error, InterfaceError | OperationalError)

    def is_refusal(self, error: BaseException) -> bool:
        text = str(error)
        return sqlstate(error) in _PG_SHUTDOWN or any(words in text for words in _PG_REFUSALS)


_PG_SHUTDOWN = frozenset({"57P01", "57P02", "57P03"})
# Without a sqlstate (no session was made) libpq tells only by text; these are its English and the operating system's words.
_PG_REFUSALS = ("Connection refused", "the database system is", "No such file or directory", "terminating connection due to")


class MySQL(Dialect):
    """MariaDB 10.11 or newer (MySQL 8.4 by its documentation)."""

    vendor = "mysql"
    uuid_sql = "CAST(%s AS UUID)"
    by_key = " FORCE INDEX (PRIMARY)"
    now_sql = "UTC_TIMESTAMP(6)"
    begin_sql = "START TRANSACTION"
    # Shared, so that the connection of an `atomic=True` job can fence beside it; a FOR UPDATE SKIP LOCKED sweep skips both.
    for_hold_skip = " LOCK IN SHARE MODE SKIP LOCKED"
    for_fence = " LOCK IN SHARE MODE"

    def delete_by_key(self, table: str, key: str, ids: Sequence[uuid.UUID]) -> tuple[str, list[Any]]:
        # A DELETE heeds no index hint, and a small table would be read, and so locked, whole: join from the keys' side.
        keys = " UNION ALL ".join([f"SELECT {self.uuid_sql} AS id"] * len(ids))
        params = [self.uuid(value) for value in ids]
        return f"DELETE {table} FROM ({keys}) v STRAIGHT_JOIN {table} ON {table}.{key} = v.id", params

    def now_plus(self, seconds: str = "%s") -> str:
        return f"TIMESTAMPADD(MICROSECOND, ROUND(({seconds}) * 1000000), UTC_TIMESTAMP(6))"

    def uuid(self, value: uuid.UUID) -> Any:
        return str(value)

    def is_below(self, queue: str, above: str) -> str:
        return f"LEFT({queue}, CHAR_LENGTH({above}) + 1) = CONCAT({above}, '.')"

    def time(self, value: datetime | None) -> Any:
        return None if value is None else value.astimezone(UTC).replace(tzinfo=None)

    def prepare_session(self, connection: BaseDatabaseWrapper, *, name: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                "SET SESSION innodb_lock_wait_timeout = 1, wait_timeout = 15, transaction_isolation = 'READ-COMMITTED'"
                if not _is_mariadb(connection)
                else "SET SESSION innodb_lock_wait_timeout = 1, wait_timeout = 15, tx_isolation = 'READ-COMMITTED'"
            )

    def session_id(self, connection: BaseDatabaseWrapper) -> int | None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT CONNECTION_ID()")
            return int(cursor.fetchone()[0])

    def hold(
        self,
        connection: BaseDatabaseWrapper,
        refresh: Mapping[uuid.UUID, uuid.UUID],
        rows: Mapping[uuid.UUID, uuid.UUID],
        grace: float,
        is_open: bool = True,
    ) -> set[uuid.UUID]:
        with connection.cursor() as cursor:
            if refresh:
                marks, params = self.marks(refresh)
                tokens, more = self.marks(refresh.values())
                cursor.execute(
                    f"UPDATE {LOCK}{self.by_key} SET expires_at = {self.now_plus()} WHERE job_id IN ({marks}) AND token IN ({tokens})",
                    [grace, *params, *more],
                )
            if is_open:
                cursor.execute("COMMIT")
            if not rows:
                return set()
            cursor.execute(self.begin_sql)
            marks, params = self.marks(rows)
            cursor.execute(f"SELECT token FROM {LOCK}{self.by_key} WHERE job_id IN ({marks}){self.for_hold_skip}", params)
            held = {self.to_uuid(row[0]) for row in cursor.fetchall()} & set(rows.values())
            cursor.execute("SAVEPOINT cycle")
            return held

    def is_connection_loss(self, error: BaseException) -> bool:
        code = errno(error)
        return code in {0, 2002, 2003, 2006, 2013, 2014, 2055, 1053, 1077, 1079, 1927, 4031}

    def is_refusal(self, error: BaseException) -> bool:
        return errno(error) in {2002, 2003, 1053, 1077, 1079}


class MySQL8(MySQL):
    """MySQL, which has no type for UUIDs: Django keeps them as 32 characters."""

    uuid_sql = "%s"

    def uuid(self, value: uuid.UUID) -> Any:
        return value.hex


class SQLite(Dialect):
    """SQLite 3.35 or newer: one writer at a time, no row locks, leases only."""

    vendor = "sqlite"
    row_locks = False
    now_sql = "strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now')"
    begin_sql = "BEGIN IMMEDIATE"
    for_update_skip = for_hold_skip = for_change = for_change_skip = for_fence = ""
    max_params = 900

    def now_plus(self, seconds: str = "%s") -> str:
        return f"strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now', ({seconds}) || ' seconds')"

    def uuid(self, value: uuid.UUID) -> Any:
        return value.hex

    def time(self, value: datetime | None) -> Any:
        return None if value is None else value.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")

    def hold(
        self,
        connection: BaseDatabaseWrapper,
        refresh: Mapping[uuid.UUID, uuid.UUID],
        rows: Mapping[uuid.UUID, uuid.UUID],
        grace: float,
        is_open: bool = True,
    ) -> set[uuid.UUID]:
        # No open transaction: it would keep every other writer out. The fresh `expires_at` is the hold.
        with connection.cursor() as cursor:
            if not is_open:
                cursor.execute(self.begin_sql)
            for job, token in refresh.items():
                cursor.execute(
                    f"UPDATE {LOCK} SET expires_at = {self.now_plus()} WHERE job_id = %s AND token = %s",
                    [grace, self.uuid(job), self.uuid(token)],
                )
            held = self._present(cursor, rows)
            cursor.execute("COMMIT")
            return held

    def _present(self, cursor: Any, rows: Mapping[uuid.UUID, uuid.UUID]) -> set[uuid.UUID]:
        present: set[uuid.UUID] = set()
        for chunk in batches(list(rows), self.max_params):
            marks, params = self.marks(chunk)
            cursor.execute(f"SELECT token FROM {LOCK} WHERE job_id IN ({marks})", params)
            present |= {self.to_uuid(row[0]) for row in cursor.fetchall()}
        return present & set(rows.values())


_MYSQL8 = MySQL8()
_DIALECTS: dict[str, Dialect] = {d.vendor: d for d in (PostgreSQL(), MySQL(), SQLite())}


def dialect(connection: BaseDatabaseWrapper) -> Dialect:
    """Return the dialect of `connection`. Raises `ImproperlyConfigured` for a database that can't keep the promises."""
    try:
        found = _DIALECTS[connection.vendor]
        return _MYSQL8 if connection.vendor == "mysql" and not _is_mariadb(connection) else found
    except KeyError:
        raise ImproperlyConfigured(
            f"django_jobs keeps jobs in PostgreSQL, MariaDB, MySQL or SQLite; the database {connection.alias!r} is {connection.vendor}."
        ) from None


_T = TypeVar("_T")


def batches(items: Sequence[_T], size: int) -> Iterator[Sequence[_T]]:
    """Cut `items` into pieces of at most `size`."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


@contextmanager
def savepoint(connection: BaseDatabaseWrapper, name: str = "one_row") -> Iterator[None]:
    """A savepoint by hand, for transactions that Django does not know of. Undone when the block raises; the error goes on."""
    with connection.cursor() as cursor:
        cursor.execute(f"SAVEPOINT {name}")
        try:
            yield
        except BaseException:
            with suppress(DatabaseError):
                cursor.execute(f"ROLLBACK TO SAVEPOINT {name}")
            raise
        cursor.execute(f"RELEASE SAVEPOINT {name}")


def control_connection(alias: str) -> BaseDatabaseWrapper:
    """Return a new, unshared connection wrapper for `alias`, with the options that a control connection needs. Not yet connected."""
    connection = connections.create_connection(alias)
    options = dialect(connection).options()
    settings = {**connection.settings_dict, "CONN_MAX_AGE": None, "CONN_HEALTH_CHECKS": False}
    settings["OPTIONS"] = {key: value for key, value in settings["OPTIONS"].items() if key != "pool"} | options
    connection.settings_dict = settings
    connection.inc_thread_sharing()  # made in one thread, used by one other
    return connection


def server_now(connection: BaseDatabaseWrapper) -> datetime:
    """Return the database's clock as an aware datetime."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {dialect(connection).now_sql}", [])
        return as_datetime(cursor.fetchone()[0])


def as_datetime(value: Any) -> datetime:
    """Return what a raw query gave for a time (aware, naive UTC, or SQLite's text) as an aware datetime."""
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    return value if value.tzinfo else value.replace(tzinfo=UTC)


def _is_mariadb(connection: Any) -> bool:
    return bool(connection.mysql_is_mariadb)  # cached by Django, per connection


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__


def sqlstate(error: BaseException) -> str | None:
    """Return the SQLSTATE of this error, wherever in its chain of causes; None for an error without (no session)."""
    for link in _chain(error):
        if (state := getattr(link, "sqlstate", None)) is not None:
            return str(state)
    return None


def errno(error: BaseException) -> int | None:
    """Return the number that a MySQL driver gave this error, wherever in its chain of causes."""
    for link in _chain(error):
        if link.args and isinstance(link.args[0], int):
            return link.args[0]
    return None

"""PostgreSQL's dialect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.db import InterfaceError, OperationalError
from django.db.backends.base.base import BaseDatabaseWrapper

from .base import KEEPALIVE, LOCK_TIMEOUT_SECONDS, STATEMENT_TIMEOUT_SECONDS, Dialect
from .errors import sqlstate
from .tables import LOCK


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

    def prepare_session(self, connection: BaseDatabaseWrapper, *, name: str, by_key: bool = False) -> None:
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
        if by_key:
            settings |= _BY_KEY
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT " + ", ".join(["set_config(%s, %s, false)"] * len(settings)),
                [item for pair in settings.items() for item in pair],
            )
            # PostgreSQL 17 has a bound on whole transactions, too; older versions do not know the name.
            cursor.execute("SELECT set_config(name, '0', false) FROM pg_settings WHERE name = 'transaction_timeout'")

    def wait_at_most(self, connection: BaseDatabaseWrapper, seconds: float) -> str:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT current_setting('lock_timeout'), set_config('lock_timeout', %s, true)", [f"{int(seconds * 1000)}ms"]
            )
            return str(cursor.fetchone()[0])

    def wait_again(self, connection: BaseDatabaseWrapper, before: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT set_config('lock_timeout', %s, true)", [before])

    def session_id(self, connection: BaseDatabaseWrapper) -> int | None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            return int(cursor.fetchone()[0])

    def uptime(self, connection: BaseDatabaseWrapper) -> float | None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT extract(epoch FROM clock_timestamp() - pg_postmaster_start_time())::float8")
            return float(cursor.fetchone()[0])

    def hold(
        self,
        connection: BaseDatabaseWrapper,
        refresh: Mapping[UUID, UUID],
        rows: Mapping[UUID, UUID],
        grace: float,
        is_open: bool = True,
    ) -> set[UUID]:
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
            pairs = ",".join(f"('{job}'::uuid,'{token}'::uuid)" for job, token in rows.items())
            parts.append(self.begin_sql)
            # The list comes back only if something is missing from it.
            parts.append(
                f"WITH held AS MATERIALIZED (SELECT l.token FROM (VALUES {pairs}) v(job, token)"
                f" JOIN {LOCK} l ON l.job_id = v.job AND l.token = v.token FOR NO KEY UPDATE OF l SKIP LOCKED)"
                f" SELECT count(*), CASE WHEN count(*) < {len(rows)} THEN COALESCE(array_agg(token), '{{}}') END FROM held"
            )
            parts.append("SAVEPOINT cycle")
        if not parts:
            return set()
        with connection.cursor() as cursor:
            cursor.execute("; ".join(parts))
            raw: Any = cursor.cursor
            held: set[UUID] = set()
            while True:
                if raw.description is not None:
                    _, listed = raw.fetchone()
                    held = set(rows.values()) if listed is None else {self.to_uuid(token) for token in listed}
                if not raw.nextset():
                    return held

    def is_connection_loss(self, error: BaseException) -> bool:
        state = sqlstate(error)
        if state is not None:
            return state.startswith("08") or state in _PG_SHUTDOWN
        return isinstance(error, InterfaceError | OperationalError)

    def is_refusal(self, error: BaseException) -> bool:
        text = str(error)
        return sqlstate(error) in _PG_SHUTDOWN or any(words in text for words in _PG_REFUSALS)


# A prepared statement keeps its plan, and a plan for an empty table reads all of it: fatal once there are a million rows. These
# leave nested loops by index, which is right for statements on some hundred rows at any size of the table.
_BY_KEY = dict.fromkeys(("enable_seqscan", "enable_hashjoin", "enable_mergejoin", "jit"), "off")

_PG_SHUTDOWN = frozenset({"57P01", "57P02", "57P03"})
# Without a sqlstate (no session was made) libpq tells only by text; these are its English and the operating system's words.
_PG_REFUSALS = ("Connection refused", "the database system is", "No such file or directory", "terminating connection due to")

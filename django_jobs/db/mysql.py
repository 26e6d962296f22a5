"""MariaDB's and MySQL's dialects."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.db.backends.base.base import BaseDatabaseWrapper

from .base import Dialect
from .errors import errno
from .tables import LOCK


def is_mariadb(connection: Any) -> bool:
    """Whether the server is MariaDB, as against MySQL."""
    return bool(connection.mysql_is_mariadb)  # cached by Django, per connection


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

    def delete_by_key(self, table: str, key: str, ids: Sequence[UUID]) -> tuple[str, list[Any]]:
        # A DELETE heeds no index hint, and a small table would be read, and so locked, whole: join from the keys' side.
        keys = " UNION ALL ".join([f"SELECT {self.uuid_sql} AS id"] * len(ids))
        params = [self.uuid(value) for value in ids]
        return f"DELETE {table} FROM ({keys}) v STRAIGHT_JOIN {table} ON {table}.{key} = v.id", params

    def delete_by_id(self, table: str, ids: Sequence[int]) -> tuple[str, list[Any]]:
        # From the keys' side as well: with a hint or without, a small table would be read whole, up to the first row that another
        # transaction has just inserted, and there it would wait for that one.
        keys = "JSON_TABLE(%s, '$[*]' COLUMNS (id BIGINT PATH '$')) v"
        return f"DELETE {table} FROM {keys} STRAIGHT_JOIN {table} ON {table}.id = v.id", [json.dumps(list(ids))]

    def now_plus(self, seconds: str = "%s") -> str:
        return f"TIMESTAMPADD(MICROSECOND, ROUND(({seconds}) * 1000000), UTC_TIMESTAMP(6))"

    def uuid(self, value: UUID) -> Any:
        return str(value)

    def is_below(self, queue: str, above: str) -> str:
        return f"LEFT({queue}, CHAR_LENGTH({above}) + 1) = CONCAT({above}, '.')"

    def time(self, value: datetime | None) -> Any:
        return None if value is None else value.astimezone(UTC).replace(tzinfo=None)

    def prepare_session(self, connection: BaseDatabaseWrapper, *, name: str, by_key: bool = False) -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                "SET SESSION innodb_lock_wait_timeout = 1, wait_timeout = 15, transaction_isolation = 'READ-COMMITTED'"
                if not is_mariadb(connection)
                else "SET SESSION innodb_lock_wait_timeout = 1, wait_timeout = 15, tx_isolation = 'READ-COMMITTED'"
            )

    def wait_at_most(self, connection: BaseDatabaseWrapper, seconds: float) -> str:
        with connection.cursor() as cursor:
            cursor.execute("SELECT @@SESSION.innodb_lock_wait_timeout")
            before = str(cursor.fetchone()[0])
            cursor.execute("SET SESSION innodb_lock_wait_timeout = %s", [max(1, round(seconds))])
            return before

    def wait_again(self, connection: BaseDatabaseWrapper, before: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION innodb_lock_wait_timeout = %s", [int(before)])

    def session_id(self, connection: BaseDatabaseWrapper) -> int | None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT CONNECTION_ID()")
            return int(cursor.fetchone()[0])

    def uptime(self, connection: BaseDatabaseWrapper) -> float | None:
        with connection.cursor() as cursor:
            cursor.execute("SHOW GLOBAL STATUS LIKE 'Uptime'")
            return float(cursor.fetchone()[1])

    def hold(
        self,
        connection: BaseDatabaseWrapper,
        refresh: Mapping[UUID, UUID],
        rows: Mapping[UUID, UUID],
        grace: float,
        is_open: bool = True,
    ) -> set[UUID]:
        with connection.cursor() as cursor:
            if refresh:
                marks, params = self.marks(refresh)
                tokens, more = self.marks(refresh.values())
                cursor.execute(
                    f"UPDATE {LOCK}{self.by_key} SET expires_at = {self.now_plus()}"
                    f" WHERE job_id IN ({marks}) AND token IN ({tokens})",
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

    def uuid(self, value: UUID) -> Any:
        return value.hex

"""SQLite's dialect."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.db.backends.base.base import BaseDatabaseWrapper

from .base import Dialect, batches
from .tables import LOCK


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

    def uuid(self, value: UUID) -> Any:
        return value.hex

    def time(self, value: datetime | None) -> Any:
        return None if value is None else value.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")

    def hold(
        self,
        connection: BaseDatabaseWrapper,
        refresh: Mapping[UUID, UUID],
        rows: Mapping[UUID, UUID],
        grace: float,
        is_open: bool = True,
    ) -> set[UUID]:
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

    def _present(self, cursor: Any, rows: Mapping[UUID, UUID]) -> set[UUID]:
        present: set[UUID] = set()
        for chunk in batches(list(rows), self.max_params):
            marks, params = self.marks(chunk)
            cursor.execute(f"SELECT token FROM {LOCK} WHERE job_id IN ({marks})", params)
            present |= {self.to_uuid(row[0]) for row in cursor.fetchall()}
        return present & set(rows.values())

"""What one process has seen of the lock rows: the evidence on which an attempt is judged dead.

State model: a *look* asks which lock rows are not as a living worker keeps them, and which of those nobody has locked. A
worker's row is kept locked, with an `expires_at` that lies at most one grace ahead and moves on every few seconds. So a suspect
row is one

* past its `expires_at`: dead once two looks, at least one interval apart, saw it free with the same token and `expires_at`;
* more than a grace ahead of the database's clock, which was set back: dead once it was seen free and unchanged for three
  graces by this process's own clock;

and a `running` job without a lock row is dead once it was seen so for one grace. A look that finds a row locked, changed or
gone forgets it. Nothing is judged before this process's own session has been up for one grace: after a restart of the database
every living worker holds its rows again within that time. A lost session forgets everything.

Where the database has no row locks, `expires_at` is all there is, and a row that does not move is free.
HTTP workers' leases are not looked at: their lapse is a time-out, never a death.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from django.db import connections

from .. import db
from ..statuses import PENDING

#: Suspects in one look; those beyond come when these are dealt with.
LIMIT: Final = 2000
#: Rows in one statement that asks for locks.
CHUNK: Final = 500
#: Of a grace: how far ahead `expires_at` may be because workers and database round differently.
SLACK: Final = 0.1
#: Graces without a change after which a free row is dead whatever its `expires_at` says.
STALE_GRACES: Final = 3

_PENDING = ", ".join(f"'{status.value}'" for status in sorted(PENDING))


@dataclass(slots=True, frozen=True)
class Seen:
    """A lock row that was seen free, unchanged `since` then by this process's clock. `ahead`: it had not expired."""

    token: UUID
    expires_at: datetime
    since: float
    ahead: bool


@dataclass(slots=True, frozen=True)
class Pulse:
    """What there is to do, in one query. Seconds from now, by the database's clock; negative: overdue; None: nothing."""

    expiry: float | None  # the first lock row's
    is_ahead: bool  # some lock row expires later than any worker would say
    due: float | None  # the first scheduled job
    late: float | None  # the first `start_by` of a job that waits
    turn: float | None  # the first maintenance service
    requests: bool  # there are cancel requests about jobs that do not run
    paused: bool  # there are paused queues
    resumed: bool  # there are queues whose pause is over
    lease: float | None  # the first lease of an HTTP worker
    unknown: bool  # there are jobs parked for want of a worker that knows their task
    deltas: bool  # there are counts to be folded
    ended: bool  # jobs of graphs have ended, and nobody has looked at their children yet
    batches: bool  # there are batches that have not finished


class Looks:
    """The looks of one process, over the calling thread's connection `using`. Seconds."""

    def __init__(self, *, using: str, grace: float, interval: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.using, self.grace, self.interval, self.clock = using, grace, interval, clock
        self.up_since: float | None = None
        self._free: dict[UUID, Seen] = {}
        self._missing: dict[tuple[UUID, UUID], float] = {}
        self._next_missing = 0.0

    def connected(self) -> None:
        """Begin anew: the session is new, so nothing that was seen before counts."""
        self.up_since = self.clock()
        self.forget()

    def disconnected(self) -> None:
        """Judge nothing any more: the session is lost."""
        self.up_since = None
        self.forget()

    def forget(self) -> None:
        """Forget everything that was seen."""
        self._free, self._missing, self._next_missing = {}, {}, 0.0

    def look(self) -> Pulse:
        """Look once, and return what else there is to do. Raises a database error."""
        pulse = self._pulse()
        if (pulse.expiry is not None and pulse.expiry < 0) or pulse.is_ahead:
            self._look_at_locks()
        else:
            self._free = {}
        if self.clock() >= self._next_missing:
            self._look_for_missing()
            self._next_missing = self.clock() + (self.interval if self._missing else self.grace / 2)
        return pulse

    def dead(self) -> dict[UUID, Seen]:
        """Return the lock rows (by job id) that may be taken, if they still are as they were seen."""
        if not self._may_judge():
            return {}
        return {job_id: seen for job_id, seen in self._free.items() if self._left(seen) <= 0}

    def missing(self) -> dict[UUID, UUID]:
        """Return the running jobs, with their last tokens, that have been without a lock row for one grace."""
        if not self._may_judge():
            return {}
        before = self.clock() - self.grace
        return {job_id: token for (job_id, token), since in self._missing.items() if since <= before}

    def wait(self) -> float:
        """Return the seconds until something that was seen can be judged; infinite if nothing was."""
        return max(0.0, min((self._left(seen) for seen in self._free.values()), default=float("inf")))

    def _may_judge(self) -> bool:
        return self.up_since is not None and self.clock() - self.up_since >= self.grace

    def _left(self, seen: Seen) -> float:
        return seen.since + (STALE_GRACES * self.grace if seen.ahead else self.interval) - self.clock()

    def _pulse(self) -> Pulse:
        connection = connections[self.using]
        now = db.dialect(connection).now_sql
        # Lock, queue and leader tables are small. Jobs: indexes django_jobs_live, django_jobs_start_by, django_jobs_parked.
        sql = (
            f"SELECT {now}, (SELECT MIN(expires_at) FROM {db.LOCK} WHERE kind = 'worker'),"
            f" (SELECT MAX(expires_at) FROM {db.LOCK} WHERE kind = 'worker'),"
            f" (SELECT MIN(due_at) FROM {db.JOB} WHERE status = 'scheduled'),"
            f" (SELECT MIN(start_by) FROM {db.JOB} WHERE start_by IS NOT NULL AND status IN ({_PENDING})),"
            f" (SELECT MIN(next_at) FROM {db.LEADER}),"
            f" EXISTS (SELECT 1 FROM {db.CANCEL} c WHERE NOT EXISTS"
            f" (SELECT 1 FROM {db.JOB} j WHERE j.id = c.job_id AND j.status = 'running')),"
            f" EXISTS (SELECT 1 FROM {db.QUEUE} WHERE paused_at IS NOT NULL AND (paused_until IS NULL OR paused_until > {now})),"
            f" EXISTS (SELECT 1 FROM {db.QUEUE} WHERE paused_at IS NOT NULL AND paused_until <= {now}),"
            f" EXISTS (SELECT 1 FROM {db.JOB} WHERE parked = 'unknown_task'),"
            f" (SELECT MIN(expires_at) FROM {db.LOCK} WHERE kind = 'http'), (SELECT MIN(id) FROM {db.DELTA}),"
            f" (SELECT MIN(id) FROM {db.ENDED}), EXISTS (SELECT 1 FROM {db.BATCH} WHERE finished_at IS NULL)"
        )
        with connection.cursor() as cursor:
            cursor.execute(sql, [])
            row = cursor.fetchone()
        at = db.as_datetime(row[0])

        def ahead(value: Any) -> float | None:
            return None if value is None else (db.as_datetime(value) - at).total_seconds()

        last = ahead(row[2])
        return Pulse(
            expiry=ahead(row[1]),
            is_ahead=last is not None and last > self.grace * (1 + SLACK),
            due=ahead(row[3]),
            late=ahead(row[4]),
            turn=ahead(row[5]),
            requests=bool(row[6]),
            paused=bool(row[7]),
            resumed=bool(row[8]),
            unknown=bool(row[9]),
            lease=ahead(row[10]),
            deltas=row[11] is not None,
            ended=row[12] is not None,
            batches=bool(row[13]),
        )

    def _look_at_locks(self) -> None:
        connection = connections[self.using]
        dialect = db.dialect(connection)
        with connection.cursor() as cursor:
            # A plain read finds the suspects, so that the locks asked for below touch no other row.
            cursor.execute(
                f"SELECT job_id, expires_at < {dialect.now_sql} FROM {db.LOCK} WHERE kind = 'worker' AND"
                f" (expires_at < {dialect.now_sql} OR expires_at > {dialect.now_plus()})"
                f" ORDER BY expires_at, job_id LIMIT {LIMIT}",
                [self.grace * (1 + SLACK)],
            )
            suspects = {dialect.to_uuid(row[0]): not row[1] for row in cursor.fetchall()}
            free = self._unlocked(cursor, dialect, suspects)
        now, before = self.clock(), self._free
        self._free = {}
        for job_id, token, expires_at in free:
            seen = before.get(job_id)
            same = seen is not None and seen.token == token and seen.expires_at == expires_at
            ahead = suspects[job_id]
            # What was ahead and has expired since begins anew, by the stricter rule for expired rows.
            since = seen.since if same and seen is not None and seen.ahead == ahead else now
            self._free[job_id] = Seen(token, expires_at, since, ahead)

    def _unlocked(self, cursor: Any, dialect: db.Dialect, job_ids: Iterable[UUID]) -> list[tuple[UUID, UUID, datetime]]:
        """Return (job, token, expires_at) of the rows that nobody has locked. Asking locks them for the statement."""
        found = []
        for chunk in db.batches(list(job_ids), CHUNK):
            marks, params = dialect.marks(chunk)
            cursor.execute(
                f"SELECT job_id, token, expires_at FROM {db.LOCK} WHERE job_id IN ({marks}){dialect.for_update_skip}", params
            )
            found += [(dialect.to_uuid(job), dialect.to_uuid(token), db.as_datetime(at)) for job, token, at in cursor.fetchall()]
        return found

    def _look_for_missing(self) -> None:
        connection = connections[self.using]
        dialect = db.dialect(connection)
        with connection.cursor() as cursor:
            # One statement: a claim commits the job's status and its lock row together. Index django_jobs_live.
            cursor.execute(
                f"SELECT j.id, j.last_token FROM {db.JOB} j WHERE j.status = 'running'"
                f" AND NOT EXISTS (SELECT 1 FROM {db.LOCK} l WHERE l.job_id = j.id) ORDER BY j.id LIMIT {LIMIT}"
            )
            rows = [(dialect.to_uuid(job), dialect.to_uuid(token)) for job, token in cursor.fetchall()]
        now = self.clock()
        self._missing = {row: self._missing.get(row, now) for row in rows}

"""Follow: when jobs of a graph have ended, release their children, cancel them, or say what they wait for.

State model: a child is `waiting` until no parent is in its way. A parent is in the way unless it succeeded, or ended otherwise
and the child's policy says to run all the same. Nothing counts the parents down: what is in the way is read, from the newest
parent back, so that the first one found ends the search.

Why no child is forgotten, and none released twice: a job that ends leaves a row of `Ended` in the same transaction. It is taken
in a later transaction, after the commit. So of two parents that end at one moment, whichever is followed second sees both;
neither waits for the other's commit, and a parent among thousands costs no lock on the child. A child is changed under its row's
lock, by a statement that asks for `waiting` once more, after what is in the way has been read again under that lock: so a parent
that is requeued at this moment is seen, or finds the child released and takes it back.

What it never does: wait. A child that somebody else has locked is left, and its parent's row with it, for the next look.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from django.db.backends.base.base import BaseDatabaseWrapper

from .. import db
from ..conf import retention_seconds
from ..models.stat import move_name
from ..outcomes import Event
from ..statuses import Move, Status, check
from . import tally
from .ended import leave_ended

#: Children in one statement.
_BATCH: Final = 500
#: Jobs cancelled by one call, at most: what is below them is followed by the next one.
_MOST: Final = 5_000

check(Move.RELEASE, Status.WAITING, Status.READY)
check(Move.RELEASE, Status.WAITING, Status.SCHEDULED)
check(Move.CANCEL, Status.WAITING, Status.CANCELLED)

#: Said so that no index serves it: with stale statistics a plan would go through all that waits to find one job by its key.
STILL_WAITS: Final = f"status NOT IN ({', '.join(repr(status.value) for status in Status if status != Status.WAITING)})"
#: Parents `p` that are in the way of a child `c`.
IN_THE_WAY: Final = (
    "NOT (p.status = 'succeeded'"
    " OR (p.status IN ('failed', 'timed_out') AND c.on_parent_failure = 'run')"
    " OR (p.status = 'cancelled' AND c.on_parent_cancel = 'run'))"
)


@dataclass(slots=True)
class Followed:
    """What a look at children did. `queues`: those with new work; `again`: somebody had a child locked, or there is more."""

    touched: int = 0
    events: list[Event] = field(default_factory=list)
    queues: set[str] = field(default_factory=set)
    again: bool = False
    changes: Counter[tally.Key] = field(default_factory=Counter)  # to be counted

    def write(self, cursor: Any, dialect: db.Dialect) -> None:
        """Count what was done, once for many levels of a graph, and forget what was asked about jobs that are cancelled now."""
        tally.write(cursor, self.changes)
        self.changes.clear()
        for part in db.batches([event.job_id for event in self.events], _BATCH):
            marks, params = dialect.marks(part)
            cursor.execute(f"DELETE FROM {db.CANCEL} WHERE job_id IN ({marks})", params)


@dataclass(slots=True)
class _Child:
    """A waiting job, as it was read under its lock."""

    id: UUID
    task: str
    queue: str
    backend: str
    batch: UUID | None
    retention: Mapping[str, float | None] | None


def follow_ended(connection: BaseDatabaseWrapper, *, limit: int) -> Followed:
    """Follow up to `limit` jobs that have ended, in the caller's open transaction, which began after their commit."""
    dialect = db.dialect(connection)
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT id, job_id FROM {db.ENDED}{dialect.by_key} ORDER BY id LIMIT %s{dialect.for_update_skip}", [limit]
        )
        rows = cursor.fetchall()
        for part in db.batches([row[0] for row in rows], dialect.max_params):
            cursor.execute(*dialect.delete_by_id(db.ENDED, part))
    followed = follow(connection, {dialect.to_uuid(row[1]) for row in rows})
    followed.touched = len(rows)
    followed.again |= len(rows) >= limit
    return followed


def follow(connection: BaseDatabaseWrapper, parents: Iterable[UUID]) -> Followed:
    """Look at the children of `parents`, and at theirs where they are cancelled, in the caller's open transaction."""
    dialect = db.dialect(connection)
    followed = Followed()
    todo = sorted(set(parents))
    with connection.cursor() as cursor:
        while todo:
            if len(followed.events) >= _MOST:
                leave_ended(cursor, dialect, todo)
                followed.again = True
                break
            part, todo = todo[:_BATCH], todo[_BATCH:]
            todo += _follow_part(cursor, dialect, part, followed)
        followed.write(cursor, dialect)
    return followed


def _follow_part(cursor: Any, dialect: db.Dialect, parents: Sequence[UUID], followed: Followed) -> list[UUID]:
    """Deal with the children of `parents`; return those that were cancelled."""
    marks, params = dialect.marks(parents)
    cursor.execute(f"SELECT parent_id, child_id FROM {db.EDGE} WHERE parent_id IN ({marks}) ORDER BY id", params)
    edges = [(dialect.to_uuid(parent), dialect.to_uuid(child)) for parent, child in cursor.fetchall()]
    jobs = _read(cursor, dialect, {job for edge in edges for job in edge})
    was_again, followed.again = followed.again, False
    lost: dict[UUID, str] = {}
    others: dict[UUID, str] = {}
    for parent, child in edges:
        if parent not in jobs or child not in jobs or jobs[child][0] != Status.WAITING:
            continue
        status, (_, on_failure, on_cancel) = jobs[parent][0], jobs[child]
        why = f"its parent {parent} {_ENDED.get(Status(status), '')}"
        policy = (on_cancel or "cancel") if status == Status.CANCELLED else (on_failure or "wait")
        if status in _ENDED and policy == "cancel":
            lost.setdefault(child, f"cancelled: {why}")
        elif status in _ENDED and policy == "wait":
            others[child] = f"waits: {why}"
        else:
            others.setdefault(child, "")
    cancelled = []
    for part in db.batches(sorted(lost), _BATCH):
        cancelled += cancel_waiting(cursor, dialect, {child: lost[child] for child in part}, followed)
    for part in db.batches(sorted(others.keys() - lost.keys()), _BATCH):
        release(cursor, dialect, {child: others[child] for child in part}, followed)
    if followed.again:
        leave_ended(cursor, dialect, parents)
    followed.again |= was_again
    return cancelled


def _read(cursor: Any, dialect: db.Dialect, ids: Iterable[UUID]) -> dict[UUID, tuple[str, str, str]]:
    """Return (status, on_parent_failure, on_parent_cancel) of these jobs, by key: a join might be planned over all that waits."""
    found: dict[UUID, tuple[str, str, str]] = {}
    for part in db.batches(sorted(ids), _BATCH):
        marks, params = dialect.marks(part)
        cursor.execute(f"SELECT id, status, on_parent_failure, on_parent_cancel FROM {db.JOB} WHERE id IN ({marks})", params)
        found |= {dialect.to_uuid(job): (status, failure, cancel) for job, status, failure, cancel in cursor.fetchall()}
    return found


_ENDED: Final = {Status.FAILED: "has failed", Status.TIMED_OUT: "has timed out", Status.CANCELLED: "was cancelled"}


def blocked(cursor: Any, dialect: db.Dialect, children: Sequence[UUID]) -> dict[UUID, UUID]:
    """Return those of `children` that have a parent in the way, each with the newest one. Index django_jobs_edge_child."""
    marks, params = dialect.marks(children)
    cursor.execute(
        f"SELECT c.id, (SELECT p.id FROM {db.EDGE} e JOIN {db.JOB} p ON p.id = e.parent_id WHERE e.child_id = c.id"
        f" AND {IN_THE_WAY} ORDER BY e.parent_id DESC LIMIT 1) FROM {db.JOB} c WHERE c.id IN ({marks})",
        params,
    )
    return {dialect.to_uuid(child): dialect.to_uuid(parent) for child, parent in cursor.fetchall() if parent is not None}


def release(cursor: Any, dialect: db.Dialect, children: Mapping[UUID, str], followed: Followed) -> None:
    """Release those of `children` that nothing is in the way of; `children` says why the others wait, where that is new.

    The caller writes `followed`, as for `cancel_waiting`.
    """
    if not children:
        return
    waiting = blocked(cursor, dialect, list(children))
    free = [child for child in children if child not in waiting]
    locked = _lock(cursor, dialect, [*free, *(child for child in waiting if children[child])], followed)
    # A later statement than the one that took the locks.
    free = [child for child in free if child in locked]
    still = blocked(cursor, dialect, free) if free else {}
    for child in waiting:
        if child in locked and children[child]:
            cursor.execute(
                f"UPDATE {db.JOB} SET reason = %s WHERE id = %s AND {STILL_WAITS}",
                [children[child][:500], dialect.uuid(child)],
            )
    _make_ready(cursor, dialect, [locked[child] for child in free if child not in still], followed)


def _make_ready(cursor: Any, dialect: db.Dialect, children: Sequence[_Child], followed: Followed) -> None:
    """Make `children` ready, or scheduled where they are to start later."""
    if not children:
        return
    marks, params = dialect.marks(child.id for child in children)
    now = dialect.now_sql
    latest = "MAX" if dialect.vendor == "sqlite" else "GREATEST"
    cursor.execute(
        f"UPDATE {db.JOB}{dialect.by_key} SET status = CASE WHEN run_after > {now} THEN 'scheduled' ELSE 'ready' END,"
        f" due_at = CASE WHEN run_after IS NULL THEN {now} ELSE {latest}(run_after, {now}) END, reason = ''"
        f" WHERE id IN ({marks}) AND {STILL_WAITS}",
        params,
    )
    cursor.execute(f"SELECT id, status FROM {db.JOB} WHERE id IN ({marks})", params)
    now_are = {dialect.to_uuid(row[0]): row[1] for row in cursor.fetchall()}
    followed.changes.update((child.queue, move_name(Status.WAITING, now_are[child.id]), child.batch) for child in children)
    followed.queues |= {child.queue for child in children if now_are[child.id] == Status.READY}


def cancel_waiting(cursor: Any, dialect: db.Dialect, children: Mapping[UUID, str], followed: Followed) -> list[UUID]:
    """Cancel those of `children` that wait, each for its reason, and return them. They leave nothing for `follow_ended`."""
    if not children:
        return []
    locked = list(_lock(cursor, dialect, list(children), followed).values())
    groups: dict[tuple[str, float | None], list[_Child]] = {}
    for child in locked:
        groups.setdefault((children[child.id][:500], retention_seconds(Status.CANCELLED, child.retention)), []).append(child)
    for (reason, keep), members in groups.items():
        marks, params = dialect.marks(child.id for child in members)
        cursor.execute(
            f"UPDATE {db.JOB}{dialect.by_key} SET status = 'cancelled', reason = %s, finished_at = {dialect.now_sql},"
            f" prune_at = {'%s' if keep is None else dialect.now_plus()} WHERE id IN ({marks}) AND {STILL_WAITS}",
            [reason, keep, *params],
        )
        for child in members:
            followed.events.append(
                Event("job_cancelled", child.id, child.task, child.queue, Status.CANCELLED, backend=child.backend, reason=reason)
            )
    move = move_name(Status.WAITING, Status.CANCELLED)
    followed.changes.update((child.queue, move, child.batch) for child in locked)
    return [child.id for child in locked]


def _lock(cursor: Any, dialect: db.Dialect, children: Sequence[UUID], followed: Followed) -> dict[UUID, _Child]:
    """Lock those of `children` that still wait, by id, and return them."""
    if not children:
        return {}
    marks, params = dialect.marks(sorted(children))
    cursor.execute(
        f"SELECT id, status, task, queue, backend, batch_id, retention FROM {db.JOB}{dialect.by_key} WHERE id IN ({marks})"
        f" ORDER BY id{dialect.for_change_skip}",
        params,
    )
    rows = cursor.fetchall()
    followed.again |= len(rows) < len(children) and bool(dialect.row_locks)
    found: dict[UUID, _Child] = {}
    for job, status, task, queue, backend, batch, retention in rows:
        if status == Status.WAITING:
            kept = json.loads(retention) if isinstance(retention, str | bytes) else retention
            child = _Child(dialect.to_uuid(job), task, queue, backend, None if batch is None else dialect.to_uuid(batch), kept)
            found[child.id] = child
    return found

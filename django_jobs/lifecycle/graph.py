"""Graphs: store jobs that come after others, and what requeueing or deleting one of them means for its children."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final
from uuid import UUID

from django.db import connections, transaction
from django.db.models import Max

from .. import db, signals, wakeup
from ..ids import uuid7
from ..models import Edge, Job
from ..outcomes import Event
from ..serializers import from_json
from ..statuses import FINAL, Move, Status, sources
from . import tally
from .enqueue import NewJob, insert
from .follow import Followed, blocked, cancel_waiting, follow, follow_ended, release
from .recover import lock_jobs, writing

#: Jobs followed in one transaction.
FOLLOW_BATCH: Final = 200
#: A graph of which a member has not ended, or is kept for ever, is looked at again by the pruner after this.
KEEP_SECONDS: Final = 86_400.0
#: Transactions in a row after a verb; maintenance goes on.
_ROUNDS: Final = 50
_EDGES: Final = 5_000


def insert_graph(jobs: Sequence[NewJob], edges: Sequence[tuple[UUID, UUID]], *, using: str) -> UUID:
    """Store `jobs` and `edges` (parent's id, child's id), all or none, in the caller's transaction; return the graph's id.

    A child is one of `jobs`; a parent may be stored already, and belongs to the graph from then on (if it belongs to one, that is
    the graph of all). Jobs that have a parent wait for it, or are released or cancelled at once where it has ended. Fills in
    `waits` and each spec's `graph`. The caller has made sure that there are no cycles. Raises `Job.DoesNotExist` for a parent
    that is not there, and a database error.
    """
    older = older_parents(jobs, edges)
    with writing(using):
        graph = adopt(older, using) or uuid7()
        place(jobs, edges, graph)
        # Before the jobs: whoever sees a job sees what it waits for.
        insert_edges(edges, using)
        insert(jobs, using=using)
        follow_older(older, using)
    return graph


def older_parents(jobs: Sequence[NewJob], edges: Sequence[tuple[UUID, UUID]]) -> list[UUID]:
    """Return the parents that are none of `jobs`."""
    ids = {job.id for job in jobs}
    return sorted({parent for parent, _ in edges if parent not in ids})


def place(jobs: Sequence[NewJob], edges: Sequence[tuple[UUID, UUID]], graph: UUID) -> None:
    """Put `jobs` into the graph; those that have a parent wait."""
    children = {child for _, child in edges}
    for job in jobs:
        job.spec.graph = graph
        job.waits = job.waits or job.id in children


def follow_older(parents: Sequence[UUID], using: str) -> None:
    """What comes after jobs that have ended already need not wait for them."""
    if ended := list(Job.objects.using(using).filter(id__in=parents, status__in=FINAL).values_list("id", flat=True)):
        _tell(follow(connections[using], ended), using)


def adopt(parents: Sequence[UUID], using: str, graph: UUID | None = None) -> UUID | None:
    """Lock jobs that are stored already, so that they can't end meanwhile. Put those that are in no graph into `graph`.

    Without one, into that of the others, or a new one. Return it.
    """
    if not parents:
        return None
    rows = Job.objects.using(using).filter(id__in=parents).order_by("id")
    connection = connections[using]
    if db.dialect(connection).row_locks:
        rows = rows.select_for_update(no_key=connection.features.has_select_for_no_key_update)
    found = dict(rows.values_list("id", "graph"))
    if missing := [parent for parent in parents if parent not in found]:
        raise Job.DoesNotExist(f"There is no job {missing[0]} (any more) for others to come after.")
    graph = graph or next((known for known in found.values() if known is not None), None) or uuid7()
    Job.objects.using(using).filter(id__in=parents, graph__isnull=True).update(graph=graph)
    return graph


def insert_edges(edges: Sequence[tuple[UUID, UUID]], using: str) -> None:
    """Store edges, of each child in the order in which its parents are named."""
    connection = connections[using]
    dialect = db.dialect(connection)
    pairs = list(dict.fromkeys(edges))  # in the order in which they were named, which is that of a child's results
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(
                f"INSERT INTO {db.EDGE} (parent_id, child_id) SELECT * FROM unnest(%s::uuid[], %s::uuid[])",
                [[parent for parent, _ in pairs], [child for _, child in pairs]],
            )
        return
    with connection.cursor() as cursor:
        for part in db.batches(pairs, min(_EDGES, dialect.max_params // 2)):
            marks = ", ".join(["(%s, %s)"] * len(part))
            cursor.execute(
                f"INSERT INTO {db.EDGE} (parent_id, child_id) VALUES {marks}",
                [dialect.uuid(one) for pair in part for one in pair],
            )


def follow_now(ids: Iterable[UUID], *, using: str) -> list[Event]:
    """Follow jobs that the caller's transaction has ended, and once more after its commit. Return the events.

    At once, so that a caller sees what came of it; and again, since a parent that another transaction ends at the same moment
    is not seen by this one, nor this one by that.
    """
    followed = follow(connections[using], ids)
    wakeup.wake(using, followed.queues)
    transaction.on_commit(partial(follow_rest, using=using), using=using, robust=True)
    return followed.events


def follow_rest(*, using: str) -> int:
    """Follow what has ended and is not followed yet, in a transaction for each part. Return how many jobs were followed."""
    count = 0
    for _ in range(_ROUNDS):
        with writing(using) as connection:
            followed = follow_ended(connection, limit=FOLLOW_BATCH)
            _tell(followed, using)
        count += followed.touched
        if followed.touched < FOLLOW_BATCH:
            break
    return count


def _tell(followed: Followed, using: str) -> None:
    wakeup.wake(using, followed.queues)
    if followed.events:
        transaction.on_commit(partial(signals.dispatch, followed.events), using=using, robust=True)


def parent_results(job_id: UUID, *, using: str) -> list[tuple[UUID, Any]]:
    """Return (id, result) of each parent of the job, in the order in which they were named; None where there is no result.

    Results are what the parents' tasks returned, read by the parents' serializers. A parent that was deleted is left out.
    """
    edges = Edge.objects.using(using).filter(child=job_id).order_by("id")
    rows = edges.values_list("parent_id", "parent__result", "parent__serializer")
    return [(parent, from_json(result, serializer=serializer)) for parent, result, serializer in rows]


def hold_back(parents: Sequence[UUID], *, using: str) -> dict[UUID, UUID]:
    """Take children of `parents` that have not started back to waiting, in the transaction that requeues these.

    Return the parents of children that somebody else has locked at this moment, each with such a child: they can't be requeued.
    """
    movable = sources(Move.HOLD_BACK, Status.WAITING)
    edges = Edge.objects.using(using).filter(parent__in=parents, child__status__in=movable, child__started_at__isnull=True)
    pairs = list(edges.values_list("parent_id", "child_id"))
    if not pairs:
        return {}
    locked = {job.id: job for job in lock_jobs(using, {child for _, child in pairs})}
    free = [job for job in locked.values() if job.status in movable and job.started_at is None]
    Job.objects.using(using).filter(id__in=[job.id for job in free], status__in=movable).update(
        status=Status.WAITING, parked="", reason="waits again: a parent was requeued"
    )
    tally.moved(free, Status.WAITING, using=using)
    return {parent: child for parent, child in pairs if child not in locked}


def waits_for(jobs: Iterable[UUID], *, using: str) -> dict[UUID, UUID]:
    """Return those of `jobs` that have a parent in the way, each with that parent."""
    connection = connections[using]
    dialect = db.dialect(connection)
    found: dict[UUID, UUID] = {}
    with connection.cursor() as cursor:
        for part in db.batches(sorted(jobs), 500):
            found |= blocked(cursor, dialect, part)
    return found


def orphan(jobs: Sequence[Job], *, using: str) -> list[Event]:
    """Before `jobs` are deleted: waiting children of those that have not succeeded take it as a cancel. Return the events.

    A child that would run after a cancel, or wait, waits for this parent no longer.
    """
    lost = [job.id for job in jobs if job.graph is not None and job.status != Status.SUCCEEDED]
    if not lost:
        return []
    children = Job.objects.using(using).filter(parent_edges__parent__in=lost, status=Status.WAITING)
    children = children.exclude(id__in=[job.id for job in jobs]).distinct()
    policies = dict(children.values_list("id", "on_parent_cancel"))
    cancelled = {child: "cancelled: its parent was deleted" for child, policy in policies.items() if policy in ("", "cancel")}
    connection = connections[using]
    dialect = db.dialect(connection)
    followed = Followed()
    with connection.cursor() as cursor:
        for part in db.batches(lost, 500):
            marks, params = dialect.marks(part)
            cursor.execute(f"DELETE FROM {db.EDGE} WHERE parent_id IN ({marks})", params)
        ids = cancel_waiting(cursor, dialect, cancelled, followed)
        release(cursor, dialect, dict.fromkeys(policies.keys() - cancelled.keys(), ""), followed)
        followed.write(cursor, dialect)
    below = follow(connection, ids)
    wakeup.wake(using, followed.queues | below.queues)
    return followed.events + below.events


def kept_for_others(jobs: Sequence[Job], *, using: str, now: datetime) -> dict[UUID, datetime]:
    """Return those of `jobs` that are due to be pruned and whose graph is not, each with the time to look again.

    A graph goes as a whole: what is unfinished in it needs what has ended. Where a member has no date it is looked at again after
    `KEEP_SECONDS`. Index django_jobs_in_graph.
    """
    graphs = {job.graph for job in jobs if job.graph is not None}
    if not graphs:
        return {}
    later = now + timedelta(seconds=KEEP_SECONDS)
    members = Job.objects.using(using).filter(graph__in=graphs)
    undated = set(members.filter(prune_at__isnull=True).values_list("graph", flat=True).distinct())
    last = dict(members.filter(prune_at__gt=now).values_list("graph").annotate(last=Max("prune_at")))
    again = {graph: later if graph in undated else last[graph] for graph in graphs if graph in undated or graph in last}
    return {job.id: again[job.graph] for job in jobs if job.graph in again}


def release_forgotten(*, using: str, limit: int, after: UUID | None = None) -> tuple[Followed, UUID | None]:
    """Look at up to `limit` waiting jobs of graphs with an id above `after`, and release those that nothing is in the way of.

    Return what was done, and the last id looked at, None at the end. Nothing forgets a job; this is for rows that were changed by
    hand. Index django_jobs_live.
    """
    waiting = Job.objects.using(using).filter(status=Status.WAITING, graph__isnull=False)
    if after is not None:
        waiting = waiting.filter(id__gt=after)
    ids = list(waiting.order_by("id").values_list("id", flat=True)[:limit])
    connection = connections[using]
    followed = Followed()
    with connection.cursor() as cursor:
        for part in db.batches(ids, 500):
            release(cursor, db.dialect(connection), dict.fromkeys(part, ""), followed)
        followed.write(cursor, db.dialect(connection))
    return followed, ids[-1] if len(ids) == limit else None

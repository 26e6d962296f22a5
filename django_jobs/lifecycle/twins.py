"""Store graphs with unique jobs: a live job that has the key of a new one takes its place in the graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from ..exceptions import InvalidGraph, JobExists
from ..ids import uuid7
from ..models import Job
from .enqueue import NewJob
from .graph import adopt, follow_older, insert_edges, insert_graph, older_parents, place
from .recover import writing
from .unique import holders, insert_or_find, replace_pending

Edges = Sequence[tuple[UUID, UUID]]


def insert_graph_or_find(
    jobs: Sequence[NewJob], edges: Edges, *, using: str, on_conflict: Mapping[UUID, str] | None = None
) -> tuple[UUID | None, dict[UUID, UUID]]:
    """Do what `insert_graph` does, except for jobs whose unique key another live job has: that one takes their place.

    What would come after such a job comes after its twin, which waits for nothing new. If each has a twin nothing is stored. Of
    several new jobs with one key the first is stored, after the parents of all. `on_conflict`: by the id of a job, what to do
    where its key is held, if not to "return" the holder; see `insert_or_find`.

    Return the graph's id (where nothing is stored that of a twin, or None), and for each job that was left out (by its id) the id
    of its twin. Raises `InvalidGraph` if a job would come after itself, and `JobExists`.
    """
    keys = {job.id: job.unique_key for job in jobs if job.unique_key is not None}
    if not keys:
        return insert_graph(jobs, edges, using=using), {}
    same = _equals(jobs)
    first = [job for job in jobs if job.id not in same]
    wanted = on_conflict or {}
    if same:
        _settle_equals(jobs, same, wanted)
        edges = list(dict.fromkeys((same.get(parent, parent), same.get(child, child)) for parent, child in edges))
        _check_order(first, edges)
    with writing(using):
        # To know whose graph this is. It is the insert that decides, and mostly finds the same.
        owners = holders(set(keys.values()), using=using)
        likely = _with_twins(edges, {job: owners[key] for job, key in keys.items() if key in owners})
        graph = adopt(older_parents(jobs, likely), using) or uuid7()
        place(first, edges, graph)
        twins = insert_or_find(first, using=using)
        _settle(jobs, twins, wanted, using)
        if len(twins) == len(first):
            known = Job.objects.using(using).filter(pk=twins[first[0].id]).values_list("graph", flat=True).first()
            for job in jobs:
                job.spec.graph = known
            return known, twins | {job: twins[one] for job, one in same.items()}
        left = _with_twins(edges, twins)
        older = older_parents([job for job in first if job.id not in twins], left)
        adopt(older, using, graph)
        insert_edges(left, using)
        follow_older(older, using)
    return graph, twins | {job: twins.get(one, one) for job, one in same.items()}


def _equals(jobs: Sequence[NewJob]) -> dict[UUID, UUID]:
    """Return for each of `jobs` that has the unique key of one before it the id of the first."""
    first: dict[str, UUID] = {}
    same = {job.id: first.setdefault(job.unique_key, job.id) for job in jobs if job.unique_key is not None}
    return {job: one for job, one in same.items() if job != one}


def _settle_equals(jobs: Sequence[NewJob], same: Mapping[UUID, UUID], wanted: Mapping[UUID, str]) -> None:
    """Do what is wanted about new jobs that have one key."""
    by_id = {job.id: job for job in jobs}
    for index, job in enumerate(jobs):
        if job.id in same and wanted.get(job.id) == "raise":
            raise JobExists(str(job.unique_key), same[job.id], index=index)
        if job.id in same and wanted.get(job.id) == "replace":
            first = by_id[same[job.id]]
            first.args, first.kwargs, first.related = job.args, job.kwargs, job.related


def _settle(jobs: Sequence[NewJob], twins: Mapping[UUID, UUID], wanted: Mapping[UUID, str], using: str) -> None:
    """Do what is wanted about new jobs whose keys others hold."""
    for index, job in enumerate(jobs):
        if job.id in twins and wanted.get(job.id) == "raise":
            raise JobExists(str(job.unique_key), twins[job.id], index=index)
        if job.id in twins and wanted.get(job.id) == "replace":
            replace_pending(twins[job.id], job, using)


def _with_twins(edges: Edges, twins: Mapping[UUID, UUID]) -> list[tuple[UUID, UUID]]:
    """Return the edges of the jobs that are stored."""
    return [(twins.get(parent, parent), child) for parent, child in edges if child not in twins]


def _check_order(jobs: Sequence[NewJob], edges: Edges) -> None:
    """Raise `InvalidGraph` if now one of `jobs` comes after itself."""
    missing = dict.fromkeys((job.id for job in jobs), 0)
    children: dict[UUID, list[UUID]] = {}
    for parent, child in edges:
        if parent in missing:
            missing[child] += 1
            children.setdefault(parent, []).append(child)
    free = [job for job, count in missing.items() if not count]
    for parent in free:
        for child in children.get(parent, ()):
            missing[child] -= 1
            if not missing[child]:
                free.append(child)
    if len(free) < len(missing):
        stuck = next(job for job in jobs if missing[job.id])
        raise InvalidGraph(
            f"Jobs of this graph have one unique key, and so are one job, which would come after itself: see {stuck.spec.task}."
        )

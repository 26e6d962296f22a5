"""The picture of a graph: which jobs it shows, and where each of them stands. From left to right, parents before children."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from django.utils.translation import gettext as _

from ..conf import jobs_database
from ..models import Edge, Job
from ..models.visibility import visible_jobs
from ..statuses import LABELS, Status

if TYPE_CHECKING:
    from ..models.job import JobQuerySet
    from .jobs import JobAdmin

#: A graph of more jobs, or with more edges, is shown as what is next to the job.
MAX_NODES: Final = 150
MAX_EDGES: Final = 600
#: Parents, and children, that are shown then.
MAX_NEIGHBOURS: Final = 12

WIDTH, HEIGHT = 172, 46
_GAP_X, _GAP_Y, _MARGIN = 44, 16, 8
_MAX_TEXT = 21

_COLUMNS: Final = ("id", "task", "status", "description", "reason")


@dataclass(slots=True)
class Box:
    """A job in the picture."""

    job: Job
    url: str
    is_here: bool
    x: int = 0
    y: int = 0

    @property
    def label(self) -> str:
        """Its name, as much as there is room for."""
        name = self.job.task.rpartition(".")[2]
        return name if len(name) <= _MAX_TEXT else name[: _MAX_TEXT - 1] + "…"

    @property
    def status(self) -> str:
        """Its status in words."""
        return str(LABELS.get(Status(self.job.status), self.job.status))

    @property
    def title(self) -> str:
        """What a pointer that rests on it is told."""
        parts = [self.job.task, self.job.description, str(self.job.id), self.status, self.job.reason]
        return "\n".join(part for part in parts if part)

    @property
    def text_x(self) -> int:
        """Where its text begins."""
        return self.x + 12

    @property
    def label_y(self) -> int:
        """Where its name stands."""
        return self.y + 19

    @property
    def status_y(self) -> int:
        """Where its status stands."""
        return self.y + 36


@dataclass(slots=True)
class Drawing:
    """What the template draws. `is_whole`: the whole graph, else the neighbours of the job."""

    boxes: list[Box]
    is_whole: bool
    more_parents: bool = False
    more_children: bool = False
    paths: list[str] = field(default_factory=list)
    width: int = 0
    height: int = 0

    @property
    def label(self) -> str:
        """What the picture shows, for those who don't see it."""
        return _("Graph of %(count)d jobs") % {"count": len(self.boxes)}


def draw(admin: JobAdmin, job: Job, user: object) -> Drawing | None:
    """Return the picture of the graph of `job`, as far as `user` may see it; None if it is in none. A few queries at any size."""
    if job.graph is None:
        return None
    using = jobs_database()
    seen = visible_jobs(user, Job.objects.using(using))
    members = list(seen.filter(graph=job.graph).order_by("id").only(*_COLUMNS)[: MAX_NODES + 1])
    edges = _edges(using, child_id__in=[member.id for member in members]) if len(members) <= MAX_NODES else []
    if len(members) > MAX_NODES or len(edges) > MAX_EDGES:
        return _around(admin, job, seen)
    known = {member.id for member in members}
    # A parent of another graph, which has got a child in this one.
    if strangers := {parent for parent, _child in edges} - known:
        members += list(seen.filter(id__in=strangers).only(*_COLUMNS)[:MAX_NODES])
    return _arrange(admin, job, members, edges, Drawing([], is_whole=True))


def _edges(using: str, **which: Any) -> list[tuple[UUID, UUID]]:
    return list(Edge.objects.using(using).filter(**which).values_list("parent_id", "child_id")[: MAX_EDGES + 1])


def _around(admin: JobAdmin, job: Job, seen: JobQuerySet) -> Drawing:
    above, below = (
        list(
            Edge.objects.using(seen.db)
            .filter(**{mine: job.id})
            .order_by(other)
            .values_list("parent_id", "child_id")[: MAX_NEIGHBOURS + 1]
        )
        for mine, other in (("child", "parent_id"), ("parent", "child_id"))
    )
    drawing = Drawing([], is_whole=False, more_parents=len(above) > MAX_NEIGHBOURS, more_children=len(below) > MAX_NEIGHBOURS)
    edges = above[:MAX_NEIGHBOURS] + below[:MAX_NEIGHBOURS]
    ids = {end for edge in edges for end in edge} | {job.id}
    members = list(seen.filter(id__in=ids).order_by("id").only(*_COLUMNS))
    return _arrange(admin, job, members, edges, drawing)


def _arrange(admin: JobAdmin, here: Job, members: Sequence[Job], edges: Iterable[tuple[UUID, UUID]], drawing: Drawing) -> Drawing:
    boxes = {job.id: Box(job, admin.url("change", job.id), job.id == here.id) for job in members}
    edges = [edge for edge in edges if edge[0] in boxes and edge[1] in boxes]
    parents: dict[UUID, list[UUID]] = defaultdict(list)
    for parent, child in edges:
        parents[child].append(parent)
    columns: dict[int, list[UUID]] = defaultdict(list)
    for job_id, rank in ranks(boxes, edges).items():
        columns[rank].append(job_id)
    tallest = max(len(column) for column in columns.values())
    for rank in sorted(columns):
        column = columns[rank]
        # Beside what they come after: fewer lines cross.
        column.sort(key=lambda job_id: (_middle([boxes[parent].y for parent in parents[job_id]]), job_id))
        top = _MARGIN + (tallest - len(column)) * (HEIGHT + _GAP_Y) // 2
        for place, job_id in enumerate(column):
            boxes[job_id].x = _MARGIN + rank * (WIDTH + _GAP_X)
            boxes[job_id].y = top + place * (HEIGHT + _GAP_Y)
    drawing.boxes = list(boxes.values())
    drawing.paths = [_path(boxes[parent], boxes[child]) for parent, child in edges]
    drawing.width = 2 * _MARGIN + len(columns) * WIDTH + (len(columns) - 1) * _GAP_X
    drawing.height = 2 * _MARGIN + tallest * HEIGHT + (tallest - 1) * _GAP_Y
    return drawing


def ranks(nodes: Collection[UUID] | Mapping[UUID, Any], edges: Iterable[tuple[UUID, UUID]]) -> dict[UUID, int]:
    """Return for each node the length of the longest way that leads to it. What is in a circle stands where it was reached."""
    children: dict[UUID, list[UUID]] = defaultdict(list)
    waits: dict[UUID, int] = dict.fromkeys(nodes, 0)
    for parent, child in edges:
        children[parent].append(child)
        waits[child] += 1
    found = dict.fromkeys(nodes, 0)
    free = [node for node, count in waits.items() if not count]
    for node in free:
        for child in children[node]:
            found[child] = max(found[child], found[node] + 1)
            waits[child] -= 1
            if not waits[child]:
                free.append(child)
    return found


def _middle(values: Sequence[int]) -> float:
    return sum(values) / len(values) if values else 0.0


def _path(parent: Box, child: Box) -> str:
    x1, y1 = parent.x + WIDTH, parent.y + HEIGHT // 2
    x2, y2 = child.x - 5, child.y + HEIGHT // 2
    bend = max(_GAP_X // 2, (x2 - x1) // 3)
    return f"M {x1} {y1} C {x1 + bend} {y1}, {x2 - bend} {y2}, {x2} {y2}"

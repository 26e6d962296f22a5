"""What is in a queue: how many jobs wait, and the ids of all by status."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from django.db import connections
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.urls import replace_query_param

from .. import db, stats
from ..models import Job
from ..models.selection import HTTP, PARKED, SEGMENTS, Segment
from ..models.visibility import is_narrowed
from ..statuses import Status
from . import values
from .base import PAGE_QUERY
from .errors import invalid
from .pagination import cursor_after, page, page_size
from .queues import QueueBase

if TYPE_CHECKING:
    from ..models.job import JobQuerySet

#: What the parts are sorted by, in the model's order, as `from_db` has it.
_PLACE: Final = tuple(
    field.attname
    for field in Job._meta.concrete_fields
    if field.attname in ("id", "priority", "due_at", "finished_at", "parked", "task")
)


def parts_of(status: Status) -> Sequence[Segment]:
    """Return the parts of the table that hold the jobs of a status, each in the order of an index."""
    return tuple(SEGMENTS[name] for name in ("ready", HTTP, PARKED)) if status == Status.READY else (SEGMENTS[status],)


class SizeView(QueueBase):
    """How many jobs of a queue are ready."""

    verbs: ClassVar = {"GET": "view"}

    def get(self, request: Request, name: str) -> Response:
        """Return a whole number, from the roll-ups; counted, up to a bound, where the caller sees only some of the jobs."""
        self.named(name)
        if not is_narrowed():
            return Response(stats.queue_counts(self.using, name).get(name, {}).get(Status.READY, 0))
        jobs = self.jobs().filter(queue=name)
        counts = stats.capped_counts({part.name: part.of(jobs) for part in parts_of(Status.READY)}, using=self.using)
        return Response(min(sum(counts.values()), stats.COUNT_CAP))


class JobIdsView(QueueBase):
    """The ids of a queue's jobs by status."""

    verbs: ClassVar = {"GET": "view"}
    query: ClassVar = PAGE_QUERY | {"status"}

    def get(self, request: Request, name: str) -> Response:
        """Return for every status its first ids and where more are: `{status: {"results": [...], "next": url}}`.

        They are read in one statement, so that each id is there once. With `status` (and the `cursor` of `next`): a page of its.
        """
        jobs = self.jobs().filter(queue=self.named(name))
        if (word := request.query_params.get("status")) is not None:
            status = Status(values.status_word(word))
            return page(self, jobs.only(*_PLACE), parts=parts_of(status), render=lambda job: str(job.pk))
        if "cursor" in request.query_params:
            raise invalid("cursor", "goes with the status that it is of.")
        size = page_size(self)
        found = self._first(jobs, size + 1)
        return Response({status.value: self._render(status, rows, size) for status, rows in found.items()})

    def _render(self, status: Status, rows: list[tuple[Segment, Job]], size: int) -> dict[str, Any]:
        following = None
        if len(rows) > size:
            url = replace_query_param(self.request.build_absolute_uri(), "status", status.value)
            following = replace_query_param(url, "cursor", cursor_after(*rows[size - 1]))
        return {"results": [str(job.pk) for _part, job in rows[:size]], "next": following}

    def _first(self, jobs: JobQuerySet, limit: int) -> dict[Status, list[tuple[Segment, Job]]]:
        """Return up to `limit` jobs of each status, with no more than their places, in one statement: one moment."""
        sql: list[str] = []
        params: list[Any] = []
        parts = [(status, part) for status in Status for part in parts_of(status)]
        for number, (_status, part) in enumerate(parts):
            text, given = part.of(jobs).values(*_PLACE)[:limit].query.get_compiler(self.using).as_sql()
            sql.append(f"SELECT {number} AS part, p{number}.* FROM ({text}) AS p{number}")
            params.extend(given)
        connection = connections[self.using]
        with connection.cursor() as cursor:
            cursor.execute(" UNION ALL ".join(sql), params)
            rows = cursor.fetchall()
        found: dict[Status, list[tuple[Segment, Job]]] = {status: [] for status in Status}
        to_uuid = db.dialect(connection).to_uuid
        for number, *row in rows:
            status, part = parts[number]
            place = dict(zip(_PLACE, row, strict=True))
            place["id"] = to_uuid(place["id"])
            for name in ("due_at", "finished_at"):
                place[name] = None if place[name] is None else db.as_datetime(place[name])
            found[status].append((part, Job.from_db(self.using, _PLACE, list(place.values()))))
        return found

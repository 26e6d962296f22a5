"""Which jobs a person means: a filter that all doors share, and the parts of the table that an index gives in order.

A list of jobs is put together of `Segment`s. Each has an order that ends in the primary key, so it is total, and that an index
has already sorted: a page costs the same whatever else the table holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from django_jobs.exceptions import InvalidOption
from django_jobs.statuses import FINAL, LABELS, LIVE, Status

from .job import PRIORITY_MIN, Job
from .stat import JobTag

if TYPE_CHECKING:
    from .job import JobQuerySet

#: Names of lists that are not a status.
OPEN: Final = "open"
PARKED: Final = "parked"
HTTP: Final = "http"  # ready, and for HTTP workers
ALL: Final = "all"
#: So many hexadecimal digits of an id, at least, are taken for its beginning.
ID_PREFIX_MIN: Final = 8


@dataclass(frozen=True)
class Segment:
    """A part of the jobs with the order in which an index gives it."""

    name: str
    label: Any
    where: Q
    order: tuple[str, ...]

    @property
    def leading(self) -> str:
        """The column by which this part is sorted first."""
        return self.order[0].lstrip("-")

    def of(self, jobs: JobQuerySet) -> JobQuerySet:
        """Return the jobs of this part, in its order."""
        return jobs.filter(self.where).order_by(*self.order)

    def after(self, job: Job) -> Q:
        """Return the condition for rows that come after `job` in this order (a keyset)."""
        condition, equal = Q(), Q()
        for term in self.order:
            name = term.lstrip("-")
            value = getattr(job, name)
            condition |= equal & Q(**{f"{name}__{'lt' if term.startswith('-') else 'gt'}": value})
            equal &= Q(**{name: value})
        # Said apart, because a database finds no range of its index in an OR.
        bound = "lte" if self.order[0].startswith("-") else "gte"
        return Q(**{f"{self.leading}__{bound}": getattr(job, self.leading)}) & condition

    def since(self, moment: datetime) -> Q:
        """Return the condition "since `moment`": finished since then, where the part is final; else enqueued since then."""
        return Q(finished_at__gte=moment) if self.leading == "finished_at" else Q(id__gte=first_id(moment))


def _live(status: Status) -> Segment:
    return Segment(status.value, LABELS[status], Q(status=status.value), ("due_at", "id"))  # index django_jobs_live


def _final(status: Status) -> Segment:
    return Segment(status.value, LABELS[status], Q(status=status.value), ("-finished_at", "-id"))  # index django_jobs_final


def _ready(name: str, label: Any, *, is_http: bool) -> Segment:
    # index django_jobs_claim, with all of its condition: the job that starts next is first
    where = Q(status="ready", parked="", is_http=is_http, priority__gte=PRIORITY_MIN)
    return Segment(name, label, where, ("-priority", "due_at", "id"))


SEGMENTS: Final[Mapping[str, Segment]] = MappingProxyType(
    {
        "running": _live(Status.RUNNING),
        "ready": _ready("ready", LABELS[Status.READY], is_http=False),
        HTTP: _ready(HTTP, _("ready for HTTP"), is_http=True),
        PARKED: Segment(PARKED, _("parked"), ~Q(parked=""), ("parked", "task", "id")),  # index django_jobs_parked
        "scheduled": _live(Status.SCHEDULED),
        "waiting": _live(Status.WAITING),
        "failed": _final(Status.FAILED),
        "timed_out": _final(Status.TIMED_OUT),
        "cancelled": _final(Status.CANCELLED),
        "succeeded": _final(Status.SUCCEEDED),
    }
)
#: The parts that together hold every job which is not final.
OPEN_SEGMENTS: Final = tuple(SEGMENTS[name] for name in ("running", "ready", HTTP, PARKED, "scheduled", "waiting"))
EVERYTHING: Final = Segment(ALL, _("all"), Q(), ("-id",))  # the primary key


def segments(name: str) -> tuple[Segment, ...]:
    """Return the parts of the list `name`: a status, "parked", "open" or "all". Raises `InvalidOption` for another."""
    if name == ALL:
        return (EVERYTHING,)
    if name == OPEN:
        return OPEN_SEGMENTS
    if name not in SEGMENTS:
        raise InvalidOption("status", f"{name!r} is none of {', '.join([OPEN, ALL, *SEGMENTS])}")
    return (SEGMENTS[name],)


def first_id(moment: datetime) -> UUID:
    """Return the least UUIDv7 of `moment`'s millisecond: ids rise with time, so a range of ids is a range of time."""
    return UUID(int=int(moment.timestamp() * 1000) << 80 | 0x7 << 76 | 0b10 << 62)


def id_range(text: str) -> tuple[UUID, UUID] | None:
    """Return the first and the last id that begin with `text`, dashes or not; None if it is no beginning of an id."""
    digits = text.strip().replace("-", "").lower()
    if not re.fullmatch(rf"[0-9a-f]{{{ID_PREFIX_MIN},32}}", digits):
        return None
    return UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))


def in_queue(name: str, column: str = "queue") -> Q:
    """Return the condition for a queue, or for its whole subtree if the name ends in `.*`. `column` holds the queue's name."""
    if name.endswith(".*"):
        return Q(**{column: name[:-2]}) | Q(**{f"{column}__startswith": name[:-1]})
    return Q(**{column: name})


@dataclass(frozen=True)
class JobFilter:
    """A choice of jobs in plain words. What is empty does not narrow. Several statuses are joined by "or"."""

    ids: tuple[UUID, ...] = ()
    statuses: tuple[str, ...] = ()
    queue: str = ""
    task: str = ""
    error_class: str = ""
    since: datetime | None = None  # enqueued since then
    until: datetime | None = None
    tag: str = ""
    unique_key: str = ""
    last_outcome: str = ""  # of an attempt: jobs that wait for a retry are found by it
    batch: UUID | None = None

    @property
    def is_empty(self) -> bool:
        """Whether this means every job."""
        return self == JobFilter()

    def apply(self, jobs: JobQuerySet) -> JobQuerySet:
        """Narrow `jobs`. Raises `InvalidOption` for a status that does not exist."""
        if self.ids:
            jobs = jobs.filter(pk__in=self.ids)
        if self.statuses:
            jobs = jobs.filter(_any(self.statuses))
        if self.queue:
            jobs = jobs.filter(in_queue(self.queue))
        if self.task:
            jobs = jobs.filter(task=self.task)
        if self.error_class:
            jobs = jobs.filter(error_class=self.error_class)
        if self.since:
            jobs = jobs.filter(id__gte=first_id(self.since))
        if self.until:
            jobs = jobs.filter(id__lt=first_id(self.until))
        if self.tag:
            # Index django_jobs_tag_job, in the order of the ids.
            jobs = jobs.filter(pk__in=JobTag.objects.using(jobs.db).filter(tag=self.tag).values("job_id"))
        if self.unique_key:
            jobs = jobs.filter(unique_key=self.unique_key)
        if self.last_outcome:
            jobs = jobs.filter(last_outcome=self.last_outcome)
        if self.batch:
            jobs = jobs.filter(batch=self.batch)  # index django_jobs_in_batch
        return jobs


def _any(names: Iterable[str]) -> Q:
    condition, statuses = Q(), set()
    for name in names:
        match name:
            case "open":
                statuses |= {status.value for status in LIVE}
            case "final":
                statuses |= {status.value for status in FINAL}
            case "all":
                statuses |= {status.value for status in Status}
            case "parked":
                condition |= ~Q(parked="")
            case "http":
                condition |= SEGMENTS[HTTP].where
            case _ if name in LABELS:
                statuses.add(name)
            case _:
                known = ", ".join([OPEN, "final", ALL, PARKED, HTTP, *Status])
                raise InvalidOption("status", f"{name!r} is none of {known}")
    return condition | Q(status__in=sorted(statuses)) if statuses else condition

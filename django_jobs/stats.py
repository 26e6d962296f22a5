"""Numbers about jobs that cost the same however many jobs there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from django.db import connections
from django.db.models import QuerySet

from .models import Job
from .models.selection import SEGMENTS

#: Nobody counts further than this: "10,000+" tells a person as much as the number would.
COUNT_CAP: Final = 10_000


def capped_counts(querysets: Mapping[str, QuerySet[Any]], *, cap: int = COUNT_CAP, using: str) -> dict[str, int]:
    """Count each of `querysets` up to `cap` + 1, in one statement.

    Each should have an order that an index gives: the order makes the planner read that index, and stop at the cap, whatever
    its statistics say about the rest of the table.
    """
    if not querysets:
        return {}
    parts: list[str] = []
    params: list[Any] = []
    for number, queryset in enumerate(querysets.values()):
        compiler = queryset.values("pk")[: cap + 1].query.get_compiler(using)
        sql, values = compiler.as_sql()
        parts.append(f"SELECT {number} AS part, COUNT(*) FROM ({sql}) AS counted{number}")
        params.extend(values)
    with connections[using].cursor() as cursor:
        cursor.execute(" UNION ALL ".join(parts), params)
        found = dict(cursor.fetchall())
    return {name: int(found[number]) for number, name in enumerate(querysets)}


def status_counts(*, using: str, cap: int = COUNT_CAP) -> dict[str, int]:
    """Return the number of jobs by list (each status, and "parked" apart from "ready"), each counted up to `cap` + 1."""
    jobs = Job.objects.using(using)
    return capped_counts({name: segment.of(jobs) for name, segment in SEGMENTS.items()}, cap=cap, using=using)


def ready_counts(queues: list[str], *, using: str, cap: int = 1000) -> dict[str, int]:
    """Return how many jobs may start at once, by queue, each counted up to `cap` + 1 (index `django_jobs_claim_queue`)."""
    ready = SEGMENTS["ready"].of(Job.objects.using(using))
    return capped_counts({queue: ready.filter(queue=queue) for queue in queues}, cap=cap, using=using)

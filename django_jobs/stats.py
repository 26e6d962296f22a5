"""Numbers about jobs that cost the same however many jobs there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from django.db import connections
from django.db.models import QuerySet

from .db import COUNT, DELTA
from .models import TOTALS, Job
from .models.selection import SEGMENTS
from .models.stat import spelled_out
from .statuses import Status

if TYPE_CHECKING:
    from .models.job import JobQuerySet

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


def queue_counts(using: str = "default", queue: str | None = None) -> dict[str, dict[str, int]]:
    """Return how many jobs each queue has in each status, `{queue: {status: n}}`: every status, for queues that have any jobs.

    As of one moment, what the open transaction has done included. From the roll-ups, never by counting jobs. `queue`: that one
    alone.
    """
    found = _numbers(using, queue)
    counts = {name: {status.value: max(0, numbers[status]) for status in Status} for name, numbers in sorted(found.items())}
    return {name: numbers for name, numbers in counts.items() if any(numbers.values())}


def queue_totals(using: str = "default", queue: str | None = None) -> dict[str, dict[str, int]]:
    """Return how often each of `TOTALS` has happened in each queue since the beginning, `{queue: {name: n}}`.

    These numbers only rise: deletion takes nothing away. A job that changes its queue stays created where it was.
    """
    totals = {name: {total: numbers[total] for total in TOTALS} for name, numbers in sorted(_numbers(using, queue).items())}
    return {name: numbers for name, numbers in totals.items() if any(numbers.values())}


def totals(using: str = "default") -> dict[str, int]:
    """Return how often each of `TOTALS` has happened in all queues since the beginning."""
    summed: Counter[str] = Counter()
    for numbers in queue_totals(using).values():
        summed.update(numbers)
    return {total: summed[total] for total in TOTALS}


def _numbers(using: str, queue: str | None) -> dict[str, Counter[str]]:
    """Return all numbers of the roll-ups by queue: one statement, so that a fold is seen whole or not at all."""
    where, params = ("", []) if queue is None else (" WHERE queue = %s", [queue, queue])
    with connections[using].cursor() as cursor:
        cursor.execute(
            "SELECT queue, name, SUM(value) FROM ("
            f"SELECT queue, name, value FROM {COUNT}{where} UNION ALL SELECT queue, name, value FROM {DELTA}{where}"
            ") AS rows_ GROUP BY queue, name",
            params,
        )
        rows = cursor.fetchall()
    found: dict[str, Counter[str]] = {}
    for name, row, value in rows:
        counter = found.setdefault(name, Counter())
        for number, change in spelled_out(row, int(value)):
            counter[number] += change
    return found


def status_counts(*, using: str, cap: int = COUNT_CAP, jobs: JobQuerySet | None = None) -> dict[str, int]:
    """Return the number of jobs by list (each status, and "parked" apart from "ready"), each counted up to `cap` + 1.

    `jobs`: those among which to count, if not all.
    """
    jobs = Job.objects.using(using) if jobs is None else jobs
    return capped_counts({name: segment.of(jobs) for name, segment in SEGMENTS.items()}, cap=cap, using=using)

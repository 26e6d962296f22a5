"""`/metrics/`: numbers in Prometheus' text format 0.0.4, from roll-ups, workers, leases and services. Never a scan of jobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Final

from django.db import connections
from django.db.models import Count, Sum
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from .. import __version__, db, stats
from ..models import TOTALS, JobLock, Leader, Worker
from .base import JobsView
from .permissions import Caller
from .rendering import JobsJSONRenderer, Negotiation, TextRenderer

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_PAST: Final = {"succeeded": "ended as succeeded", "failed": "ended as failed", "timed_out": "ended as timed out"}
#: Labels and a value.
Sample = tuple[Mapping[str, str], float]


class Family:
    """One metric with its samples."""

    def __init__(self, name: str, kind: str, text: str, samples: Iterable[Sample]) -> None:
        self.name, self.kind, self.text, self.samples = name, kind, text, samples

    def lines(self) -> Iterator[str]:
        """Return its lines, the head first."""
        yield f"# HELP {self.name} {self.text}"
        yield f"# TYPE {self.name} {self.kind}"
        for labels, value in self.samples:
            inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
            yield f"{self.name}{{{inside}}} {_number(value)}" if inside else f"{self.name} {_number(value)}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))


def families(caller: Caller, *, using: str) -> Iterator[Family]:
    """Return the metrics of the caller's queues; of workers and services only for callers without bounds."""
    yield Family("django_jobs_build_info", "gauge", "The version that answers.", [({"version": __version__}, 1)])
    yield Family("django_jobs_jobs", "gauge", "Jobs by queue and status.", _jobs(caller, using))
    yield Family("django_jobs_attempts", "gauge", "Attempts in hand, by queue and by who has them.", _attempts(caller, using))
    totals = {queue: numbers for queue, numbers in stats.queue_totals(using).items() if caller.sees(queue)}
    for name in TOTALS:
        what = name.removeprefix("total_")
        samples = [({"queue": queue}, numbers[name]) for queue, numbers in totals.items()]
        yield Family(f"django_jobs_{what}_total", "counter", f"How often jobs were {_PAST.get(what, what)}.", samples)
    if caller.queues:
        return
    yield from _workers(using)
    yield from _services(using)


def _jobs(caller: Caller, using: str) -> Iterator[Sample]:
    for queue, counts in sorted(stats.queue_counts(using).items()):
        if caller.sees(queue):
            yield from (({"queue": queue, "status": status}, value) for status, value in sorted(counts.items()))


def _attempts(caller: Caller, using: str) -> Iterator[Sample]:
    rows = caller.narrow_by_name(JobLock.objects.using(using), "queue")
    for queue, kind, number in rows.order_by("queue", "kind").values_list("queue", "kind").annotate(number=Count("pk")):
        yield {"queue": queue, "kind": kind}, number


def _workers(using: str) -> Iterator[Family]:
    alive = Worker.objects.using(using).filter(stopped_at__isnull=True)
    rows = alive.order_by("kind").values("kind").annotate(number=Count("pk"), slot_sum=Sum("slots"), running_sum=Sum("running"))
    found: list[tuple[dict[str, str], dict[str, Any]]] = [({"kind": row["kind"]}, dict(row)) for row in rows]
    for name, key, text in (
        ("workers", "number", "Worker processes that have not stopped."),
        ("worker_slots", "slot_sum", "Jobs that they can run at once."),
        ("worker_running", "running_sum", "Jobs that they run."),
    ):
        yield Family(f"django_jobs_{name}", "gauge", text, [(labels, row[key]) for labels, row in found])


def _services(using: str) -> Iterator[Family]:
    now = db.server_now(connections[using])
    rows: list[Any] = list(Leader.objects.using(using).order_by("name"))
    late = [({"service": row.name}, max(0.0, round((now - row.next_at).total_seconds(), 3))) for row in rows]
    yield Family("django_jobs_maintenance_late_seconds", "gauge", "For how long each service has been due.", late)
    errors = [({"service": row.name}, 1 if row.error else 0) for row in rows]
    yield Family("django_jobs_maintenance_error", "gauge", "Whether the service's last sweep failed.", errors)
    touched = [({"service": row.name}, row.touched) for row in rows]
    yield Family("django_jobs_maintenance_rows_total", "counter", "Rows that each service has touched.", touched)


class _WhateverIsAsked(Negotiation):
    """The wishes of scrapers differ, the format does not."""

    def select_renderer(self, request: Any, renderers: Any, format_suffix: Any = None) -> tuple[Any, str]:
        """Return the only one."""
        return renderers[0], renderers[0].media_type


class MetricsView(JobsView):
    """Numbers for Prometheus."""

    content_negotiation_class = _WhateverIsAsked
    verbs: ClassVar = {"GET": "view"}

    def get_renderers(self) -> list[BaseRenderer]:
        """Return text."""
        return [TextRenderer()]

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        """Say errors in JSON."""
        if response.status_code >= 400:
            request.accepted_renderer, request.accepted_media_type = JobsJSONRenderer(), JobsJSONRenderer.media_type
        return super().finalize_response(request, response, *args, **kwargs)

    def get(self, request: Request) -> Response:
        """Return the text."""
        self.require_numbers()
        lines = [line for family in families(self.caller, using=self.using) for line in family.lines()]
        return Response("\n".join([*lines, ""]), content_type=CONTENT_TYPE)

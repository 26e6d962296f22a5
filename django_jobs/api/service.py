"""The endpoints that are about the whole: what there is, the version, the numbers, the workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, ClassVar, Final
from uuid import UUID

from django.db import connections
from django.urls import NoReverseMatch
from rest_framework.request import Request
from rest_framework.response import Response

from .. import __version__, db, stats
from ..conf import jobs_settings
from ..models import TOTALS, Job, JobLock, Queue, Worker
from ..statuses import Status
from .base import PAGE_QUERY, JobsView
from .errors import ApiError, invalid
from .pagination import page

_LINKS: Final = (
    "jobs",
    "jobs-timed-out",
    "batches",
    "queues",
    "workers",
    "info",
    "health",
    "metrics",
    "version",
    "schema",
)
#: Attempts that a page of workers shows: a worker may have thousands of coroutines.
MAX_ATTEMPTS_SHOWN: Final = 2_000
#: Graces after which a process that was not seen is called silent.
SILENT_GRACES: Final = 3


class RootView(JobsView):
    """Background jobs over HTTP: what there is."""

    verbs: ClassVar = {"GET": "view"}

    def get_view_name(self) -> str:
        """Return a name that says more than the class's."""
        return "Background jobs"

    def get(self, request: Request) -> Response:
        """Return the addresses of the lists and of the endpoints about the whole."""
        links = {}
        for name in _LINKS:
            try:
                links[name.replace("-", "_")] = self.url(name)
            except NoReverseMatch:
                continue
        return Response(links)


class VersionView(JobsView):
    """Which version of django_jobs answers."""

    verbs: ClassVar = {"GET": "view"}

    def get(self, request: Request) -> Response:
        """Return the version as JSON text."""
        return Response(__version__)


class InfoView(JobsView):
    """How many jobs there are by queue and status, and how many there ever were."""

    verbs: ClassVar = {"GET": "view"}

    def get(self, request: Request) -> Response:
        """Return `{"queues": {queue: {status: n}}, "jobs": {status: n}, "statistics": {"total_jobs_created": n, ...}}`.

        Of the queues that the caller sees: those with jobs, and those declared as rows. Statistics only rise.
        """
        self.require_numbers()
        sees, rows = self.caller.sees, Queue.objects.using(self.using)
        counts = {name: dict[str, int]() for name in rows.values_list("name", flat=True)} | stats.queue_counts(self.using)
        queues = {
            queue: {status.value: counts[queue].get(status.value, 0) for status in Status}
            for queue in sorted(counts)
            if sees(queue)
        }
        jobs = Counter({status.value: 0 for status in Status})
        for numbers in queues.values():
            jobs.update(numbers)
        totals = Counter(dict.fromkeys(TOTALS, 0))
        for queue, numbers in stats.queue_totals(self.using).items():
            if sees(queue):
                totals.update(numbers)
        statistics = {f"total_jobs_{name.removeprefix('total_')}": value for name, value in totals.items()}
        return Response({"queues": queues, "jobs": jobs, "statistics": statistics})


class WorkersView(JobsView):
    """The worker processes, and what each has in hand."""

    verbs: ClassVar = {"GET": "view"}
    query: ClassVar = PAGE_QUERY | {"state"}

    def get(self, request: Request) -> Response:
        """Return a page, the youngest first. `state`: alive (the default), stopped or all."""
        if self.caller.queues:
            raise ApiError(403, "forbidden", "Workers serve more queues than this token is for.")
        state = request.query_params.get("state", "alive")
        workers = Worker.objects.using(self.using)
        if state not in ("alive", "stopped", "all"):
            raise invalid("state", "alive, stopped or all.")
        if state != "all":
            workers = workers.filter(stopped_at__isnull=state == "alive")
        self.now = db.server_now(connections[self.using])
        return page(self, workers, order=("-started_at", "-id"), render=self._render, prepare=self._prepare)

    def _prepare(self, workers: list[Worker]) -> None:
        """Fetch what the workers of the page have in hand, of what the caller sees."""
        locks = JobLock.objects.using(self.using).filter(worker__in=[worker.pk for worker in workers])
        rows = list(locks.order_by("claimed_at", "job_id")[:MAX_ATTEMPTS_SHOWN])
        jobs = self.jobs().filter(pk__in=[row.job_id for row in rows]).only("id", "queue", "task", "starts")
        self.in_hand = _by_worker(rows, {job.pk: job for job in jobs})

    def _render(self, worker: Worker) -> dict[str, Any]:
        silent_since = self.now - timedelta(seconds=SILENT_GRACES * jobs_settings().grace)
        state = "stopped" if worker.stopped_at else "silent" if worker.seen_at < silent_since else "alive"
        names = ("id", "parent", "kind", "name", "host", "pid", "version", "queues", "slots", "running", "jobs_done")
        times = ("memory_mb", "started_at", "seen_at", "stopped_at", "stop_reason")
        values = {name: getattr(worker, name) for name in (*names, *times)}
        return {**values, "state": state, "jobs": self.in_hand.get(worker.pk, [])}


def _by_worker(rows: Iterable[JobLock], jobs: dict[UUID, Job]) -> dict[UUID | None, list[dict[str, Any]]]:
    found: dict[UUID | None, list[dict[str, Any]]] = {}
    for row in rows:
        job = jobs.get(row.job_id)
        if job is not None:
            found.setdefault(row.worker, []).append(
                {
                    "id": job.pk,
                    "queue": job.queue,
                    "task": job.task,
                    "attempt": job.starts,
                    "claimed_at": row.claimed_at,
                    "prefetched": row.prefetched,
                }
            )
    return found

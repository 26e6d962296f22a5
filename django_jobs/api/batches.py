"""Batches: made with their jobs, added to, how far they are, cancelled, and their failed jobs requeued."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final
from uuid import UUID

from django.db import connections
from rest_framework.request import Request
from rest_framework.response import Response

from ..batches import MAX_NAME, State, state_of
from ..calls import call_of
from ..conf import jobs_settings
from ..exceptions import JobsError
from ..ids import uuid7
from ..lifecycle import batch as lifecycle
from ..lifecycle.batch_look import numbers_of
from ..lifecycle.recover import writing
from ..lifecycle.report import Report
from ..lifecycle.spec import NewJob
from ..models import Batch
from ..options import CHECKS
from ..registry import find_task
from . import idempotency, values
from .base import PAGE_QUERY, JobsView
from .bulk import told
from .create import Reader, new_jobs
from .errors import ApiError, as_api_error, invalid, not_found
from .job_actions import reason_of
from .pagination import page
from .rendering import time_text

#: What a new batch may say, and what may be said later.
FIELDS: Final = ("name", "metadata", *lifecycle.CALLBACKS, "jobs", "seal")
EDITABLE: Final = ("read", "sealed")
_FLAGS: Final = ("finished", "read")


class BatchesView(JobsView):
    """What the endpoints of batches share: they are for those who see every job, since their numbers count them all."""

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Let in who may see the jobs of every queue."""
        super().initial(request, *args, **kwargs)
        self.require_numbers()
        if self.caller.queues:
            raise ApiError(403, "forbidden", "Batches count jobs of every queue: they are not for a token of some queues.")

    def batch(self, pk: UUID) -> Batch:
        """Return a batch, or raise 404."""
        row = Batch.objects.using(self.using).filter(pk=pk).first()
        if row is None:
            raise not_found(f"There is no batch {pk}.")
        return row

    def render(self, row: Batch, state: State | None = None) -> dict[str, Any]:
        """Return the batch as the API shows it."""
        if state is None:
            state = state_of(row, numbers_of(connections[self.using], [row.pk])[row.pk])
        progress = state.progress
        shown = {
            "id": str(row.pk),
            "name": row.name,
            "status": state.status,
            "counts": {status.value: number for status, number in state.counts.items()},
            "progress": {
                "total": progress.total,
                "ended": progress.ended,
                "succeeded": progress.succeeded,
                "failed": progress.failed,
                "percent_complete": round(progress.percent_complete, 2),
                "percent_failed": round(progress.percent_failed, 2),
            },
            "metadata": row.metadata,
            "created_by": row.created_by,
            "created_at": time_text(row.created_at),
            "sealed_at": time_text(row.sealed_at),
            "finished_at": time_text(row.finished_at),
            "read_at": time_text(row.read_at),
            **{name: None if (job := getattr(row, f"{name}_id")) is None else str(job) for name in lifecycle.CALLBACKS},
        }
        return shown if self.caller.may("payload") else {name: value for name, value in shown.items() if name != "metadata"}

    def once(self, make: Callable[[], dict[str, Any]]) -> Response:
        """Answer with what `make` does, once for each `Idempotency-Key`."""
        key = idempotency.key_of(self)
        answer = make() if key is None else idempotency.once(self, key, make)
        headers = {"Location": answer["location"]} if answer["location"] else None
        return Response(answer["body"], status=answer["status"], headers=headers)

    def add(self, row: UUID, items: Any) -> list[dict[str, Any]]:
        """Store the jobs that `items` ask for as jobs of a batch, in the caller's open transaction."""
        most = jobs_settings().api_bulk_max
        if not isinstance(items, list):
            raise invalid("jobs", "a list of jobs.")
        if len(items) > most:
            raise ApiError(413, "too_large", f"{len(items)} jobs in one request: at most {most}.", limit=most)
        created = new_jobs(self, items, is_many=True, batch=row) if items else []
        return [{"id": str(each.id), "created": each.is_new} for each in created]


class BatchListView(BatchesView):
    """Batches, the newest first; and new ones."""

    verbs: ClassVar = {"GET": "view", "POST": "enqueue"}
    query: ClassVar = PAGE_QUERY | set(_FLAGS)

    def get(self, request: Request) -> Response:
        """Return a page of them: `finished` and `read` narrow it."""
        rows = Batch.objects.using(self.using)
        for name in _FLAGS:
            if name in request.query_params:
                is_null = not values.flag(request.query_params[name], name)
                rows = rows.filter(**{f"{name}_at__isnull": is_null})
        numbers: dict[UUID, Mapping[str, int]] = {}

        def prepare(shown: list[Batch]) -> None:
            numbers.update(numbers_of(connections[self.using], [row.pk for row in shown]))

        return page(self, rows, render=lambda row: self.render(row, state_of(row, numbers[row.pk])), prepare=prepare)

    def post(self, request: Request) -> Response:
        """Make a batch, with its first `jobs`: 201. It is sealed at once, unless `seal` is false."""
        return self.once(self._create)

    def _create(self) -> dict[str, Any]:
        data = self.body(FIELDS)
        name = values.text(data.get("name", ""), "name", MAX_NAME)
        metadata = CHECKS["metadata"](data.get("metadata", {}), "metadata")
        is_sealed = values.flag(data.get("seal", True), "seal")
        pk = uuid7()
        callbacks = {name: _callback(self, name, data[name], pk) for name in lifecycle.CALLBACKS if data.get(name) is not None}
        by = self.caller.name or None
        new = lifecycle.NewBatch(id=pk, name=name, metadata=dict(metadata), created_by=by, callbacks=callbacks)
        with writing(self.using):
            lifecycle.create(new, using=self.using)
            self.add(pk, data.get("jobs", []))
            if is_sealed:
                lifecycle.seal(pk, using=self.using)
            body = self.render(self.batch(pk))
        return {"status": 201, "location": self.url("batch", pk=pk), "body": body}


class BatchView(BatchesView):
    """A batch."""

    verbs: ClassVar = {"GET": "view", "PATCH": "change|enqueue"}

    def get(self, request: Request, pk: UUID) -> Response:
        """Return how far it is."""
        return Response(self.render(self.batch(pk)))

    def patch(self, request: Request, pk: UUID) -> Response:
        """Seal it (`sealed`: true), or note that somebody has seen how it ended (`read`)."""
        data = self.body(EDITABLE)
        said = {name: values.flag(value, name) for name, value in data.items()}
        if not said:
            raise ApiError(400, "invalid", "The body changes nothing.")
        self.batch(pk)
        if "sealed" in said:
            self.require("enqueue")
            if not said["sealed"]:
                raise invalid("sealed", "a batch that is sealed stays so; its own jobs may add others.")
        if "read" in said:
            self.require("change")
        with writing(self.using):
            if "sealed" in said:
                lifecycle.seal(pk, using=self.using)
            if "read" in said:
                lifecycle.mark_read([pk], read=said["read"], using=self.using)
        return Response(self.render(self.batch(pk)))


class BatchJobsView(BatchesView):
    """The jobs of a batch. (They are listed with `?batch=` of the list of jobs.)"""

    verbs: ClassVar = {"POST": "enqueue"}

    def post(self, request: Request, pk: UUID) -> Response:
        """Add a list of jobs, all or none: 201; 409 if the batch has finished."""
        self.batch(pk)
        return self.once(lambda: self._add(pk))

    def _add(self, pk: UUID) -> dict[str, Any]:
        items = self.request.data
        if not isinstance(items, list) or not items:
            raise ApiError(400, "invalid", "The body has to be a list of jobs.")
        with writing(self.using):
            lifecycle.join(pk, using=self.using)
            results = self.add(pk, items)
        return {"status": 201, "location": None, "body": {"results": results}}


class BatchVerbView(BatchesView):
    """A verb for all jobs of a batch."""

    extra: ClassVar[tuple[str, ...]] = ()
    do: ClassVar[Callable[..., Report]]

    def post(self, request: Request, pk: UUID) -> Response:
        """Do it, to at most API_BULK_MAX jobs; `more` if there are more. The report says of each what became of it."""
        data = self.optional_body(("reason", *self.extra))
        said = {name: values.flag(data[name], name) for name in self.extra if name in data}
        most = jobs_settings().api_bulk_max
        self.batch(pk)
        report = type(self).do(pk, by=self.caller.name, reason=reason_of(data), limit=most, using=self.using, **said)
        ids = [*report.changed, *report.refused]
        return Response(told(ids, report, is_dry=False, more=len(ids) >= most))


class BatchCancelView(BatchVerbView):
    """Seal a batch, and cancel its jobs that have not ended."""

    verbs: ClassVar = {"POST": "cancel"}
    extra: ClassVar = ("force",)
    do = staticmethod(lifecycle.cancel)


class BatchRequeueView(BatchVerbView):
    """Requeue the jobs of a batch that have failed or timed out; `with_cancelled`: and those that were cancelled."""

    verbs: ClassVar = {"POST": "requeue"}
    extra: ClassVar = ("with_cancelled",)
    do = staticmethod(lifecycle.requeue_failed)


def _callback(view: JobsView, name: str, item: Any, batch: UUID) -> NewJob:
    """Return the job that a callback is; its task gets the batch's id as `batch_id`, if it takes that."""
    try:
        if isinstance(item, dict) and isinstance(item.get("task"), str) and isinstance(item.get("kwargs", {}), dict):
            given = item.get("kwargs", {})
            if "batch_id" not in given and "batch_id" in (call_of(find_task(item["task"])).names or ()):
                item = item | {"kwargs": given | {"batch_id": str(batch)}}
        job: NewJob = Reader(view).read(item).job
    except (ApiError, JobsError) as error:
        answer = as_api_error(error)
        if answer is None:
            raise
        fields = {f"{name}.{field}": texts for field, texts in answer.fields.items()}
        raise ApiError(answer.status_code, answer.code, f"{name}: {answer.message}", fields) from error
    job.spec.related = {"model": "django_jobs.batch", "pk": str(batch), "using": view.using}
    return job

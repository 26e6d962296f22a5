"""Jobs: the list, one job, what it puts out, its attempts."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar
from uuid import UUID

from rest_framework.request import Request
from rest_framework.response import Response

from ..conf import jobs_settings
from ..lifecycle.recover import writing
from ..models import Job, JobAttempt
from ..models.selection import SEGMENTS
from . import filters, idempotency
from .base import PAGE_QUERY, JobsView
from .create import new_jobs
from .errors import ApiError
from .pagination import page
from .serializers import FIELDS, LIST_FIELDS, fields_asked, only, render_attempt, render_job, render_listed


class JobListView(JobsView):
    """Jobs, the newest first, or by status in the order of each; and new ones."""

    verbs: ClassVar = {"GET": "view", "POST": "enqueue"}
    query: ClassVar = PAGE_QUERY | {"fields", *filters.FILTERS}

    def get(self, request: Request) -> Response:
        """Return a page of the jobs that the filters mean. Without `fields`, nothing of unknown size is shown."""
        choice = filters.Choice(filters.of_query(request._request.GET))
        return self.answer(choice)

    def answer(self, choice: filters.Choice) -> Response:
        """Return the page."""
        fields = fields_asked(self.request.query_params.get("fields"), self.caller, default=LIST_FIELDS)
        parts = choice.parts
        if choice.statuses is not None and not parts:
            return Response({"results": [], "next": None, "previous": None})
        order = {term.lstrip("-") for part in parts for term in part.order}
        jobs = only(choice.filter.apply(self.jobs()), fields, *order)
        return page(self, jobs, parts=parts, render=partial(render_listed, fields=fields, caller=self.caller))

    def post(self, request: Request) -> Response:
        """Store one job (an object) or many (a list), all or none."""
        key = idempotency.key_of(self)
        answer = self._create() if key is None else idempotency.once(self, key, self._create)
        headers = {"Location": answer["location"]} if answer["location"] else None
        return Response(answer["body"], status=answer["status"], headers=headers)

    def _create(self) -> dict[str, Any]:
        data = self.request.data
        if isinstance(data, list):
            return self._create_many(data)
        with writing(self.using):
            (created,) = new_jobs(self, [data], is_many=False)
            job = Job.objects.using(self.using).get(pk=created.id)
            body = render_job(job, FIELDS, self.caller)
        return {"status": 201 if created.is_new else 200, "location": self.url("job", pk=created.id), "body": body}

    def _create_many(self, items: list[Any]) -> dict[str, Any]:
        most = jobs_settings().api_bulk_max
        if not items:
            raise ApiError(400, "invalid", "The list has no jobs.")
        if len(items) > most:
            raise ApiError(413, "too_large", f"{len(items)} jobs in one request: at most {most}.", limit=most)
        with writing(self.using):
            created = new_jobs(self, items, is_many=True)
        results = [{"id": str(each.id), "created": each.is_new} for each in created]
        return {"status": 201, "location": None, "body": {"results": results}}


class TimedOutView(JobListView):
    """Jobs that timed out and have no attempts left, the latest first: what somebody has yet to deal with."""

    verbs: ClassVar = {"GET": "view"}
    query: ClassVar = (PAGE_QUERY | {"fields", *filters.FILTERS}) - {"status", "ended"}
    http_method_names = ["get", "head", "options"]

    def get(self, request: Request) -> Response:
        """Return a page of them. Index django_jobs_final, or with `queue` django_jobs_trouble."""
        return self.answer(filters.Choice({**filters.of_query(request._request.GET), "status": SEGMENTS["timed_out"].name}))


class JobStatusView(JobsView):
    """The status of a job."""

    verbs: ClassVar = {"GET": "view"}

    def get(self, request: Request, pk: UUID) -> Response:
        """Return it as JSON text."""
        return Response(self.job(pk).status)


class JobAttemptsView(JobsView):
    """The attempts of a job that did not simply succeed."""

    verbs: ClassVar = {"GET": "view"}
    query: ClassVar = PAGE_QUERY

    def get(self, request: Request, pk: UUID) -> Response:
        """Return a page of them, the latest first."""
        attempts = JobAttempt.objects.using(self.using).filter(job_id=self.job(pk).pk)
        return page(self, attempts, order=("-number",), render=render_attempt)

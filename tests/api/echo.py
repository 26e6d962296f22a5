"""A urlconf with an endpoint that says what it got, and some that fail: for what all endpoints share."""

from __future__ import annotations

from typing import Any

from django.db import InterfaceError, OperationalError
from django.urls import include, path
from rest_framework.response import Response

from django_jobs.api.base import PAGE_QUERY, JobsView
from django_jobs.api.pagination import page
from django_jobs.api.routes import routes
from django_jobs.exceptions import InvalidArguments, InvalidTransition, JobDoesNotExist, LeaseLost, UnknownTask
from django_jobs.models.selection import segments

FAILURES: dict[str, Exception] = {
    "operational": OperationalError("server closed the connection"),
    "interface": InterfaceError("connection already closed"),
    "unexpected": RuntimeError("a fault"),
    "move": InvalidTransition("running", "ready"),
    "gone": JobDoesNotExist("There is no job 7."),
    "lease": LeaseLost("This attempt has ended.", status="timed_out"),
    "arguments": InvalidArguments("not JSON", path="args[0]", index=3),
    "task": UnknownTask("no task 'x'"),
}


class Echo(JobsView):
    """Says what it got."""

    verbs = {"GET": "view", "POST": "enqueue", "PATCH": "change|claim"}
    query = frozenset({"status", "queue"})

    def get(self, request: Any) -> Response:
        return Response({"by": self.caller.name, "scope": self.caller.scope})

    def post(self, request: Any) -> Response:
        return Response(self.body({"queue", "timeout"}))

    def patch(self, request: Any) -> Response:
        return Response({"data": request.data})

    def put(self, request: Any) -> Response:
        raise AssertionError("a method without a verb is nobody's")


class Broken(JobsView):
    """Raises what its address says."""

    verbs = {"GET": "view"}

    def get(self, request: Any, failure: str) -> Response:
        raise FAILURES[failure]


class Open(JobsView):
    """A list of several parts."""

    verbs = {"GET": "view"}
    query = PAGE_QUERY | {"list"}

    def get(self, request: Any) -> Response:
        parts = segments(request.query_params.get("list", "open"))
        return page(self, self.jobs(), parts=parts, render=lambda job: str(job.pk))


class One(JobsView):
    """One job, and whether it could be enqueued in another queue."""

    verbs = {"GET": "view"}

    def get(self, request: Any, pk: Any) -> Response:
        return Response({"queue": self.job(pk).queue})

    def post(self, request: Any, pk: Any) -> Response:
        raise AssertionError


views = [
    *routes("echo/", Echo.as_view(), "echo"),
    *routes("broken/<str:failure>/", Broken.as_view(), "broken"),
    *routes("open/", Open.as_view(), "open"),
    *routes("one/<uuid:pk>/", One.as_view(), "one"),
]
urlpatterns = [path("api/jobs/", include(views)), path("api/jobs/", include("django_jobs.api.urls"))]

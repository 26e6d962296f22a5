"""Queues: what they say to their jobs, how much is in them, pause and resume."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, ClassVar, Final

from django.db import connections
from rest_framework.request import Request
from rest_framework.response import Response

from .. import conf, db
from ..exceptions import InvalidOption
from ..lifecycle.inherit import declared
from ..lifecycle.pause import pause_queue, resume_queue
from ..lifecycle.queues import delete_queue, put_queue
from ..models import Job, Queue
from ..options import CHECKS, MAX_INTEGER
from ..queues import check_queue_name
from ..statuses import Status
from . import values
from .base import PAGE_QUERY, JobsView
from .errors import ApiError, invalid, not_found
from .pagination import page
from .serializers import render_queue

SETTINGS: Final = ("description", "is_http", *values.LIMITS)


class QueueBase(JobsView):
    """What the endpoints of queues share."""

    def rows(self) -> Any:
        """Return the queues that the caller sees."""
        return self.caller.narrow_by_name(Queue.objects.using(self.using), "name")

    def queue(self, name: str) -> Queue:
        """Return the declared queue, or raise 404."""
        self.named(name)
        queue: Queue | None = self.rows().filter(name=name).first()
        if queue is None:
            raise not_found(f"There is no queue {name!r}.")
        return queue

    def named(self, name: str) -> str:
        """Return a name that a queue can have and that the caller sees. Raises 400, 404."""
        check_queue_name(name, field="name")
        if not self.caller.sees(name):
            raise not_found(f"There is no queue {name!r}.")
        return name

    def render(self, queue: Queue, now: Any = None) -> dict[str, Any]:
        """Return the queue as the API shows it."""
        now = now or db.server_now(connections[self.using])
        is_paused = queue.paused_at is not None and (queue.paused_until is None or queue.paused_until > now)
        options = declared(self.using).options(queue.name, conf.jobs_aliases()[0])
        return render_queue(queue, options, is_paused=is_paused)


class QueueListView(QueueBase):
    """Declared queues."""

    verbs: ClassVar = {"GET": "view", "POST": "add_queue"}
    query: ClassVar = PAGE_QUERY

    def get(self, request: Request) -> Response:
        """Return a page of them, by name."""
        now = db.server_now(connections[self.using])
        return page(self, self.rows(), order=("name",), render=lambda queue: self.render(queue, now))

    def post(self, request: Request) -> Response:
        """Declare a queue: 201; 409 if it is declared."""
        data = self.body(("name", *SETTINGS))
        if "name" not in data:
            raise invalid("name", "is missing.")
        name = check_queue_name(data["name"], field="name")
        self.check_queue(name, "declare a queue")
        said = settings_of(data)
        if Queue.objects.using(self.using).filter(name=name).exists():
            raise ApiError(409, "conflict", f"There is a queue {name!r}: change it with PUT or PATCH.", {"name": "is declared."})
        put_queue(name, said, replace=False, using=self.using)
        return Response(self.render(self.queue(name)), status=201, headers={"Location": self.url("queue", name=name)})


class QueueView(QueueBase):
    """A queue."""

    verbs: ClassVar = {
        "GET": "view",
        "PUT": "add_queue|change_queue",
        "PATCH": "change_queue",
        "DELETE": "delete_queue",
    }

    @property
    def query(self) -> frozenset[str]:  # type: ignore[override]
        """What a query may have depends on the method."""
        return frozenset({"cascade"}) if self.request.method in ("DELETE", "OPTIONS") else frozenset()

    def get(self, request: Request, name: str) -> Response:
        """Return what it says, and what its jobs get."""
        return Response(self.render(self.queue(name)))

    def put(self, request: Request, name: str) -> Response:
        """Replace all that it says: 204; or declare it: 201. What is left out is inherited."""
        self._check_name(name)
        said = settings_of(self.body(SETTINGS))
        exists = Queue.objects.using(self.using).filter(name=name).exists()
        self.require("change_queue" if exists else "add_queue")
        is_new = put_queue(name, said, using=self.using)
        headers = {"Location": self.url("queue", name=name)}
        return Response(self.render(self.queue(name)) if is_new else None, status=201 if is_new else 204, headers=headers)

    def patch(self, request: Request, name: str) -> Response:
        """Change some of what it says, and leave the rest: 204. Null is inherited again."""
        queue = self.queue(name)
        data = self.body(SETTINGS)
        said = values.merged_retention(data, settings_of(data), queue.retention)
        if put_queue(name, said, replace=False, create=False, using=self.using) is None:
            raise not_found(f"There is no queue {name!r}.")
        return Response(status=204)

    def delete(self, request: Request, name: str) -> Response:
        """Delete it: 204; 409 if jobs of it have yet to run or to be dealt with. `cascade=true`: with its jobs, in pieces.

        With `cascade`, 202 and `more` if there are so many that it has to be asked for again; 409 if jobs run.
        """
        self.queue(name)
        cascade = values.flag(request.query_params.get("cascade", False), "cascade")
        self.require_all()
        if cascade:
            self.require("delete")
            if Job.objects.using(self.using).filter(queue=name, status=Status.RUNNING).exists():
                raise ApiError(409, "conflict", f"The queue {name!r} has jobs that run: cancel them first.", deleted=0)
        done = delete_queue(name, cascade=cascade, by=self.caller.name, using=self.using)
        if done.more:
            return Response({"deleted": done.jobs, "more": True}, status=202)
        if done.left:
            what = (
                "has jobs that run, or that somebody else is changing" if cascade else "has jobs that have yet to run, or failed"
            )
            raise ApiError(409, "conflict", f"The queue {name!r} {what}.", deleted=done.jobs)
        return Response(status=204)

    def _check_name(self, name: str) -> None:
        check_queue_name(name, field="name")
        self.check_queue(name, "declare a queue")


class PauseView(QueueBase):
    """Pause a queue, and the queues below it: nothing starts, what runs goes on."""

    verbs: ClassVar = {"POST": "pause"}

    def post(self, request: Request, name: str) -> Response:
        """Pause it, `until` a time (RFC 3339, or a duration from now) or for good. `reason` is shown with it."""
        data = self.optional_body(("reason", "until"))
        self.named(name)
        until = values.moment(data.get("until"), "until")
        if isinstance(until, timedelta):
            if not until:
                raise InvalidOption("until", "a pause lasts longer than nothing.")
            until = db.server_now(connections[self.using]) + until
        reason = values.text(data.get("reason", ""), "reason", 500)
        queue = pause_queue(name, by=self.caller.name, reason=reason, until=until, using=self.using)
        return Response(self.render(queue))


class ResumeView(QueueBase):
    """End the pause of a queue."""

    verbs: ClassVar = {"POST": "pause"}

    def post(self, request: Request, name: str) -> Response:
        """End it now. A pause of a queue above it stays. 409 if it is not paused."""
        data = self.optional_body(("reason",))
        queue = self.queue(name)
        reason = values.text(data.get("reason", ""), "reason", 500)
        if not resume_queue(name, by=self.caller.name, reason=reason, using=self.using):
            raise ApiError(409, "conflict", f"The queue {name!r} is not paused.")
        queue.refresh_from_db()
        return Response(self.render(queue))


def settings_of(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `data` says of a queue, checked, by the columns' names."""
    said = values.limits(data)
    if said.get("max_attempts", 1) is not None:
        values.whole(said.get("max_attempts", 1), "max_attempts", 1, MAX_INTEGER)
    if "description" in data:
        said["description"] = CHECKS["description"](data["description"], "description")
    if "is_http" in data:
        said["is_http"] = None if data["is_http"] is None else values.flag(data["is_http"], "is_http")
    return said

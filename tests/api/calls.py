"""Requests as programs send them, and what they need: a token, a queue for HTTP workers."""

from __future__ import annotations

import json
import uuid
from typing import Any

from django.http import HttpResponse
from django.test import Client

from django_jobs.lifecycle import tokens
from django_jobs.lifecycle.inherit import forget_queues
from django_jobs.models import Queue

PREFIX = "/api/jobs"
ALL = tuple(tokens.VERBS)


class Api:
    """Calls the API with a token of these verbs and queues (empty: every queue)."""

    def __init__(self, *verbs: str, queues: tuple[str, ...] = ()) -> None:
        self.token, self.secret = make_token(verbs or ALL, queues)
        self.client = Client(raise_request_exception=True)

    def call(self, method: str, path: str, body: Any = ..., **headers: str) -> HttpResponse:
        """Send a request; `body` is sent as JSON, or as it is if it is bytes."""
        data = b"" if body is ... else body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"authorization": f"Bearer {self.secret}"} | {name.replace("_", "-"): value for name, value in headers.items()}
        url = path if path.startswith("http") else PREFIX + path
        return self.client.generic(method, url, data, content_type="application/json", headers=sent)

    def ok(self, method: str, path: str, body: Any = ..., *, status: int = 200, **headers: str) -> Any:
        """Send a request that has to be answered with `status`; return the answer's JSON."""
        response = self.call(method, path, body, **headers)
        assert response.status_code == status, (response.status_code, response.content.decode()[:1000])
        return json.loads(response.content) if response.content else None

    def error(self, method: str, path: str, body: Any = ..., *, status: int, **headers: str) -> dict[str, Any]:
        """Send a request that has to fail with `status`; return what is in `error`."""
        found: dict[str, Any] = self.ok(method, path, body, status=status, **headers)["error"]
        assert {"code", "message"} <= set(found)
        return found

    def walk(self, path: str) -> list[Any]:
        """Return the results of all pages."""
        found: list[Any] = []
        url: str | None = path
        while url is not None:
            page = self.ok("GET", url)
            found += page["results"]
            url = page["next"]
        return found


def make_token(verbs: tuple[str, ...], queues: tuple[str, ...] = ()) -> tuple[Any, str]:
    """Make a token; return it and its secret."""
    return tokens.make_token(f"test {uuid.uuid4().hex[:6]}", verbs=verbs, queues=queues, using="default")


def http_queue(name: str = "web", **settings: Any) -> Queue:
    """Declare a queue for HTTP workers."""
    queue = Queue.objects.create(name=name, is_http=True, **settings)
    forget_queues()
    return queue

"""A server in memory that speaks as the API does, and can be told to misbehave as no real one can, on time."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

Answer = httpx.Response | Exception


def refusal(http_status: int, code: str, message: str = "No.", **extra: Any) -> httpx.Response:
    return httpx.Response(http_status, json={"error": {"code": code, "message": message, **extra}})


def lost(reason: str = "This attempt was taken over: attempt 2 runs now.", status: str = "running") -> httpx.Response:
    return refusal(409, "lease_lost", reason, reason=reason, status=status)


def claimed(**fields: Any) -> dict[str, Any]:
    base = {"id": str(uuid.uuid4()), "queue": "q", "task": None, "input": None, "status": "running", "tags": []}
    return {**base, "timeout": None, "heartbeat_timeout": None, "token": str(uuid.uuid4()), "attempt": 1, **fields}


@dataclass
class Seen:
    """A request that came."""

    method: str
    path: str
    body: Any
    headers: httpx.Headers
    raw: str
    query: dict[str, str] = field(default_factory=dict)

    @property
    def what(self) -> str:
        """`claim`, `heartbeat`, `progress`, `output`, or the status that a PATCH reports; else the path."""
        last = self.path.rstrip("/").rpartition("/")[2]
        if last in ("claim", "heartbeat", "output"):
            return "progress" if last == "heartbeat" and self.body else last
        if self.method == "PATCH" and isinstance(self.body, dict):
            return str(self.body.get("status", "change"))
        return self.path


class Fake:
    """Use `transport` for a `Client`. Answers in `script` come first, in order; `rules` next; then what a good server says."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.queue: list[dict[str, Any]] = []
        self.script: list[Answer] = []
        self.rules: dict[str, Callable[[Seen], Answer | None]] = {}
        self.changed = threading.Condition()
        self.transport = httpx.MockTransport(self.handle)

    def handle(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content) if request.content else None
        raw = request.url.raw_path.decode()
        seen = Seen(request.method, request.url.path, body, request.headers, raw, dict(request.url.params))
        with self.changed:
            self.seen.append(seen)
            self.changed.notify_all()
            answer = self.script.pop(0) if self.script else None
        if answer is None and seen.what in self.rules:
            answer = self.rules[seen.what](seen)
        if isinstance(answer, Exception):
            raise answer
        return answer or self.good(seen)

    def good(self, seen: Seen) -> httpx.Response:
        if seen.what == "claim":
            with self.changed:
                taken, self.queue[:] = self.queue[: seen.body["limit"]], self.queue[seen.body["limit"] :]
            return httpx.Response(200, json={"jobs": taken}) if taken else httpx.Response(204)
        return httpx.Response(204)

    def whats(self) -> list[str]:
        """What came, claims left out."""
        return [seen.what for seen in self.seen if seen.what != "claim"]

    def wait_for(self, what: str, times: int = 1) -> Seen:
        """Return the `times`-th request of that kind, when it has come."""
        with self.changed:
            assert self.changed.wait_for(lambda: sum(seen.what == what for seen in self.seen) >= times, 20), self.whats()
            return [seen for seen in self.seen if seen.what == what][times - 1]

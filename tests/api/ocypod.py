"""A live server that is asked as ocypod's clients ask: over a socket, without slashes at the end of addresses."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from django.db import transaction

from django_jobs.lifecycle import lease, sweep

PAGE = Path(__file__).resolve().parents[2] / "docs" / "ocypod.md"
HEADS = ("ocypod", "what")
MISSING = "01a00000-0000-7000-8000-000000000000"
_CELLS = re.compile(r"^\| (?P<left>.+?) \| (?P<right>.+) \|$")


class Row(NamedTuple):
    """A row of a table of the page."""

    section: str
    left: str
    right: str


def rows() -> Iterator[Row]:
    """Yield the rows of all tables of the page, without their heads."""
    section = ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            section = line[3:]
        elif (cells := _CELLS.match(line)) and cells["left"] not in HEADS:
            yield Row(section, cells["left"].replace("`", ""), cells["right"])


class Site:
    """Asks the live server. `queue()` is a new queue for HTTP workers."""

    def __init__(self, url: str, secret: str) -> None:
        self.url = f"{url}/api/jobs"
        self.http = httpx.Client(base_url=self.url, headers={"Authorization": f"Bearer {secret}"}, timeout=30)
        self._numbers = itertools.count()

    def ask(self, method: str, path: str, body: Any = ..., *, status: int = 200, **headers: str) -> Any:
        """Send a request that has to be answered with `status`; return the JSON of the answer."""
        return self.answer(method, path, body, status=status, **headers)[1]

    def answer(self, method: str, path: str, body: Any = ..., *, status: int = 200, **headers: str) -> tuple[httpx.Response, Any]:
        """Return the response, too."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        content = None if body is ... else json.dumps(body).encode()
        if content is not None:
            named = {"Content-Type": "application/json", **named}
        response = self.http.request(method, path, headers=named, content=content)
        assert response.status_code == status, (method, path, response.status_code, response.text[:500])
        assert bool(response.content) == (status not in (202, 204)), "an answer has a body unless it says that it has none"
        return response, response.json() if response.content else None

    def name(self) -> str:
        """Return a name that nothing has."""
        return f"q{next(self._numbers)}"

    def queue(self, **said: Any) -> str:
        """Declare a queue for HTTP workers, of one attempt unless it is said otherwise; return its name."""
        name = self.name()
        self.ask("PUT", f"/queues/{name}", {"is_http": True, "retries": 0, **said}, status=201)
        return name

    def job(self, queue: str, **said: Any) -> dict[str, Any]:
        """Make a job."""
        made: dict[str, Any] = self.ask("POST", "/jobs", {"queue": queue, "input": {"n": 1}, **said}, status=201)
        return made

    def claim(self, queue: str) -> dict[str, Any]:
        """Claim one job."""
        (claimed,) = self.ask("POST", f"/queues/{queue}/claim")["jobs"]
        return claimed  # type: ignore[no-any-return]

    def running(self, queue: str = "", **said: Any) -> tuple[str, str]:
        """Make a job and claim it; return its address and the attempt's token."""
        queue = queue or self.queue()
        job = self.job(queue, **said)
        claimed = self.claim(queue)
        assert claimed["id"] == job["id"]
        return f"/jobs/{job['id']}", claimed["token"]

    def ended(self, status: str, queue: str = "", **said: Any) -> str:
        """Make a job and end it as `status`; return its address."""
        address, token = self.running(queue, **said)
        self.ask("PATCH", address, {"status": status, "token": token}, status=204)
        return address

    def status(self, address: str) -> str:
        """Return a job's status."""
        return str(self.ask("GET", f"{address}/status"))

    def in_status(self, status: str) -> tuple[str, str]:
        """Return the address of a job in one of ocypod's statuses, and the token if it runs."""
        if status == "queued":
            return f"/jobs/{self.job(self.queue())['id']}", ""
        if status == "running":
            return self.running()
        return self.ended(status), ""


def until(holds: Callable[[], Any], seconds: float = 10) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come to be"
        time.sleep(0.05)


def monitors() -> None:
    """Run what maintenance does to jobs of HTTP workers, once."""
    lease.lapse(using="default", limit=100)
    for service in (sweep.apply_requests, sweep.stage_due, sweep.prune):
        with transaction.atomic():
            service(using="default", limit=100)

"""`/health/`: 200 if jobs can be enqueued, run and looked after, else 503; each reason is a check with a name."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Final

from django.db import connections
from rest_framework.request import Request
from rest_framework.response import Response

from .. import db
from ..conf import jobs_database, jobs_settings
from ..lifecycle.claim import ready_queues
from ..models import Leader, Worker
from ..worker.queues import matches
from .base import JobsView
from .errors import as_api_error

#: How long the database may take to let a new session ask it something. Seconds.
PROBE_SECONDS: Final = 3.0
#: An answer so young need not be asked for again. Seconds.
PROBE_AGE: Final = 1.0
#: A service of maintenance that is due for so long has nobody who runs it. Seconds.
LATE_SECONDS: Final = 60.0
#: A worker that was not seen for so many graces, and at least `MIN_SILENCE` seconds, does not count.
SILENT_GRACES: Final = 3
MIN_SILENCE: Final = 30.0
#: So many queues are named in a message.
NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class Check:
    """One answer. `message` says what is wrong, or what was found."""

    name: str
    ok: bool
    message: str

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {"name": self.name, "ok": self.ok, "message": self.message}


class Probe:
    """Asks the database something over a session of its own, in a thread, so that a server that is silent stops nobody."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._asked: dict[str, tuple[float, str]] = {}

    def ask(self, alias: str) -> str:
        """Return what is wrong with the database, "" if nothing is, within `PROBE_SECONDS`."""
        if connections[alias].vendor == "sqlite":
            return ""  # a file, or memory that another session would not see
        with self._lock:
            at, error = self._asked.get(alias, (float("-inf"), ""))
            if not error and time.monotonic() - at < PROBE_AGE:
                return ""
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, args=(alias,), name="django_jobs-probe", daemon=True)
                self._thread.start()
            thread, started = self._thread, time.monotonic()
        thread.join(PROBE_SECONDS)
        at, error = self._asked.get(alias, (float("-inf"), ""))
        if thread.is_alive() or at < started - PROBE_AGE:
            return f"no answer within {PROBE_SECONDS:g} s"
        return error

    def _run(self, alias: str) -> None:
        error = ""
        try:
            db.answers(alias)
        except Exception as caught:
            error = f"{type(caught).__name__}: {caught}".strip().replace("\n", " ")[:200]
        self._asked[alias] = (time.monotonic(), error)


probe = Probe()


def check_workers(sees: Callable[[str], bool], *, using: str) -> Check:
    """Whether somebody works on each queue that has work. (Those of HTTP workers aside: they don't say that they are there.)"""
    queues = [queue for queue in ready_queues(connections[using]) if sees(queue)]
    silence = timedelta(seconds=max(SILENT_GRACES * jobs_settings().grace, MIN_SILENCE))
    seen_after = db.server_now(connections[using]) - silence
    alive = Worker.objects.using(using).filter(stopped_at__isnull=True, seen_at__gte=seen_after)
    patterns = [tuple(row) for row in alive.values_list("queues", flat=True) if isinstance(row, list)]
    lost = [queue for queue in queues if not any(_serves(served, queue) for served in patterns)]
    if not lost:
        found = f"Queues with work: {len(queues)}; somebody works on each." if queues else "No queue has work."
        return Check("workers", True, found)
    return Check("workers", False, f"Nobody works on {_named(lost)}: start a worker (manage.py runjobs).")


def _serves(patterns: Iterable[Any], queue: str) -> bool:
    names = [str(pattern) for pattern in patterns]
    if any(matches(name[1:].removesuffix(".*") + ".*", queue) for name in names if name.startswith("!")):
        return False
    wanted = [name for name in names if not name.startswith("!")]
    return not wanted or any(matches(name, queue) for name in wanted)


def check_maintenance(*, using: str) -> Check:
    """Whether the sweeps that look after jobs come when they are due, and end without an error."""
    rows = list(Leader.objects.using(using).order_by("name"))
    if not rows:
        return Check("maintenance", False, "No worker has looked after jobs yet: start one (manage.py runjobs).")
    late = db.server_now(connections[using]) - timedelta(seconds=LATE_SECONDS)
    if names := [row.name for row in rows if row.next_at < late]:
        return Check("maintenance", False, f"Late by more than {LATE_SECONDS:g} s: {_named(names)}. No worker runs them.")
    if wrong := [f"{row.name} ({row.error})" for row in rows if row.error]:
        return Check("maintenance", False, f"With an error: {_named(wrong)}.")
    return Check("maintenance", True, f"{len(rows)} services, none late.")


def _named(names: list[str]) -> str:
    rest = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {rest} more" if rest > 0 else "")


class HealthView(JobsView):
    """Whether jobs can be enqueued, run and looked after."""

    verbs: ClassVar = {"GET": "view"}

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Ask the database first: who asks can't be known without it."""
        self.trouble = ""
        if self._is_open or "Authorization" in request.headers or request.COOKIES:
            using = jobs_database()
            self.trouble = probe.ask(using)
            if not self.trouble:
                connection = connections[using]
                # The server is there: a session that is not usable is one of before.
                if connection.connection is not None and not connection.in_atomic_block and not connection.is_usable():
                    connection.close()
        super().initial(request, *args, **kwargs)

    def perform_authentication(self, request: Request) -> None:
        """Don't ask a database that is away."""
        if self.trouble:
            raise _Away
        super().perform_authentication(request)

    def check_permissions(self, request: Request) -> None:
        """Let anybody in, if the setting API_OPEN_HEALTH says so."""
        if not self._is_open:
            super().check_permissions(request)

    @property
    def _is_open(self) -> bool:
        return jobs_settings().api_open_health

    def handle_exception(self, exc: Exception) -> Response:
        """Answer in the usual shape of this endpoint if it is the database that is away."""
        answer = as_api_error(exc)
        if not isinstance(exc, _Away) and (answer is None or answer.status_code != 503):
            return super().handle_exception(exc)
        why = "It does not answer."  # where it is, is for the log: who asks can't be known now
        return _answer([Check("database", False, why)])

    def get(self, request: Request) -> Response:
        """Return `{"status": "healthy" | "unhealthy", "checks": [{name, ok, message}]}`; 503 if it is not healthy."""
        may_view = getattr(request.user, "is_authenticated", False) and self.caller.may("view")
        sees = self.caller.sees if may_view else lambda queue: True
        checks = [
            Check("database", True, "It answers."),
            check_workers(sees, using=self.using),
            check_maintenance(using=self.using),
        ]
        # The names of queues are not for everybody.
        return _answer(checks if may_view else [Check(check.name, check.ok, "") for check in checks])


class _Away(Exception):
    """The database did not answer the probe."""


def _answer(checks: list[Check]) -> Response:
    is_healthy = all(check.ok for check in checks)
    body: dict[str, Any] = {"status": "healthy" if is_healthy else "unhealthy", "checks": [check.as_dict() for check in checks]}
    if not is_healthy:
        body["error"] = {
            "code": "unavailable",
            "message": "; ".join(f"{check.name}: {check.message}" for check in checks if not check.ok),
        }
    return Response(body, status=200 if is_healthy else 503, headers={"Cache-Control": "no-store"})

"""Listens to failures, and asks for a look at them: a small job, soon, for all that failed meanwhile.

What a signal does not tell of, since its process died, the next look finds: it reads the jobs, and each look sees to it that
there is another one later.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Final

from ... import signals
from ...outcomes import Event

#: A look comes this long after it was asked for, and is asked for at most so often by one process. The first is the longer one:
#: so what fails within the pause is committed before the look begins. Seconds.
DELAY: Final = 1.0
PAUSE: Final = 0.8
#: Of the look that was asked for and has not begun.
UNIQUE_KEY: Final = "django_jobs_notify: look soon"

_OWN: Final = f"{__name__.rpartition('.')[0]}."
_lock = threading.Lock()
_asked_at = float("-inf")


def connect() -> None:
    """Listen."""
    for name in ("job_failed", "job_timed_out"):
        signals.EVENTS[name].connect(on_failure, dispatch_uid="django_jobs_notify")
    signals.worker_started.connect(on_worker, dispatch_uid="django_jobs_notify")


def disconnect() -> None:
    """Listen no more."""
    for name in ("job_failed", "job_timed_out"):
        signals.EVENTS[name].disconnect(dispatch_uid="django_jobs_notify")
    signals.worker_started.disconnect(dispatch_uid="django_jobs_notify")


def is_own(task: str) -> bool:
    """Whether this is a task of this app: nobody is notified of its failures, which would never end."""
    return task.startswith(_OWN)


def on_failure(event: Event, **kwargs: Any) -> None:
    """Ask for a look."""
    if not is_own(event.task):
        ask()


def on_worker(**kwargs: Any) -> None:
    """Ask for a look at what nobody was there to tell of. In a thread of its own: a worker's start waits for no database."""
    threading.Thread(target=_ask_and_close, name="notify", daemon=True).start()


def _ask_and_close() -> None:
    from django.db import connections

    try:
        ask()
    finally:
        connections.close_all()


def ask() -> None:
    """Enqueue a look, if this process has not just now."""
    from .conf import notify_settings
    from .tasks import look

    global _asked_at
    with _lock:
        now = time.monotonic()
        if now - _asked_at < PAUSE:
            return
        _asked_at = now
    try:
        # One that waits begins later than now, and so sees this failure, too.
        soon = look.using(queue_name=notify_settings().queue, run_after=DELAY, unique=UNIQUE_KEY, unique_until="started")
        soon.enqueue()
    except BaseException:
        _asked_at = float("-inf")  # so that the next failure tries again
        raise

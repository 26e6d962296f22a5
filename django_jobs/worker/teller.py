"""Tells listeners what happened, after the commit, in a thread of its own: a slow or broken one never holds up a control loop."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Sequence

from django.db import close_old_connections

from django_jobs import signals
from django_jobs.hooks import sender_of
from django_jobs.outcomes import Event

logger = logging.getLogger("django_jobs.worker")


class Teller:
    """`teller(events)` returns at once."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[list[Event] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def __call__(self, events: Sequence[Event]) -> None:
        """Take events that are committed. Costs next to nothing when nobody listens."""
        heard = [event for event in events if event.is_untold_end or signals.has_listeners(event.name)]
        if heard:
            self._queue.put(heard)

    def close(self, timeout: float) -> None:
        """Tell what is left, and end; wait for at most `timeout` seconds."""
        self._queue.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _run(self) -> None:
        while (events := self._queue.get()) is not None:
            for event in events:
                try:
                    signals.dispatch([event], sender=sender_of(event.backend))
                except Exception:
                    logger.exception("Telling %s of job %s failed", event.name, event.job_id)
            close_old_connections()

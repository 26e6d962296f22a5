"""Tells listeners what happened, after the commit, in a thread of its own: a slow or broken one never holds up a control loop."""

from __future__ import annotations

import inspect
import logging
import queue
import threading
from collections.abc import Sequence
from typing import Any

from asgiref.sync import async_to_sync
from django.db import close_old_connections

from django_jobs import signals
from django_jobs.compat import task_backends, task_finished
from django_jobs.exceptions import UnknownTask
from django_jobs.outcomes import Event
from django_jobs.statuses import FINAL, Status
from django_jobs.task import find_task

logger = logging.getLogger("django_jobs.worker")


def sender_of(backend: str) -> Any:
    """Return the class of the backend with this alias, as Django's task signals have it; None if there is none any more."""
    try:
        return type(task_backends[backend])
    except Exception:
        return None


class Teller:
    """`teller(events)` returns at once. With `hooks`, a task's own hooks are called, too:

    for attempts that no executor has ended.
    """

    def __init__(self, *, hooks: bool = False) -> None:
        self._hooks = hooks
        self._queue: queue.SimpleQueue[list[Event] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def __call__(self, events: Sequence[Event]) -> None:
        """Take events that are committed. Costs next to nothing when nobody listens."""
        heard = [event for event in events if self._hooks or signals.has_listeners(event.name)]
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
                    if self._hooks and event.status in FINAL:
                        end_without_executor(event)
                except Exception:
                    logger.exception("Telling %s of job %s failed", event.name, event.job_id)
            close_old_connections()


def end_without_executor(event: Event) -> None:
    """Send Django's `task_finished` and call the task's hook for a job whose last attempt died with its process."""
    try:
        task = find_task(event.task)
    except UnknownTask:
        return
    hook = getattr(task, "on_success" if event.status == Status.SUCCEEDED else "on_failure", None)
    if hook is None and len(task_finished.receivers) < 2:
        return
    result = task_backends[event.backend].get_result(str(event.job_id))
    signals.call_listeners(task_finished, sender_of(event.backend), "task_finished", task_result=result, job_id=event.job_id)
    if hook is not None:
        try:
            (async_to_sync(hook) if inspect.iscoroutinefunction(hook) else hook)(result)
        except Exception:
            logger.exception("A hook of the task %s raised, for job %s.", event.task, event.job_id)

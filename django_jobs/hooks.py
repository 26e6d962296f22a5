"""A task's hooks, and Django's `task_finished`, for ends that no executor has told of.

What an executor ran itself it tells of itself (`execution.announce`). Every other final outcome comes by here, from whoever
dispatches its event: a death, a hard kill, a lapsed lease, what an HTTP worker reports, a job that was given up, cancelled or
marked as done, and an outcome that became another one when it was recorded.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from asgiref.sync import async_to_sync

from . import signals
from .compat import TaskResultDoesNotExist, task_backends, task_finished
from .exceptions import JobDoesNotExist, UnknownTask
from .execution.surroundings import base_context, restore_own
from .outcomes import Event
from .registry import find_task
from .statuses import Status

logger = logging.getLogger("django_jobs.hooks")


def sender_of(backend: str) -> Any:
    """Return the class of the backend with this alias, as Django's task signals have it; None if there is none any more."""
    try:
        return type(task_backends[backend])
    except Exception:
        return None


def tell_end(event: Event) -> None:
    """Send `task_finished` and call the task's hook. Logs what they raise; never raises an `Exception` itself."""
    try:
        _tell_end(event)
    except (TaskResultDoesNotExist, JobDoesNotExist):
        logger.info("Job %s is gone before its hook was called.", event.job_id)
    except Exception:
        logger.exception("Telling the end of job %s failed.", event.job_id)


def _call_for(result: Any, call: Callable[[], Any]) -> BaseException | None:
    """Call a hook with the job's language, time zone and user, in a context of its own: here it may be a request's thread.

    What a project's own `CONTEXT` brings back may not be taken away again, so it is left out.
    """
    job = getattr(result, "job", None)
    if job is not None:
        restore_own(job.context, job.created_by)
    return signals.guarded(call)


def _tell_end(event: Event) -> None:
    try:
        task = find_task(event.task)
    except UnknownTask:
        return
    hook = getattr(task, "on_success" if event.status == Status.SUCCEEDED else "on_failure", None)
    if hook is None and len(task_finished.receivers) < 2:  # Django's own receiver, which logs, is one
        return
    result = task_backends[event.backend].get_result(str(event.job_id))
    signals.call_listeners(task_finished, sender_of(event.backend), "task_finished", task_result=result, job_id=event.job_id)
    if hook is None:
        return
    call = partial(async_to_sync(hook) if inspect.iscoroutinefunction(hook) else hook, result)
    error = base_context().run(_call_for, result, call)
    if error is not None:
        logger.error("A hook of the task %s raised, for job %s.", event.task, event.job_id, exc_info=error)

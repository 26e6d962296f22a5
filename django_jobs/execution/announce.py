"""Tell Django's task signals and the task's own hooks what happened. Nothing that they do changes the job's outcome.

Django itself connects one receiver to each signal, which writes to a log. Where nothing would come of that line, and nobody
else listens, nothing is sent: the result object alone would cost more than the rest of a small job.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from asgiref.sync import async_to_sync
from django.conf import settings
from django.dispatch import Signal
from django.utils.log import RequireDebugTrue

from .. import signals
from ..compat import TaskError, TaskResultStatus, task_finished, task_started
from ..outcomes import ErrorInfo, Outcome
from ..statuses import Status
from .running import Run

logger = logging.getLogger("django_jobs.execution")

#: The logger of Django's own receivers, or of the back-port's.
_TASKS_LOGGER: Final = logging.getLogger("django.tasks" if TaskError.__module__.startswith("django.") else "django_tasks")


def is_started_heard() -> bool:
    """Whether anybody would notice `task_started`."""
    return _is_heard(task_started, logging.INFO)


def is_finished_heard(has_failed: bool) -> bool:
    """Whether anybody would notice `task_finished`."""
    return _is_heard(task_finished, logging.ERROR if has_failed else logging.INFO)


def has_start_listeners() -> bool:
    """Whether code of the site is called at the start of every run."""
    return len(task_started.receivers) > 1


def has_listeners(run: Run) -> bool:
    """Whether code of the site may be called at the end of `run`: a hook, or a receiver other than Django's own."""
    return len(task_finished.receivers) > 1 or run.plan.on_success is not None or run.plan.on_failure is not None


def started(run: Run) -> None:
    """Send `task_started`."""
    _set(run.task_result(), status=TaskResultStatus.RUNNING)
    _send(task_started, run, "task_started")


def finished(run: Run, outcome: Outcome, status: Status) -> None:
    """Bring the result object to its end, send `task_finished` and call the task's hook. Only for a final outcome.

    The signal is sent while the exception is being handled, so that receivers find it in `sys.exc_info()`.
    """
    has_failed = status != Status.SUCCEEDED
    hook = run.plan.on_failure if has_failed else run.plan.on_success
    is_heard = is_finished_heard(has_failed)
    if hook is None and not is_heard:
        return
    result = run.task_result()
    _set(result, finished_at=datetime.now(UTC))
    if hasattr(result, "job_status"):  # our own result, which knows more than Django's statuses
        _set(result, job_status=status)
    if has_failed:
        _set(result, status=TaskResultStatus.FAILED)
        info: ErrorInfo | None = getattr(outcome, "error", None)
        if info is not None:
            result.errors.append(TaskError(exception_class_path=info.exception_class, traceback=info.traceback or info.message))
    else:
        _set(result, status=TaskResultStatus.SUCCESSFUL, _return_value=run.result)
    if is_heard:
        if run.error is None:
            _send(task_finished, run, "task_finished")
        else:
            try:
                raise run.error
            except BaseException:
                _send(task_finished, run, "task_finished")
    if hook is not None:
        _call_hook(hook, run)


def _call_hook(hook: Callable[..., Any], run: Run) -> None:
    try:
        if inspect.iscoroutinefunction(hook):
            hook = async_to_sync(hook)
        hook(run.task_result())
    except BaseException:
        logger.exception("A hook of the task %s raised, for job %s.", run.attempt.task, run.attempt.job_id)


def _send(signal: Signal, run: Run, name: str) -> None:
    try:
        sender = type(run.plan.task.get_backend())
        signals.call_listeners(signal, sender, name, task_result=run.task_result(), job_id=run.attempt.job_id)
    except BaseException:
        logger.exception("Sending %s for job %s failed.", name, run.attempt.job_id)


def _set(result: Any, **values: Any) -> None:
    for name, value in values.items():  # the result is frozen, but Django's own back ends update it so, too
        object.__setattr__(result, name, value)


def _is_heard(signal: Signal, level: int) -> bool:
    if len(signal.receivers) > 1:
        return True
    link: logging.Logger | None = _TASKS_LOGGER
    if not _TASKS_LOGGER.isEnabledFor(level):
        return False
    has_handlers = False
    while link is not None:
        for each in link.handlers:
            has_handlers = True
            if each.level <= level and (settings.DEBUG or not any(isinstance(test, RequireDebugTrue) for test in each.filters)):
                return True
        link = link.parent if link.propagate else None
    return not has_handlers and level >= logging.WARNING  # the handler of last resort

"""Name Django's Task classes once, from `django.tasks` (Django 6.0+) or the back-port `django_tasks` (Django 5.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django.tasks import DEFAULT_TASK_BACKEND_ALIAS, DEFAULT_TASK_QUEUE_NAME, task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist, TaskResultMismatch
    from django.tasks.signals import task_enqueued, task_finished, task_started
else:
    try:
        from django.tasks import DEFAULT_TASK_BACKEND_ALIAS, DEFAULT_TASK_QUEUE_NAME, task_backends
        from django.tasks.backends.base import BaseTaskBackend
        from django.tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
        from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist, TaskResultMismatch
        from django.tasks.signals import task_enqueued, task_finished, task_started
    except ImportError:  # Django 5.2
        try:
            import django_tasks  # noqa: F401
        except ImportError as error:
            # No dependency can hang on Django's version, so this is where a site on Django 5.2 and Python 3.12 is told.
            raise ImportError(
                "django_jobs needs Django 6.0 or newer, or, on Django 5.2, the package django-tasks:"
                " pip install 'django-jobs-queue[django52]'",
                name="django_tasks",
            ) from error

        from django_tasks import DEFAULT_TASK_BACKEND_ALIAS, DEFAULT_TASK_QUEUE_NAME, task_backends
        from django_tasks import exceptions as _exceptions
        from django_tasks.backends.base import BaseTaskBackend
        from django_tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
        from django_tasks.signals import task_enqueued, task_finished, task_started

        # Renamed on the back-port's main branch after 0.12.
        InvalidTask = getattr(_exceptions, "InvalidTask", None) or _exceptions.InvalidTaskError
        TaskResultDoesNotExist = _exceptions.TaskResultDoesNotExist
        TaskResultMismatch = _exceptions.TaskResultMismatch

__all__ = [
    "DEFAULT_TASK_BACKEND_ALIAS",
    "DEFAULT_TASK_QUEUE_NAME",
    "BaseTaskBackend",
    "InvalidTask",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultMismatch",
    "TaskResultStatus",
    "task_backends",
    "task_enqueued",
    "task_finished",
    "task_started",
]

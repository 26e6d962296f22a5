"""Names for filters, from declarations: the settings, the registered tasks, the declared queues. Never from the table of jobs."""

from __future__ import annotations

from ..compat import task_backends
from ..conf import jobs_settings
from ..models import Queue
from ..task import registered

#: A sidebar with more entries helps nobody.
MAX_NAMES = 50


def task_names() -> list[str]:
    """Return the names of the tasks that this process knows."""
    return sorted(registered())[:MAX_NAMES]


def queue_names(*, using: str) -> list[str]:
    """Return the names of queues that a row, a setting, a backend or a task declares."""
    names = set(Queue.objects.using(using).values_list("name", flat=True)[:MAX_NAMES])
    names.update(jobs_settings().queues)
    for backend in task_backends.all(initialized_only=True):
        names.update(backend.queues)
    names.update(task.queue_name for task in registered().values())
    return sorted(names)[:MAX_NAMES]

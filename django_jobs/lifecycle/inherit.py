"""What a new job takes from its queue where it says nothing itself.

Queues are read seldom: once in `CACHE_SECONDS` by each process, and again when this process saves or deletes one.
"""

from __future__ import annotations

import threading
import time
from dataclasses import fields
from typing import Any, Final

from django.core.signals import setting_changed
from django.db import connections
from django.db.models.signals import post_delete, post_migrate, post_save

from .. import conf
from ..models import Queue
from ..queues import JobOptions, QueueOptions

#: How long a process may go on with settings of queues that were changed in another.
CACHE_SECONDS: Final = 5.0


class _QueueCache:
    """What queues say about their jobs, by database; read again after `CACHE_SECONDS`, or when this process changes one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._declared: dict[str, tuple[float, dict[str, QueueOptions]]] = {}
        self._inherited: dict[tuple[str, str, str], JobOptions] = {}
        self._changed = float("-inf")

    def inherited(self, using: str, queue: str, backend: str) -> JobOptions:
        """Return what a job in `queue` has where it says nothing itself."""
        entry = self._declared.get(using)
        if entry is not None and time.monotonic() < entry[0]:
            if (options := self._inherited.get((using, queue, backend))) is None:
                options = conf.job_options(queue, {}, backend=backend, rows=entry[1])
                self._inherited[using, queue, backend] = options
            return options
        declared = self._read(using)
        # Queues changed within a transaction that may yet be rolled back: don't keep what was read in one.
        if not connections[using].in_atomic_block or time.monotonic() - self._changed > CACHE_SECONDS:
            with self._lock:
                self._inherited = {}
                self._declared[using] = (time.monotonic() + CACHE_SECONDS, declared)
        return conf.job_options(queue, {}, backend=backend, rows=declared)

    def _read(self, using: str) -> dict[str, QueueOptions]:
        names = [item.name for item in fields(QueueOptions)]
        rows = Queue.objects.using(using).values_list("name", *names)
        return {name: QueueOptions(*values) for name, *values in rows}

    def forget(self, **kwargs: Any) -> None:
        """Read the queues again before the next job."""
        with self._lock:
            self._changed = time.monotonic()
            self._declared, self._inherited = {}, {}


_cache = _QueueCache()
inherited = _cache.inherited
#: Forget what was read of the queues' settings. `save()` and `delete()` of a queue do so by themselves; `update()` does not.
forget_queues = _cache.forget

post_save.connect(_cache.forget, sender=Queue, dispatch_uid="django_jobs.inherit")
post_delete.connect(_cache.forget, sender=Queue, dispatch_uid="django_jobs.inherit")
post_migrate.connect(_cache.forget, dispatch_uid="django_jobs.inherit")
setting_changed.connect(_cache.forget, dispatch_uid="django_jobs.inherit")

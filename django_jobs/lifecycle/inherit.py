"""What a new job takes from its queue where it says nothing itself.

Queues are read seldom: once in `CACHE_SECONDS` by each process, and again when this process saves or deletes one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any, Final

from django.core.signals import setting_changed
from django.db import connections
from django.db.models.signals import post_delete, post_migrate, post_save

from .. import conf
from ..models import Queue
from ..queues import OF_ROWS, JobOptions, QueueOptions

#: How long a process may go on with settings of queues that were changed in another.
CACHE_SECONDS: Final = 5.0


class Declared:
    """What the queues of one database say about their jobs, as it was read at one moment."""

    __slots__ = ("_known", "_rows", "until")

    def __init__(self, rows: Mapping[str, QueueOptions], until: float) -> None:
        self._rows = rows
        self._known: dict[tuple[str, str], JobOptions] = {}
        self.until = until

    def options(self, queue: str, backend: str) -> JobOptions:
        """Return what a job in `queue` has where it says nothing itself."""
        if (options := self._known.get((queue, backend))) is None:
            options = self._known[queue, backend] = conf.job_options(queue, {}, backend=backend, rows=self._rows)
        return options


class _Cache:
    """Keeps what was read, by database."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, Declared] = {}
        self._changed = float("-inf")

    def declared(self, using: str) -> Declared:
        """Return what the queues of this database say, read not long ago."""
        now = time.monotonic()
        kept = self._kept.get(using)
        if kept is not None and now < kept.until:
            return kept
        rows = Queue.objects.using(using).values("name", *OF_ROWS)
        declared = Declared({row.pop("name"): QueueOptions(**row) for row in rows}, now + CACHE_SECONDS)
        # Queues changed within a transaction that may yet be rolled back: don't keep what was read in one.
        if not connections[using].in_atomic_block or now - self._changed > CACHE_SECONDS:
            with self._lock:
                self._kept[using] = declared
        return declared

    def forget(self, **kwargs: Any) -> None:
        """Read the queues again before the next job."""
        with self._lock:
            self._changed = time.monotonic()
            self._kept = {}


_cache = _Cache()
declared = _cache.declared
#: Forget what was read of the queues' settings. `save()` and `delete()` of a queue do so by themselves; `update()` does not.
forget_queues = _cache.forget

post_save.connect(_cache.forget, sender=Queue, dispatch_uid="django_jobs.inherit")
post_delete.connect(_cache.forget, sender=Queue, dispatch_uid="django_jobs.inherit")
post_migrate.connect(_cache.forget, dispatch_uid="django_jobs.inherit")
setting_changed.connect(_cache.forget, dispatch_uid="django_jobs.inherit")

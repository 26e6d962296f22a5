"""Which queues a worker takes jobs from: names and patterns as given, resolved against the queues that have work."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from django.db.backends.base.base import BaseDatabaseWrapper

from django_jobs.lifecycle.claim import QueueFilter, ready_queues

#: How long a look at the names behind a pattern holds good.
REFRESH_SECONDS = 1.0
#: More tasks than this that nobody here knows: forget them and find out again, so that the claim's filter stays short.
MAX_UNKNOWN = 100


def matches(pattern: str, queue: str) -> bool:
    """Whether `queue` is meant by `pattern`: its exact name, `name.*` (that queue and all below it), or `*`."""
    if pattern == "*":
        return True
    if pattern.endswith(".*"):
        return queue == pattern[:-2] or queue.startswith(pattern[:-1])
    return queue == pattern


class QueueWatch:
    """The worker's choice of queues. `include` empty: all. With several names, the first is served before the second."""

    def __init__(self, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> None:
        self.include = tuple(include)
        self.exclude = tuple(name.removesuffix(".*") for name in exclude)
        self._has_patterns = any(pattern == "*" or pattern.endswith(".*") for pattern in self.include)
        self._names: tuple[str, ...] | None = None if not self.include else tuple(p for p in self.include if not p.endswith("*"))
        self._unknown: dict[str, None] = {}
        self._checked = float("-inf")

    def seen(self, queue: str) -> None:
        """A notification named `queue`: if a pattern means it, take from it at once."""
        is_new = self._has_patterns and self._names is not None and queue not in self._names
        if is_new and self._names is not None and any(matches(pattern, queue) for pattern in self.include):
            self._names = self._sorted({*self._names, queue})

    def is_wanted(self, queue: str) -> bool:
        """Whether this worker takes jobs from `queue`."""
        if any(matches(name + ".*", queue) for name in self.exclude):
            return False
        return not self.include or any(matches(pattern, queue) for pattern in self.include)

    def unknown(self, task: str) -> None:
        """This process does not know `task`: leave its jobs to others."""
        if len(self._unknown) >= MAX_UNKNOWN:
            self._unknown.clear()
        self._unknown[task] = None

    def refresh(self, connection: BaseDatabaseWrapper, now: float | None = None) -> None:
        """Look, at most once a second, at the queue names behind patterns; without patterns there is nothing to look at."""
        now = time.monotonic() if now is None else now
        if not self._has_patterns or now - self._checked < REFRESH_SECONDS:
            return
        self._checked = now
        exact = {pattern for pattern in self.include if not pattern.endswith("*")}
        self._names = self._sorted(exact | {name for name in ready_queues(connection) if self.is_wanted(name)})

    def _sorted(self, names: Iterable[str]) -> tuple[str, ...]:
        def place(name: str) -> tuple[int, str]:
            return next((i for i, pattern in enumerate(self.include) if matches(pattern, name)), len(self.include)), name

        return tuple(sorted(names, key=place))

    def filter(self, *, only: Iterable[str] | None = None, skip: Iterable[str] = ()) -> QueueFilter:
        """Return the filter of the next claim."""
        return QueueFilter(
            names=self._names,
            strict=len(self.include) > 1,
            excluded=self.exclude,
            skip_tasks=(*self._unknown, *skip),
            only_tasks=None if only is None else tuple(sorted(only)),
        )

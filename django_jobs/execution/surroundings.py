"""What a job finds around it: language and time zone, what travelled with it from where it was enqueued, caches, context variables.

Every job runs in a fresh copy of its thread's base context, so nothing that it sets there outlives it. The base context has
the back ends and caches of Django open already: their registries keep them in context variables, and each job would make
its own, with connections of its own.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Mapping
from typing import Any, Final

from django.core.cache import caches
from django.utils import timezone, translation

from .. import conf
from ..compat import task_backends

#: The keys of Attempt.context that are ours; the others belong to the pairs in the setting CONTEXT.
LANGUAGE: Final = "language"
TIME_ZONE: Final = "timezone"


class Place(threading.local):
    """What is kept per thread."""

    def __init__(self, base: contextvars.Context) -> None:
        self.base = base.copy()
        self.base.run(_warm_up)
        self.native_id = threading.get_native_id()
        self.last_used = time.monotonic()


def base_context() -> contextvars.Context:
    """Return a copy of the current context with the language and time zone of the settings."""
    context = contextvars.copy_context()
    context.run(translation.deactivate)
    context.run(timezone.deactivate)
    return context


def restore(carried: Mapping[str, Any]) -> None:
    """Bring back what was captured when the job was enqueued. Raises what a project's own restoring function raises."""
    if language := carried.get(LANGUAGE):
        translation.activate(language)
    if zone := carried.get(TIME_ZONE):
        timezone.activate(zone)


def _warm_up() -> None:
    for registry in (caches, task_backends):
        for alias in registry.settings:
            try:
                registry[alias]
            except Exception:  # noqa: S112 - a back end that can't be made says so to the job that wants it
                continue

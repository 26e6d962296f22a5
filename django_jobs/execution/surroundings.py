"""What a job finds around it: language, time zone, user, what else travelled with it, caches, context variables.

Every job runs in a fresh copy of its thread's base context, so nothing that it sets there outlives it. The base context has
the back ends and caches of Django open already: their registries keep them in context variables, and each job would make
its own, with connections of its own.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Final

from django.core.cache import caches
from django.utils import timezone, translation

from .. import conf, users
from ..compat import task_backends

#: The keys of Attempt.context that are ours; the others are the dotted names of capturing functions of the setting CONTEXT.
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
    """Return a copy of the current context with the language and time zone of the settings, and nobody as the user."""
    context = contextvars.copy_context()
    context.run(translation.deactivate)
    context.run(timezone.deactivate)
    context.run(users.forget)
    return context


def has_own(carried: Mapping[str, Any]) -> bool:
    """Whether anything of the project's own is to be brought back."""
    return not carried.keys() <= {LANGUAGE, TIME_ZONE, users.USER}


def restore_own(carried: Mapping[str, Any], created_by: str | None = None) -> None:
    """Bring back what is kept in context variables alone: language, time zone, user."""
    if language := carried.get(LANGUAGE):
        translation.activate(language)
    if zone := carried.get(TIME_ZONE):
        timezone.activate(zone)
    users.restore(carried.get(users.USER), created_by)


def restore(carried: Mapping[str, Any], created_by: str | None = None) -> ExitStack | None:
    """Bring back what was captured when the job was enqueued.

    Where a project's restoring function returns a context manager, it is entered here, and left when the returned stack is
    closed. What has no such function any more is left out. Raises what such a function raises.
    """
    restore_own(carried, created_by)
    stack: ExitStack | None = None
    for capture, bring_back in conf.context_pairs():
        name = f"{capture.__module__}.{capture.__qualname__}"
        if name not in carried:
            continue
        manager = bring_back(carried[name])
        if isinstance(manager, AbstractContextManager):
            stack = stack or ExitStack()
            stack.enter_context(manager)
    return stack


def _warm_up() -> None:
    for registry in (caches, task_backends):
        for alias in registry.settings:
            try:
                registry[alias]
            except Exception:  # noqa: S112 - a back end that can't be made says so to the job that wants it
                continue

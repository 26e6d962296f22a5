"""What the executor needs to know of a task, looked up once per task instead of once per job."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..compat import Task


@dataclass(slots=True, frozen=True, eq=False)
class Plan:
    """A task, taken apart. A plain Django task has the defaults."""

    task: Task[..., Any]
    function: Callable[..., Any]
    is_async: bool
    takes_context: bool
    retry_for: tuple[type[BaseException], ...]
    backoff: Callable[..., Any] | None  # only where the task computes it; other patterns travel with the job
    on_success: Callable[..., Any] | None
    on_failure: Callable[..., Any] | None
    is_atomic: bool
    is_isolated: bool
    result_for: Callable[..., Any] | None


def plan_for(task: Task[..., Any], *, can_isolate: bool = True) -> Plan:
    """Take `task` apart. Without `can_isolate` it is to run right here."""
    backoff = getattr(task, "backoff", None)
    return Plan(
        task=task,
        function=task.func,
        is_async=inspect.iscoroutinefunction(task.func),
        takes_context=bool(task.takes_context),
        retry_for=tuple(getattr(task, "retry_for", None) or ()),
        backoff=backoff if callable(backoff) else None,
        on_success=getattr(task, "on_success", None),
        on_failure=getattr(task, "on_failure", None),
        is_atomic=bool(getattr(task, "atomic", False)),
        is_isolated=can_isolate and bool(getattr(task, "isolate", False)),
        result_for=getattr(task, "_result_for", None),
    )

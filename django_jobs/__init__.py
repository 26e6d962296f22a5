"""Background jobs for Django, kept in the project's own database.

What a project uses is here: `from django_jobs import job, current_job, Retry`. Importing the package loads nothing; a name
is looked up when it is first used, so no model is touched before Django is ready.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .batches import Batch, current_batch
    from .exceptions import (
        BatchDoesNotExist,
        BatchIsFinished,
        Fail,
        InvalidArguments,
        InvalidGraph,
        InvalidOption,
        InvalidResult,
        InvalidTransition,
        JobCancelled,
        JobDoesNotExist,
        JobExists,
        JobsError,
        JobTimeout,
        Retry,
        Skip,
        UnknownMethod,
        UnknownTask,
        WaitTimeout,
    )
    from .execution.context import JobContext, current_job
    from .graphs import GraphResult, Signature, chain, graph, group, split
    from .methods import allow_later, later
    from .results import JobResult
    from .statuses import Status
    from .task import Arguments, JobTask, job
    from .unique import unique_by
    from .users import acurrent_user, as_user, current_user

__version__ = "0.1.0"

#: Name -> the module that has it.
_HOMES = {
    "Arguments": "task",
    "Batch": "batches",
    "BatchDoesNotExist": "exceptions",
    "BatchIsFinished": "exceptions",
    "Fail": "exceptions",
    "GraphResult": "graphs",
    "InvalidArguments": "exceptions",
    "InvalidGraph": "exceptions",
    "InvalidOption": "exceptions",
    "InvalidResult": "exceptions",
    "InvalidTransition": "exceptions",
    "JobCancelled": "exceptions",
    "JobContext": "execution.context",
    "JobDoesNotExist": "exceptions",
    "JobExists": "exceptions",
    "JobResult": "results",
    "JobTask": "task",
    "JobTimeout": "exceptions",
    "JobsError": "exceptions",
    "Retry": "exceptions",
    "Signature": "graphs",
    "Skip": "exceptions",
    "Status": "statuses",
    "UnknownMethod": "exceptions",
    "UnknownTask": "exceptions",
    "WaitTimeout": "exceptions",
    "acurrent_user": "users",
    "allow_later": "methods",
    "as_user": "users",
    "chain": "graphs",
    "current_batch": "batches",
    "current_job": "execution.context",
    "current_user": "users",
    "graph": "graphs",
    "group": "graphs",
    "job": "task",
    "later": "methods",
    "split": "graphs",
    "unique_by": "unique",
}

__all__ = [
    "Arguments",
    "Batch",
    "BatchDoesNotExist",
    "BatchIsFinished",
    "Fail",
    "GraphResult",
    "InvalidArguments",
    "InvalidGraph",
    "InvalidOption",
    "InvalidResult",
    "InvalidTransition",
    "JobCancelled",
    "JobContext",
    "JobDoesNotExist",
    "JobExists",
    "JobResult",
    "JobTask",
    "JobTimeout",
    "JobsError",
    "Retry",
    "Signature",
    "Skip",
    "Status",
    "UnknownMethod",
    "UnknownTask",
    "WaitTimeout",
    "acurrent_user",
    "allow_later",
    "as_user",
    "chain",
    "current_batch",
    "current_job",
    "current_user",
    "graph",
    "group",
    "job",
    "later",
    "split",
    "unique_by",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

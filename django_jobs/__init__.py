"""Background jobs for Django, kept in the project's own database.

What a project uses is here: `from django_jobs import job, current_job, Retry`. Importing the package loads nothing; a name
is looked up when it is first used, so no model is touched before Django is ready.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .exceptions import (
        Fail,
        InvalidArguments,
        InvalidOption,
        InvalidResult,
        InvalidTransition,
        JobCancelled,
        JobDoesNotExist,
        JobsError,
        JobTimeout,
        Retry,
        Skip,
        UnknownMethod,
        UnknownTask,
        WaitTimeout,
    )
    from .execution.context import JobContext, current_job
    from .methods import allow_later, later
    from .results import JobResult
    from .statuses import Status
    from .task import Arguments, JobTask, job
    from .users import acurrent_user, as_user, current_user

__version__ = "0.1.0"

#: Name -> the module that has it.
_HOMES = {
    "Arguments": "task",
    "Fail": "exceptions",
    "InvalidArguments": "exceptions",
    "InvalidOption": "exceptions",
    "InvalidResult": "exceptions",
    "InvalidTransition": "exceptions",
    "JobCancelled": "exceptions",
    "JobContext": "execution.context",
    "JobDoesNotExist": "exceptions",
    "JobResult": "results",
    "JobTask": "task",
    "JobTimeout": "exceptions",
    "JobsError": "exceptions",
    "Retry": "exceptions",
    "Skip": "exceptions",
    "Status": "statuses",
    "UnknownMethod": "exceptions",
    "UnknownTask": "exceptions",
    "WaitTimeout": "exceptions",
    "acurrent_user": "users",
    "allow_later": "methods",
    "as_user": "users",
    "current_job": "execution.context",
    "current_user": "users",
    "job": "task",
    "later": "methods",
}

__all__ = [
    "Arguments",
    "Fail",
    "InvalidArguments",
    "InvalidOption",
    "InvalidResult",
    "InvalidTransition",
    "JobCancelled",
    "JobContext",
    "JobDoesNotExist",
    "JobResult",
    "JobTask",
    "JobTimeout",
    "JobsError",
    "Retry",
    "Skip",
    "Status",
    "UnknownMethod",
    "UnknownTask",
    "WaitTimeout",
    "acurrent_user",
    "allow_later",
    "as_user",
    "current_job",
    "current_user",
    "job",
    "later",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

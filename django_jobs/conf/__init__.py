"""Settings: the dict `DJANGO_JOBS` and the `OPTIONS` of our backends in `TASKS`, read once and checked.

Every setting can be overridden by the environment variable `DJANGO_JOBS_<NAME>` (as JSON, where the value is a list or a dict).
What is wrong raises `ImproperlyConfigured` naming everything at once; system checks tell it before that.
"""

from __future__ import annotations

from typing import Any

from django.core.signals import setting_changed

from ..durations import format_duration, parse_duration
from . import backends as _backends
from . import settings as _settings
from .backends import (
    BACKEND_PATH,
    OPTION_NAMES,
    BackendOptions,
    backend_options,
    direct_database,
    job_options,
    jobs_aliases,
    jobs_database,
    read_options,
    retention_seconds,
    routed_database,
)
from .settings import (
    JobsSettings,
    Problem,
    context_pairs,
    jobs_settings,
    problems,
    queue_retry_for,
    readable_settings,
    visible_to,
)

__all__ = [
    "BACKEND_PATH",
    "OPTION_NAMES",
    "BackendOptions",
    "JobsSettings",
    "Problem",
    "backend_options",
    "context_pairs",
    "direct_database",
    "format_duration",
    "job_options",
    "jobs_aliases",
    "jobs_database",
    "jobs_settings",
    "parse_duration",
    "problems",
    "queue_retry_for",
    "read_options",
    "readable_settings",
    "reset",
    "retention_seconds",
    "routed_database",
    "visible_to",
]


def reset() -> None:
    """Forget what was read: the next caller reads the settings and the environment again."""
    _settings.forget()
    _backends.forget()


def _on_setting_changed(*, setting: str, **kwargs: Any) -> None:
    if setting in ("DJANGO_JOBS", "TASKS", "DATABASES"):
        reset()


setting_changed.connect(_on_setting_changed, dispatch_uid="django_jobs.conf")

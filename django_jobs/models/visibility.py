"""Which jobs a user sees: the project's hook `VISIBLE_TO`, asked by the API, the admin and the commands alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..conf import jobs_settings, visible_to

if TYPE_CHECKING:
    from .job import JobQuerySet


def is_narrowed() -> bool:
    """Whether users see different jobs: then no number that was counted for everybody may be shown."""
    return jobs_settings().visible_to is not None


def visible_jobs(user: Any, jobs: JobQuerySet) -> JobQuerySet:
    """Narrow `jobs` to those that `user` sees. Without the setting: all of them."""
    hook = visible_to()
    return jobs if hook is None else hook(user, jobs)

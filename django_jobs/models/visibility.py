"""Which jobs a user sees: the project's hook `VISIBLE_TO`, asked by the API, the admin and the commands alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from ..conf import jobs_settings, visible_to
from .job import Job

if TYPE_CHECKING:
    from .job import JobQuerySet


def is_narrowed() -> bool:
    """Whether users see different jobs: then no number that was counted for everybody may be shown."""
    return jobs_settings().visible_to is not None


def sees_every_job(user: Any) -> bool:
    """Whether numbers that count every job are for `user`: without the setting for everybody, with it for superusers."""
    return not is_narrowed() or bool(getattr(user, "is_superuser", False))


def visible_jobs(user: Any, jobs: JobQuerySet) -> JobQuerySet:
    """Narrow `jobs` to those that `user` sees. Without the setting: all of them."""
    hook = visible_to()
    return jobs if hook is None else hook(user, jobs)


def visible_ids(user: Any, ids: Sequence[UUID], *, using: str) -> list[UUID]:
    """Return those of `ids` that `user` may know of, in their order. Without the setting: all of them, without a query."""
    if not is_narrowed():
        return list(ids)
    seen = set(visible_jobs(user, Job.objects.using(using)).filter(pk__in=ids).values_list("pk", flat=True))
    return [job_id for job_id in ids if job_id in seen]

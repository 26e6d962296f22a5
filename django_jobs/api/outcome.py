"""From what a verb reports about one job to the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..lifecycle.report import BUSY, NOT_FOUND, Report
from ..models import Job
from .errors import ApiError, not_found


def check(report: Report, job: Job, to: str) -> None:
    """Raise 409 if the verb that leads `job` to the status `to` was refused, saying why; 404 if the job is gone."""
    why = report.refused.get(job.pk)
    if why is None:
        return
    if why == NOT_FOUND:
        raise not_found(f"There is no job {job.pk}.")
    raise refused(why, job.status, to, headers={"Retry-After": "1"} if why == BUSY else None)


def refused(why: str, source: str, to: str, *, headers: Mapping[str, str] | None = None) -> ApiError:
    """Return the 409 of a move that is not made, with the statuses between which it would have been."""
    statuses: dict[str, Any] = {"from": str(source), "to": str(to)}
    return ApiError(409, "conflict", why, headers=headers, **statuses)

"""Make the `TaskResult` of a running attempt, for the context, signals and hooks."""

from __future__ import annotations

from typing import Any

from ..compat import TaskResult, TaskResultStatus
from ..outcomes import Attempt
from .plan import Plan


def result_for(plan: Plan, attempt: Attempt) -> Any:
    """Return a result object that says what `attempt` knows: no query. A task of ours makes its own, richer one."""
    if plan.result_for is not None:
        return plan.result_for(attempt)
    return TaskResult(
        task=plan.task,
        id=str(attempt.job_id),
        status=TaskResultStatus.RUNNING,
        enqueued_at=attempt.enqueued_at,
        started_at=attempt.started_at,
        finished_at=None,
        last_attempted_at=attempt.started_at,
        args=attempt.args,
        kwargs=attempt.kwargs,
        backend=attempt.backend,
        errors=[],
        worker_ids=list(attempt.worker_ids),
    )

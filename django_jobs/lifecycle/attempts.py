"""The records of attempts: what is kept of each that did not simply succeed."""

from __future__ import annotations

from typing import Any

from django_jobs import db
from django_jobs.outcomes import Cancelled, ErrorInfo, Failed, Finished, HandedBack, Lost, RetryAsked, Succeeded, TimedOut
from django_jobs.retry import End
from django_jobs.statuses import Status


def error_of(item: Finished) -> ErrorInfo | None:
    """Return the error that an attempt ended with; None if it had none."""
    outcome = item.outcome
    if isinstance(outcome, Failed | RetryAsked | TimedOut):
        return outcome.error
    if isinstance(outcome, Cancelled):
        return outcome.error
    if isinstance(outcome, Lost):
        return ErrorInfo("django_jobs.exceptions.AttemptLost", outcome.cause)
    return None


def keep_attempt(cursor: Any, dialect: db.Dialect, item: Finished, end: End, worker_name: str) -> None:
    """Insert the record of an attempt, unless it simply succeeded or never began."""
    outcome = item.outcome
    if isinstance(outcome, HandedBack) and not outcome.started:
        return
    if end.status == Status.SUCCEEDED and not item.logs and isinstance(outcome, Succeeded):
        return
    error = error_of(item) or ErrorInfo("", "")
    cause = outcome.cause if isinstance(outcome, Lost) else end.reason
    values = {
        "job_id": dialect.uuid(item.attempt.job_id),
        "number": item.attempt.number,
        "token": dialect.uuid(item.attempt.token),
        "worker": worker_name[:64],
        "started_at": dialect.time(item.attempt.started_at),
        "outcome": end.outcome,
        "counted": end.counted,
        "cause": cause[:500],
        "error_class": error.exception_class[:255],
        "error_message": error.message,
        "traceback": error.traceback,
        "fingerprint": error.fingerprint[:32],
        "logs": item.logs,
        "run_seconds": item.run_seconds,
    }
    cursor.execute(
        f"INSERT INTO {db.ATTEMPT} (ended_at, {', '.join(values)}) VALUES ({dialect.now_sql}, {', '.join(['%s'] * len(values))})",
        list(values.values()),
    )

"""The rows: nouns, and predicates with names on their querysets."""

from .attempt import AttemptOutcome, JobAttempt
from .job import NEWEST_FIRST, PRIORITY_MAX, PRIORITY_MIN, Job
from .lock import CancelRequest, JobLock, LockKind
from .queue import Queue
from .stat import TOTALS, Count, Delta, JobTag
from .token import ApiToken, IdempotencyKey
from .worker import Leader, Worker, WorkerKind

__all__ = [
    "NEWEST_FIRST",
    "PRIORITY_MAX",
    "PRIORITY_MIN",
    "TOTALS",
    "ApiToken",
    "AttemptOutcome",
    "CancelRequest",
    "Count",
    "Delta",
    "IdempotencyKey",
    "Job",
    "JobAttempt",
    "JobLock",
    "JobTag",
    "Leader",
    "LockKind",
    "Queue",
    "Worker",
    "WorkerKind",
]

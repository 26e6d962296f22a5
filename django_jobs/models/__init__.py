"""The rows: nouns, and predicates with names on their querysets."""

from .attempt import AttemptOutcome, JobAttempt
from .graph import ON_PARENT_CANCEL, ON_PARENT_FAILURE, Batch, BatchCount, Edge, Ended
from .job import HOLDS_ITS_KEY, NEWEST_FIRST, PRIORITY_MAX, PRIORITY_MIN, Job
from .lock import CancelRequest, JobLock, LockKind
from .queue import Queue
from .stat import TOTALS, Count, Delta, JobTag
from .token import ApiToken, IdempotencyKey
from .worker import Leader, Worker, WorkerKind

__all__ = [
    "HOLDS_ITS_KEY",
    "NEWEST_FIRST",
    "ON_PARENT_CANCEL",
    "ON_PARENT_FAILURE",
    "PRIORITY_MAX",
    "PRIORITY_MIN",
    "TOTALS",
    "ApiToken",
    "AttemptOutcome",
    "Batch",
    "BatchCount",
    "CancelRequest",
    "Count",
    "Delta",
    "Edge",
    "Ended",
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

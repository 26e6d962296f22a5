"""The rows: nouns, and predicates with names on their querysets."""

from .attempt import AttemptOutcome, JobAttempt
from .job import NEWEST_FIRST, PRIORITY_MAX, PRIORITY_MIN, Job
from .lock import CancelRequest, JobLock, LockKind
from .queue import Queue
from .worker import Leader, Worker, WorkerKind

__all__ = [
    "NEWEST_FIRST",
    "PRIORITY_MAX",
    "PRIORITY_MIN",
    "AttemptOutcome",
    "CancelRequest",
    "Job",
    "JobAttempt",
    "JobLock",
    "Leader",
    "LockKind",
    "Queue",
    "Worker",
    "WorkerKind",
]

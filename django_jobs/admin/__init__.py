"""The admin: see every job, steer every job. One module per page; importing this package registers them all."""

from __future__ import annotations

from .batches import BatchAdmin
from .jobs import JobAdmin
from .locks import JobLockAdmin
from .queues import QueueAdmin
from .services import LeaderAdmin
from .tokens import ApiTokenAdmin
from .workers import WorkerAdmin

__all__ = ["ApiTokenAdmin", "BatchAdmin", "JobAdmin", "JobLockAdmin", "LeaderAdmin", "QueueAdmin", "WorkerAdmin"]

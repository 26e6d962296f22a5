"""Batches: any number of jobs that are counted together, with callbacks at their end."""

from __future__ import annotations

from .batch import MAX_NAME, Batch, current_batch
from .callbacks import Callback
from .state import BatchStatus, Progress, State, state_of

__all__ = ["MAX_NAME", "Batch", "BatchStatus", "Callback", "Progress", "State", "current_batch", "state_of"]

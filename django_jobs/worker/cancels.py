"""How a running attempt learns that somebody wants it cancelled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol
from uuid import UUID

from django.db.backends.base.base import BaseDatabaseWrapper

from django_jobs.lifecycle.fence import CancelWish, cancel_wishes
from django_jobs.outcomes import Attempt
from django_jobs.worker.hold import Hands


class Stops(Protocol):
    """What the control loop asks of an executor."""

    def cancel(self, token: UUID, reason: str = "") -> bool: ...


def heed_cancels(
    connection: BaseDatabaseWrapper, hands: Hands, executor: Stops, force_stop: Callable[[Attempt, str], None]
) -> None:
    """Look for wishes about what is in hand, and pass them on; the forced ones each time, until the attempt has ended."""
    wishes = cancel_wishes(connection, [item.attempt.job_id for item in hands.items.values()])
    by_job: dict[UUID, CancelWish] = {wish.job_id: wish for wish in wishes}
    for token, item in hands.items.items():
        wish = by_job.get(item.attempt.job_id)
        if wish is None:
            continue
        if not item.cancelled:
            # False while it has not begun: it is told at the next look.
            item.cancelled = executor.cancel(token, wish.reason or "cancelled on request")
        if wish.force:
            force_stop(item.attempt, wish.reason or "cancelled on request")

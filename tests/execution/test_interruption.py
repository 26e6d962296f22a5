"""An interruption never strikes where the worker's own locks are held, and leaves no lock of the logging behind."""

from __future__ import annotations

import logging
import threading
from typing import Any

from django_jobs.execution.executor import Executor
from django_jobs.execution.running import CANCELLED
from django_jobs.outcomes import Attempt, Cancelled, Succeeded
from django_jobs.task import find_task
from tests.execution import tasks
from tests.execution.support import Recorder, Slot, attempt_of


class SlowLink(Recorder):
    """A link in whose midst the job is cancelled."""

    executor: Executor
    came_through = False

    def heartbeat(self, attempt: Attempt) -> None:
        canceller = threading.Thread(target=self.executor.cancel, args=(attempt.token, "in the midst"))
        canceller.start()
        canceller.join(5)
        for _ in range(1_000):
            pass
        self.came_through = True


def test_an_interruption_within_the_context_is_raised_after_it() -> None:
    tasks.reset()
    link = SlowLink()
    executor = link.executor = Executor(link, find_task=find_task)
    slot = Slot(executor)
    outcome = slot.run(attempt_of(tasks.beats_then_says_so)).outcome
    slot.pool.shutdown()
    assert isinstance(outcome, Cancelled)
    assert link.came_through
    assert tasks.seen == []


def test_a_lock_of_a_log_handler_is_given_back(slot: Slot, executor: Executor) -> None:
    handler: Any = logging.NullHandler()
    handler.lock = threading.RLock()
    tasks.seen.append(handler)
    attempt = attempt_of(tasks.takes_log_lock)
    running = slot.start(attempt)
    assert tasks.begun.wait(5)
    assert executor._stage.runs[attempt.token].interrupt(CANCELLED, "now")
    assert isinstance(running.result(5).outcome, Cancelled)
    assert handler.lock.acquire(timeout=5)
    handler.lock.release()
    assert slot.run(attempt_of(tasks.add, 1, 2)).outcome == Succeeded(3)

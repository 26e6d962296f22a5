"""Tasks that run in batches on real worker processes, and callbacks that write to the ledger."""

from __future__ import annotations

import os
import signal
import time

from django_jobs import current_batch, current_job, job
from tests.project.jobs import write_ledger


@job
def told(word: str, batch_id: str) -> str:
    """Write the word of a callback, with the batch that has called it."""
    write_ledger(word, batch_id)
    return batch_id


@job
def member(number: int, seconds: float = 0.0) -> int:
    """Take a while."""
    time.sleep(seconds)
    return number


@job
def refuses(number: int) -> None:
    """Fail."""
    raise ValueError(f"{number} is refused")


@job
def spreads(depth: int) -> str:
    """Add two jobs like this one to its own batch, to a depth."""
    batch = current_batch()
    assert batch is not None
    if depth:
        batch.add_many(spreads, [(depth - 1,), (depth - 1,)])
    return str(batch.id)


@job
def looks_around() -> list[str | None]:
    """Return the batch as the job sees it."""
    batch, context = current_batch(), current_job()
    assert context is not None
    return [None if batch is None else str(batch.id), None if context.batch_id is None else str(context.batch_id)]


@job(max_attempts=3)
def kills_itself_once(path: str) -> None:
    """Die by SIGKILL at the first attempt."""
    context = current_job()
    assert context is not None
    if context.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)

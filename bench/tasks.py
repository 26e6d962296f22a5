"""The tasks that the benchmarks run."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from django_jobs import job
from django_jobs.models import Queue
from tests.project.jobs import say


@job
def noop() -> None:
    """Do nothing."""


@job
async def anoop() -> None:
    """Do nothing, as a coroutine."""


@job
def one_query() -> bool:
    """Make one query by the ORM."""
    return Queue.objects.filter(name="nosuch").exists()


@job
def stamp(sent: float, path: str) -> None:
    """Append how long ago `sent` (by `time.time()`) was, in seconds, to the file `path`."""
    line = f"{time.time() - sent:.6f}\n".encode()
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(fd, line)
    os.close(fd)


@job
def sleepy(seconds: float, path: str = "") -> None:
    """Say that it began, and sleep."""
    if path:
        stamp.func(time.time(), path)
    time.sleep(seconds)


@job(takes_context=True, max_attempts=None, backoff=0.2)
def survivor(context: Any, seconds: float = 0.0) -> str:
    """Write START to the ledger, take `seconds`, write END; however often its process is killed."""
    say(context, "START")
    time.sleep(seconds)
    say(context, "END")
    return "done"


@job(takes_context=True, max_attempts=None, backoff=0.2)
async def asurvivor(context: Any, seconds: float = 0.0) -> str:
    """Do the same as a coroutine."""
    say(context, "START")
    await asyncio.sleep(seconds)
    say(context, "END")
    return "done"


@job(takes_context=True, max_attempts=None, backoff=0.2, atomic=True)
def written(context: Any, seconds: float = 0.0) -> str:
    """Write a row in the transaction that records the success: there must be one for each job, however often it was started."""
    say(context, "START")
    Queue.objects.create(name=f"written-{context.job_id}")
    time.sleep(seconds)
    say(context, "END")
    return "done"

"""The tasks that the benchmarks run."""

from __future__ import annotations

import os
import time

from django_jobs import job
from django_jobs.models import Queue


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

"""Tasks that real worker processes run in the tests."""

from __future__ import annotations

import asyncio
import os
import time

from django_jobs import job

LEDGER = "DJANGO_JOBS_TEST_LEDGER"


def write_ledger(word: str, key: object) -> None:
    """Append a line to a plain file outside the database: it shows every real start, even one whose transaction was rolled back."""
    path = os.environ.get(LEDGER)
    if path:
        line = f"{key} {os.getpid()} {time.time():.6f} {word}\n".encode()
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(fd, line)
        os.close(fd)


@job
def noop() -> None:
    """Do nothing."""


@job
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@job(takes_context=True)
def ledger(context, seconds: float = 0.0) -> str:
    """Write START, take `seconds`, write END."""
    write_ledger("START", context.job_id)
    time.sleep(seconds)
    write_ledger("END", context.job_id)
    return "done"


@job(takes_context=True)
async def aledger(context, seconds: float = 0.0) -> str:
    """Do the same as a coroutine."""
    write_ledger("START", context.job_id)
    await asyncio.sleep(seconds)
    write_ledger("END", context.job_id)
    return "done"


@job
def boom(message: str = "boom") -> None:
    """Raise."""
    raise ValueError(message)

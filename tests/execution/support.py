"""What the tests of the executor share: attempts without rows, a link that remembers, one-slot pools."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

from django_jobs.execution.executor import Executor
from django_jobs.outcomes import Attempt, Finished
from django_jobs.retry import normalise_backoff
from django_jobs.task import find_task

_OPTIONS = ("timeout", "timeout_grace", "heartbeat_timeout", "cpu_timeout", "serializer", "max_deaths")


class Recorder:
    """A link and a board that remember what they were told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def progress(self, attempt: Attempt, done: float | None, total: float | None, message: str) -> None:
        self.told.append(("progress", done, total, message))

    def heartbeat(self, attempt: Attempt) -> None:
        self.told.append(("heartbeat",))

    def save(self, attempt: Attempt, output: Any) -> None:
        self.told.append(("save", output))

    def begin(self, attempt: Attempt, thread_id: int) -> None:
        self.told.append(("begin", attempt.token, attempt.timeout, thread_id))

    def beat(self, attempt: Attempt) -> None:
        self.told.append(("beat", attempt.token))

    def end(self, attempt: Attempt) -> None:
        self.told.append(("end", attempt.token))

    def names(self) -> list[str]:
        return [entry[0] for entry in self.told]


def attempt_of(task: Any, *args: Any, kwargs: dict[str, Any] | None = None, **changes: Any) -> Attempt:
    """Return an attempt to run `task`, as it would be claimed: with the options that the task declares."""
    values: dict[str, Any] = {name: getattr(task, name) for name in _OPTIONS if hasattr(task, name)}
    values |= {"number": 1, "attempts_used": 1, "max_attempts": 5, "worker_ids": ("host/worker/1-abcdef01",)}
    values["backoff"] = normalise_backoff(getattr(task, "backoff", None))
    values |= changes
    return Attempt(uuid4(), uuid4(), task.module_path, list(args), kwargs or {}, **values)


def find(name: str) -> Any:
    """Find a task of these tests, in any process."""
    from tests.execution import tasks  # noqa: F401

    return find_task(name)


class Slot:
    """A pool of one thread: jobs run one after another in the same thread, as in a worker."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.pool = ThreadPoolExecutor(1)

    def run(self, attempt: Attempt, timeout: float = 20.0) -> Finished:
        return self.pool.submit(self.executor.run, attempt).result(timeout)

    def start(self, attempt: Attempt) -> Any:
        return self.pool.submit(self.executor.run, attempt)

    def thread_id(self) -> int:
        return self.pool.submit(threading.get_ident).result(5)


def wait_until(condition: Callable[[], Any], seconds: float = 10.0) -> Any:
    """Return the first true answer of `condition`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if answer := condition():
            return answer
        time.sleep(0.005)
    raise AssertionError(f"not true within {seconds} s")


def arun(executor: Executor, *attempts: Attempt) -> list[Finished]:
    """Run attempts on an event loop, all at once."""

    async def main() -> list[Finished]:
        return list(await asyncio.gather(*(executor.arun(attempt) for attempt in attempts)))

    return asyncio.run(main())

"""Tasks that the tests of enqueuing and of results use."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

from django_jobs import job
from django_jobs.exceptions import Retry


@job
def add(a: int, b: int = 0) -> int:
    return a + b


@job
async def add_async(a: int, b: int) -> int:
    return a + b


@job(takes_context=True)
def report(context: Any, name: str) -> list[Any]:
    context.progress(1, 2, "half")
    context.save({"name": name})
    return [context.attempt, context.task_result.id]


@job
def keep(*args: Any, **kwargs: Any) -> list[Any]:
    return [list(args), kwargs]


@job(serializer="typed")
def double(price: Decimal) -> Decimal:
    return price * 2


@job
def fail(message: str = "no") -> None:
    raise ValueError(message)


@job(max_attempts=2, backoff=0)
def retry_once(marks: list[str]) -> None:
    marks.append("x")
    raise Retry("again")


@job
def unstorable() -> Any:
    return object()


@job(enqueue_on_commit=True)
def after_commit(a: int) -> int:
    return a


class Holder:
    """A function in a class body is at module level, too."""

    @job
    def held(a: int) -> int:  # noqa: N805
        return a


@job
def interrupt() -> None:
    raise KeyboardInterrupt("Ctrl-C")


@job
async def interrupt_async() -> None:
    await asyncio.sleep(0)
    raise KeyboardInterrupt("Ctrl-C")


@job(atomic=True)
def interrupt_atomic() -> None:
    add.enqueue(1, b=2)
    raise KeyboardInterrupt("Ctrl-C")

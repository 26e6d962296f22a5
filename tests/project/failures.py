"""Things that are awkward to raise, to return, or to stop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import ctypes
import queue
import re
import socket
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from django.db import connection


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class TwoArguments(Exception):
    def __init__(self, one: object, two: object) -> None:
        super().__init__("needs two")


class Holding(Exception):
    def __init__(self) -> None:
        super().__init__("holds what can't be copied")
        self.lock = threading.Lock()
        self.socket = socket.socket()

    def __del__(self) -> None:
        self.socket.close()


def _cause_itself() -> None:
    error = ValueError("its own cause")
    raise error from error


def _cause_loop() -> None:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    raise one


def _deep_group() -> None:
    error: Exception = ValueError("at the bottom")
    for level in range(200):
        error = ExceptionGroup(f"level {level}", [error])
    raise error


def _recursion() -> None:
    _recursion()


def _local() -> None:
    class Local(Exception):
        pass

    raise Local("made in the function")


#: What `raises` raises: an exception, or a function that does.
RAISED: dict[str, Any] = {
    "exit 0": SystemExit(0),
    "exit 3": SystemExit(3),
    "interrupt": KeyboardInterrupt(),
    "generator": GeneratorExit(),
    "cancelled": asyncio.CancelledError(),
    "timeout": TimeoutError("the task's own"),
    "futures": concurrent.futures.TimeoutError(),
    "stop": StopIteration(7),
    "unprintable": Unprintable(),
    "two arguments": TwoArguments(1, 2),
    "holding": Holding(),
    "cause itself": _cause_itself,
    "cause loop": _cause_loop,
    "deep group": _deep_group,
    "recursion": _recursion,
    "local": _local,
}


def raise_it(kind: str) -> None:
    """Raise it."""
    what = RAISED[kind]
    if isinstance(what, BaseException):
        raise type(what)(*what.args) if not isinstance(what, TwoArguments | Holding) else what
    what()


class BadHook:
    def __json__(self) -> str:
        raise RuntimeError("no JSON")

    def __iter__(self) -> Any:
        raise RuntimeError("no items")


#: What `returns` returns.
RETURNED: dict[str, Callable[[], Any]] = {
    "object": object,
    "set": lambda: {1, 2},
    "bytes": lambda: b"abc",
    "generator": lambda: (n for n in range(3)),
    "decimal": lambda: Decimal("1.5"),
    "datetime": lambda: datetime.now(UTC),
    "nan": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "keys": lambda: {1: "a", "1": "b"},
    "hook": BadHook,
    "zero byte": lambda: {"k\x00": ["v\x00"]},
    "surrogate": lambda: "\ud800",
}


def go_on(kind: str, beat: Callable[[], None]) -> None:
    """Run for a minute unless something stops it, calling `beat` where it can."""
    end = time.monotonic() + 60
    match kind:
        case "except Exception":
            while time.monotonic() < end:
                try:
                    beat()
                    time.sleep(0.02)
                except Exception:
                    continue
        case "bare except":
            while time.monotonic() < end:
                try:
                    beat()
                    time.sleep(0.02)
                except:  # noqa: E722 - that is the point
                    continue
        case "sleep":
            time.sleep(60)
        case "hog":
            ctypes.PyDLL(None).sleep(60)
        case "regex":
            re.match(r"(a+)+$", "a" * 40 + "b")
        case "queue":
            queue.Queue().get()
        case "sql":
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_sleep(60)" if connection.vendor == "postgresql" else "SELECT SLEEP(60)")
        case "python":
            while time.monotonic() < end:
                pass


async def ago_on(kind: str, beat: Callable[[], None]) -> None:
    """Do the same as a coroutine."""
    end = time.monotonic() + 60
    match kind:
        case "await":
            while time.monotonic() < end:
                beat()
                await asyncio.sleep(0.02)
        case "bare except":
            while time.monotonic() < end:
                try:
                    beat()
                    await asyncio.sleep(0.02)
                except:  # noqa: E722 - that is the point
                    continue
        case _:
            go_on(kind, beat)

"""Tasks that end in every way there is."""

from __future__ import annotations

import asyncio
import concurrent.futures
import ctypes
import datetime
import decimal
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from typing import Any

from django.conf import settings
from django.core.cache import caches
from django.db import connection, transaction
from django.utils import timezone, translation

from django_jobs.exceptions import AttemptLost, Fail, JobCancelled, JobTimeout, Retry, Skip
from django_jobs.execution.context import current_job
from django_jobs.task import job

#: What tasks leave behind for their test.
seen: list[Any] = []
calls: dict[str, int] = {}
gate = threading.Event()
begun = threading.Event()


#: Locks in C: an interruption within one that is written in Python (a Semaphore) may leave it taken.
fires: list[queue.SimpleQueue[None]] = [queue.SimpleQueue(), queue.SimpleQueue()]
held: list[socket.socket] = []
held_tasks: list[asyncio.Task[None]] = []


def reset() -> None:
    while held:
        held.pop().close()
    seen.clear()
    calls.clear()
    held_tasks.clear()
    gate.clear()
    begun.clear()


def count(name: str) -> int:
    calls[name] = calls.get(name, 0) + 1
    return calls[name]


@job
def noop() -> None:
    pass


@job
def add(a: int, b: int = 0) -> int:
    return a + b


@job
async def aadd(a: int, b: int = 0) -> int:
    await asyncio.sleep(0)
    return a + b


# --- exceptions


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class NeedsTwo(Exception):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(first)
        self.second = second


class Rude(BaseException):
    pass


def holding_things() -> Exception:
    error = ValueError("holds things")
    held.append(socket.socket())
    error.things = (held[-1], threading.Lock())  # type: ignore[attr-defined]
    return error


def own_cause() -> Exception:
    error = ValueError("caused by itself")
    error.__cause__ = error
    return error


def each_other() -> Exception:
    one, other = ValueError("one"), KeyError("other")
    one.__cause__, other.__cause__ = other, one
    return one


def long_chain() -> Exception:
    error: Exception = ValueError("the first")
    for number in range(5_000):
        following = ValueError(f"number {number}")
        following.__cause__ = error
        error = following
    return error


def deep_group() -> Exception:
    error: Exception = ValueError("deep down")
    for _ in range(200):
        error = ExceptionGroup("a level", [error])
    return error


def deeper_group() -> Exception:
    error: Exception = ValueError("deep down")
    for _ in range(5_000):
        error = ExceptionGroup("a level", [error])
    return error


def local_class() -> Exception:
    class LocalError(Exception):
        pass

    return LocalError("of a class made here")


def recursion() -> Exception:
    try:
        return recursion()
    except RecursionError as error:
        return error


ERRORS: dict[str, Any] = {
    "SystemExit(0)": lambda: SystemExit(0),
    "SystemExit(3)": lambda: SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "CancelledError": asyncio.CancelledError,
    "TimeoutError": TimeoutError,
    "futures.TimeoutError": concurrent.futures.TimeoutError,
    "StopIteration": StopIteration,
    "StopAsyncIteration": StopAsyncIteration,
    "Rude": Rude,
    "JobTimeout": lambda: JobTimeout("of the task's own"),
    "Unprintable": Unprintable,
    "NeedsTwo": lambda: NeedsTwo("a", "b"),
    "holding_things": holding_things,
    "own_cause": own_cause,
    "each_other": each_other,
    "long_chain": long_chain,
    "deep_group": deep_group,
    "deeper_group": deeper_group,
    "local_class": local_class,
    "recursion": recursion,
    "nul": lambda: ValueError("a\x00b \ud800"),
    "huge": lambda: ValueError("x" * 20_000_000),
}


@job
def raises(name: str) -> None:
    raise ERRORS[name]()


@job
async def araises(name: str) -> None:
    raise ERRORS[name]()


@job(retry_for=Exception)
def raises_retried(name: str) -> None:
    raise ERRORS[name]()


@job(retry_for=(KeyError,), backoff=lambda error, result: 7 if isinstance(error, KeyError) else None)
def asks(what: str) -> None:
    match what:
        case "retry":
            raise Retry("later", after=12, count=False)
        case "retry by back-off":
            raise Retry
        case "retry badly":
            raise Retry(after=float("nan"))
        case "fail":
            raise Fail("for good")
        case "skip":
            raise Skip("nothing to do")
        case "key":
            raise KeyError("x")
        case "value":
            raise ValueError("x")
        case "cancelled":
            raise JobCancelled("by myself")
        case "skip a file":
            raise Skip("caf\udce9.txt \x00 " + "x" * 1000)
        case "skip unprintable":
            raise Skip(Unprintable())  # type: ignore[arg-type]
        case "cancelled over a file":
            raise JobCancelled("caf\udce9.txt \x00")
        case "lost":
            raise AttemptLost("of another job, whose context was kept")


def bad_backoff(error: Any, result: Any) -> float:
    raise RuntimeError("no idea")


@job(retry_for=KeyError, backoff=bad_backoff)
def with_bad_backoff() -> None:
    raise KeyError


@job
def changes_arguments(items: list[Any], opts: dict[str, Any]) -> None:
    seen.append((list(items), dict(opts)))
    items.append("x")
    opts["fn"] = lambda: 0
    raise ValueError


class BadHook:
    def __json__(self) -> Any:
        raise RuntimeError("hook")

    def __iter__(self) -> Any:
        raise RuntimeError("hook")

    def __class_getitem__(cls, item: Any) -> Any:
        raise RuntimeError


RESULTS: dict[str, Any] = {
    "object": object,
    "set": lambda: {1},
    "bytes": lambda: b"x",
    "generator": lambda: (x for x in "ab"),
    "decimal": lambda: decimal.Decimal("1.5"),
    "datetime": lambda: datetime.datetime.now(datetime.UTC),
    "nan": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "keys": lambda: {1: "a", "1": "b"},
    "big": lambda: 2**70,
    "hook": BadHook,
    "queryset": lambda: __import__("django_jobs.models", fromlist=["Job"]).Job.objects.all(),
    "nul": lambda: "\x00",
}


@job(max_attempts=3)
def returns(name: str) -> Any:
    count(name)
    return RESULTS[name]()


# --- time limits


@job(timeout=0.3)
def spins() -> None:
    while True:
        pass


@job
def spins_for(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
    calls[str(threading.get_ident())] = 1


@job
def ends_under_fire(turns: int) -> None:
    """Have two threads interrupt this very job, which needs a few more turns to its end."""
    for fire in fires:
        fire.put(None)
    for _ in range(turns):
        pass
    calls[str(threading.get_ident())] = 1


@job(timeout=0.3)
def spins_over_exceptions() -> None:
    while True:
        try:
            list(range(100))
        except Exception:
            pass


@job(timeout=0.2)
def swallows() -> str:
    try:
        while True:
            pass
    except BaseException as error:
        seen.append(type(error))
    return "as if nothing had happened"


@job(timeout=0.2)
def raises_another() -> None:
    try:
        while True:
            pass
    finally:
        raise ValueError("while stopping")


@job(timeout=0.2)
def sleeps(seconds: float) -> str:
    time.sleep(seconds)
    return "slept"


@job(timeout=0.2)
def sleeps_holding_the_lock(seconds: int) -> str:
    """A C call that keeps the interpreter's lock: nothing else runs meanwhile, the watchdog neither."""
    ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))
    for _ in range(1_000_000):
        time.sleep(0.001)
    return "returned"


@job(timeout=0.3)
def waits_for_queue() -> None:
    waiting: queue.Queue[None] = queue.Queue()
    while True:
        try:
            waiting.get(timeout=0.05)
        except queue.Empty:
            continue


@job(timeout=0.3)
def matches_badly() -> None:
    for _ in range(1_000):
        re.match(r"(a+)+$", "a" * 18 + "b")


@job(timeout=0.3)
def runs_child(command: str) -> Any:
    begun.set()
    return subprocess.run(command, shell=True, capture_output=True, check=False).returncode


@job
def runs_child_unbounded(command: str) -> Any:
    begun.set()
    return subprocess.run(command, shell=True, capture_output=True, check=False).returncode


@job(timeout=0.3)
def starts_child_after_stop(path: str) -> None:
    try:
        while True:
            pass
    except JobTimeout:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        seen.append(child.pid)
        child.returncode = 0  # forget it: nobody waits for it


@job(heartbeat_timeout=0.3)
def falls_silent(beats: int) -> None:
    context = current_job()
    assert context is not None
    for _ in range(beats):
        time.sleep(0.1)
        context.heartbeat()
    while True:
        pass


@job(heartbeat_timeout=0.3)
def beats_by_progress() -> str:
    context = current_job()
    assert context is not None
    for number in range(8):
        time.sleep(0.1)
        context.progress(number, 8)
    return "done"


@job(cpu_timeout=0.2)
def burns() -> None:
    while True:
        pass


@job(cpu_timeout=0.2)
def idles() -> str:
    time.sleep(0.6)
    return "idle"


@job(timeout=0.2)
async def anaps(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "napped"


@job(timeout=0.2)
async def aswallows() -> str:
    try:
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        pass
    await asyncio.sleep(0)
    return "as if nothing had happened"


@job(heartbeat_timeout=0.2)
async def afalls_silent() -> None:
    context = current_job()
    assert context is not None
    context.heartbeat()
    await asyncio.sleep(30)


@job
async def await_gate(seconds: float = 30.0) -> str:
    begun.set()
    await asyncio.sleep(seconds)
    return "through"


@job
async def awaits_open_gate() -> str:
    begun.set()
    while not gate.is_set():  # noqa: ASYNC110 - an event of threads, set by the test
        await asyncio.sleep(0.005)
    return "through"


@job
async def exits_on_loop(how: str, name: str) -> None:
    """End the process, or so it would seem, from where `how` says."""
    error = {"SystemExit": SystemExit, "KeyboardInterrupt": KeyboardInterrupt}[name]
    loop = asyncio.get_running_loop()

    def leave() -> None:
        raise error("left")

    async def leave_later() -> None:
        await asyncio.sleep(0.01)
        leave()

    match how:
        case "itself":
            leave()
        case "sub-task":
            await asyncio.create_task(leave_later())
        case "forgotten sub-task":
            held_tasks.append(asyncio.create_task(leave_later()))
            await asyncio.sleep(0.1)
        case "callback":
            loop.call_soon(leave)
            await asyncio.sleep(0.01)
        case "stop":
            loop.stop()
            await asyncio.sleep(0.01)


@job
def beats_then_says_so() -> None:
    context = current_job()
    assert context is not None
    context.heartbeat()
    seen.append("not interrupted")


@job
def takes_log_lock() -> None:
    handler = seen[0]
    handler.acquire()
    begun.set()
    while True:
        time.sleep(0.002)


@job
def polls() -> str:
    context = current_job()
    assert context is not None
    begun.set()
    try:
        while True:
            time.sleep(0.002)
    except JobCancelled:
        seen.append(context.is_cancelled)
        raise


@job
def ignores_cancel() -> str:
    begun.set()
    try:
        while True:
            time.sleep(0.002)
    except JobCancelled:
        return "did it anyway"


@job
def waits_for_gate() -> str:
    begun.set()
    gate.wait(20)
    return "through"


# --- what surrounds a job


@job(takes_context=True)
def uses_context(context: Any) -> list[Any]:
    context.progress(1, 4, "a quarter")
    context.heartbeat()
    context.save({"half": [1, 2]})
    context.log("line %d", 1)
    context.log("line two")
    seen.append(context)
    assert current_job() is context
    return [
        str(context.job_id),
        context.attempt,
        str(context.token),
        context.metadata,
        context.is_cancelled,
        context.remaining_seconds,
    ]


@job(takes_context=True)
def calls_seen(context: Any) -> None:
    seen[0](context)


@job
def says_where() -> list[Any]:
    found = [translation.get_language(), timezone.get_current_timezone_name()]
    translation.activate("fr")
    timezone.activate("Asia/Tokyo")
    return found


@job
async def asays_where() -> list[Any]:
    found = [translation.get_language(), timezone.get_current_timezone_name()]
    translation.activate("fr")
    return found


@job
def which_cache() -> int:
    return id(caches["default"])


@job
def which_session() -> Any:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    seen.append(connection)
    seen.append(connection.connection)
    return connection.in_atomic_block


@job
def leaves_mess(kind: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    seen.append(connection.connection)
    match kind:
        case "atomic":
            block = transaction.atomic()
            block.__enter__()
            seen.append(block)
        case "autocommit":
            transaction.set_autocommit(False)
        case "begin":
            connection.cursor().execute("BEGIN")
        case "closed":
            connection.connection.close()
            connection.errors_occurred = True
        case "nothing":
            pass


@job(atomic=True)
def writes(name: str, end: str = "return") -> str:
    from django.contrib.auth.models import Group

    Group.objects.create(name=name)
    match end:
        case "raise":
            raise ValueError("after the write")
        case "skip":
            raise Skip("written all the same")
        case "spin":
            begun.set()
            while True:
                time.sleep(0.002)
        case "bad hook":
            transaction.on_commit(lambda: 1 / 0)
        case "bad result":
            return object()  # type: ignore[return-value]
    return "written"


@job(atomic=True)
async def awrites() -> None:
    pass


def hook_ok(result: Any) -> None:
    seen.append(("success", result.status, result.return_value))


def hook_bad(result: Any) -> None:
    seen.append(("failure", result.status, [error.exception_class_path for error in result.errors]))
    raise RuntimeError("a hook that fails")


async def ahook(result: Any) -> None:
    seen.append(("async", result.status))


@job(on_success=hook_ok, on_failure=hook_bad, retry_for=KeyError, max_attempts=2)
def hooked(what: str) -> str:
    match what:
        case "value":
            raise ValueError("x")
        case "key":
            raise KeyError("x")
    return what


@job(on_success=ahook)
async def ahooked() -> str:
    return "x"


# --- in a process of its own


@job(isolate=True)
def isolated(what: str) -> Any:
    context = current_job()
    assert context is not None
    match what:
        case "say":
            context.progress(1, 2, "half")
            context.save([1])
            context.log("from inside")
            return [os.getpid(), os.getpgid(0), str(context.job_id), settings.SECRET_KEY != ""]
        case "raise":
            raise ValueError("from inside")
        case "exit":
            os._exit(3)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "segfault":
            ctypes.string_at(0)
        case "orphan":
            child = subprocess.Popen(["sleep", "60"])
            return child.pid
    return uuid.uuid4().hex


@job(isolate=True, timeout=0.3, timeout_grace=0.5)
def isolated_sleep(how: str) -> str:
    match how:
        case "sleep":
            time.sleep(60)
        case "queue":
            queue.Queue().get()
        case "hold":
            ctypes.PyDLL(None).sleep(60)
        case "stubborn":
            while True:
                try:
                    time.sleep(60)
                except BaseException:
                    pass
    return "through"


@job(isolate=True)
def isolated_wait(path: str) -> None:
    with open(path, "w") as file:
        file.write(str(os.getpid()))
    time.sleep(60)


@job(isolate=True, cpu_timeout=0.3)
def isolated_burn() -> None:
    while True:
        pass


@job(isolate=True)
async def isolated_async() -> int:
    await asyncio.sleep(0)
    return os.getpid()

"""Tasks that real worker processes run in the tests."""

from __future__ import annotations

import asyncio
import ctypes
import multiprocessing
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connection, connections

from django_jobs import Retry, job
from django_jobs.models import Queue
from tests.project.failures import RETURNED, ago_on, go_on, raise_it

LEDGER = "TEST_LEDGER"


def write_ledger(word: str, key: object, attempt: int = 0) -> None:
    """Append a line to a plain file outside the database: it shows every real start, also one that was rolled back."""
    path = os.environ.get(LEDGER)
    if path:
        line = f"{key} {attempt} {os.getpid()} {time.monotonic():.6f} {word}\n".encode()
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(fd, line)
        os.close(fd)


def say(context: Any, word: str) -> None:
    """Append a line about the running job."""
    write_ledger(word, context.job_id, context.attempt)


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
    say(context, "START")
    time.sleep(seconds)
    say(context, "END")
    return "done"


@job(takes_context=True)
async def aledger(context, seconds: float = 0.0) -> str:
    """Do the same as a coroutine."""
    say(context, "START")
    await asyncio.sleep(seconds)
    say(context, "END")
    return "done"


@job
def boom(message: str = "boom") -> None:
    """Raise."""
    raise ValueError(message)


@job(takes_context=True)
def die(context, how: str, times: int = 1_000) -> str:
    """End the whole process on the first `times` starts."""
    say(context, "START")
    if context.attempt <= times:
        match how:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "segfault":
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                ctypes.string_at(0)
            case _:
                os._exit(int(how))
        time.sleep(60)
    say(context, "END")
    return "survived"


@job(takes_context=True)
def hog(context, seconds: int) -> str:
    """Sleep in C and keep the interpreter's lock: no other thread of the process runs."""
    say(context, "START")
    ctypes.PyDLL(None).sleep(seconds)
    say(context, "END")
    return "done"


@job
def spread(count: int) -> list[str]:
    """Enqueue so many others, one by one."""
    return [str(noop.enqueue().id) for _ in range(count)]


@job
def queries(count: int) -> int:
    """Ask the database so many times."""
    with connection.cursor() as cursor:
        for _ in range(count):
            cursor.execute("SELECT 1")
            cursor.fetchone()
    return count


@job
async def aqueries(count: int) -> int:
    """Do the same from a coroutine."""
    return await sync_to_async(queries.func)(count)


@job
def on_two(count: int) -> int:
    """Ask two databases so many times each, in words that would be missed if somebody kept them."""
    for alias in ("default", "other"):
        with connections[alias].cursor() as cursor:
            for number in range(count):
                cursor.execute(f"SELECT %s /* {'-' * 1_000} */", [number])
                cursor.fetchone()
    return count


@job(takes_context=True)
def raises(context, kind: str) -> None:
    """Raise something awkward."""
    say(context, "START")
    raise_it(kind)


@job(takes_context=True, max_attempts=3, backoff=0.02, retry_for=(Exception,))
def raises_retried(context, kind: str) -> None:
    """Do the same, and be run again whatever it is."""
    raises.func(context, kind)


@job(takes_context=True)
async def araises(context, kind: str) -> None:
    """Do the same as a coroutine."""
    say(context, "START")
    raise_it(kind)


@job(takes_context=True)
def returns(context, kind: str) -> Any:
    """Return something awkward."""
    say(context, "START")
    return RETURNED[kind]()


@job(takes_context=True, max_attempts=3, retry_for=(Exception,), backoff=0.05)
def mutate(context, items: list[Any], opts: dict[str, Any]) -> None:
    """Change the arguments, and fail."""
    say(context, f"START {len(items)} {sorted(opts)}")
    items.append("x")
    opts["fn"] = lambda: 0
    raise ValueError("again")


@job(takes_context=True, max_attempts=2, backoff=0.05)
def postpone(context, times: int) -> None:
    """Ask to be run again so many times without spending an attempt, then fail for as long as there are attempts."""
    say(context, "START")
    if context.attempt <= times:
        raise Retry("not yet", after=0.01, count=False)
    raise Retry("no luck")


@job(takes_context=True)
def again(context) -> None:
    """Ask to be run again each time."""
    say(context, "START")
    raise Retry("as always")


@job(takes_context=True)
def stubborn(context, kind: str) -> None:
    """Run for a minute, in a way that is hard to stop."""
    say(context, "START")
    go_on(kind, lambda: say(context, "BEAT"))
    say(context, "END")


@job(takes_context=True)
async def astubborn(context, kind: str) -> None:
    """Do the same as a coroutine."""
    say(context, "START")
    await ago_on(kind, lambda: say(context, "BEAT"))
    say(context, "END")


@job(takes_context=True, isolate=True)
def alone(context, kind: str) -> None:
    """Do the same in a process of its own, which ignores the signals that it can."""
    say(context, "START")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    go_on(kind, lambda: say(context, "BEAT"))
    say(context, "END")


@job(takes_context=True)
def gate(context, path: str) -> str:
    """Write START, wait until there is a file at `path`, write END."""
    say(context, "START")
    while not os.path.exists(path):
        time.sleep(0.02)
    say(context, "END")
    return "done"


@job(takes_context=True)
async def agate(context, path: str) -> str:
    """Do the same as a coroutine."""
    say(context, "START")
    while not os.path.exists(path):  # noqa: ASYNC110, ASYNC240 - another process makes it
        await asyncio.sleep(0.02)
    say(context, "END")
    return "done"


@job(takes_context=True)
def when_told(context, path: str, then: str) -> str:
    """Ignore every request to stop until there is a file at `path`; then end as `then` says."""
    say(context, "START")
    while not os.path.exists(path):
        try:
            time.sleep(0.02)
        except BaseException as error:
            say(context, f"CAUGHT {type(error).__name__}")
    say(context, f"THEN {context.is_cancelled}")
    match then:
        case "raise":
            raise ValueError("an ordinary error")
        case "retry":
            raise Retry("once more")
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)
    return "returned"


@job(takes_context=True, max_attempts=5, backoff=0.05, retry_for=(Exception,))
def when_told_retried(context, path: str, then: str) -> str:
    """Do the same, with attempts left whatever it raises."""
    return when_told.func(context, path, then)


@job(takes_context=True)
def launch(context, how: str) -> None:
    """Start programs, and wait for them; the ledger has their process ids."""
    say(context, "START")
    match how:
        case "shell":
            subprocess.run(f"sleep 305 & sleep 306; echo {context.job_id}", shell=True, capture_output=True)
        case "pool":
            with multiprocessing.get_context("spawn").Pool(2) as pool:
                pool.map(time.sleep, [305, 306])
        case "session":
            subprocess.run(["sleep", "308"], start_new_session=True)
        case "stubborn":
            subprocess.run([sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(307)"])
    say(context, "END")


@job(takes_context=True)
def values(context) -> dict[str, Any]:
    """Return what must differ between processes and jobs."""
    with connection.cursor() as cursor:
        for _ in range(20):
            cursor.execute("SELECT 1")
            cursor.fetchone()
        session = None
        if connection.vendor != "sqlite":
            cursor.execute("SELECT pg_backend_pid()" if connection.vendor == "postgresql" else "SELECT CONNECTION_ID()")
            session = cursor.fetchone()[0]
    return {"random": random.random(), "uuid": str(uuid.uuid4()), "session": session, "pid": os.getpid()}


@job
def grow(megabytes: int) -> int:
    """Keep so much memory for good."""
    _KEPT.append(os.urandom(1_000_000) * megabytes)
    return len(_KEPT)


_KEPT: list[bytes] = []


@job(takes_context=True)
def fork(context) -> int:
    """Fork; the child shuts every socket that it has inherited, and so would tell the servers that we are gone."""
    say(context, "START")
    pid = os.fork()
    if pid == 0:
        for number in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                socket.socket(fileno=int(number)).shutdown(socket.SHUT_RDWR)
        os._exit(0)
    os.waitpid(pid, 0)
    connection.close()  # the job's own is a loss that it has to see to
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    say(context, "END")
    return pid


@job(takes_context=True, atomic=True)
def paid(context, path: str) -> str:
    """A transactional job that ends once there is a file at `path`."""
    say(context, "START")
    Queue.objects.create(name=f"paid.{context.job_id}")
    while not os.path.exists(path):
        time.sleep(0.02)
    say(context, "END")
    return "paid"


@job(takes_context=True)
def report(context, path: str) -> None:
    """Show progress, keep a partial result, and end once there is a file at `path`."""
    say(context, "START")
    context.progress(1, 2, "half")
    context.save({"part": 1})
    while not os.path.exists(path):
        time.sleep(0.02)


@job(takes_context=True)
def burn(context, how: str) -> None:
    """Use CPU time."""
    say(context, "START")
    if how == "python":
        go_on("python", lambda: None)
    elif how == "C":
        go_on("regex", lambda: None)
    elif how == "rlimit":
        _soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
        used = int(time.process_time())
        resource.setrlimit(resource.RLIMIT_CPU, (used + 1, hard))
        go_on("python", lambda: None)


@job(takes_context=True, isolate=True)
def heirs(context) -> list[Any]:
    """Return what the parents have returned."""
    return context.parent_results


@job(takes_context=True)
async def aheirs(context) -> list[Any]:
    """Do the same as a coroutine."""
    return await context.aparent_results()


@job(takes_context=True, atomic=True)
def heirs_at_once(context) -> list[Any]:
    """Do the same in the job's own transaction."""
    return context.parent_results

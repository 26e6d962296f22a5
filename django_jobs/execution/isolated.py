"""The process of one isolated job: `python -m django_jobs.execution.isolated`, started by `isolation`.

Reads the attempt from one pipe, runs it in the main thread with an executor of its own, and writes to the other what it
reports and how it ended. The first pipe's end is the worker's end: then this process ends with all that it started.
"""

from __future__ import annotations

import ctypes
import functools
import json
import math
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, BinaryIO, Final

import django
from django.utils.module_loading import import_string

from ..outcomes import Attempt
from . import running, wire
from .executor import Executor
from .timeouts import Watchdog

_PR_SET_PDEATHSIG: Final = 1
#: Seconds between two tries to cancel a job that has not begun.
_CANCEL_PAUSE: Final = 0.05
#: Interrupts a system call of the main thread, so that it notices an interruption at once; default signals are the task's to use.
_WAKE_SIGNAL: Final = getattr(signal, "SIGRTMAX", signal.SIGUSR2)


class Pipe:
    """What the job reports, as lines on the pipe: both the context's link and the executor's board. Safe for threads."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._lock = threading.Lock()

    def send(self, **message: Any) -> None:
        """Write a message."""
        with self._lock:
            self._file.write(wire.line(message))
            self._file.flush()

    def progress(self, _attempt: Attempt, done: float | None, total: float | None, message: str) -> None:
        """See `Link`."""
        self.send(progress=[done, total, message])

    def heartbeat(self, _attempt: Attempt) -> None:
        """See `Link`."""
        self.send(heartbeat=True)

    def save(self, _attempt: Attempt, output: Any) -> None:
        """See `Link`."""
        self.send(save=output)

    def begin(self, attempt: Attempt, _thread_id: int) -> None:
        """Say that the function begins, and bound its CPU time for the case that it can't be interrupted."""
        self.send(begin=True)
        if attempt.cpu_timeout:
            _bound_cpu(attempt.cpu_timeout)

    def beat(self, _attempt: Attempt) -> None:
        """`progress` and `heartbeat` say so themselves."""

    def end(self, _attempt: Attempt) -> None:
        """`finished` follows."""


def main(read: int, write: int, parent: int) -> None:
    """Run the one attempt that comes from the pipe `read`."""
    _die_with(parent)
    commands = os.fdopen(read, "rb")
    pipe = Pipe(os.fdopen(write, "wb"))
    signal.signal(_WAKE_SIGNAL, _notice)
    running.wake_signal = _WAKE_SIGNAL
    order = json.loads(commands.readline())
    attempt = wire.attempt_from_json(order["attempt"])
    django.setup()
    executor = Executor(
        pipe,
        find_task=_imported(order["find_task"]),
        watchdog=Watchdog(cpu_clock=time.CLOCK_PROCESS_CPUTIME_ID),
        database=order["database"],
        fence=None if order["fence"] is None else _imported(order["fence"]),
        parents=None if order["parents"] is None else _imported(order["parents"]),
        board=pipe,
        isolates=False,
    )
    listener = threading.Thread(target=_listen, args=(commands, executor, attempt), name="job-commands", daemon=True)
    listener.start()
    finished = executor.run(attempt)
    pipe.send(finished=wire.finished_to_json(finished))


def _imported(reference: tuple[str, dict[str, Any]]) -> Callable[..., Any]:
    """Return the function that the worker named: a part of the worker's own make-up, never of a row."""
    path, options = reference
    found: Callable[..., Any] = import_string(path)
    return functools.partial(found, **options) if options else found


def _listen(commands: BinaryIO, executor: Executor, attempt: Attempt) -> None:
    for text in commands:
        command = json.loads(text)
        while "cancel" in command and not executor.cancel(attempt.token, command["cancel"]):
            time.sleep(_CANCEL_PAUSE)  # it has not begun, or is over: then the process ends anyway
    os.killpg(0, signal.SIGKILL)


def _notice(_number: int, _frame: Any) -> None:
    """Do nothing: that a handler runs lets a pending interruption be raised, in it."""


def _bound_cpu(limit: float) -> None:
    used = time.clock_gettime(time.CLOCK_PROCESS_CPUTIME_ID)
    bound = math.ceil(used + limit) + 1  # a second for the soft stop; rounded up to whole ones
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (bound, hard))


def _die_with(parent: int) -> None:
    """Have this process killed when the thread that started it ends, also while it can't run Python."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before that was set
        os._exit(1)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))

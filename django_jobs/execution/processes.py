"""End the sub-processes that a thread started, and theirs, when the job that it runs is stopped.

Linux only, where `/proc` says which thread started a process; elsewhere nothing is found and nothing is ended. Found are the
descendants of processes whose parent still lives: one that was left behind by its parent belongs to nobody any more.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

#: Seconds between SIGTERM and SIGKILL.
CHILD_GRACE: Final = 1.0
#: Seconds between two tries to collect what has ended, and for how long that is tried.
_REAP_PAUSE: Final = 0.2
_REAP_TIME: Final = 5.0
#: Processes looked at, at most: a fork bomb must not occupy the watchdog for ever.
_MAX_PROCESSES: Final = 10_000
_START_TIME: Final = 19  # field 22 of /proc/<pid>/stat, counted from the one after the command

_PROC: Final = Path("/proc")
_TICKS: Final = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def ending(code: int) -> str:
    """Return how a process ended, from its return code: the fact, and for SIGKILL what may be behind it."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        return f"was killed by signal {-code}"
    hint = " (by hand, or by the system for lack of memory)" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"


class Child(NamedTuple):
    """A process, told from a later one with the same id by its start (clock ticks since boot)."""

    pid: int
    started: int
    is_own: bool  # a child of this process: to be collected by it

    def is_there(self) -> bool:
        """Whether this very process exists, if only as a zombie."""
        return _start_time(self.pid) == self.started

    def send(self, number: int) -> None:
        """Send a signal, unless the process has gone."""
        if self.is_there():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, number)

    def reap(self) -> None:
        """Collect it if it has ended and nobody else did."""
        if self.is_own and self.is_there():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, os.WNOHANG)


class Doomed:
    """Processes on their way out: SIGTERM at once, SIGKILL after `CHILD_GRACE` to what is left, then collected.

    `is_over` says whether the job has come back: before that its own `wait()` should see how its children ended.
    """

    def __init__(self, children: list[Child], is_over: Callable[[], bool]) -> None:
        self._children = children
        self._is_over = is_over
        self._kill_at = time.monotonic() + CHILD_GRACE
        self._give_up_at = self._kill_at + _REAP_TIME
        self.due = self._kill_at
        for child in children:
            child.send(signal.SIGTERM)

    def advance(self, now: float) -> bool:
        """Do what is due. Return whether there is more to do, at `due`."""
        if now < self.due:
            return True
        if self._kill_at <= now:
            self.kill()
        if self._is_over():
            for child in self._children:
                child.reap()
        self._children = [child for child in self._children if child.is_there()]
        self.due = now + _REAP_PAUSE
        return bool(self._children) and now < self._give_up_at

    def kill(self) -> None:
        """Send SIGKILL to what is left, and to what that started meanwhile."""
        for child in self._children:
            for descendant in _descendants([child]):
                descendant.send(signal.SIGKILL)
            child.send(signal.SIGKILL)


def children_of_thread(native_id: int, since: float) -> list[Child]:
    """Return the processes that the thread `native_id` of this process started at or after `since` (monotonic), and theirs."""
    boot = _boot_time_of(since)
    own = [Child(pid, start, True) for pid in _children("self", native_id) if (start := _start_time(pid)) is not None]
    young = [child for child in own if child.started >= boot]
    return [*young, *_descendants(young)]


def descendants(pid: int) -> list[Child]:
    """Return every process below the process `pid`, as far as the system tells."""
    return _below([pid])


def _descendants(roots: list[Child]) -> list[Child]:
    return _below([child.pid for child in roots])


def _below(to_visit: list[int]) -> list[Child]:
    found: dict[int, Child] = {}
    while to_visit and len(found) < _MAX_PROCESSES:
        pid = to_visit.pop()
        for child in _children_of_process(pid):
            start = _start_time(child)
            if start is not None and child not in found:
                found[child] = Child(child, start, False)
                to_visit.append(child)
    return list(found.values())


def _children_of_process(pid: int) -> list[int]:
    try:
        threads = [int(name) for name in os.listdir(_PROC / str(pid) / "task")]
    except OSError:
        return []
    return [child for thread in threads for child in _children(str(pid), thread)]


def _children(process: str, thread: int) -> list[int]:
    try:
        return [int(pid) for pid in (_PROC / process / "task" / str(thread) / "children").read_bytes().split()]
    except OSError:
        return []


def _start_time(pid: int) -> int | None:
    try:
        stat = (_PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    # The command, in parentheses, may hold anything, parentheses too.
    return int(stat[stat.rindex(b")") + 2 :].split()[_START_TIME])


def _boot_time_of(moment: float) -> int:
    """Return a moment of the monotonic clock in clock ticks since boot; time asleep counts there and not here."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    now = time.clock_gettime(clock) if clock is not None else time.monotonic()
    return int((now - (time.monotonic() - moment)) * _TICKS)

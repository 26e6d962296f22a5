"""The board: a piece of shared memory in which a process says what it runs, read by its supervisor.

Written by the process with plain stores, without locks and without a system call, so that it costs a microsecond a job and says
the truth even after `kill -9` or while a C call keeps the interpreter's lock. The supervisor acts on a slot only when it has seen
the same thing twice, so a torn read does no harm.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from uuid import UUID

from django_jobs.outcomes import Attempt

_HEADER = struct.Struct("<qqqqqddd")  # state, running, in hand, done, idle, beat, memory (MB), -
_SLOT = struct.Struct("<qqddqd16s16s")  # active, native thread id, deadline, CPU limit, limit, started, job, token
_SLOT_SIZE = 128
_HEADER_SIZE = 128

_RUNNING, _ENDED = 1, 2
_LIMITS = ("timeout", "heartbeat_timeout", "cancelled")
_TIMEOUT, _HEARTBEAT, _CANCELLED = range(3)
_BROKEN_AT = 112
_OVERFLOW_AT = 120
#: Room for attempts that have ended and are not recorded yet.
ENDED_SLOTS = 512

STARTING, WORKING, DRAINING, STOPPED = range(4)


@dataclass(frozen=True, slots=True)
class Slot:
    """One running attempt, as the board shows it. Times are `time.monotonic()`, which all processes of a machine share."""

    index: int
    thread_id: int
    deadline: float  # of the hard kill; 0 = none
    cpu_limit: float  # CPU seconds of the thread at which it is killed; 0 = none
    limit: str  # what the deadline is of: "timeout", "heartbeat_timeout", or "cancelled" (by force)
    started: float
    job_id: UUID
    token: UUID


@dataclass(frozen=True, slots=True)
class Header:
    """How a process is. `beat` is the time of its last sign of life (monotonic), memory in MB."""

    state: int
    running: int
    in_hand: int
    done: int
    is_idle: bool  # connected, looked for work and found none
    beat: float
    memory_mb: float


class Board:
    """One process's board: made by the supervisor, handed to the process as an open file."""

    def __init__(self, slots: int, fileno: int | None = None, *, grace: float = 5.0) -> None:
        self.slots = slots
        self.grace = grace  # between a soft time-out and the kill, for jobs that do not say
        size = _HEADER_SIZE + slots * _SLOT_SIZE
        if fileno is None:
            with tempfile.TemporaryFile(prefix="django_jobs") as file:
                file.truncate(size)
                self.fileno = os.dup(file.fileno())
        else:
            self.fileno = fileno
        self._map = mmap.mmap(self.fileno, size)
        self._free = list(range(slots - 1, -1, -1))
        self._of: dict[UUID, int] = {}
        self._lock = threading.Lock()

    # -- written by the process

    def header(self, state: int, running: int, in_hand: int, done: int, memory_mb: float, *, idle: bool) -> None:
        """Say how the process is; also its sign of life."""
        _HEADER.pack_into(self._map, 0, state, running, in_hand, done, int(idle), time.monotonic(), memory_mb, 0.0)

    def broken(self) -> None:
        """Say that the process ends by an error of its own, which no job has made."""
        struct.pack_into("<q", self._map, _BROKEN_AT, 1)

    def begin(self, attempt: Attempt, thread_id: int) -> None:
        """Say that the function of `attempt` starts now, in the thread with this native id."""
        now = time.monotonic()
        deadline, why = self._deadline(attempt, now, now)
        cpu_limit = time.thread_time() + attempt.cpu_timeout if attempt.cpu_timeout else 0.0
        with self._lock:
            if not self._free:
                # More is unrecorded than the board can show: from now on it can't tell what never began.
                struct.pack_into("<q", self._map, _OVERFLOW_AT, 1)
                return
            index = self._of[attempt.token] = self._free.pop()
        at = _HEADER_SIZE + index * _SLOT_SIZE
        job, token = attempt.job_id.bytes, attempt.token.bytes
        _SLOT.pack_into(self._map, at, 0, thread_id, deadline, cpu_limit, why, now, job, token)
        struct.pack_into("<q", self._map, at, _RUNNING)

    def _deadline(self, attempt: Attempt, started: float, beat: float) -> tuple[float, int]:
        """Return when the process has to be killed, and for which limit; 0: never."""
        limits = []
        if attempt.timeout:
            limits.append((started + attempt.timeout, _TIMEOUT))
        if attempt.heartbeat_timeout:
            limits.append((beat + attempt.heartbeat_timeout, _HEARTBEAT))
        if not limits:
            return 0.0, _TIMEOUT
        first, why = min(limits)
        return first + (self.grace if attempt.timeout_grace is None else attempt.timeout_grace), why

    def beat(self, attempt: Attempt) -> None:
        """Move the deadline of a job with a heartbeat time-out."""
        index = self._of.get(attempt.token)
        if index is None or not attempt.heartbeat_timeout:
            return
        at = _HEADER_SIZE + index * _SLOT_SIZE
        slot = _SLOT.unpack_from(self._map, at)
        if slot[4] == _CANCELLED:
            return
        deadline, why = self._deadline(attempt, slot[5], time.monotonic())
        struct.pack_into("<d", self._map, at + 16, deadline)
        struct.pack_into("<q", self._map, at + 32, why)

    def end(self, attempt: Attempt) -> None:
        """Say that the function of `attempt` has ended. It stays on the board until its outcome is recorded: it did begin."""
        index = self._of.get(attempt.token)
        if index is not None:
            struct.pack_into("<q", self._map, _HEADER_SIZE + index * _SLOT_SIZE, _ENDED)

    def settled(self, tokens: Iterable[UUID]) -> None:
        """Take attempts off the board whose outcomes are recorded."""
        with self._lock:
            for token in tokens:
                index = self._of.pop(token, None)
                if index is not None:
                    struct.pack_into("<q", self._map, _HEADER_SIZE + index * _SLOT_SIZE, 0)
                    self._free.append(index)

    def doom(self, token: UUID, seconds: float) -> None:
        """Ask the supervisor to kill this process in so many seconds unless the attempt has ended by then: a forced cancel.

        Asking again changes nothing; a deadline that comes sooner stays.
        """
        index = self._of.get(token)
        if index is None:
            return
        at = _HEADER_SIZE + index * _SLOT_SIZE
        slot = _SLOT.unpack_from(self._map, at)
        if slot[4] != _CANCELLED:
            deadline = time.monotonic() + seconds
            struct.pack_into("<d", self._map, at + 16, min(deadline, slot[2]) if slot[2] else deadline)
            struct.pack_into("<q", self._map, at + 32, _CANCELLED)

    # -- read by the supervisor

    def running(self) -> Iterator[Slot]:
        """Yield what runs."""
        return (slot for active, slot in self._slots() if active == _RUNNING)

    def begun(self) -> dict[UUID, float] | None:
        """Return the tokens of what has begun and is not recorded yet, with the times of their starts;

        None if the board can't tell.
        """
        if struct.unpack_from("<q", self._map, _OVERFLOW_AT)[0]:
            return None
        return {slot.token: slot.started for _, slot in self._slots()}

    def _slots(self) -> Iterator[tuple[int, Slot]]:
        for index in range(self.slots):
            at = _HEADER_SIZE + index * _SLOT_SIZE
            active, thread_id, deadline, cpu_limit, why, started, job, token = _SLOT.unpack_from(self._map, at)
            if active:
                yield (
                    active,
                    Slot(index, thread_id, deadline, cpu_limit, _LIMITS[why], started, UUID(bytes=job), UUID(bytes=token)),
                )

    def read_header(self) -> Header:
        """Return how the process is."""
        state, running, in_hand, done, idle, beat, memory, _ = _HEADER.unpack_from(self._map, 0)
        return Header(state, running, in_hand, done, bool(idle), beat, memory)

    @property
    def is_broken(self) -> bool:
        """Whether the process has said that it ends by an error of its own."""
        return bool(struct.unpack_from("<q", self._map, _BROKEN_AT)[0])

    def close(self) -> None:
        """Let go of the memory."""
        self._map.close()
        os.close(self.fileno)

"""Make the identifiers of jobs: UUIDv7, ordered by time, made by the client.

A client-made key means that an enqueue which is repeated after a lost connection inserts its job once.
"""

from __future__ import annotations

import os
import threading
import time
import uuid

_lock = threading.Lock()
_last = 0  # the last 74 bits of time and counter handed out, so that ids of one process rise strictly
_COUNTER_BITS = 26


def uuid7() -> uuid.UUID:
    """Return a UUIDv7 (RFC 9562, section 5.7) that is greater than every one this process made before.

    Milliseconds fill the first 48 bits; a 26-bit counter, started at random within a millisecond, fills `rand_a` and the
    head of `rand_b`, so that equal milliseconds keep their order; 48 random bits remain.
    """
    return uuid7s(1)[0]


def uuid7s(count: int) -> list[uuid.UUID]:
    """Return `count` of them, rising, for the price of few system calls."""
    global _last
    random = os.urandom(3 + 6 * count)
    now = int(time.time() * 1000) << _COUNTER_BITS
    with _lock:
        # A fresh millisecond starts low in the counter's range, to leave room to count up within it.
        fresh = now | int.from_bytes(random[:3], "big")
        first = fresh if fresh > _last else _last + 1
        _last = first + count - 1
    made = []
    for index in range(count):
        milliseconds, counter = divmod(first + index, 1 << _COUNTER_BITS)
        value = (milliseconds & 0xFFFF_FFFF_FFFF) << 80
        value |= 0x7 << 76
        value |= (counter >> 14) << 64
        value |= 0b10 << 62
        value |= (counter & 0x3FFF) << 48
        value |= int.from_bytes(random[3 + 6 * index : 9 + 6 * index], "big")
        made.append(uuid.UUID(int=value))
    return made


def _forget_after_fork() -> None:
    """Give a forked child a lock of its own: the parent's may have been held at the fork."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)

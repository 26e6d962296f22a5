"""Identifiers are UUIDv7: unique, rising, of the right time; whatever the clock, the threads or a fork do."""

from __future__ import annotations

import itertools
import os
import threading
import time
import uuid
from collections.abc import Iterator
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_jobs import ids


@pytest.fixture(autouse=True)
def _a_last_id_of_its_own() -> Iterator[None]:
    """Clocks that a test turns must not push the ids of later tests into the future."""
    with mock.patch.object(ids, "_last", 0):
        yield


def milliseconds(identifier: uuid.UUID) -> int:
    return identifier.int >> 80


def test_version_and_variant() -> None:
    identifier = ids.uuid7()
    assert identifier.version == 7
    assert identifier.variant == uuid.RFC_4122


def test_an_id_begins_with_the_time() -> None:
    before = int(time.time() * 1000)
    identifier = ids.uuid7()
    after = int(time.time() * 1000)
    assert before <= milliseconds(identifier) <= after


def test_ids_rise_strictly_and_as_text_too() -> None:
    made = [ids.uuid7() for _ in range(20_000)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)
    assert [str(each) for each in made] == sorted(str(each) for each in made)


@given(st.lists(st.floats(min_value=1e9, max_value=4e9), min_size=2, max_size=30))
def test_ids_rise_whatever_the_clock_does(clock: list[float]) -> None:
    with mock.patch.object(ids, "_last", 0), mock.patch.object(ids.time, "time", side_effect=clock):
        made = [ids.uuid7() for _ in clock]
    assert all(earlier < later for earlier, later in itertools.pairwise(made))
    assert all(each.version == 7 and each.variant == uuid.RFC_4122 for each in made)
    # An id is never older than the clock said, nor newer than the clock ever was (give or take the counter's carry).
    assert all(milliseconds(each) >= int(now * 1000) for each, now in zip(made, clock, strict=True))
    assert all(milliseconds(each) <= int(max(clock) * 1000) + 1 for each in made)


def test_a_counter_that_is_full_carries_into_the_time() -> None:
    full = (123_456 << 26) | ((1 << 26) - 1)
    with mock.patch.object(ids, "_last", full), mock.patch.object(ids.time, "time", return_value=0.0):
        identifier = ids.uuid7()
    assert milliseconds(identifier) == 123_457
    assert identifier.version == 7


def test_threads_never_make_the_same_id() -> None:
    made: list[list[uuid.UUID]] = [[] for _ in range(8)]

    def make(mine: list[uuid.UUID]) -> None:
        mine.extend(ids.uuid7() for _ in range(2_000))

    threads = [threading.Thread(target=make, args=(mine,)) for mine in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    everything = [each for mine in made for each in mine]
    assert len(set(everything)) == len(everything) == 16_000
    assert all(mine == sorted(mine) for mine in made)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_b13_a_forked_child_makes_other_ids_also_if_the_lock_was_held_at_the_fork() -> None:
    readable, writable = os.pipe()
    with ids._lock:  # as if another thread were inside uuid7() at that moment
        child = os.fork()
        if child == 0:  # pragma: no cover - another process
            os.write(writable, ids.uuid7().bytes)
            os._exit(0)
    os.close(writable)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        time.sleep(0.01)
    else:
        os.kill(child, 9)
        os.waitpid(child, 0)
        pytest.fail("the child waits for a lock that nobody will release")
    theirs = os.read(readable, 16)
    os.close(readable)
    assert status == 0
    assert uuid.UUID(bytes=theirs) != ids.uuid7()

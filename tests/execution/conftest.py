"""An executor for each test, and one slot of a pool."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import connections

from django_jobs.execution.executor import Executor
from django_jobs.execution.timeouts import Watchdog
from tests.execution import tasks
from tests.execution.support import Recorder, Slot, find


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def executor(recorder: Recorder) -> Iterator[Executor]:
    tasks.reset()
    watchdog = Watchdog()
    yield Executor(recorder, find_task=find, watchdog=watchdog, board=recorder)
    watchdog.stop()


@pytest.fixture
def slot(executor: Executor) -> Iterator[Slot]:
    slot = Slot(executor)
    yield slot
    slot.pool.submit(connections.close_all).result(10)
    slot.pool.shutdown()

"""The loop on which coroutines run, as a worker process has it: no job takes it from the others."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from django_jobs.execution.executor import Executor
from django_jobs.outcomes import Failed, Finished, Succeeded
from django_jobs.worker.pool import Pool
from tests.execution import tasks
from tests.execution.support import attempt_of, wait_until


@pytest.fixture
def pool(executor: Executor) -> Iterator[Pool]:
    pool = Pool(executor, threads=1, async_jobs=5, on_finished=lambda: None)
    pool.start()
    yield pool
    pool.close()
    assert wait_until(lambda: not any(thread.is_alive() for thread in pool._threads)), "the loop's thread has not ended"


def finish(pool: Pool, count: int) -> list[Finished]:
    finished: list[Finished] = []

    def enough() -> bool:
        finished.extend(pool.take_finished())
        return len(finished) >= count

    wait_until(enough)
    return finished


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("how", ["itself", "sub-task", "forgotten sub-task", "callback", "stop"])
def test_a_coroutine_that_wants_to_exit_ends_alone(
    how: str, error: type[BaseException], pool: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    """asyncio lets these two out of `run_forever()`, whoever raised them: the loop has to go on for the other jobs."""
    other, exiting = attempt_of(tasks.awaits_open_gate), attempt_of(tasks.exits_on_loop, how, error.__name__)
    later = attempt_of(tasks.aadd, 1, 2)
    pool.put([other])
    wait_until(lambda: pool.running == 1)
    with caplog.at_level(logging.ERROR):
        pool.put([exiting])
        (ended,) = finish(pool, 1)
        pool.put([later])
        tasks.gate.set()
        rest = {finished.attempt.token: finished.outcome for finished in finish(pool, 2)}
    assert ended.attempt is exiting
    if how in ("itself", "sub-task"):
        assert isinstance(ended.outcome, Failed)
        assert ended.outcome.error.exception_class == f"builtins.{error.__name__}"
        assert ended.outcome.final
    else:
        assert ended.outcome == Succeeded()
    assert rest == {other.token: Succeeded("through"), later.token: Succeeded(3)}
    assert pool.running == 0
    assert ("goes on" in caplog.text) is (how not in ("itself", "stop"))

"""Batches of jobs that a process has recorded: looked at once in a while, in a later cycle; after a failure others do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import OperationalError

from django_jobs import Batch
from django_jobs.models import Batch as Row
from django_jobs.models import Job
from django_jobs.worker import followers
from tests.support.tasks import add
from tests.support.worker import until
from tests.worker.test_control import Bench

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.control._disconnect(None)


def work(bench: Bench) -> None:
    """Claim what is ready, run it without a thread, and record it."""
    control = bench.control
    control.claims.next_poll = 0.0
    control._cycle()
    control._to_record += [bench.executor.run(item.attempt) for item in control.hands.items.values()]
    bench.pool.take_back()
    control._cycle()


def test_the_end_of_a_batch_is_found_in_a_later_cycle_and_its_callback_claimed(bench: Bench) -> None:
    with Batch(on_finish=add.s(1)) as batch:
        batch.add_many(add, [(1,)])
    work(bench)
    assert bench.control.followers.is_due
    assert not bench.control.is_idle, "it has yet to look"
    assert Row.objects.get().finished_at is None
    until(lambda: bench.control._cycle() or Row.objects.get().finished_at, "the batch to finish")
    assert not bench.control.followers.is_due
    callback = Row.objects.get().on_finish_id
    until(lambda: bench.control._cycle() or Job.objects.get(id=callback).status == "running", "the callback to be claimed")


def test_a_look_that_fails_costs_no_outcome(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with Batch() as batch:
        batch.add_many(add, [(1,)])
    calls = []

    def fail(*_args: object) -> None:
        calls.append(1)
        raise OperationalError("canceling statement due to lock timeout")

    monkeypatch.setattr(followers, "look", fail)
    monkeypatch.setattr(followers, "LOOK_SECONDS", 0.0)
    work(bench)
    with pytest.raises(OperationalError) as caught:
        bench.control._cycle()
    assert bench.control._rescue(caught.value)
    bench.control._cycle()
    assert calls == [1], "others will look"
    assert Job.objects.get().status == "succeeded"

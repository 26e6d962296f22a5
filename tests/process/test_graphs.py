"""Graphs run by real worker processes that are killed: each job after its parents, none forgotten, none twice for one release."""

from __future__ import annotations

import os
import random
import signal
import statistics
import uuid
from itertools import pairwise
from typing import Any

import pytest
from django.db import connection, transaction

from django_jobs import chain, graph, group
from django_jobs.lifecycle.claim import QueueFilter, claim
from django_jobs.lifecycle.record import record
from django_jobs.models import Edge, Ended, Job
from django_jobs.outcomes import Finished, Succeeded
from django_jobs.statuses import Status
from tests.process.conftest import Start
from tests.project import jobs
from tests.support.worker import Ledger, ended, until


def test_a_chain_hops_within_a_tenth_of_a_second(start: Start, ledger: Ledger) -> None:
    start("--processes=2", "--threads=1", POLL_INTERVAL=2).works(2)
    result = chain(*(jobs.ledger.s() for _ in range(30))).enqueue()
    ended(*result)
    starts = [ledger.started(job).at for job in result]
    assert starts == sorted(starts)
    hops = [later - earlier for earlier, later in pairwise(starts)]
    assert statistics.median(hops) < 0.1, hops


def test_results_of_parents_reach_threads_coroutines_transactions_and_processes_of_their_own(start: Start) -> None:
    start("--processes=1", "--threads=2", POLL_INTERVAL=2).works(1)
    result = chain(group(jobs.add.s(1, 2), jobs.add.s(3, 4)), jobs.aheirs.s(), jobs.heirs_at_once.s(), jobs.heirs.s()).enqueue()
    assert [row.result for row in ended(*result)] == [3, 7, [3, 7], [[3, 7]], [[[3, 7]]]]


def test_b43_with_processes_killed_all_the_while_each_job_runs_after_its_parents_and_all_end(
    start: Start, ledger: Ledger
) -> None:
    """Random graphs, some of whose jobs kill their process, and children killed from outside."""
    chance = random.Random(20)
    results = []
    for _ in range(15):
        drawing, nodes = graph(), []
        for _job in range(8):
            node = jobs.die.s("kill", times=1) if chance.random() < 0.1 else jobs.ledger.s(seconds=chance.random() / 20)
            after = chance.sample(nodes, min(len(nodes), chance.randrange(4)))
            nodes.append(drawing.add(node.using(max_attempts=20, backoff=0.1), after=after))
        results += drawing.enqueue()
    runner = start("--processes=3", "--threads=2", GRACE=5, POLL_INTERVAL=2).works(3)
    for _ in range(4):
        begun = len(ledger.starts())
        until(lambda begun=begun: len(ledger.starts()) > begun + 8 or _all_ended(results), "more jobs to begin", within=60)
        if children := runner.children():
            os.kill(chance.choice(children), signal.SIGKILL)
    rows = ended(*results, within=90)
    assert {job.status for job in rows} == {Status.SUCCEEDED}
    # The line at the end of a parent is before each line at the start of its children.
    for parent, child in Edge.objects.values_list("parent_id", "child_id"):
        assert ledger.ends(parent)[-1].at <= ledger.starts(child)[0].at
    lost = sum(job.attempts.count() for job in rows)
    assert len(ledger.starts()) <= len(rows) + lost, "only what was lost began again"
    until(lambda: not Ended.objects.exists(), "all to be followed")


def _all_ended(results: list[Any]) -> bool:
    return not Job.objects.filter(id__in=[job.id for job in results]).exclude(status=Status.SUCCEEDED).exists()


@pytest.mark.promise
def test_what_a_dead_process_has_not_followed_is_followed_by_others(start: Start, ledger: Ledger) -> None:
    """It dies between the commit of an outcome and the look at what comes after it."""
    first, second = jobs.ledger.s(), jobs.ledger.s()
    parent, child = chain(first, second).enqueue()
    with transaction.atomic():
        (attempt,) = claim(
            connection,
            worker=uuid.uuid4(),
            worker_name="dead",
            tokens=[uuid.uuid4()],
            free=1,
            grace=10,
            queues=QueueFilter(),
        )
        record(connection, [Finished(attempt, Succeeded("by hand"))], worker_name="dead")
    assert Job.objects.get(id=child.id).status == Status.WAITING
    start("--threads=1")
    assert ended(child, within=20)[0].status == Status.SUCCEEDED
    assert not ledger.starts(parent)


def test_drain_runs_a_graph_to_its_end(start: Start, ledger: Ledger) -> None:
    result = chain(*(jobs.ledger.s() for _ in range(5))).enqueue()
    runner = start("--drain", "--processes=2", "--threads=1")
    assert runner.process.wait(60) == 0
    assert [job.status for job in ended(*result, within=1)] == [Status.SUCCEEDED] * 5
    assert len(ledger.starts()) == 5

"""Graphs with unique jobs: a live job that has the key takes the place of the new one."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import pairwise
from uuid import UUID

import pytest
from django.db import connection, connections, transaction

from django_jobs.exceptions import InvalidGraph
from django_jobs.lifecycle import control
from django_jobs.lifecycle.spec import JobSpec, NewJob
from django_jobs.lifecycle.twins import insert_graph_or_find
from django_jobs.models import Edge, Job
from tests.support.jobs import claim_jobs

pytestmark = pytest.mark.django_db


def new(name: str, key: str | None = None) -> NewJob:
    return NewJob(JobSpec(task=f"tests.nowhere.{name}"), [], {}, unique_key=key)


def store(text: str, keys: Sequence[str] = "") -> tuple[UUID | None, dict[str, str], dict[str, UUID]]:
    """Store a graph such as "a>b b>c"; jobs in `keys` have their letters as unique keys.

    Return its id, the status of each of its jobs or "twin", and the ids under which they are stored.
    """
    names = list(dict.fromkeys(text.replace(">", " ").split()))
    jobs = {name: new(name, name if name in keys else None) for name in names}
    edges = [(jobs[part[0]].id, jobs[part[2]].id) for part in text.split() if ">" in part]
    graph, twins = insert_graph_or_find(list(jobs.values()), edges, using="default")
    stored = dict(Job.objects.values_list("id", "status"))
    ids = {name: twins.get(job.id, job.id) for name, job in jobs.items()}
    return graph, {name: "twin" if job.id in twins else stored[job.id] for name, job in jobs.items()}, ids


def edges() -> set[str]:
    """Return the edges by the names of their tasks, as "ab"."""
    pairs = Edge.objects.values_list("parent__task", "child__task")
    return {f"{parent[-1]}{child[-1]}" for parent, child in pairs}


def test_a_graph_without_twins_is_stored_whole() -> None:
    graph, statuses, _ = store("a>b b>c", "abc")
    assert statuses == {"a": "ready", "b": "waiting", "c": "waiting"}
    assert (edges(), set(Job.objects.values_list("graph", flat=True))) == ({"ab", "bc"}, {graph})


@pytest.mark.parametrize("status", ["ready", "running", "waiting"])
def test_a_twin_takes_the_place_of_a_node_and_its_children_wait_for_it(status: str) -> None:
    twin = new("b", "b")
    insert_graph_or_find([twin], [], using="default")
    if status == "running":
        claim_jobs()
    else:
        Job.objects.filter(pk=twin.id).update(status=status)
    graph, statuses, ids = store("a>b b>c b>d", "b")
    assert (statuses, ids["b"]) == ({"a": "ready", "b": "twin", "c": "waiting", "d": "waiting"}, twin.id)
    assert edges() == {"bc", "bd"}, "the twin waits for nothing new"
    assert Job.objects.get(pk=twin.id).status == status
    assert set(Job.objects.values_list("graph", flat=True)) == {graph}
    if status == "ready":
        control.done([twin.id])
        assert {*Job.objects.filter(pk__in=[ids["c"], ids["d"]]).values_list("status", flat=True)} == {"ready"}


def test_a_job_that_has_ended_is_no_twin() -> None:
    _, _, ids = store("a", "a")
    control.cancel([ids["a"]])
    _, statuses, again = store("a>b", "a")
    assert (statuses, again["a"] != ids["a"]) == ({"a": "ready", "b": "waiting"}, True)


def test_a_graph_is_a_duplicate_only_if_each_job_has_its_twin() -> None:
    first, _, ids = store("a>b b>c", "abc")
    graph, statuses, again = store("a>b b>c", "abc")
    assert (graph, set(statuses.values()), again) == (first, {"twin"}, ids)
    assert (Job.objects.count(), Edge.objects.count()) == (3, 2)
    graph, statuses, again = store("a>b b>c c>d", "abc")
    assert (graph, statuses) == (first, {"a": "twin", "b": "twin", "c": "twin", "d": "waiting"})
    assert {name: again[name] for name in "abc"} == ids
    assert edges() == {"ab", "bc", "cd"}


def test_a_graph_may_come_after_stored_jobs_too() -> None:
    older, other = new("x"), new("a", "a")
    insert_graph_or_find([older], [], using="default")
    insert_graph_or_find([other], [], using="default")
    twin, child = new("a", "a"), new("b")
    graph, twins = insert_graph_or_find(
        [twin, child], [(older.id, twin.id), (older.id, child.id), (twin.id, child.id)], using="default"
    )
    assert (twins, edges()) == ({twin.id: other.id}, {"xb", "ab"})
    assert Job.objects.get(pk=child.id).graph == graph
    lonely = new("a", "a")
    assert insert_graph_or_find([lonely], [(older.id, lonely.id)], using="default")[1] == {lonely.id: other.id}
    assert (Job.objects.count(), Edge.objects.count()) == (3, 2)


def test_new_jobs_with_one_key_are_one_job_after_the_parents_of_all() -> None:
    jobs = [new(name, key) for name, key in (("a", None), ("b", "k"), ("c", None), ("d", "k"), ("e", None))]
    a, b, c, d, e = (job.id for job in jobs)
    _, twins = insert_graph_or_find(jobs, [(a, b), (c, d), (d, e), (b, e)], using="default")
    assert (twins, edges()) == ({d: b}, {"ab", "cb", "be"})
    again = [new("a"), *(new("x", "k") for _ in range(2))]
    _, twins = insert_graph_or_find(again, [(again[0].id, again[1].id)], using="default")
    assert twins == {again[1].id: b, again[2].id: b}
    first, between, second = new("x", "y"), new("z"), new("x", "y")
    count = Job.objects.count()
    with pytest.raises(InvalidGraph, match="come after itself"):
        insert_graph_or_find([first, between, second], [(first.id, between.id), (between.id, second.id)], using="default")
    assert Job.objects.count() == count


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(connection.vendor == "sqlite", reason="one writer at a time")
def test_two_that_store_the_same_graph_at_once_store_it_once() -> None:
    gate = threading.Barrier(2)
    found: list[int] = []

    def run() -> None:
        jobs = [new(name, name) for name in "abcdef"]
        pairs = [(one.id, two.id) for one, two in pairwise(jobs)]
        try:
            gate.wait(10)
            with transaction.atomic():
                _, twins = insert_graph_or_find(jobs, pairs, using="default")
            found.append(len(twins))
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(found) == [0, 6]
    assert (Job.objects.count(), Edge.objects.count()) == (6, 5)

"""Graphs: built in memory, stored in one go, run in order."""

from __future__ import annotations

import asyncio
import gc
import time
import warnings
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connection, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_jobs import (
    InvalidArguments,
    InvalidGraph,
    InvalidOption,
    JobDoesNotExist,
    JobExists,
    Status,
    WaitTimeout,
    chain,
    graph,
    group,
    job,
    split,
)
from django_jobs.backend import JobsBackend
from django_jobs.compat import Task, task_enqueued
from django_jobs.graphs.plan import MAX_EDGES_BETWEEN, plan
from django_jobs.lifecycle import control
from django_jobs.models import Edge, Job
from django_jobs.testing import arun_jobs, run_jobs
from tests.project.jobs import heirs
from tests.support.tasks import add, after_commit, double, fail, keep

Node = Any


@job(takes_context=True)
def note(context: Any, name: str = "") -> list[Any]:
    """Tell what the parents have returned."""
    return [name, context.parent_results]


@job(takes_context=True)
def note_twice(context: Any) -> bool:
    return context.parent_results is context.parent_results


@job(takes_context=True)
async def anote(context: Any, name: str = "") -> list[Any]:
    with pytest.raises(SynchronousOnlyOperation, match="aparent_results"):
        _ = context.parent_results
    found = await context.aparent_results()
    assert context.parent_results is found
    return [name, found]


@job(takes_context=True)
def hop(context: Any) -> int:
    return 1 + sum(context.parent_results)


@job(takes_context=True)
def shown(context: Any) -> str:
    return repr(context.parent_results)


LEDGER: list[str] = []


@job
def write(name: str) -> str:
    LEDGER.append(name)
    return name


@job
def broken(name: str) -> None:
    LEDGER.append(name)
    if name in BAD:
        raise ValueError(name)


BAD: set[str] = set()


class Elsewhere(JobsBackend):
    """A back end whose jobs are in another database."""

    using = "elsewhere"  # type: ignore[assignment]


@pytest.fixture(autouse=True)
def _clean() -> None:
    LEDGER.clear()
    BAD.clear()


def edges(node: Node) -> list[tuple[str, str]]:
    """Return the edges of a graph by the first arguments of its jobs."""
    made = plan(node)
    names = [str(signature.args[0]) for signature in made.signatures]
    return [(names[parent], names[child]) for parent, child in made.edges if isinstance(parent, int)]


def w(name: str, **options: Any) -> Node:
    return write.s(name).using(**options) if options else write.s(name)


def statuses(result: Any) -> list[str]:
    return [status.value for status in result.statuses().values()]


def values(result: Any) -> list[Any]:
    result.refresh()
    return [one.return_value for one in result]


# -- building


@pytest.mark.once
@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (lambda: chain(w("a"), w("b"), w("c")), "ab bc"),
        (lambda: w("a").then(w("b")).then(w("c")), "ab bc"),
        (lambda: chain(w("a"), group(w("b"), w("c")), w("d")), "ab ac bd cd"),
        (lambda: group(w("a"), w("b")), ""),
        (lambda: chain(group(w("a"), w("b")), group(w("c"), w("d"))), "ac bc ad bd"),
        (lambda: chain(group(chain(w("a"), w("b")), w("c")), chain(w("d"), w("e"))), "ab de bd cd"),
        (lambda: group(w("a"), chain(w("b"), w("c"))).then(w("d"), w("e")), "bc ad cd de"),
    ],
)
def test_nodes_are_nested_at_will(node: Callable[[], Node], expected: str) -> None:
    built = node()
    found = ["".join(pair) for pair in edges(built)]
    assert (sorted(found), len(found)) == (sorted(expected.split()), len(set(found)))
    built.is_settled = True


@pytest.mark.once
def test_a_graph_takes_any_order_and_is_a_node_too() -> None:
    inner = graph()
    b = w("b")
    d = inner.add(w("d"), after=[b])
    inner.add(b)
    inner.add(w("c"), after=b)
    inner.add(chain(w("x"), w("y")), after=[d])
    outer = chain(w("a"), inner, w("z"))
    assert sorted("".join(pair) for pair in edges(outer)) == sorted(["bd", "bc", "dx", "xy", "ab", "cz", "yz"])
    assert sorted(edges(outer)) == sorted(edges(outer)), "taking it apart changes nothing"
    outer.is_settled = True


@pytest.mark.once
def test_a_node_deep_inside_may_be_named() -> None:
    made = graph()
    x = w("x")
    made.add(chain(w("a"), group(x, w("y"))))
    made.add(w("b"), after=[x, x])
    made.add(w("c"), after=x)
    made.add(made.parts[1], after=made.parts[0])
    assert sorted("".join(pair) for pair in edges(made)) == sorted(["ax", "ay", "xb", "xc", "yb"])
    made.is_settled = True


def cycle() -> Node:
    made = graph()
    first = made.add(w("a"))
    second = made.add(w("b"), after=first)
    made.add(chain(w("c"), w("d")), after=second)
    made.add(first, after=[made.parts[2]])
    return made


def own_part() -> Node:
    made = graph()
    inside = graph()
    inside.add(w("a"))
    made.add(chain(inside, w("b")))
    inside.add(w("c"), after=made.parts[0])
    return made


def in_itself() -> Node:
    made = graph()
    made.add(chain(made, w("a")))
    return made


def of_another() -> Node:
    other = graph()
    stranger = other.add(w("a"))
    other.is_settled = True
    made = graph()
    made.add(w("b"), after=stranger)
    return made


def twice() -> Node:
    same = w("a")
    return chain(same, w("b"), same)


def used() -> Node:
    same = w("a")
    first = group(same, w("b"))
    first.is_settled = True
    return first and chain(same)


def part() -> Node:
    same = chain(w("a"))
    whole = group(same)
    whole.is_settled = True
    same.enqueue()
    return whole


@pytest.mark.once
@pytest.mark.django_db
@pytest.mark.parametrize(
    ("build", "error", "says"),
    [
        (cycle, InvalidGraph, r"A cycle of 4: .*write\('a'\)"),
        (own_part, InvalidGraph, "which it is part of: that is a cycle"),
        (in_itself, InvalidGraph, "<chain of 2> would hold itself: that is a cycle"),
        (of_another, InvalidGraph, r"graph\[0\]: .*'b'.* comes after .*'a'.*, which is not part of this graph: add it"),
        (twice, InvalidGraph, r"chain\[2\]: .*'a'.* is there twice"),
        (used, InvalidGraph, r"group\[0\]: .*'a'.* is used already: each job has one place"),
        (part, InvalidGraph, r"group\[0\]: <chain of 1> is used already"),
        (lambda: chain(), InvalidGraph, "chain of nothing"),
        (lambda: group(), InvalidGraph, "group of nothing"),
        (lambda: graph(), InvalidGraph, "<graph of 0> is empty"),
        (lambda: chain(w("a"), graph()), InvalidGraph, r"chain\[1\]: <graph of 0> is empty"),
        (lambda: split(keep, [], 10), InvalidGraph, "there are no items"),
        (lambda: chain(w("a"), write), InvalidGraph, r"chain\[1\]: .* is no node: use task.s"),
        (lambda: group([w("a")]), InvalidGraph, r"group\[0\]: .* is no node"),
        (lambda: graph().add(w("a"), after=["b"]), InvalidGraph, "'b' is no node and no result"),
        (lambda: split(keep, [1], 0), ValueError, "at least 1"),
        (lambda: split(keep, [1], 1.5), TypeError, "whole number"),
        (lambda: split(keep.s(), [1], 1), TypeError, "no task"),
        (lambda: chain(w("a"), on_parent_failure="stop"), InvalidOption, "'stop' is unknown: use one of wait, cancel, run"),
        (lambda: w("a", on_parent_cancel="retry"), InvalidOption, "on_parent_cancel: 'retry' is unknown"),
        (lambda: graph().add(w("a"), on_parent_failure="x"), InvalidOption, "on_parent_failure"),
        (lambda: w("a").then(w("b"), on_failure="run"), TypeError, "no policy"),
        (
            lambda: chain(w("a"), group(w("b"), add.s(1, c=2))),
            InvalidArguments,
            r"chain\[1\].group\[1\]: .*add\(1, c=2\): add\(\): .*'c'",
        ),
        (lambda: chain(w("a"), keep.s(object())), InvalidArguments, r"chain\[1\]: .*keep\(<object .*\): args\[0\]"),
    ],
)
def test_what_cant_be_stored_is_refused_before_anything_is(build: Callable[[], Node], error: type[Exception], says: str) -> None:
    with warnings.catch_warnings(record=True) as caught, CaptureQueriesContext(connection) as queries:
        warnings.simplefilter("always")
        with pytest.raises(error, match=says) as raised:
            w("z").then(build()).enqueue()
        del raised
        gc.collect()
    assert (len(queries), Job.objects.count()) == (0, 0)
    assert [str(warning.message) for warning in caught] == []


@pytest.mark.once
def test_two_big_groups_in_a_row_are_refused_with_advice() -> None:
    big = [group(*(w("x") for _ in range(400))) for _ in range(2)]
    assert MAX_EDGES_BETWEEN < 160_000
    refused = chain(*big)
    with pytest.raises(InvalidGraph, match=r"400 jobs that each come after 400.*Put one job in between"):
        plan(refused)
    between = chain(group(*(w("x") for _ in range(400))), w("y"), group(*(w("x") for _ in range(400))))
    assert len(plan(between).edges) == 800
    between.is_settled = refused.is_settled = True


def built() -> None:
    group(w("a"), chain(w("b"), w("c")))


def built_by_hand() -> None:
    made = graph()
    made.add(w("a"))


def built_wrong() -> None:
    with pytest.raises(InvalidGraph):
        chain(group(w("a")), 5)  # type: ignore[arg-type]


@pytest.mark.once
@pytest.mark.parametrize(
    ("build", "said"), [(built, ["group"]), (built_by_hand, ["graph"]), (built_wrong, []), (graph, []), (lambda: w("a"), [])]
)
def test_a_graph_that_was_never_enqueued_warns_when_it_is_collected(build: Callable[[], Any], said: list[str]) -> None:
    gc.collect()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        build()
        gc.collect()
    found = [(str(warning.message), warning.category, warning.filename) for warning in caught]
    assert found == [(f"A {kind} was built and never enqueued.", RuntimeWarning, __file__) for kind in said]


@pytest.mark.django_db
def test_a_graph_that_was_enqueued_does_not_warn_and_is_not_enqueued_again() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = chain(w("a"), group(w("b")))
        result = made.enqueue()
        for again in (made, made.parts[0], made.parts[1]):
            with pytest.raises(InvalidGraph, match="is enqueued already"):
                again.enqueue()
        with pytest.raises(InvalidGraph, match="is enqueued already"):
            chain(made.parts[0])
        del made, again, result
        gc.collect()
    assert Job.objects.count() == 2


# -- stored


@pytest.mark.django_db
def test_a_graph_is_stored_in_the_callers_transaction() -> None:
    told: list[str] = []

    def listen(sender: Any, task_result: Any, **kwargs: Any) -> None:
        told.append(task_result.id)

    task_enqueued.connect(listen)
    try:
        with transaction.atomic():
            chain(w("a"), w("b")).enqueue()
            transaction.set_rollback(True)
        assert (Job.objects.count(), Edge.objects.count()) == (0, 0)
        told.clear()
        result = chain(w("a"), group(w("b"), w("c"))).enqueue()
    finally:
        task_enqueued.disconnect(listen)
    assert told == [one.id for one in result]
    assert {str(one) for one in Job.objects.values_list("graph", flat=True)} == {result.id}
    assert statuses(result) == [one.job_status.value for one in result] == ["ready", "waiting", "waiting"]
    assert [one.status.value for one in result] == ["READY"] * 3
    assert Edge.objects.count() == 2
    assert run_jobs() == 3
    assert LEDGER == ["a", "b", "c"]


@pytest.mark.django_db
def test_the_results_of_nodes() -> None:
    a, b, c = w("a"), w("b"), w("c")
    rest = group(b, c)
    whole = chain(a, rest)
    result = whole.enqueue()
    assert [one.args for one in result[rest]] == [["b"], ["c"]]
    assert (result[a].args, result[whole], len(result)) == (["a"], list(result), 3)
    assert result.ends == result.results[1:]
    with pytest.raises(KeyError, match="not part"):
        result[w("a")]
    assert run_jobs() == 3
    assert values(result) == ["a", "b", "c"]
    assert result.wait(1) is result


@pytest.mark.django_db
def test_policies_are_inherited_from_the_outside() -> None:
    inner = graph(on_parent_cancel="run")
    x = inner.add(w("x"))
    inner.add(w("y"), after=x, on_parent_failure="cancel")
    node = chain(w("a"), w("b"), w("c", on_parent_failure="wait"), inner, on_parent_failure="run")
    node.enqueue()
    rows = Job.objects.order_by("id").values_list("args", "on_parent_failure", "on_parent_cancel")
    assert [(args[0], failure, cancel) for args, failure, cancel in rows] == [
        ("a", "", ""),  # it has no parent
        ("b", "run", ""),
        ("c", "", ""),
        ("x", "run", "run"),
        ("y", "cancel", "run"),
    ]


@pytest.mark.django_db
def test_options_of_a_job_and_descriptions_of_parts() -> None:
    group(write.s("a").using(priority=5, tags=["x"], description="First"), w("b")).enqueue()
    rows = Job.objects.order_by("id").values_list("priority", "tags", "description")
    assert rows[0] == (5, ["x"], "First")
    result = split(keep.using(description="Import"), range(7), 3, lang="de").enqueue()
    rows = Job.objects.filter(graph=result.id).order_by("id").values_list("args", "kwargs", "description", "status")
    assert list(rows) == [
        ([[0, 1, 2]], {"lang": "de"}, "Import (split 1/3)", "ready"),
        ([[3, 4, 5]], {"lang": "de"}, "Import (split 2/3)", "ready"),
        ([[6]], {"lang": "de"}, "Import (split 3/3)", "ready"),
    ]
    chained = split(keep, (str(number) for number in range(3)), 2, chain=True).enqueue()
    assert statuses(chained) == ["ready", "waiting"]
    assert [one.description[-11:] for one in Job.objects.filter(graph=chained.id).order_by("id")] == [
        "(split 1/2)",
        "(split 2/2)",
    ]


@pytest.mark.django_db
def test_jobs_may_come_after_stored_ones() -> None:
    first = w("a").enqueue()
    plain = write.enqueue("b")
    assert run_jobs() == 2
    later = write.enqueue("c")
    more = graph()
    more.add(note.s("d"), after=[plain, first])
    more.add(note.s("e"), after=[later, plain])
    result = more.enqueue()
    assert statuses(result) == ["ready", "waiting"]
    assert run_jobs() == 3
    assert values(result) == [["d", ["b", "a"]], ["e", ["c", "b"]]]
    gone = graph()
    gone.add(w("f"), after=[plain])
    Job.objects.filter(pk=plain.job_id).delete()
    with pytest.raises(JobDoesNotExist, match=plain.id):
        gone.enqueue()


@pytest.mark.once
@pytest.mark.django_db
def test_jobs_of_other_databases_and_back_ends_are_refused() -> None:
    tasks = {
        "default": {"BACKEND": "django_jobs.backend.JobsBackend"},
        "bulk": {"BACKEND": "django_jobs.backend.JobsBackend"},
        "foreign": {"BACKEND": "tests.test_graphs.Elsewhere"},
        "dummy": {"BACKEND": f"{Task.__module__.rpartition('.')[0]}.backends.dummy.DummyBackend"},
    }
    with override_settings(TASKS=tasks):
        with pytest.raises(InvalidGraph, match=r"chain\[1\]: .* is a job of the database 'elsewhere', but chain\[0\]"):
            chain(w("a"), w("b", backend="foreign")).enqueue()
        with pytest.raises(InvalidGraph, match="'dummy' can't store graphs"):
            chain(w("a"), w("b", backend="dummy")).enqueue()
        made = graph()
        made.add(w("b"), after=write.using(backend="bulk").enqueue("a"))
        assert len(made.enqueue()) == 1


@pytest.mark.django_db(transaction=True)
def test_a_graph_may_wait_for_a_commit() -> None:
    told: list[str] = []

    def listen(sender: Any, task_result: Any, **kwargs: Any) -> None:
        told.append(task_result.id)

    task_enqueued.connect(listen)
    try:
        with transaction.atomic():
            result = chain(after_commit.s(1), note.s("b")).enqueue()
            assert (result.id, Job.objects.count(), told) == ("", 0, [])
            with pytest.raises(WaitTimeout):
                result.wait(0.01)
        assert told == [one.id for one in result]
    finally:
        task_enqueued.disconnect(listen)
    assert [one.job_status for one in result] == [Status.READY, Status.WAITING]
    assert result.id == str(Job.objects.values_list("graph", flat=True)[0])
    assert run_jobs() == 2
    assert values(result) == [1, ["b", [1]]]


@job(takes_context=True)
def add_follow_up(context: Any) -> str:
    made = graph()
    made.add(note.s("after"), after=[context.task_result])
    made.enqueue()
    return "before"


@pytest.mark.django_db
def test_a_running_job_may_add_what_comes_after_itself() -> None:
    add_follow_up.enqueue()
    assert run_jobs() == 2
    assert Job.objects.get(task=note.module_path).result == ["after", ["before"]]


# -- parents' results


@pytest.mark.django_db
def test_a_child_reads_its_parents_results_in_the_order_in_which_they_were_named() -> None:
    made = graph()
    first, second, third = (made.add(w(name)) for name in "abc")
    last = made.add(note.s("d"), after=[third, first, second])
    result = made.enqueue()
    assert run_jobs() == 4
    values(result)
    assert result[last].return_value == ["d", ["c", "a", "b"]]


@pytest.mark.django_db
def test_a_follow_up_of_a_group_gets_a_list_however_many_there_are() -> None:
    single = chain(group(w("a")), note.s("one")).enqueue()
    several = chain(group(w("b"), chain(w("x"), w("c"))), note.s("two")).enqueue()
    alone = note.enqueue("none")
    run_jobs()
    alone.refresh()
    assert single.wait(1).ends[0].return_value == ["one", ["a"]]
    assert several.wait(1).ends[0].return_value == ["two", ["b", "c"]]
    assert alone.return_value == ["none", []]


@pytest.mark.django_db
def test_results_are_read_when_asked_for_and_once() -> None:
    chain(w("a"), note_twice.s(), w("c")).enqueue()
    note.enqueue("alone")
    with CaptureQueriesContext(connection) as queries:
        assert run_jobs() == 4
    reads = [query["sql"] for query in queries if Edge._meta.db_table in query["sql"] and "result" in query["sql"]]
    assert len(reads) == 1


@pytest.mark.django_db
def test_what_is_no_plain_json_comes_back_as_what_it_was() -> None:
    result = chain(double.s(Decimal("1.50")), shown.s()).enqueue()
    assert run_jobs() == 2
    assert result.wait(1).ends[0].return_value == "[Decimal('3.00')]"


@pytest.mark.django_db(transaction=True)
def test_coroutines_and_isolated_jobs_read_them_too(process_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in process_environment.items():
        monkeypatch.setenv(name, value)
    result = chain(group(w("a"), w("b")), anote.s("c"), heirs.s()).enqueue()
    assert asyncio.run(arun_jobs()) == 4
    assert values(result)[2:] == [["c", ["a", "b"]], [["c", ["a", "b"]]]]
    again = chain(group(w("a"), w("b")), anote.s("c")).enqueue()
    assert run_jobs() == 3
    assert values(again)[2:] == [["c", ["a", "b"]]]


@pytest.mark.django_db
def test_a_parent_that_did_not_succeed_gives_none() -> None:
    made = graph(on_parent_failure="run", on_parent_cancel="run")
    failed, gone, good = made.add(fail.s()), made.add(w("b")), made.add(w("c"))
    last = made.add(note.s("d"), after=[good, failed, gone])
    result = made.enqueue()
    result[gone].cancel()
    assert run_jobs() == 3
    result.refresh()
    assert result[last].return_value == ["d", ["c", None, None]]


# -- waiting, cancelling, requeueing


@pytest.mark.django_db
def test_a_graph_has_settled_when_nothing_more_happens_by_itself() -> None:
    BAD.add("b")
    result = chain(w("a"), group(broken.s("b"), w("c")), w("d"), w("e")).enqueue()
    with pytest.raises(WaitTimeout, match=f"Graph {result.id}"):
        result.wait(0.01)
    assert run_jobs() == 3
    assert [one.job_status.value for one in result.wait(0.01)] == ["succeeded", "failed", "succeeded", "waiting", "waiting"]
    assert "has failed" in Job.objects.get(pk=result.results[3].job_id).reason
    BAD.clear()
    report = result.requeue_failed("mended", by="ada")
    assert (report.changed, report.refused) == ([result.results[1].job_id], {})
    with pytest.raises(WaitTimeout):
        result.wait(0.01)
    assert run_jobs() == 3
    assert set(statuses(result)) == {"succeeded"}
    assert result.wait(0.01).ends[0].return_value == "e"
    assert "".join(LEDGER) == "abcbde"


@pytest.mark.django_db
@pytest.mark.parametrize("status", [Status.SUCCEEDED, Status.CANCELLED])
def test_a_graph_whose_children_are_still_to_be_looked_at_has_not_settled(status: Status) -> None:
    result = chain(w("a"), w("b")).enqueue()
    Job.objects.filter(pk=result.results[0].job_id).update(status=status, finished_at=timezone.now())
    assert statuses(result) == [status, "waiting"]
    with pytest.raises(WaitTimeout):
        result.wait(0.01)


@pytest.mark.django_db
def test_a_graph_has_not_settled_where_a_job_is_about_to_be_cancelled_though_another_parent_holds_it() -> None:
    BAD.add("x")
    first = w("a")
    result = chain(group(chain(broken.s("x"), w("b")), first), w("c")).enqueue()
    assert run_jobs() == 2
    assert result.wait(0.01) is result
    Job.objects.filter(pk=result[first].job_id).update(status=Status.CANCELLED)
    with pytest.raises(WaitTimeout):
        result.wait(0.01)


@pytest.mark.django_db(transaction=True)
def test_everything_is_there_for_coroutines() -> None:
    async def main() -> Any:
        made = chain(w("a"), w("b"), w("c"))
        result = await made.aenqueue()
        with pytest.raises(WaitTimeout):
            await result.await_result(0.01)
        assert await arun_jobs(limit=1) == 1
        report = await result.acancel("no more", by="ada")
        assert sorted(report.changed) == [one.job_id for one in result.results[1:]]
        await result.await_result(1)
        assert [one.job_status.value for one in result] == ["succeeded", "cancelled", "cancelled"]
        assert (await result.arequeue_failed()).changed == []
        return await result.astatuses()

    assert list(asyncio.run(main()).values()) == [Status.SUCCEEDED, Status.CANCELLED, Status.CANCELLED]


@pytest.mark.django_db
def test_a_graph_is_cancelled_as_a_whole() -> None:
    result = chain(w("a"), group(w("b"), w("c")), w("d")).enqueue()
    assert run_jobs(limit=1) == 1
    report = result.cancel("not needed", by="ada")
    assert (sorted(report.changed), report.refused) == ([one.job_id for one in result.results[1:]], {})
    assert statuses(result) == ["succeeded", "cancelled", "cancelled", "cancelled"]
    assert run_jobs() == 0
    assert result.cancel().changed == []
    Job.objects.filter(pk=result.results[0].job_id).delete()
    assert list(result.statuses()) == [one.job_id for one in result.results[1:]]
    assert result.wait(0.01) is result
    for name in ("reason", "by"):
        with pytest.raises(TypeError, match=name):
            result.cancel(**{name: 5})
        with pytest.raises(TypeError, match=name):
            result.requeue_failed(**{name: 5})


# -- faults of other systems


@pytest.mark.once
@pytest.mark.parametrize("place", [0, 1, 2])
def test_b42_an_empty_group_is_refused_wherever_it_is(place: int) -> None:
    names: list[list[str]] = [["a"], ["b"], ["c"]]
    names[place] = []
    with warnings.catch_warnings(action="ignore"), pytest.raises(InvalidGraph, match="group of nothing"):
        chain(*(group(*(w(name) for name in some)) for some in names))


@pytest.mark.django_db
def test_b42_a_long_chain_passes_results_and_each_row_stays_small() -> None:
    count = 5_000
    began = time.monotonic()
    result = chain(*(hop.s() for _ in range(count))).enqueue()
    assert time.monotonic() - began < 30
    sizes = {len(str(row)) for row in Job.objects.filter(graph=result.id).values_list("args", "kwargs", "metadata", "context")}
    assert (len(sizes), Edge.objects.count()) == (1, count - 1)
    began, hops = time.monotonic(), 60
    assert run_jobs(limit=hops) == hops
    assert (time.monotonic() - began) / hops < 0.1
    assert result.results[hops - 1].wait(0).return_value == hops


@pytest.mark.django_db
@pytest.mark.once
@pytest.mark.slow
def test_b42_a_long_chain_comes_to_its_end() -> None:
    count = 1_500  # each hop is one job, whatever the length
    result = chain(*(hop.s() for _ in range(count))).enqueue()
    assert run_jobs() == count
    assert result.ends[0].wait(0).return_value == count


@pytest.mark.django_db
def test_b42_a_big_group_is_stored_in_little_time_and_has_one_follow_up() -> None:
    count = 10_000
    began = time.monotonic()
    result = chain(group(*(keep.s(number) for number in range(count - 1))), note.s("last")).enqueue()
    assert time.monotonic() - began < 10
    assert (len(result), Edge.objects.count()) == (count, count - 1)
    assert len(result.statuses()) == count
    with CaptureQueriesContext(connection) as queries:
        result.refresh()
    assert len(queries) < 100
    assert run_jobs(limit=5) == 5
    assert result.ends[0].wait is not None
    assert not result._has_settled()


@pytest.mark.django_db
@pytest.mark.parametrize("kind", [chain, group, "graph", "then"])
def test_b42_nesting_is_as_deep_as_anybody_likes(kind: Any) -> None:
    node: Any = w("a")
    for number in range(1_000):
        if kind == "graph":
            outer = graph()
            outer.add(node)
            node = outer
        elif kind == "then":
            node = node.then(w(str(number)))
        else:
            node = kind(node)
    node = chain(w("first"), node, w("last"))
    if kind != "then":
        with pytest.raises(InvalidArguments, match=r"chain\[1\]"):
            chain(w("b"), write.s()).enqueue()  # type: ignore[call-arg]
    result = node.enqueue()
    assert len(result) == (1_003 if kind == "then" else 3)
    assert Edge.objects.count() == len(result) - 1
    assert run_jobs(limit=3) == 3
    assert LEDGER[:2] == ["first", "a"]
    del node, result
    gc.collect()


def end(result: Any, how: str) -> None:
    """End the job in one of the ways in which it does not succeed."""
    if how == "cancelled":
        result.cancel("not wanted")
    elif how == "deleted":
        assert control.delete([result.job_id]).changed == [result.job_id]
    elif how == "failed":
        BAD.add("A")


@pytest.mark.django_db
@pytest.mark.parametrize("shape", ["chain", "group"])
@pytest.mark.parametrize(
    ("policy", "how", "others"),
    [
        ({}, "failed", "waiting"),
        ({}, "cancelled", "cancelled"),
        ({}, "deleted", "cancelled"),
        ({"on_parent_failure": "cancel"}, "failed", "cancelled"),
        ({"on_parent_failure": "run"}, "failed", "succeeded"),
        ({"on_parent_cancel": "run"}, "cancelled", "succeeded"),
        ({"on_parent_cancel": "run"}, "deleted", "succeeded"),
        ({"on_parent_cancel": "wait"}, "cancelled", "waiting"),
    ],
)
def test_b43_what_a_parents_end_means_for_its_children(shape: str, policy: dict[str, Any], how: str, others: str) -> None:
    first = broken.s("A")
    if shape == "chain":
        made = chain(first, w("B"), w("C"), **policy)
    else:
        made = chain(group(first, w("M"), w("N")), w("F"), **policy)
    result = made.enqueue()
    end(result[first], how)
    run_jobs()
    after = result.results[1:] if shape == "chain" else result.ends
    now = result.statuses()
    assert {now[one.job_id].value for one in after} == {others}
    if others != "succeeded":
        reason = Job.objects.get(pk=after[0].job_id).reason
        assert str(result[first].job_id) in reason or (how == "deleted" and "its parent was deleted" in reason)
    assert ("B" in LEDGER or "F" in LEDGER) == (others == "succeeded")
    result.wait(0.1)
    if how == "failed":
        BAD.clear()
        result[first].requeue()
        run_jobs()
        if policy.get("on_parent_failure") == "cancel":
            assert {result.statuses()[one.job_id].value for one in after} == {"cancelled"}, "the docs say so"
            assert result.requeue_failed(with_cancelled=True).refused == {}
            run_jobs()
            assert set(statuses(result)) == {"succeeded"}
        else:
            assert set(statuses(result)) == {"succeeded"}
            assert [LEDGER.count(name) for name in "BC" if shape == "chain"] == ([1, 1] if shape == "chain" else [])
            assert shape == "chain" or LEDGER.count("F") == 1


# -- unique jobs


@job(unique="args")
def once(name: str) -> str:
    LEDGER.append(name)
    return name


@job(unique="debounced", on_conflict="replace")
def debounced(number: int) -> int:
    return number


@job(unique="keyed", on_conflict="replace")
def keyed(number: int) -> int:
    return number


@job(unique="args", on_conflict="raise")
def alone() -> None:
    """There may be one."""


@pytest.mark.django_db
def test_a_unique_job_that_is_there_already_takes_the_place_of_a_node() -> None:
    there = once.enqueue("b")
    node = once.s("b")
    result = chain(w("a"), node, note.s("c")).enqueue()
    assert (result[node].job_id, result[node].job_status) == (there.job_id, Status.READY)
    assert statuses(result) == ["ready", "ready", "waiting"]
    assert (Job.objects.count(), Edge.objects.count()) == (3, 1)
    assert run_jobs() == 3
    assert values(result) == ["a", "b", ["c", ["b"]]]
    assert sorted(LEDGER) == ["a", "b"]


@pytest.mark.django_db
def test_a_graph_is_stored_no_second_time_only_if_each_of_its_jobs_is_there() -> None:
    told: list[str] = []

    def listen(sender: Any, task_result: Any, **kwargs: Any) -> None:
        told.append(task_result.id)

    first = chain(once.s("a"), once.s("b")).enqueue()
    task_enqueued.connect(listen)
    try:
        second = chain(once.s("a"), once.s("b")).enqueue()
        assert ([one.id for one in second], second.id, told) == ([one.id for one in first], first.id, [])
        third = chain(once.s("a"), once.s("b"), once.s("c")).enqueue()
    finally:
        task_enqueued.disconnect(listen)
    assert [one.id for one in third][:2] == [one.id for one in first]
    assert told == [third.ends[0].id]
    assert run_jobs() == 3
    assert values(third) == ["a", "b", "c"]


@pytest.mark.django_db
def test_unique_jobs_of_one_graph_with_one_key_are_one() -> None:
    twin, other = once.s("a"), once.s("a")
    result = chain(group(twin, chain(w("b"), other)), note.s("c")).enqueue()
    assert result[twin].id == result[other].id
    assert Job.objects.count() == 3
    assert run_jobs() == 3
    assert LEDGER == ["b", "a"]
    result.refresh()
    assert [one.return_value for one in (result[twin], result[other], result.ends[0])] == ["a", "a", ["c", ["a"]]]
    with pytest.raises(InvalidGraph, match="come after itself"):
        chain(once.s("x"), w("y"), once.s("x")).enqueue()
    assert Job.objects.count() == 3


@pytest.mark.django_db
def test_a_unique_job_of_a_graph_may_refuse_or_replace_the_one_that_is_there() -> None:
    there = debounced.enqueue(1)
    node = debounced.s(2)
    result = chain(w("a"), node).enqueue()
    assert (result[node].id, Job.objects.get(pk=there.job_id).args) == (there.id, [2])
    double_node = group(debounced.s(3), debounced.s(4)).enqueue()
    assert ({one.id for one in double_node}, Job.objects.get(pk=there.job_id).args) == ({there.id}, [4])
    count = Job.objects.count()
    for refused in (debounced.s(5).using(on_conflict="raise"), group(*(alone.s() for _ in range(2)))):
        with pytest.raises(JobExists):
            chain(w("a"), refused).enqueue()
    assert (Job.objects.count(), Job.objects.get(pk=there.job_id).args) == (count, [4])
    fresh = group(*(keyed.s(number) for number in range(3))).enqueue()
    assert Job.objects.get(pk=fresh.results[0].job_id).args == [2]
    assert len({one.id for one in fresh}) == 1

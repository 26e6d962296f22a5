"""Unique jobs: what is equal, what an enqueue does then, and that the database decides, whoever else enqueues at the moment."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction

from django_jobs import InvalidArguments, InvalidOption, JobExists, db, job, stats, unique_by
from django_jobs.lifecycle import control
from django_jobs.lifecycle import record as record_module
from django_jobs.lifecycle.record import Recorded, record
from django_jobs.lifecycle.recover import recover_worker
from django_jobs.models import Job
from django_jobs.outcomes import ErrorInfo, Failed, Finished, HandedBack, Succeeded
from django_jobs.statuses import FINAL, Status
from tests.support.jobs import claim_jobs, in_threads, other_connection

pytestmark = pytest.mark.django_db
commits = pytest.mark.django_db(transaction=True)


@job(unique="args")
def exact(*args: Any, **kwargs: Any) -> None:
    """Do nothing."""


@job(unique="args")
def named(a: Any, b: Any = 2, *, c: Any = None) -> None:
    """Do nothing."""


@job(unique=unique_by("tenant"))
def by_tenant(tenant: str, text: str = "") -> None:
    """Do nothing."""


@job(unique=lambda order, **kwargs: None if order < 0 else f"order:{order}")
def by_function(order: int, note: str = "") -> None:
    """Do nothing."""


@job(unique="the one")
def single(text: str = "") -> None:
    """Do nothing."""


@job(unique="args", on_conflict="raise")
def strict(a: int) -> None:
    """Do nothing."""


@job(unique=unique_by("doc"), on_conflict="replace")
def debounced(doc: int, text: str = "") -> None:
    """Do nothing."""


@job(unique="args", unique_until="started", retry_for=(ValueError,))
def until_started(a: int) -> None:
    """Do nothing."""


@job(unique=unique_by(period="1h"), unique_until="pruned")
def hourly() -> None:
    """Do nothing."""


def same(task: Any, one: tuple[tuple[Any, ...], dict[str, Any]], other: tuple[tuple[Any, ...], dict[str, Any]]) -> bool:
    """Whether two calls are one job, in both orders."""
    answers = []
    for first, second in ((one, other), (other, one)):
        with transaction.atomic():
            answers.append(task.enqueue(*first[0], **first[1]).id == task.enqueue(*second[0], **second[1]).id)
            transaction.set_rollback(True)
    assert answers[0] == answers[1], "it depends on who comes first"
    return answers[0]


def call(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, kwargs


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (call(), call(a=1), False),
        (call(a=1, b=2), call(b=2, a=1), True),
        (call({"a": 1, "b": 2}), call({"b": 2, "a": 1}), True),
        (call({"a": 1}), call({"a": 1, "b": 2}), False),
        (call(1), call(1.0), False),
        (call(1), call(True), False),
        (call(1), call("1"), False),
        (call((1, 2)), call([1, 2]), True),
        (call("\u00e9"), call("e\u0301"), False),
        (call("x" * 200_000), call("x" * 200_000), True),
        (call("x" * 200_000), call("x" * 199_999 + "y"), False),
        (call("a"), call("A"), False),
        (call("a"), call("a "), False),
        (call("e"), call("\u00e9"), False),
        (call(None), call(), False),
    ],
)
def test_b38_equal_is_what_the_page_says_in_both_orders(one: Any, other: Any, expected: bool) -> None:
    assert same(exact, one, other) is expected


def test_b38_a_call_is_the_same_however_its_arguments_are_given() -> None:
    assert same(named, call(1), call(a=1))
    assert same(named, call(1, 2), call(b=2, a=1))
    assert same(named, call(1), call(1, b=2, c=None)), "what is left out is the default"
    assert not same(named, call(1), call(1, b=3))


def test_b38_keys_of_arguments_that_change_their_shape_are_refused_and_an_ended_job_frees_its_key() -> None:
    with pytest.raises(InvalidArguments):
        exact.enqueue({1: "x"})
    first = exact.enqueue({"1": "x"})
    (attempt,) = claim_jobs()
    assert attempt.args == [{"1": "x"}]
    assert exact.enqueue({"1": "x"}).id == first.id, "it runs"
    with transaction.atomic():
        record(connection, [Finished(attempt, Succeeded(None))], worker_name="w")
    assert exact.enqueue({"1": "x"}).id != first.id


def test_a_part_of_the_arguments_a_function_and_a_key() -> None:
    assert by_tenant.enqueue("a", "x").id == by_tenant.enqueue("a", text="y").id != by_tenant.enqueue("b", "x").id
    assert by_function.enqueue(1).id == by_function.enqueue(1, note="x").id != by_function.enqueue(2).id
    assert by_function.enqueue(-1).id != by_function.enqueue(-1).id, "None: not unique"
    assert single.enqueue("a").id == single.enqueue("b").id
    # A key is the site's: whoever says it means the same.
    assert exact.using(unique="order:1").enqueue(5).id == by_function.enqueue(1).id
    assert exact.using(unique=None).enqueue(5).id != exact.using(unique=None).enqueue(5).id
    assert Job.objects.get(unique_key="order:2").task.endswith("by_function")


def test_two_tasks_are_two_things() -> None:
    assert exact.enqueue(1).id != named.enqueue(1).id


@pytest.mark.parametrize("value", ["", "x" * 129, 5, ["a"], "nul\x00"])
def test_what_can_not_be_unique_is_refused_where_it_is_declared(value: Any) -> None:
    with pytest.raises(InvalidOption, match="unique"):
        exact.using(unique=value)


def test_bad_names_periods_and_answers() -> None:
    with pytest.raises(InvalidOption, match="has no argument 'tenannt': it takes tenant, text"):
        by_tenant.using(unique=unique_by("tenannt")).enqueue("a")
    with pytest.raises(InvalidOption, match="period"):
        unique_by(period=0)
    with pytest.raises(InvalidOption, match="names of arguments"):
        unique_by("not a name")
    with pytest.raises(InvalidOption, match="on_conflict"):
        exact.using(on_conflict="ignore")
    with pytest.raises(InvalidOption, match="unique_until"):
        exact.using(unique_until="never")
    for wrong in (5, "", "x" * 200):
        with pytest.raises(InvalidArguments, match="a key"):
            exact.using(unique=lambda *args, wrong=wrong: wrong).enqueue(1)
    assert not Job.objects.exists()


def test_the_answer_is_the_job_that_is_there() -> None:
    first = named.using(priority=5).enqueue(1)
    again = named.enqueue(1)
    assert (again.id, again.args, again.job_status) == (first.id, [1], Status.READY)
    assert Job.objects.get().priority == 5


def test_raise_names_the_job_and_stores_nothing() -> None:
    first = strict.enqueue(1)
    with pytest.raises(JobExists) as caught:
        strict.enqueue(1)
    assert str(caught.value.job_id) == first.id
    with pytest.raises(JobExists) as caught:
        strict.enqueue_many([(2,), (3,), (1,)])
    assert caught.value.index == 2
    with pytest.raises(JobExists) as caught:
        strict.enqueue_many([(2,), (2,)])
    assert caught.value.index == 1
    assert Job.objects.count() == 1


def test_replace_gives_what_has_not_started_the_new_arguments_and_start() -> None:
    first = debounced.enqueue(1, "a")
    later = debounced.using(run_after=timedelta(hours=1)).enqueue(1, "b")
    assert later.id == first.id
    row = Job.objects.get()
    assert (row.args, row.status) == ([1, "b"], Status.SCHEDULED)
    assert (row.due_at - row.enqueued_at) > timedelta(minutes=59)
    assert later.args == [1, "b"]
    about = {"model": "auth.user", "pk": 1, "using": "default"}
    debounced.using(related=about).enqueue(1, "c")
    row.refresh_from_db()
    assert (row.args, row.status, row.run_after, row.related) == ([1, "c"], Status.READY, None, about)
    # Of several in one call the last one counts.
    debounced.enqueue_many([(1, "d"), (2, "x"), (1, "e"), (2, "y")])
    assert sorted(Job.objects.values_list("args", flat=True)) == [[1, "e"], [2, "y"]]
    (attempt, _) = claim_jobs()
    debounced.enqueue(attempt.args[0], "too late")
    assert Job.objects.get(id=attempt.job_id).args == attempt.args
    assert_counts()


def test_replace_leaves_a_job_of_another_task_as_it_is() -> None:
    first = single.enqueue("a")
    second = debounced.using(unique="the one").enqueue(1, "b")
    assert (second.id, Job.objects.get().args) == (first.id, ["a"])


def test_b39_duplicates_in_a_large_batch() -> None:
    """Results line up with the calls, and each distinct call is stored once."""
    known = [exact.enqueue(number).id for number in range(3)]
    calls = [(number,) for number in range(2_000)] + [(5,), (1_999,)]
    with transaction.atomic():
        results = exact.enqueue_many(calls)
    assert len(results) == len(calls)
    assert [result.id for result in results[:3]] == known
    assert results[-2].id == results[5].id
    assert results[-1].id == results[1_999].id
    assert Job.objects.count() == 2_000
    stored = {str(job_id): tuple(args) for job_id, args in Job.objects.values_list("id", "args")}
    assert [stored[result.id] for result in results] == calls
    with pytest.raises(InvalidArguments) as caught:
        exact.enqueue_many([(9_999,), (object(),)])
    assert caught.value.index == 1
    assert Job.objects.count() == 2_000
    assert_counts()


def test_a_rollback_frees_the_key() -> None:
    with transaction.atomic():
        first = exact.enqueue(1)
        transaction.set_rollback(True)
    assert exact.enqueue(1).id != first.id


def test_until_started_and_superseded() -> None:
    first = until_started.enqueue(1)
    assert until_started.enqueue(1).id == first.id
    (attempt,) = claim_jobs()
    second = until_started.enqueue(1)
    assert second.id != first.id
    # The first fails, and would be tried again: the second has the key.
    with transaction.atomic():
        recorded = record(
            connection,
            [Finished(attempt, Failed(ErrorInfo("builtins.ValueError", "x"), final=False))],
            worker_name="w",
        )
    assert [event.name for event in recorded.events] == ["job_cancelled"]
    row = Job.objects.get(id=first.id)
    assert row.status == Status.CANCELLED
    assert row.reason.startswith(f"superseded by {second.id}")
    assert Job.objects.get(id=second.id).status == Status.READY
    assert_counts()


def test_a_conflict_costs_one_job_of_a_batch_of_outcomes() -> None:
    until_started.enqueue_many([(1,), (2,), (3,)])
    attempts = claim_jobs()
    rival = until_started.enqueue(2)
    with transaction.atomic():
        recorded = record(
            connection,
            [Finished(attempt, HandedBack(started=True)) for attempt in attempts],
            worker_name="w",
        )
    assert len(recorded.done) == 3
    statuses = {tuple(row.args): row.status for row in Job.objects.exclude(id=rival.id)}
    assert statuses == {(1,): Status.READY, (2,): Status.CANCELLED, (3,): Status.READY}
    assert_counts()


def test_a_requeue_is_refused_for_the_one_whose_key_is_held() -> None:
    results = until_started.enqueue_many([(1,), (2,)])
    control.cancel([row.id for row in Job.objects.all()])
    assert len(results) == 2
    rival = until_started.enqueue(1)
    report = control.requeue([row.id for row in Job.objects.exclude(id=rival.id)])
    assert len(report.changed) == 1
    assert [rival.id in why for why in report.refused.values()] == [True]


def test_once_in_a_period() -> None:
    first = hourly.enqueue()
    (attempt,) = claim_jobs()
    with transaction.atomic():
        record(connection, [Finished(attempt, Succeeded(None))], worker_name="w")
    assert hourly.enqueue().id == first.id, "it has succeeded in this hour"
    assert hourly.enqueue().job_status == Status.SUCCEEDED
    row = Job.objects.get()
    # The next hour.
    Job.objects.filter(id=row.id).update(unique_key=str(row.unique_key)[:-1] + "~")
    assert hourly.enqueue().id != first.id


def test_a_failed_job_frees_the_key_of_its_period_and_done_by_hand_takes_it_again_only_if_it_is_free() -> None:
    first = hourly.enqueue()
    (attempt,) = claim_jobs()
    with transaction.atomic():
        record(connection, [Finished(attempt, Failed(ErrorInfo("a.B", "x")))], worker_name="w")
    second = hourly.enqueue()
    assert second.id != first.id
    report = control.done([attempt.job_id])
    assert not report.changed
    assert second.id in report.refused[attempt.job_id]
    assert Job.objects.get(id=attempt.job_id).status == Status.FAILED


def test_whoever_dies_and_has_lost_the_key_costs_the_others_nothing() -> None:
    until_started.enqueue_many([(1,), (2,), (3,)])
    worker = uuid.uuid4()
    claim_jobs(worker)
    rival = until_started.enqueue(2)
    recovered = recover_worker("default", worker, cause="it was killed by SIGKILL")
    assert (recovered.left, len(recovered)) == (0, 3)
    statuses = {tuple(row.args): (row.status, row.reason[:10]) for row in Job.objects.exclude(id=rival.id)}
    assert statuses[2,] == (Status.CANCELLED, "superseded")
    assert {statuses[1,][0], statuses[3,][0]} <= {Status.READY, Status.SCHEDULED}
    assert_counts()


def test_a_key_that_was_let_go_at_the_same_moment_is_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    until_started.enqueue(1)
    attempts = claim_jobs()
    rival = until_started.enqueue(1)

    def gone(*_: Any) -> None:
        """Between the refusal and the question who it was, it ends."""
        Job.objects.filter(id=rival.id).delete()

    monkeypatch.setattr(record_module, "_rival", gone)
    with transaction.atomic():
        record(connection, [Finished(attempts[0], HandedBack(started=True))], worker_name="w")
    assert Job.objects.get().status == Status.READY


@commits
@pytest.mark.skipif(connection.vendor == "sqlite", reason="one writer at a time")
@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_a_hand_back_does_not_wait_for_an_open_transaction_that_enqueues_the_same(end: str) -> None:
    until_started.enqueue_many([(1,), (2,), (3,)])
    finished = [Finished(attempt, HandedBack(started=True)) for attempt in claim_jobs()]
    stored, go = threading.Event(), threading.Event()
    rivals: list[str] = []

    def enqueue() -> None:
        with transaction.atomic():
            rivals.append(until_started.enqueue(2).id)
            stored.set()
            assert go.wait(20)
            transaction.set_rollback(end == "ROLLBACK")

    def hand_back() -> None:
        assert stored.wait(10)
        try:
            recorded = _record_as_a_worker(finished)
        finally:
            go.set()
        assert [2] in [item.attempt.args for item in recorded.later]
        if connection.vendor == "postgresql":  # MariaDB locks what is beside a key, too
            assert len(recorded.done) == 2, "it holds up no other"
        finished[:] = recorded.later

    in_threads(enqueue, hand_back)
    assert not _record_as_a_worker(finished).later
    row = Job.objects.exclude(id__in=rivals).get(args=[2])
    expected = (Status.CANCELLED, f"superseded by {rivals[0]}") if end == "COMMIT" else (Status.READY, "")
    assert (row.status, row.reason[: len(expected[1])]) == expected
    assert_counts()


@commits
@pytest.mark.skipif(connection.vendor == "sqlite", reason="one writer at a time")
def test_many_hand_backs_do_not_wait_for_an_open_transaction_one_after_the_other() -> None:
    calls = [(number,) for number in range(14)]
    until_started.enqueue_many(calls)
    finished = [Finished(attempt, HandedBack(started=True)) for attempt in claim_jobs()]
    with transaction.atomic():
        until_started.enqueue_many(calls)
        began = time.monotonic()
        recorded = _record_as_a_worker(finished)
        took = time.monotonic() - began
    assert len(recorded.later) == 14
    assert took < 5, f"{took:.1f} s"
    recorded = _record_as_a_worker(recorded.later)
    assert len(recorded.done) == 14
    assert Job.objects.filter(status=Status.CANCELLED).count() == 14
    assert_counts()


def _record_as_a_worker(finished: Sequence[Finished]) -> Recorded:
    with other_connection() as ours, ours.cursor() as cursor:
        db.dialect(ours).prepare_session(ours, name="test", by_key=True)
        cursor.execute("BEGIN")
        recorded = record(ours, finished, worker_name="w")
        cursor.execute("COMMIT")
        return recorded


@commits
def test_a_requeue_and_an_enqueue_at_once_leave_one_live_job() -> None:
    for number in range(10):
        old = Job.objects.get(id=until_started.enqueue(number).id)
        control.cancel([old.id])

        def requeue(old: Any = old) -> bool:
            for _ in range(50):
                try:
                    return bool(control.requeue([old.id]).changed)
                except DatabaseError:
                    continue
            raise AssertionError("it never came through")

        def enqueue(number: int = number) -> str:
            for _ in range(50):
                try:
                    return str(until_started.enqueue(number).id)
                except DatabaseError:
                    continue
            raise AssertionError("it never came through")

        requeued, found = in_threads(requeue, enqueue)
        live = Job.objects.filter(args=[number]).exclude(status__in=FINAL).get()
        assert str(live.id) == found
        assert requeued == (live.id == old.id)
    assert_counts()


@commits
def test_concurrent_transactions_come_to_one_job() -> None:
    barrier = threading.Barrier(4)

    def enqueue() -> str:
        barrier.wait(10)
        for _ in range(50):
            try:
                with transaction.atomic():
                    return str(exact.enqueue("same").id)
            except DatabaseError:  # SQLite has one writer at a time, MariaDB may meet a deadlock
                continue
        raise AssertionError("it never came through")

    ids = in_threads(*[enqueue] * 4)
    assert len(set(ids)) == 1
    assert Job.objects.count() == 1


@commits
def test_concurrent_bulk_enqueues_in_other_orders_do_not_meet_in_a_deadlock() -> None:
    numbers = list(range(200))
    barrier = threading.Barrier(2)

    def enqueue(order: list[int]) -> list[str]:
        barrier.wait(10)
        for _ in range(50):
            try:
                return [result.id for result in exact.enqueue_many([(number,) for number in order])]
            except DatabaseError:
                if connection.vendor == "postgresql":
                    raise
        raise AssertionError("it never came through")

    one, other = in_threads(lambda: enqueue(numbers), lambda: enqueue(numbers[::-1]))
    assert one == other[::-1]
    assert Job.objects.count() == 200


def assert_counts() -> None:
    """The numbers by status are those of the table."""
    actual: dict[str, int] = {}
    for status in Job.objects.values_list("status", flat=True):
        actual[status] = actual.get(status, 0) + 1
    counted: dict[str, int] = {}
    for numbers in stats.queue_counts().values():
        for status, number in numbers.items():
            counted[status] = counted.get(status, 0) + number
    assert {status: number for status, number in counted.items() if number} == actual

"""Counts: right after every move, whatever moves, folds, dies or is rolled back; tags with their jobs."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction
from django.test.utils import CaptureQueriesContext
from hypothesis import given, settings
from hypothesis import strategies as st

from django_jobs import db, stats
from django_jobs.lifecycle import control, rollup, sweep, tally
from django_jobs.lifecycle.enqueue import JobSpec, NewJob, insert
from django_jobs.lifecycle.recover import writing
from django_jobs.models import TOTALS, CancelRequest, Count, Delta, Job, JobTag
from django_jobs.models.stat import move_name, spelled_out
from django_jobs.retry import is_database_conflict
from django_jobs.statuses import MOVES, PENDING, Status
from tests.support.jobs import claim_jobs, in_threads, make_job, other_connection
from tests.support.moves import STEPS, World, clear, real_counts, real_tags

pytestmark = pytest.mark.django_db
commits = pytest.mark.django_db(transaction=True)
needs_row_locks = pytest.mark.skipif(
    not connection.features.has_select_for_update_skip_locked, reason="this database has no row locks"
)


def counts() -> dict[tuple[str, str], int]:
    """The numbers of the roll-ups that are not 0."""
    return {(queue, status): n for queue, found in stats.queue_counts().items() for status, n in found.items() if n}


def put(*queues: str, **spec: Any) -> list[NewJob]:
    jobs = [NewJob(JobSpec(task="t", queue=queue, **spec), [], {}) for queue in queues]
    insert(jobs, using="default")
    return jobs


def fold(limit: int = 1000) -> int:
    """Fold once; again after a lost race (MariaDB's deadlocks), as maintenance does."""
    for _ in range(50):
        try:
            with writing("default"):
                return rollup.fold(using="default", limit=limit).touched
        except DatabaseError as error:
            if not is_database_conflict(error) or connection.in_atomic_block:
                raise
    raise AssertionError("it lost every race")


# -- what a row says --------------------------------------------------------------------------------


def test_every_move_has_a_name_that_fits() -> None:
    moves = {(source, target) for table in MOVES.values() for source, targets in table.items() for target in targets}
    moves |= {("", status) for status in PENDING} | {(status, "") for status in Status}
    longest = Delta._meta.get_field("name").max_length
    assert longest is not None
    assert max(len(move_name(*move)) for move in moves) <= longest
    assert max(map(len, TOTALS)) <= longest
    names = {name for move in moves for name, _ in spelled_out(move_name(*move), 1)}
    assert names == {*Status, *TOTALS} - {"total_retried"}


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        (">ready", {"ready": 3, "total_created": 3}),
        ("ready>running", {"ready": -3, "running": 3}),
        ("running>succeeded", {"running": -3, "succeeded": 3, "total_succeeded": 3}),
        ("failed>ready", {"failed": -3, "ready": 3, "total_requeued": 3}),
        ("failed>cancelled", {"failed": -3, "cancelled": 3, "total_cancelled": 3}),
        ("succeeded>", {"succeeded": -3}),
        ("ready", {"ready": 3}),
        ("total_retried", {"total_retried": 3}),
    ],
)
def test_a_row_is_spelled_out(name: str, numbers: dict[str, int]) -> None:
    assert dict(spelled_out(name, 3)) == numbers


# -- always right -----------------------------------------------------------------------------------


@given(steps=st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 10_000)), min_size=5, max_size=40))
@settings(max_examples=60)
def test_after_any_moves_the_counts_are_those_of_the_table_and_totals_only_rise(steps: list[tuple[str, int]]) -> None:
    clear()
    world = World()
    STEPS["enqueue many"](world, 1)
    before = stats.queue_totals()
    for name, number in steps:
        STEPS[name](world, number)
        assert counts() == real_counts(), name
        assert set(JobTag.objects.values_list("job_id", "tag")) == real_tags(), name
        after = stats.queue_totals()
        assert all(after[queue][total] >= n for queue, found in before.items() for total, n in found.items()), name
        before = after
    assert rollup.recount(using="default") == 0
    while fold():
        continue
    assert (counts(), stats.queue_totals()) == (real_counts(), before)


def test_a_job_that_is_cancelled_and_deleted_at_once_is_counted_as_both() -> None:
    (job,) = put("a")
    CancelRequest.objects.create(job_id=job.id, delete_job=True)
    assert sweep.apply_requests(using="default", limit=5).touched == 1
    assert counts() == real_counts() == {}
    assert stats.totals()["total_cancelled"] == 1


def test_totals_outlive_their_jobs() -> None:
    put("a", "a", "b")
    fold()
    control.cancel(Job.objects.filter(queue="a").values_list("id", flat=True))
    control.requeue(Job.objects.filter(queue="a").values_list("id", flat=True)[:1])
    control.delete(Job.objects.values_list("id", flat=True))
    assert stats.queue_counts() == {}
    none = dict.fromkeys(TOTALS, 0)
    assert stats.queue_totals() == {
        "a": none | {"total_created": 2, "total_cancelled": 2, "total_requeued": 1},
        "b": none | {"total_created": 1},
    }
    assert stats.totals() == none | {"total_created": 3, "total_cancelled": 2, "total_requeued": 1}
    assert stats.queue_totals(queue="b") == {"b": none | {"total_created": 1}}


def test_counts_name_every_status_and_can_be_asked_for_one_queue() -> None:
    put("a", "b", "b")
    fold(1)
    zero = dict.fromkeys(Status, 0)
    assert stats.queue_counts() == {"a": zero | {"ready": 1}, "b": zero | {"ready": 2}}
    assert stats.queue_counts("default", "b") == {"b": zero | {"ready": 2}}
    assert stats.queue_counts(queue="c") == {}


def test_reading_never_touches_the_jobs() -> None:
    put("a")
    with CaptureQueriesContext(connection) as queries:
        stats.queue_counts()
        stats.totals()
    assert len(queries) == 2
    assert not any(db.JOB in query["sql"].replace(db.TAG, "") for query in queries)


def test_many_jobs_are_few_rows() -> None:
    put(*["a"] * 700, *["b"] * 700)
    assert sorted(Delta.objects.values_list("queue", "name", "value")) in (
        [("a", ">ready", 700), ("b", ">ready", 700)],
        [("a", ">ready", 700), ("b", ">ready", 300), ("b", ">ready", 400)],  # a statement for each thousand
    )
    Delta.objects.all().delete()
    claim_jobs(count=100)
    control.cancel(Job.objects.filter(queue="b").values_list("id", flat=True)[:300])
    assert list(Delta.objects.order_by("id").values_list("queue", "name", "value")) == [
        ("a", "ready>running", 100),
        ("b", "ready>cancelled", 300),
    ]


@commits
def test_a_rollback_takes_the_counts_with_it() -> None:
    put("a")
    fold()
    with transaction.atomic():
        put("a", "b", tags=("x",))
        put("a", tags=("x",))
        claim_jobs()
        assert counts() == real_counts()
        transaction.set_rollback(True)
    assert counts() == real_counts() == {("a", "ready"): 1}
    assert not Delta.objects.exists()
    assert not JobTag.objects.exists()


# -- beside each other ------------------------------------------------------------------------------


@commits
def test_folds_and_moves_at_once_lose_and_double_nothing() -> None:
    clear()
    put(*["a", "b"] * 200)

    def move(offset: int) -> None:
        ids = list(Job.objects.order_by("id").values_list("id", flat=True))[offset::2]
        for start in range(0, 100, 10):
            part = ids[start : start + 10]
            put("b", "a", "a")
            control.cancel(part)
            control.requeue(part[:5])
            control.delete(part[5:])

    def fold_often() -> int:
        taken = 0
        for _ in range(40):
            taken += fold(7)
            assert sum(stats.totals().values()) > 0
        return taken

    def recount_often() -> int:
        return sum(rollup.recount(using="default") for _ in range(5))

    folded = in_threads(lambda: move(0), lambda: move(1), fold_often, fold_often, recount_often, recount_often, timeout=120)
    assert counts() == real_counts()
    assert stats.totals()["total_created"] == 460
    assert folded[2] + folded[3] > 0
    assert folded[4:] == [0, 0], "a move in flight was taken for a wrong number"
    while fold():
        continue
    assert counts() == real_counts()


@needs_row_locks
@commits
def test_a_fold_leaves_what_another_has_taken() -> None:
    put("a")
    put("b")
    first = Delta.objects.earliest("id")
    with other_connection() as other, other.cursor() as cursor:
        cursor.execute(db.dialect(other).begin_sql)
        cursor.execute(f"SELECT 1 FROM {db.DELTA} WHERE id = %s FOR UPDATE", [first.id])
        assert fold() == 1
        assert list(Delta.objects.values_list("id", flat=True)) == [first.id]
        cursor.execute("ROLLBACK")
    assert fold() == 1
    assert counts() == real_counts()


@needs_row_locks
@commits
def test_a_fold_waits_for_no_enqueue_that_is_not_committed() -> None:
    put("a")
    with other_connection() as other, other.cursor() as cursor:
        db.dialect(other).prepare_session(other, name="test")
        cursor.execute(db.dialect(other).begin_sql)
        tally.write(cursor, {("a", ">ready", None): 1})
        assert fold() == 1
        cursor.execute("ROLLBACK")
    assert not Delta.objects.exists()
    assert counts() == real_counts()


@commits
def test_a_fold_that_dies_half_way_has_done_nothing() -> None:
    if connection.vendor == "sqlite":  # one writer: it is the rollback that counts
        put("a")
        with transaction.atomic():
            assert rollup.fold(using="default", limit=10).touched == 1
            transaction.set_rollback(True)
    else:
        put("a")
        with other_connection() as other:
            cursor = other.cursor()
            cursor.execute(db.dialect(other).begin_sql)
            cursor.execute(f"SELECT id FROM {db.DELTA} FOR UPDATE")
            (row,) = cursor.fetchall()
            cursor.execute(*db.dialect(other).delete_by_id(db.DELTA, [row[0]]))
            cursor.execute(f"INSERT INTO {db.COUNT} (queue, name, value) VALUES ('a', '>ready', 1)")
            other.close()  # the session ends without a commit
    assert Delta.objects.count() == 1
    assert not Count.objects.exists()
    assert counts() == real_counts()
    deadline = time.monotonic() + 20
    while not fold():  # until the server has seen that the session is gone
        assert time.monotonic() < deadline, "the row is still locked"
    assert Count.objects.get().value == 1
    assert counts() == real_counts()


@commits
def test_two_folds_at_once_take_each_row_once() -> None:
    for queue in ["a", "b", "c"] * 20:
        put(queue)
    found = in_threads(*[lambda: sum(fold(5) for _ in range(20))] * 3)
    left = fold()
    assert sum(found) + left == 60
    assert Count.objects.count() == 3
    assert counts() == real_counts()


# -- mending ----------------------------------------------------------------------------------------


def test_a_recount_mends_what_was_changed_behind_our_back(caplog: pytest.LogCaptureFixture) -> None:
    put("a", "a", "b")
    fold()
    make_job(Status.FAILED, queue="c")
    Job.objects.filter(queue="a").first().delete()  # type: ignore[union-attr]
    Delta.objects.create(queue="b", name="running", value=-5)
    assert counts() != real_counts()
    before = stats.totals()
    assert rollup.recount(using="default") == 3
    assert counts() == real_counts()
    assert stats.totals() == before, "a repair is nothing that happened"
    assert rollup.recount(using="default") == 0
    assert "ready jobs were wrong" in caplog.text


def test_maintenance_recounts_every_status_in_turn() -> None:
    from django_jobs.models import Leader

    for status in Status:
        if status != Status.RUNNING:
            make_job(status)
    leader = Leader.objects.create(name=rollup.RECOUNT, next_at=db.server_now(connection))
    for turn in itertools.count(1):
        rollup.recount_next(using="default")
        assert sum(counts().values()) <= turn
        Leader.objects.filter(pk=leader.pk).update(touched=turn)
        if turn == len(Status):
            break
    assert counts() == real_counts()
    assert len(counts()) == len(Status) - 1


# -- tags -------------------------------------------------------------------------------------------


def tags_of(job: NewJob) -> list[str]:
    return sorted(JobTag.objects.filter(job_id=job.id).values_list("tag", flat=True))


def test_tags_come_change_and_go_with_their_job() -> None:
    (one,) = put("a", tags=("x", "y"))
    first, second = put("a", "b", tags=("x", "ä"))
    insert([one], using="default")
    insert([one, first], using="default")
    assert [tags_of(job) for job in (one, first, second)] == [["x", "y"], ["x", "ä"], ["x", "ä"]]
    control.edit([one.id, first.id], tags=["z", "x"])
    assert [tags_of(job) for job in (one, first, second)] == [["x", "z"], ["x", "z"], ["x", "ä"]]
    control.edit([one.id], tags=[])
    assert tags_of(one) == []
    control.delete([first.id, second.id])
    assert not JobTag.objects.exists()


def test_a_job_without_tags_writes_nothing_about_them() -> None:
    with CaptureQueriesContext(connection) as queries:
        put("a")
        put("a", "b")
        claim_jobs()
    assert queries.captured_queries
    assert not [query for query in queries.captured_queries if db.TAG in query["sql"]]

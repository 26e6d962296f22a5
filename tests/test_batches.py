"""`Batch`: filled in a `with` block or without, from within its own jobs, with graphs; its callbacks, numbers and verbs."""

from __future__ import annotations

from copy import copy
from typing import Any
from uuid import UUID

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction
from django.test import override_settings

from django_jobs import (
    Batch,
    BatchDoesNotExist,
    BatchIsFinished,
    InvalidArguments,
    InvalidGraph,
    InvalidOption,
    Status,
    WaitTimeout,
    chain,
    current_batch,
    job,
    split,
)
from django_jobs.compat import Task
from django_jobs.ids import uuid7
from django_jobs.models import Batch as Row
from django_jobs.models import Edge, Job
from django_jobs.testing import run_jobs
from tests.project import tasks
from tests.support.tasks import add, after_commit, fail

pytestmark = pytest.mark.django_db


@job
def called(word: str = "", batch_id: str = "") -> str:
    return f"{word} {batch_id}"


@job
def told_nothing() -> None:
    """A callback that does not take the batch."""


def results(name: str) -> list[Any]:
    """Return the results of the callbacks of this kind that have run."""
    ids = Row.objects.values_list(f"{name}_id", flat=True)
    return [job.result for job in Job.objects.filter(id__in=ids, status="succeeded")]


# -- filling one ------------------------------------------------------------------------------------


def test_a_batch_is_filled_sealed_run_and_tells_its_callbacks():
    with Batch("import", on_success=called.s("good"), on_failure=called, on_finish=called.s(word="end")) as batch:
        first = batch.add(add, 1, 2)
        second = batch.add(add.s(3, b=4))
        many = batch.add_many(add, [(5, 6), {"a": 7, "b": 8}])
    assert batch.status == "enqueued"
    assert batch.counts == {**dict.fromkeys(Status, 0), Status.READY: 4}
    assert run_jobs() == 6
    for result in (first, second, *many):
        result.refresh()
    assert [result.return_value for result in (first, second, *many)] == [3, 7, 11, 15]
    batch.refresh()
    assert (batch.status, batch.counts[Status.SUCCEEDED]) == ("finished", 4)
    assert results("on_success") == [f"good {batch.id}"]
    assert results("on_finish") == [f"end {batch.id}"]
    assert results("on_failure") == []
    assert Job.objects.filter(status="waiting").count() == 0


def test_a_callback_that_does_not_take_the_batch_is_called_without():
    with Batch(on_success=told_nothing, on_finish=called.s("x", batch_id="mine")) as batch:
        pass
    assert batch.status == "finished"
    run_jobs()
    assert (results("on_success"), results("on_finish")) == ([None], ["x mine"])
    row = Row.objects.get()
    assert Job.objects.get(id=row.on_finish_id).related == {
        "model": "django_jobs.batch",
        "pk": str(batch.id),
        "using": "default",
    }


def test_nothing_is_stored_of_a_block_that_raises():
    batch = Batch("import", on_finish=called)

    def fill() -> None:
        with batch:
            batch.add(add, 1)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fill()
    assert not Row.objects.exists()
    assert not Job.objects.exists()
    with batch:  # it may be tried again
        batch.add(add, 1)
    assert (Row.objects.count(), Job.objects.filter(status="ready").count()) == (1, 1)


def test_a_batch_without_a_block_is_stored_by_its_first_job_and_ends_after_it_is_sealed():
    batch = Batch("slow")
    assert not Row.objects.exists()
    batch.add(add, 1)
    assert batch.status == "pending"
    run_jobs()
    batch.refresh()
    assert (batch.status, batch.progress.percent_complete) == ("progress", 100.0)
    assert batch.seal() is True
    assert batch.status == "finished"
    assert batch.seal() is False


def test_what_a_transaction_took_back_is_not_there_any_more():
    batch = Batch("x")

    def fill() -> None:
        with transaction.atomic():
            batch.add(add, 1)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fill()
    with pytest.raises(BatchDoesNotExist):
        batch.add(add, 1)
    assert not Job.objects.exists()


def test_a_first_job_that_is_refused_leaves_a_batch_that_may_be_filled():
    batch = Batch()
    for _ in range(2):
        with pytest.raises(InvalidArguments):
            batch.add(add)
    assert not Row.objects.exists()
    batch.add(add, 1)
    with pytest.raises(InvalidArguments):
        batch.add_many(add, [(1,), ()])
    assert (batch.progress.total, Row.objects.count()) == (1, 1)


def test_a_signature_is_added_once():
    batch, one = Batch(), add.s(1)
    batch.add(one)
    with pytest.raises(InvalidGraph, match="already"):
        batch.add(one)


def test_a_graph_is_added_whole():
    with Batch() as batch:
        result = batch.add(chain(add.s(1), add.s(2)))
        parts = batch.add(split(called, ["a", "b", "c"], 2))
    assert (len(result), len(parts), batch.progress.total) == (2, 2, 4)
    assert Edge.objects.count() == 1
    assert batch.counts[Status.WAITING] == 1
    run_jobs()
    batch.refresh()
    assert batch.status == "finished"


def test_jobs_of_a_batch_add_jobs_to_it():
    with Batch(on_finish=called.s("end")) as batch:
        batch.add(tasks.spreads, 3)
    run_jobs()
    batch.refresh()
    assert (batch.status, batch.progress.total) == ("finished", 15)
    assert results("on_finish") == [f"end {batch.id}"]


def test_a_job_sees_its_batch_and_others_see_none():
    alone = tasks.looks_around.enqueue()
    with Batch() as batch:
        member = batch.add(tasks.looks_around)
    run_jobs()
    alone.refresh()
    member.refresh()
    assert (alone.return_value, member.return_value) == ([None, None], [str(batch.id)] * 2)
    assert current_batch() is None


def test_a_finished_batch_takes_nothing_more():
    with Batch() as batch:
        batch.add(add, 1)
    run_jobs()
    for again in (lambda: batch.add(add, 1), lambda: batch.add_many(add, [(1,)]), lambda: batch.add(chain(add.s(1), add.s(2)))):
        with pytest.raises(BatchIsFinished):
            again()
    assert Job.objects.count() == 1


@job(unique="args")
def fetch(what: str) -> str:
    return what


def test_a_unique_job_is_counted_by_the_batch_that_has_stored_it():
    alone = fetch.enqueue("rates")
    with Batch() as batch:
        assert batch.add(fetch, "rates").id == alone.id
        first, *others = batch.add_many(fetch, [("prices",), ("rates",)])
    assert ([other.id for other in others], batch.progress.total) == ([alone.id], 1)
    assert Job.objects.get(batch=batch.id).id == first.job_id


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ((add,), InvalidArguments),
        ((add, 1, 2, 3), InvalidArguments),
        ((add.s(1), 2), TypeError),
        ((add.s(),), InvalidArguments),
        ((len, "x"), TypeError),
        (("tests.tasks.add",), TypeError),
    ],
)
def test_what_can_not_be_added_is_refused_and_stores_nothing(what, error):
    batch = Batch()
    with pytest.raises(error):
        batch.add(*what)
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    ("said", "error", "text"),
    [
        ({"name": "x" * 256}, InvalidOption, "255"),
        ({"name": 1}, TypeError, "text"),
        ({"on_success": print}, InvalidOption, "on_success"),
        ({"on_finish": add}, InvalidArguments, "add"),
        ({"on_failure": add.s(1, 2, 3)}, InvalidArguments, "add"),
        ({"metadata": {"a": object()}}, Exception, "metadata"),
    ],
)
def test_a_batch_that_can_not_be_stored_is_refused_where_it_is_made(said, error, text):
    with pytest.raises(error, match=text):
        Batch(**said)


def test_jobs_that_wait_for_another_databases_commit_are_refused():
    batch = Batch()
    with transaction.atomic():
        batch.add(after_commit, 1)  # the same database: stored at once, and counted
    assert batch.progress.total == 1
    template = copy(after_commit.get_backend().template(after_commit))
    template.using = "elsewhere"
    with transaction.atomic(), pytest.raises(InvalidOption, match="on_commit"):
        template.in_batch(batch.id)


DUMMY = {"BACKEND": f"{Task.__module__.rpartition('.')[0]}.backends.dummy.DummyBackend"}


def test_jobs_of_another_back_end_are_no_members():
    with override_settings(TASKS={"default": {"BACKEND": "django_jobs.backend.JobsBackend"}, "other": DUMMY}):
        batch = Batch()
        with pytest.raises(InvalidGraph, match="can't store batches"):
            batch.add(add.using(backend="other"), 1)
        with pytest.raises(InvalidGraph, match="can't store batches"):
            Batch(backend="other")


# -- numbers and verbs ------------------------------------------------------------------------------


def test_progress_is_in_per_cent():
    with Batch() as batch:
        batch.add_many(add, [(1,), (2,)])
        batch.add(fail)
        batch.add(add, 1)
    assert (batch.progress.percent_complete, batch.progress.percent_failed) == (0.0, 0.0)
    run_jobs(limit=3)
    batch.refresh()
    progress = batch.progress
    assert (progress.total, progress.ended, progress.succeeded, progress.failed) == (4, 3, 2, 1)
    assert (progress.percent_complete, progress.percent_failed, batch.status) == (75.0, 25.0, "progress")


def test_failed_jobs_are_requeued_and_success_comes_late(monkeypatch):
    with Batch(on_success=called.s("good"), on_failure=called.s("bad")) as batch:
        batch.add(add, 1)
        broken = batch.add(fail)
    run_jobs()
    batch.refresh()
    assert (batch.status, results("on_failure"), results("on_success")) == ("finished", [f"bad {batch.id}"], [])
    batch.mark_read()
    assert batch.is_read
    report = batch.requeue_failed("mended", by="ann")
    assert report.changed == [broken.job_id]
    assert (batch.status, batch.is_read) == ("progress", False)
    Job.objects.filter(id=broken.job_id).update(task=told_nothing.module_path, args=[], kwargs={})
    run_jobs()
    batch.refresh()
    assert (batch.status, results("on_failure"), results("on_success")) == (
        "finished",
        [f"bad {batch.id}"],
        [f"good {batch.id}"],
    )


def test_cancel_ends_the_batch():
    batch = Batch(on_success=called, on_finish=called.s("end"))
    batch.add_many(add, [(1,), (2,)])
    report = batch.cancel("not wanted", by="ann")
    assert len(report.changed) == 2
    assert (batch.status, batch.counts[Status.CANCELLED]) == ("finished", 2)
    run_jobs()
    assert (results("on_finish"), results("on_success")) == ([f"end {batch.id}"], [])
    assert len(batch.requeue_failed(with_cancelled=True).changed) == 2


def test_a_batch_is_found_by_its_id():
    with Batch("found", metadata={"file": "a.csv"}) as batch:
        batch.add(add, 1)
    same = Batch.get(str(batch.id))
    assert (same, same.name, same.metadata, same.progress.total) == (batch, "found", {"file": "a.csv"}, 1)
    assert hash(same) == hash(batch)
    for wrong in (uuid7(), "nothing"):
        with pytest.raises(BatchDoesNotExist):
            Batch.get(wrong)
    Row.objects.all().delete()
    with pytest.raises(BatchDoesNotExist):
        same.refresh()


def test_waiting_is_bounded():
    with Batch() as batch:
        batch.add(add, 1)
    with pytest.raises(WaitTimeout):
        batch.wait(0.05)
    run_jobs()
    assert batch.wait(5).status == "finished"
    assert async_to_sync(batch.await_result)(5).status == "finished"


def test_the_same_on_an_event_loop():
    async def use() -> tuple[UUID, int]:
        batch = Batch()
        await batch.aadd(add, 1)
        await batch.aadd_many(add, [(2,), (3,)])
        await batch.aseal()
        await batch.acancel("no")
        await batch.arequeue_failed(with_cancelled=True)
        await batch.arefresh()
        return batch.id, batch.counts[Status.READY]

    assert async_to_sync(use)() == (Row.objects.get().id, 3)

"""The back end: what is stored for a call, what is refused before any SQL, and who is told."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from types import FunctionType
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import DatabaseError, connection, connections, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone, translation

from django_jobs import Arguments, job
from django_jobs.compat import InvalidTask, Task, TaskResultDoesNotExist, TaskResultMismatch, TaskResultStatus, task_backends
from django_jobs.compat import task_enqueued as django_signal
from django_jobs.exceptions import InvalidArguments, UnknownTask
from django_jobs.models import Job
from django_jobs.signals import job_enqueued
from django_jobs.statuses import Status
from tests.support.tasks import Holder, add, after_commit, double, fail, keep, report

pytestmark = pytest.mark.django_db
commits = pytest.mark.django_db(transaction=True)

TWO = {
    "default": {"BACKEND": "django_jobs.backend.JobsBackend"},
    "mail": {"BACKEND": "django_jobs.backend.JobsBackend", "QUEUES": ["mail"], "OPTIONS": {"MAX_ATTEMPTS": 2}},
}


def tagger() -> str:
    return "tenant-1"


def restore(value: Any) -> None:
    pass


def test_a_call_becomes_a_row() -> None:
    moment = datetime(2040, 1, 1, tzinfo=UTC)
    task = add.using(queue_name="a.b", priority=7, run_after=moment, tags=["x"], metadata={"k": 1}, description="sum", timeout=9)
    row = task.enqueue(1, b=2).job
    assert (row.task, row.args, row.kwargs, row.queue, row.priority) == ("tests.support.tasks.add", [1], {"b": 2}, "a.b", 7)
    assert (row.status, row.run_after, row.due_at) == (Status.SCHEDULED, moment, moment)
    assert (row.tags, row.metadata, row.description, row.timeout, row.max_attempts) == (["x"], {"k": 1}, "sum", 9.0, 5)


def test_the_result_is_the_one_that_a_look_up_gives() -> None:
    for task in (
        add,
        add.using(priority=3, queue_name="q"),
        add.using(run_after=30),
        add.using(run_after=datetime(2040, 1, 1, tzinfo=UTC)),
    ):
        result = task.enqueue(1, 2)
        assert result == task.get_result(result.id)
        assert result.status == TaskResultStatus.READY
        assert result.enqueued_at is not None


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, "missing a required argument: 'a'"),
        ((1, 2, 3), {}, "too many positional arguments"),
        ((1,), {"c": 2}, "unexpected keyword argument 'c'"),
        ((1,), {"a": 2}, "multiple values for argument 'a'"),
        ((object(),), {}, r"args\[0\]"),
        ((1,), {"b": {"x": [float("nan")]}}, r'kwargs\["b"\]\["x"\]\[0\]'),
        (("a\x00",), {}, r"args\[0\]"),
        (("\ud800",), {}, r"args\[0\]"),
        (({1: 2},), {}, r"args\[0\]"),
    ],
)
def test_b23_arguments_that_do_not_fit_are_refused_before_any_sql(args: Any, kwargs: Any, message: str) -> None:
    with CaptureQueriesContext(connection) as queries, pytest.raises(TypeError, match=message):
        add.enqueue(*args, **kwargs)
    assert not queries.captured_queries


def test_the_context_is_no_argument_of_the_caller() -> None:
    with pytest.raises(InvalidArguments, match="missing a required argument: 'name'"):
        report.enqueue()
    assert report.enqueue("x").args == ["x"]
    assert keep.enqueue(1, 2, context=4).kwargs == {"context": 4}


def test_b27_what_the_caller_changes_later_changes_nothing() -> None:
    items: list[Any] = [{"a": 1}]
    result = keep.enqueue(items, opts=items)
    items[0]["a"] = 2
    items.append(3)
    assert result.args == [[{"a": 1}]]
    assert (result.job.args, result.job.kwargs) == ([[{"a": 1}]], {"opts": [{"a": 1}]})


def test_a_task_that_no_worker_could_find_is_refused() -> None:
    func = FunctionType(add.func.__code__, {"__name__": __name__}, "hidden", (0,))
    with pytest.raises(InvalidTask, match="no worker can find it"):
        job(func).enqueue(1)
    func = FunctionType(add.func.__code__, {"__name__": "__main__"}, "script", (0,))
    with pytest.raises(InvalidTask, match="script"):
        job(func).enqueue(1)
    assert Holder.held.enqueue(5).job.task == "tests.support.tasks.Holder.held"


def test_a_rollback_takes_the_job_back() -> None:
    with suppress(ZeroDivisionError), transaction.atomic():
        result = add.enqueue(1)
        raise ZeroDivisionError
    assert not Job.objects.filter(pk=result.id).exists()


def test_a_refused_call_leaves_the_transaction_usable() -> None:
    with transaction.atomic():
        with pytest.raises(TypeError):
            add.enqueue(float("inf"))
        result = add.enqueue(1)
    assert result.job.status == Status.READY


def test_two_back_ends_keep_their_jobs_apart() -> None:
    with override_settings(TASKS=TWO):
        task = add.using(backend="mail", queue_name="mail")
        result = task.enqueue(1)
        assert (result.backend, result.job.max_attempts) == ("mail", 2)
        assert task.get_result(result.id).id == result.id
        with pytest.raises(TaskResultDoesNotExist):
            task_backends["default"].get_result(result.id)
        with pytest.raises(InvalidTask, match="Queue 'default' is not valid"):
            add.using(backend="mail")


def test_a_plain_task_of_another_back_end_can_be_moved_here() -> None:
    dummy = f"{Task.__module__.rpartition('.')[0]}.backends.dummy.DummyBackend"
    with override_settings(TASKS={"default": {"BACKEND": dummy}, "jobs": TWO["default"]}):
        # Django 6.0 has no defaults for these.
        task = Task(func=add.func, priority=0, backend="default", queue_name="default", run_after=None)
        result = task.using(backend="jobs", priority=4).enqueue(1)
        assert result.job.priority == 4
        assert task_backends["jobs"].get_result(result.id).args == [1]


def test_results_of_others_and_of_nobody() -> None:
    result = fail.enqueue()
    with pytest.raises(TaskResultMismatch):
        add.get_result(result.id)
    for wrong in (str(uuid.uuid4()), "nonsense", ""):
        with pytest.raises(TaskResultDoesNotExist):
            add.get_result(wrong)


def test_b22_a_job_of_a_task_that_is_gone_can_still_be_looked_at() -> None:
    result = add.enqueue(1)
    Job.objects.filter(pk=result.id).update(task="gone.away.task")
    found = task_backends["default"].get_result(result.id)
    assert (found.task.module_path, found.args, found.status) == ("gone.away.task", [1], TaskResultStatus.READY)
    with pytest.raises(UnknownTask):
        found.task.call()
    with pytest.raises(TaskResultMismatch):
        add.get_result(result.id)


def test_typed_arguments_need_no_json() -> None:
    from decimal import Decimal

    result = double.enqueue(Decimal("1.10"))
    assert result == double.get_result(result.id)
    assert result.job.serializer == "typed"


# --- Many ---


def test_calls_come_as_tuples_dicts_and_both() -> None:
    results = add.enqueue_many([(1,), {"a": 2, "b": 3}, Arguments(4, b=5), [6, 7]])
    rows = Job.objects.in_bulk([result.id for result in results])
    assert [(rows[result.job_id].args, rows[result.job_id].kwargs) for result in results] == [
        ([1], {}),
        ([], {"a": 2, "b": 3}),
        ([4], {"b": 5}),
        ([6, 7], {}),
    ]
    assert results[2] == add.get_result(results[2].id)
    assert add.enqueue_many([]) == []


def test_b39_one_bad_call_stores_nothing_and_is_named() -> None:
    calls: list[Any] = [(number,) for number in range(5_000)]
    for index, bad in ((4_321, (object(),)), (17, ()), (0, 5), (2, "ab")):
        with pytest.raises(InvalidArguments, match=f"^item {index}: ") as caught, transaction.atomic():
            add.enqueue_many([*calls[:index], bad, *calls[index:]])
        assert caught.value.index == index
    assert not Job.objects.exists()


def calls_that_break() -> Iterator[tuple[int]]:
    for number in range(4_000):
        yield (number,)
    raise OSError("the file ended")


@commits
def test_b39_an_iterable_that_raises_stores_nothing() -> None:
    with pytest.raises(OSError, match="the file ended"):
        add.enqueue_many(calls_that_break())
    with pytest.raises(OSError, match="the file ended"), transaction.atomic():
        add.enqueue_many(calls_that_break())
    assert not Job.objects.exists()


def test_b39_statements_grow_with_batches_and_results_line_up() -> None:
    add.enqueue(0)
    with CaptureQueriesContext(connection) as queries:
        results = add.using(run_after=60, tags=["x"]).enqueue_many((number, 1) for number in range(2_500))
    rows_at_once = 1_000 if connection.vendor != "sqlite" else 60
    # Where one statement can't do it all: what is there already, the rows, their tags, their count.
    statements = 1 if connection.vendor == "postgresql" else 4
    assert len(queries) <= statements * (2_500 // rows_at_once) + 6 + statements
    rows = Job.objects.in_bulk([result.id for result in results])
    assert [rows[result.job_id].args for result in results] == [[number, 1] for number in range(2_500)]
    assert {row.status for row in rows.values()} == {Status.SCHEDULED}
    assert [result.id for result in results] == sorted(result.id for result in results)
    assert results[2_499].enqueued_at == rows[results[2_499].job_id].enqueued_at


# --- Who is told ---


@pytest.fixture
def listeners() -> Iterator[list[Any]]:
    """Three listeners: one raises, one breaks the transaction, one takes notes."""
    seen: list[Any] = []

    def raises(**kwargs: Any) -> None:
        raise ValueError("listener")

    def breaks(**kwargs: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT nonsense FROM nowhere")

    def notes(**kwargs: Any) -> None:
        seen.append(kwargs.get("task_result") or kwargs["event"])

    for signal in (django_signal, job_enqueued):
        for receiver in (raises, breaks, notes):
            signal.connect(receiver, weak=False)
    yield seen
    for signal in (django_signal, job_enqueued):
        for receiver in (raises, breaks, notes):
            signal.disconnect(receiver)


@pytest.mark.parametrize("many", [False, True])
def test_b20_listeners_that_raise_disturb_nobody(listeners: list[Any], many: bool, caplog: pytest.LogCaptureFixture) -> None:
    with transaction.atomic():
        result = add.enqueue_many([(1,), (2,)])[0] if many else add.enqueue(1)
        assert Job.objects.filter(pk=result.id).exists()
    assert len(listeners) == (4 if many else 2)
    assert {getattr(item, "id", None) or str(item.job_id) for item in listeners} >= {result.id}
    assert caplog.text.count("ValueError: listener") >= 2
    assert result.id in caplog.text


def test_django_s_signal_is_sent_by_the_class(listeners: list[Any]) -> None:
    senders = []

    def note(sender: Any, **kwargs: Any) -> None:
        senders.append(sender)

    django_signal.connect(note)
    add.enqueue(1)
    assert senders == [type(task_backends["default"])]


@commits
def test_aenqueue_stores_in_the_transaction_of_synchronous_code() -> None:
    async def enqueue() -> Any:
        return await add.aenqueue(1, b=2), await add.aenqueue_many([(3,), (4,)])

    with suppress(ZeroDivisionError), transaction.atomic():
        async_to_sync(enqueue)()
        assert Job.objects.count() == 3
        raise ZeroDivisionError
    assert not Job.objects.exists()
    one, many = async_to_sync(enqueue)()
    assert one.kwargs == {"b": 2}
    assert [result.args for result in many] == [[3], [4]]
    assert Job.objects.count() == 3


# --- Transactions of other databases ---


@commits
def test_enqueue_on_commit_waits_for_the_commit() -> None:
    with transaction.atomic():
        result = after_commit.enqueue(1)
        assert result.enqueued_at is None
        assert not Job.objects.exists()
    assert result.enqueued_at is not None
    assert result == after_commit.get_result(result.id)
    with suppress(ZeroDivisionError), transaction.atomic():
        after_commit.enqueue(2)
        raise ZeroDivisionError
    assert Job.objects.count() == 1
    assert after_commit.enqueue(3).enqueued_at is not None


@commits
def test_a_transaction_on_another_database_is_warned_of() -> None:
    connections.settings["other"] = connections.settings["default"]
    try:
        connections["other"].in_atomic_block = True  # as if: nothing is asked of that database
        with pytest.warns(RuntimeWarning, match="a transaction is open on 'other'"):
            add.enqueue(1)
        with transaction.atomic():
            add.enqueue(2)
        connections["other"].in_atomic_block = False
        add.enqueue(3)
    finally:
        del connections["other"], connections.settings["other"]


# --- What travels with a job ---


def test_language_and_time_zone_travel_where_they_are_not_the_usual() -> None:
    assert add.enqueue(1).job.context == {}
    with translation.override("de"), timezone.override("Asia/Kolkata"):
        assert add.enqueue(1).job.context == {"language": "de", "timezone": "Asia/Kolkata"}
    with timezone.override(timezone.get_fixed_timezone(timedelta(hours=2))):
        assert add.enqueue(1).job.context == {}


def test_what_the_project_captures_travels_too() -> None:
    with override_settings(DJANGO_JOBS={"CONTEXT": [(tagger, restore)]}):
        assert add.enqueue(1).job.context == {"tests.test_backend.tagger": "tenant-1"}


def test_an_argument_that_there_is_not_is_named_although_another_is_missing() -> None:
    with pytest.raises(InvalidArguments, match=r"unexpected keyword argument 'price': it takes a, b\.$"):
        add.enqueue(price=3)
    with pytest.raises(InvalidArguments, match="missing a required argument: 'a'"):
        add.enqueue(b=1)
    with pytest.raises(InvalidArguments, match=r"unexpected keyword argument 'prce' \(did you mean 'price'\?\)"):
        double.enqueue(prce=3)


def test_an_argument_may_be_called_self() -> None:
    with pytest.raises(InvalidArguments, match="unexpected keyword argument 'self'"):
        add.enqueue(self=1)  # type: ignore[call-arg]


@pytest.mark.django_db(transaction=True)
def test_an_enqueue_without_tables_says_what_to_do() -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE django_jobs_job RENAME TO elsewhere")
    try:
        with pytest.raises(DatabaseError, match=r"'default' has no tables of django_jobs, or old ones: run manage\.py migrate"):
            add.enqueue(1, 2)
        with pytest.raises(DatabaseError, match=r"run manage\.py migrate"):
            add.enqueue_many([(1, 2), (3, 4)])
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE elsewhere RENAME TO django_jobs_job")
    assert add.enqueue(1, 2).job_status == Status.READY

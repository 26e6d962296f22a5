"""Inserts: times by the database's clock, what is inherited, repetition, lost connections."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from django_jobs import conf, db
from django_jobs.lifecycle.enqueue import JobSpec, NewJob, insert
from django_jobs.lifecycle.inherit import forget_queues
from django_jobs.models import Job, Queue
from django_jobs.statuses import Status

pytestmark = pytest.mark.django_db
commits = pytest.mark.django_db(transaction=True)
on_postgresql = pytest.mark.skipif(
    connection.vendor != "postgresql", reason="kills its own session, and reads which statements are prepared"
)

TASK = "tests.support.tasks.add"


def new(args: list[Any] | None = None, **spec: Any) -> NewJob:
    return NewJob(JobSpec(task=TASK, **spec), args or [1], {})


def stored(job: NewJob) -> Job:
    return Job.objects.get(pk=job.id)


@pytest.fixture(params=["one", "many"])
def put(request: pytest.FixtureRequest) -> Any:
    """Insert one job, alone or among others: two ways that have to come to the same."""

    def put(job: NewJob) -> Job:
        insert([job] if request.param == "one" else [new(), job, new(queue="q")], using="default")
        row = stored(job)
        assert (job.status, job.enqueued_at, job.run_after) == (row.status, row.enqueued_at, row.run_after)
        return row

    return put


def close(left: datetime | None, right: datetime) -> bool:
    return left is not None and abs((left - right).total_seconds()) < 2


def test_times_are_the_databases(put: Any) -> None:
    before = db.server_now(connection) - timedelta(milliseconds=5)
    row = put(new())
    assert before <= row.enqueued_at <= db.server_now(connection) + timedelta(milliseconds=5)
    assert close(row.due_at, row.enqueued_at)
    assert (row.status, row.run_after, row.start_by) == (Status.READY, None, None)


def test_a_delay_counts_from_the_databases_now(put: Any) -> None:
    row = put(new(run_after=timedelta(hours=1), start_by=timedelta(hours=2)))
    assert row.status == Status.SCHEDULED
    assert close(row.due_at, row.enqueued_at + timedelta(hours=1))
    assert close(row.run_after, row.due_at)
    assert close(row.start_by, row.enqueued_at + timedelta(hours=2))


def test_a_date_in_the_future_schedules(put: Any) -> None:
    moment = datetime(2040, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)
    row = put(new(run_after=moment, start_by=moment + timedelta(days=1)))
    assert (row.status, row.due_at, row.run_after) == (Status.SCHEDULED, moment, moment)
    assert row.start_by == moment + timedelta(days=1)


def test_a_date_in_another_zone_is_the_same_moment(put: Any) -> None:
    from zoneinfo import ZoneInfo

    moment = datetime(2040, 5, 6, 7, 8, tzinfo=ZoneInfo("Asia/Kolkata"))
    assert put(new(run_after=moment)).due_at == moment


def test_a_date_in_the_past_is_due_now_and_jumps_no_queue(put: Any) -> None:
    moment = datetime(2001, 1, 1, tzinfo=UTC)
    row = put(new(run_after=moment))
    assert (row.status, row.run_after) == (Status.READY, moment)
    assert close(row.due_at, row.enqueued_at)


def test_a_delay_that_has_passed_is_none(put: Any) -> None:
    row = put(new(run_after=timedelta(seconds=-5)))
    assert (row.status, row.run_after) == (Status.READY, None)


def test_everything_that_is_said_is_stored(put: Any) -> None:
    said: dict[str, Any] = {
        "backend": "other",
        "queue": "a.b",
        "priority": -5,
        "description": "d",
        "serializer": "typed",
        "metadata": {"ä": [1, {"b": None}]},
        "tags": ["x", "y"],
        "context": {"language": "de"},
        "created_by": "7",
        "timeout": 1.5,
        "timeout_grace": 2.0,
        "heartbeat_timeout": 3.0,
        "cpu_timeout": 4.0,
        "max_attempts": None,
        "backoff": [1.0, [2.0, 3.0]],
        "max_deaths": 2,
        "retention": {"succeeded": 5.0, "failed": None},
    }
    job = new(["\U0001f600", {"a": [1.5, None, True]}], **said)
    job.kwargs, job.unique_key = {"k": "v"}, "key"
    row = put(job)
    assert {name: getattr(row, name) for name in said} == said
    assert (row.args, row.kwargs, row.unique_key) == (["\U0001f600", {"a": [1.5, None, True]}], {"k": "v"}, "key")


def test_a_limit_of_zero_is_off(put: Any) -> None:
    with override_settings(DJANGO_JOBS={"TIMEOUT": 60, "HEARTBEAT_TIMEOUT": 60}):
        assert put(new()).timeout == 60.0
        row = put(new(timeout=0.0, heartbeat_timeout=0.0))
    assert (row.timeout, row.heartbeat_timeout) == (None, None)


def test_what_is_not_said_comes_from_the_nearest_queue(put: Any) -> None:
    Queue.objects.create(name="a", timeout=10, max_attempts=3, retention={"succeeded": 1.0, "failed": 2.0})
    Queue.objects.create(name="a.b", timeout=20, backoff=[7.0])
    row = put(new(queue="a.b.c", retention={"failed": 9.0}))
    assert (row.timeout, row.max_attempts, row.backoff) == (20.0, 3, [7.0])
    assert row.retention == {"succeeded": 1.0, "failed": 9.0}
    row = put(new(queue="a.b.c", timeout=5.0, max_attempts=None, backoff=1.0))
    assert (row.timeout, row.max_attempts, row.backoff) == (5.0, None, 1.0)
    assert put(new(queue="ab")).max_attempts == conf.jobs_settings().max_attempts


@commits
def test_queues_are_read_seldom_and_again_after_a_change() -> None:
    forget_queues()
    insert([new(queue="seldom")], using="default")
    with CaptureQueriesContext(connection) as queries:
        insert([new(queue="seldom")], using="default")
    assert not [query for query in queries.captured_queries if "django_jobs_queue" in query["sql"]]
    queue = Queue.objects.create(name="seldom", max_attempts=9)
    job = new(queue="seldom")
    insert([job], using="default")
    assert stored(job).max_attempts == 9
    queue.delete()
    job = new(queue="seldom")
    insert([job], using="default")
    assert stored(job).max_attempts == 5


@commits
def test_settings_of_a_queue_that_was_rolled_back_are_forgotten_with_it() -> None:
    with transaction.atomic():
        Queue.objects.create(name="undone", max_attempts=9)
        insert([new(queue="undone")], using="default")
        transaction.set_rollback(True)
    job = new(queue="undone")
    insert([job], using="default")
    assert stored(job).max_attempts == 5


@pytest.mark.parametrize("others", [0, 2])
def test_the_same_id_is_stored_once(others: int) -> None:
    job = new(["first"])
    insert([job], using="default")
    again = NewJob(job.spec, ["second"], {}, job.id)
    insert([again, *(new() for _ in range(others))], using="default")
    assert stored(job).args == ["first"]
    assert Job.objects.count() == 1 + others
    if not others:
        assert again.enqueued_at == job.enqueued_at


def test_more_jobs_than_a_statement_takes_and_of_many_kinds() -> None:
    jobs = [
        NewJob(JobSpec(task=TASK, priority=number % 100, tags=["odd"] if number % 2 else ()), [number], {})
        for number in range(2_100)
    ]
    with CaptureQueriesContext(connection) as queries:
        insert(jobs, using="default")
    assert len(queries) < (10 if connection.vendor == "postgresql" else 60 if connection.vendor == "sqlite" else 20)
    rows = Job.objects.in_bulk([job.id for job in jobs])
    for number, job in enumerate(jobs):
        row = rows[job.id]
        assert (row.args, row.priority, row.tags) == ([number], number % 100, ["odd"] if number % 2 else [])


def test_large_arguments_are_spread_over_statements() -> None:
    jobs = [new(["x" * 1_500_000]) for _ in range(4)]
    with CaptureQueriesContext(connection) as queries:
        insert(jobs, using="default")
    assert sum("INSERT" in query["sql"] for query in queries.captured_queries) >= 2
    assert Job.objects.count() == 4


def test_percent_signs_are_no_parameters(put: Any) -> None:
    job = new(["100 %s %(a)s %%"], description="5 % off")
    row = put(job)
    assert (row.args, row.description) == (["100 %s %(a)s %%"], "5 % off")


@commits
def test_all_or_none() -> None:
    jobs = [new() for _ in range(1_500)]
    jobs[-1].spec = JobSpec(task="")  # the table refuses it
    with pytest.raises(Exception, match=r"(?i)constraint"):
        insert(jobs, using="default")
    assert not Job.objects.exists()


@commits
def test_nothing_is_a_statement_for_no_jobs() -> None:
    with CaptureQueriesContext(connection) as queries:
        insert([], using="default")
    assert not queries.captured_queries


def kill_session() -> None:
    other = connection.copy()
    try:
        with other.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [connection.connection.info.backend_pid])
    finally:
        other.close()


@on_postgresql
@commits
@pytest.mark.parametrize("count", [1, 3])
def test_a_lost_connection_is_opened_again_once(count: int) -> None:
    for _ in range(10):
        insert([new()], using="default")
    kill_session()
    jobs = [new() for _ in range(count)]
    insert(jobs, using="default")
    assert Job.objects.filter(pk__in=[job.id for job in jobs]).count() == count


@on_postgresql
@commits
def test_within_a_transaction_a_lost_connection_is_an_error() -> None:
    from django.db import InterfaceError, OperationalError

    def lose() -> None:
        with transaction.atomic():
            insert([new()], using="default")
            kill_session()
            insert([new()], using="default")

    with pytest.raises((OperationalError, InterfaceError)):
        lose()
    connection.close()
    assert not Job.objects.exists()


def prepared_statements() -> int:
    with connection.cursor() as cursor:
        sql = "SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE %s"
        cursor.execute(sql, ["WITH stored AS (INSERT INTO django_jobs_job %"])
        return int(cursor.fetchone()[0])


@on_postgresql
@commits
def test_a_hot_insert_is_prepared_outside_transactions_only() -> None:
    connection.close()
    with transaction.atomic():
        for _ in range(10):
            insert([new()], using="default")
    assert prepared_statements() == 0
    for _ in range(10):
        insert([new()], using="default")
    assert prepared_statements() == 1
    assert connection.connection.prepare_threshold is None
    assert Job.objects.count() == 20


@on_postgresql
@commits
def test_prepared_statements_that_somebody_dropped_are_prepared_again() -> None:
    for _ in range(10):
        insert([new()], using="default")
    with connection.cursor() as cursor:
        cursor.execute("DEALLOCATE ALL")
    insert([new()], using="default")
    assert Job.objects.count() == 11


@on_postgresql
@commits
def test_a_session_behind_a_pooler_prepares_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    connection.close()
    connection.ensure_connection()
    monkeypatch.setattr(type(connection.connection.info), "backend_pid", property(lambda info: -1))
    for _ in range(10):
        insert([new()], using="default")
    assert prepared_statements() == 0

"""Guards of the invariants of docs/architecture.md that are not the subject of another test."""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import NotSupportedError, connection, transaction
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from django_jobs import db, wakeup
from django_jobs.lifecycle.claim import QueueFilter, claim
from django_jobs.lifecycle.fence import Note, write_notes
from django_jobs.lifecycle.record import record
from django_jobs.models import Job, JobAttempt, JobLock
from django_jobs.outcomes import Attempt, ErrorInfo, Failed, Finished, Succeeded
from django_jobs.statuses import Status
from django_jobs.worker.control import Control, ControlOptions
from django_jobs.worker.pool import Pool
from django_jobs.worker.queues import QueueWatch
from tests.structure.files import ROOT, modules
from tests.support.jobs import claim_jobs, expire, make_job, running_job
from tests.support.worker import never, until

ON_POSTGRESQL = pytest.mark.skipif(connection.vendor != "postgresql", reason="asks PostgreSQL's own tables")


# --- 1 ---


@pytest.mark.structure
def test_only_lifecycle_changes_a_status() -> None:
    """No other module updates or saves jobs, by the ORM or in SQL."""
    writes = re.compile(
        r"UPDATE \{?(?:db\.)?JOB|INSERT INTO \{?(?:db\.)?JOB"
        r"|\bupdate\([^)]*\bstatus=|(?<!class )\bJob\([^)]|Job\.objects\.(?:bulk_)?create"
    )
    # The client has a `Job` of its own, and no database: a contract sees to that.
    looked_at = [path for path in modules() if "client" not in path.relative_to(ROOT).parts]
    found = {str(path.relative_to(ROOT)) for path in looked_at if writes.search(path.read_text())}
    assert found
    assert {name for name in found if not name.startswith("django_jobs/lifecycle/")} == set()


# --- 2 ---


class Recording:
    """An executor that notes what is started and, while `gate` is closed, does not come back."""

    def __init__(self) -> None:
        self.started: list[uuid.UUID] = []
        self.gate = threading.Event()

    def run(self, attempt: Attempt) -> Finished:
        self.started.append(attempt.job_id)
        self.gate.wait(30)
        return Finished(attempt, Succeeded())

    async def arun(self, attempt: Attempt) -> Finished:
        return self.run(attempt)

    def is_async(self, attempt: Attempt) -> bool:
        return False

    def cancel(self, token: uuid.UUID, reason: str = "") -> bool:
        return False


@contextmanager
def control_loop(executor: Recording, *, slice_seconds: float = 3.0) -> Iterator[Control]:
    """A control loop in a thread of this process, over a connection of its own."""
    pool = Pool(executor, threads=1, async_jobs=0, on_finished=lambda: loop.wake.set())
    loop = Control(
        options=ControlOptions(alias="default", grace=10.0, slice=slice_seconds, poll=0.05),
        worker=uuid.uuid4(),
        name="loop",
        pool=pool,
        executor=executor,
        queues=QueueWatch(),
        dispatch=lambda events: None,
        settled=lambda tokens: None,
        force_stop=lambda token, reason: None,
    )
    pool.start()
    thread = threading.Thread(target=loop.run, daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        executor.gate.set()
        loop.drain()
        thread.join(20)
        pool.close()
    assert not thread.is_alive()


@pytest.mark.django_db(transaction=True)
def test_no_function_starts_before_its_row_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as the answer to the hold does not list the token, the function is not called."""
    job = make_job()
    executor = Recording()
    executor.gate.set()
    is_silent = True
    dialect = db.dialect(connection)
    hold = dialect.hold

    def partly(*args: Any, **kwargs: Any) -> set[uuid.UUID]:
        held = hold(*args, **kwargs)
        return set() if is_silent else held

    monkeypatch.setattr(dialect, "hold", partly)
    with control_loop(executor):
        until(lambda: Job.objects.get(pk=job.pk).starts == 1, "the claim")
        never(lambda: executor.started, "a function was started without a hold", during=0.4)
        is_silent = False
        until(lambda: Job.objects.get(pk=job.pk).status == Status.SUCCEEDED, "the success")
    assert executor.started == [job.pk]


@pytest.mark.django_db
@pytest.mark.parametrize("outcome", [Succeeded(1), Failed(ErrorInfo("builtins.ValueError", "no"))])
def test_nothing_is_written_about_an_attempt_that_was_taken_over(outcome: Any) -> None:
    """Neither while another attempt of the job runs, nor when the lock row is gone."""
    job = make_job()
    (old,) = claim_jobs()
    JobLock.objects.filter(job=job).update(token=uuid.uuid4())
    Job.objects.filter(pk=job.pk).update(last_token=JobLock.objects.get(job=job).token, starts=F("starts") + 1)
    for step in ("taken over", "gone"):
        if step == "gone":
            JobLock.objects.all().delete()
        before = Job.objects.filter(pk=job.pk).values().get()
        with transaction.atomic():
            write_notes(connection, [Note(old, heartbeat=True, progress={"done": 1}, output=[1])])
            recorded = record(connection, [Finished(old, outcome, 0.1)], worker_name="late")
        assert (recorded.fenced, recorded.done, recorded.events) == ([old.token], [], [])
        assert Job.objects.filter(pk=job.pk).values().get() == before
    assert not JobAttempt.objects.exists()


# --- 3 ---


@pytest.mark.django_db(transaction=True)
def test_unheld_locks_are_told_apart_or_the_question_is_refused() -> None:
    dead, living = running_job(), running_job()
    expire(dead)
    assert [row.job_id for row in JobLock.objects.expired()] == [dead.pk]
    assert JobLock.objects.get(job=living).job_id == living.pk
    if connection.features.has_select_for_update_skip_locked:
        with transaction.atomic():
            assert [row.job_id for row in JobLock.objects.unheld()] == [dead.pk]
    else:
        with pytest.raises(NotSupportedError, match="no row locks"):
            JobLock.objects.unheld()


# --- 5 ---


@pytest.mark.structure
def test_only_the_control_loop_and_the_listener_make_connections_of_their_own() -> None:
    """All other code uses Django's connections, each thread its own: so job code can't come by the control loop's."""
    makers = {
        str(path.relative_to(ROOT)) for path in modules() if re.search(r"\b(?:control|create)_connection\(", path.read_text())
    }
    assert makers == {"django_jobs/db/__init__.py", "django_jobs/wakeup.py", "django_jobs/worker/control.py"}


@ON_POSTGRESQL
@pytest.mark.django_db(transaction=True)
def test_no_transaction_outlives_its_slice() -> None:
    """While a job runs for long, the transaction that holds its row is a young one at every look."""
    slice_seconds = 0.2
    job = make_job()
    executor = Recording()
    ages: list[float] = []

    def age() -> float:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT COALESCE(MAX(EXTRACT(EPOCH FROM clock_timestamp() - xact_start)), 0) FROM pg_stat_activity"
                " WHERE application_name = %s AND xact_start IS NOT NULL",
                [f"django_jobs {loop.worker}"],
            )
            found = float(cursor.fetchone()[0])
        ages.append(found)
        return found

    with control_loop(executor, slice_seconds=slice_seconds) as loop:
        until(lambda: executor.started == [job.pk], "the start")
        never(lambda: age() > slice_seconds + 1.0, "a transaction was left open", during=6 * slice_seconds)
    assert max(ages) > 0, "no open transaction was ever seen: the row was not held"


# --- 9 ---


@ON_POSTGRESQL
@pytest.mark.django_db(transaction=True)
def test_wakes_are_debounced_and_never_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    def notifications(queues: list[str], times: int) -> int:
        with CaptureQueriesContext(connection) as queries:
            for _ in range(times):
                wakeup.wake("default", queues)
        return sum(query["sql"].count("pg_notify(") for query in queries.captured_queries)

    monkeypatch.setattr(wakeup, "DEBOUNCE_SECONDS", 60.0)
    first, second = (f"invariant-{uuid.uuid4()}" for _ in range(2))
    assert notifications([first], 100) == 1
    assert notifications([first, second], 100) == 1
    assert notifications([f"invariant-{number}-{uuid.uuid4()}" for number in range(50)], 1) == 1
    monkeypatch.setattr(wakeup, "CHANNEL", "x" * 100)  # too long for PostgreSQL
    wakeup.wake("default", [f"invariant-{uuid.uuid4()}"])


# --- 13 ---


@ON_POSTGRESQL
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("names", "index"), [(None, "django_jobs_claim"), (("mail",), "django_jobs_claim_queue")])
def test_the_claim_reads_its_index_and_no_more(names: tuple[str, ...] | None, index: str) -> None:
    """Beside thousands of jobs that have ended, are due later or are parked, it touches a few pages."""
    now = db.server_now(connection)
    shared: dict[str, Any] = {"task": "tests.nowhere.task", "due_at": now, "enqueued_at": now, "queue": "mail"}
    others: list[dict[str, Any]] = [
        {"status": Status.SUCCEEDED, "finished_at": now},
        {"status": Status.SCHEDULED},
        {"status": Status.READY, "parked": "paused"},
    ]
    Job.objects.bulk_create([Job(**shared, **other) for other in others for _ in range(4_000)])
    Job.objects.bulk_create([Job(**shared) for _ in range(200)])
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE django_jobs_job, django_jobs_joblock, django_jobs_queue")  # else earlier tests' rows count
        with CaptureQueriesContext(connection) as queries:
            found = claim(
                connection,
                worker=uuid.uuid4(),
                worker_name="planned",
                tokens=[uuid.uuid4() for _ in range(10)],
                free=10,
                grace=10.0,
                queues=QueueFilter(names=names),
            )
        assert len(found) == 10
        (query,) = queries.captured_queries
        cursor.execute("EXPLAIN " + query["sql"])
        plan = "\n".join(row[0] for row in cursor.fetchall())
    assert f"using {index} on" in plan, plan
    assert "Seq Scan on django_jobs_job " not in plan, plan

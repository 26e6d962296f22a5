"""Batches in the database: ended once, callbacks released once, open again, kept and removed as a whole."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import DatabaseError, connection, transaction
from django.test.utils import CaptureQueriesContext

from django_jobs import db, stats
from django_jobs.exceptions import BatchDoesNotExist, BatchIsFinished, InvalidTransition
from django_jobs.ids import uuid7
from django_jobs.lifecycle import batch, batch_look, control, rollup, sweep
from django_jobs.lifecycle.batch_keep import Keeper, Walk
from django_jobs.lifecycle.batch_look import look, numbers_of
from django_jobs.lifecycle.enqueue import JobSpec, NewJob, insert
from django_jobs.lifecycle.record import record
from django_jobs.lifecycle.recover import writing
from django_jobs.models import Batch, BatchCount, Delta, Job
from django_jobs.outcomes import ErrorInfo, Failed, Finished, Succeeded
from django_jobs.retry import is_database_conflict
from django_jobs.statuses import Status
from tests.support.jobs import claim_jobs, in_threads, locked
from tests.support.moves import real_counts

pytestmark = pytest.mark.django_db
commits = pytest.mark.django_db(transaction=True)
needs_row_locks = pytest.mark.skipif(
    not connection.features.has_select_for_update_skip_locked, reason="this database has no row locks"
)

ERROR = ErrorInfo("builtins.ValueError", "no")
CALLBACKS = ("on_success", "on_failure", "on_finish")


def make(jobs: int = 0, *, callbacks: tuple[str, ...] = CALLBACKS, is_sealed: bool = True, **spec: Any) -> UUID:
    """Store a batch with `jobs` jobs and these callbacks."""
    new = {name: NewJob(JobSpec(task="tests.nowhere.callback", queue="callbacks"), [], {}) for name in callbacks}
    made = batch.NewBatch(id=uuid7(), name="b", metadata={}, created_by=None, callbacks=new)
    with transaction.atomic():
        batch.create(made, using="default")
        if jobs:
            add(made.id, jobs, **spec)
        if is_sealed:
            batch.seal(made.id, using="default")
    return made.id


def add(to: UUID, jobs: int = 1, **spec: Any) -> list[UUID]:
    """Add jobs in a transaction."""
    with writing("default"):
        batch.join(to, using="default")
        new = [NewJob(JobSpec(task="tests.nowhere.task", batch=to, **spec), [], {}) for _ in range(jobs)]
        insert(new, using="default")
    return [job.id for job in new]


def run(count: int = 100, *, failed: bool = False) -> list[UUID]:
    """Claim up to `count` ready jobs and end them."""
    attempts = claim_jobs(count=count)
    outcome = Failed(ERROR) if failed else Succeeded(1)
    with transaction.atomic():
        record(connection, [Finished(attempt, outcome) for attempt in attempts], worker_name="w")
    return [attempt.job_id for attempt in attempts]


def fold() -> None:
    """Do what maintenance does until all is folded."""
    for _ in range(100):
        try:
            with writing("default"):
                folded = rollup.fold(using="default", limit=1000)
                look(connection, folded.batches)
            if not folded.touched:
                return
        except DatabaseError as error:
            if not is_database_conflict(error) or connection.in_atomic_block:
                raise
    raise AssertionError("there is always more to fold")


def callbacks(of: UUID) -> str:
    """Return the statuses of success, failure and finish, as "waiting ready -"."""
    row = Batch.objects.get(id=of)
    statuses = dict(Job.objects.values_list("id", "status"))
    return " ".join(statuses.get(job, "-") for job in (row.on_success_id, row.on_failure_id, row.on_finish_id))


def is_finished(of: UUID) -> bool:
    return Batch.objects.get(id=of).finished_at is not None


def counts(of: UUID) -> dict[str, int]:
    found = numbers_of(connection, [of])[of]
    return {status.value: found[status] for status in Status if found[status]}


# -- its end ----------------------------------------------------------------------------------------


def test_a_batch_ends_with_its_last_job_and_its_callbacks_are_released_once() -> None:
    made = make(3)
    assert (callbacks(made), counts(made)) == ("waiting waiting waiting", {"ready": 3})
    run(2)
    fold()
    assert not is_finished(made)
    run(1)
    fold()
    assert is_finished(made)
    assert (callbacks(made), counts(made)) == ("ready cancelled ready", {"succeeded": 3})
    done = run()
    assert len(done) == 2
    fold()
    with writing("default"):
        look(connection, [made])
    assert callbacks(made) == "succeeded cancelled succeeded"
    assert stats.queue_counts() == {q: {**dict.fromkeys(map(str, Status), 0), **n} for q, n in _by_queue().items()}


def _by_queue() -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for (queue, status), number in real_counts().items():
        found.setdefault(queue, {})[status] = number
    return found


def test_the_first_job_that_does_not_succeed_releases_on_failure_at_once() -> None:
    made = make(3, is_sealed=False)
    run(1, failed=True)
    fold()
    assert callbacks(made) == "waiting ready waiting"
    assert not is_finished(made), "nobody has sealed it"


def test_a_cancelled_job_has_not_succeeded() -> None:
    made = make()
    other = make(2)
    (job, _) = Job.objects.filter(batch=other).values_list("id", flat=True)
    control.cancel([job])
    fold()
    assert callbacks(other) == "waiting ready waiting"
    run()
    fold()
    assert (is_finished(other), callbacks(other)) == (True, "waiting succeeded ready")
    held = Job.objects.get(id=Batch.objects.get(id=other).on_success_id)
    assert held.reason == "waits: 1 job of its batch did not succeed"
    assert is_finished(made), "an empty batch finishes at once"
    assert callbacks(made).split()[2] in ("ready", "succeeded")


def test_an_empty_batch_finishes_in_the_transaction_that_seals_it() -> None:
    made = make()
    assert (is_finished(made), callbacks(made)) == (True, "ready cancelled ready")


def test_an_unsealed_batch_never_finishes() -> None:
    made = make(1, is_sealed=False)
    run()
    fold()
    assert not is_finished(made)
    assert batch.seal(made, using="default") is True
    assert is_finished(made)
    assert batch.seal(made, using="default") is False


def test_a_batch_whose_failed_jobs_are_requeued_is_open_again_and_then_succeeds_late() -> None:
    made = make(3)
    run(1, failed=True)
    run(2)
    fold()
    assert callbacks(made) == "waiting ready ready"
    batch.mark_read([made])
    run()
    report = batch.requeue_failed(made, by="ann")
    assert (len(report.changed), report.refused) == (1, {})
    row = Batch.objects.get(id=made)
    assert (row.finished_at, row.read_at, callbacks(made)) == (None, None, "waiting succeeded succeeded")
    run()
    fold()
    assert (is_finished(made), callbacks(made)) == (True, "ready succeeded succeeded"), "those that ran do not run again"


def test_a_job_that_is_requeued_by_itself_opens_its_batch_too() -> None:
    made = make(1)
    (job,) = run(failed=True)
    fold()
    control.requeue([job])
    fold()
    assert not is_finished(made)
    control.done([job])
    fold()
    assert (is_finished(made), callbacks(made).split()[0]) == (True, "ready")


def test_a_batch_ends_when_its_last_living_job_is_deleted() -> None:
    made = make(2)
    (first, _) = Job.objects.filter(batch=made).values_list("id", flat=True)
    control.delete([first])
    run()
    fold()
    assert (is_finished(made), counts(made), callbacks(made).split()[0]) == (True, {"succeeded": 1}, "ready")


def test_jobs_join_as_long_as_a_job_of_the_batch_lives() -> None:
    made = make(1)
    add(made, 2)
    run()
    fold()
    with pytest.raises(BatchIsFinished, match="has finished: no jobs") as caught:
        add(made)
    assert isinstance(caught.value, InvalidTransition)
    with pytest.raises(BatchDoesNotExist):
        add(uuid7())
    assert counts(made) == {"succeeded": 3}


def test_cancel_seals_and_cancels_all_that_has_not_ended() -> None:
    made = make(5, is_sealed=False)
    run(2)
    report = batch.cancel(made, by="ann", reason="wrong file")
    assert len(report.changed) == 3
    assert (is_finished(made), counts(made)) == (True, {"succeeded": 2, "cancelled": 3})
    assert set(Job.objects.filter(status="cancelled", batch=made).values_list("reason", flat=True)) == {
        "cancelled by ann: wrong file"
    }
    assert callbacks(made) == "waiting ready ready"
    with pytest.raises(BatchDoesNotExist):
        batch.cancel(uuid7())


def test_a_limit_bounds_what_a_verb_does_in_one_call() -> None:
    made = make(5)
    assert [len(batch.cancel(made, limit=2).changed) for _ in range(4)] == [2, 2, 1, 0]


def test_running_jobs_are_asked_to_stop_once() -> None:
    made = make(3)
    claim_jobs(count=1)
    report = batch.cancel(made)
    assert (len(report.changed), len(report.requested)) == (3, 1)
    assert batch.cancel(made).changed == []
    assert len(batch.cancel(made, force=True).requested) == 1
    assert not is_finished(made)


def test_numbers_are_those_of_the_jobs_whatever_was_folded() -> None:
    made, other = make(3), make(2)
    run(2)
    assert counts(made) == {"succeeded": 2, "ready": 1}
    fold()
    assert not Delta.objects.exists()
    assert (counts(made), counts(other)) == ({"succeeded": 2, "ready": 1}, {"ready": 2})
    run()
    assert (counts(made), counts(other)) == ({"succeeded": 3}, {"succeeded": 2})


def test_a_note_changes_no_number() -> None:
    make()
    before = stats.queue_counts()
    assert Delta.objects.filter(name="look").exists()
    fold()
    assert (stats.queue_counts(), BatchCount.objects.filter(name="look").exists()) == (before, False)


# -- several at once --------------------------------------------------------------------------------


@needs_row_locks
@commits
def test_who_adds_keeps_the_batch_from_ending_and_nobody_waits() -> None:
    made = make(1)
    run()
    with locked(db.BATCH, "id", made, connection_lock()):
        fold_once()
        assert not is_finished(made)
        assert Delta.objects.filter(name="look", batch_id=made).exists(), "somebody has to look again"
    fold()
    assert is_finished(made)


def connection_lock() -> str:
    return db.dialect(connection).for_fence


def fold_once() -> None:
    with writing("default"):
        look(connection, rollup.fold(using="default", limit=1000).batches)


@needs_row_locks
@commits
def test_a_look_beside_an_open_addition_ends_nothing() -> None:
    made = make(1, callbacks=("on_finish",))
    run()
    joined, looked = threading.Event(), threading.Event()

    def addition() -> None:
        with writing("default"):
            batch.join(made, using="default")
            joined.set()
            assert looked.wait(20)
            insert([NewJob(JobSpec(task="tests.nowhere.task", batch=made), [], {})], using="default")

    def others() -> None:
        assert joined.wait(20)
        try:
            close(made)
        finally:
            looked.set()

    in_threads(addition, others)
    assert (is_finished(made), callbacks(made)) == (False, "- - waiting")
    fold()
    assert (is_finished(made), counts(made)) == (False, {"ready": 1, "succeeded": 1})


@needs_row_locks
@commits
def test_what_is_added_between_the_look_and_its_lock_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    made = make(1, callbacks=("on_finish",))
    run()
    lock = batch_look._lock

    def late(*args: Any) -> list[UUID]:
        in_threads(lambda: add(made))
        return lock(*args)

    monkeypatch.setattr(batch_look, "_lock", late)
    close(made)
    assert (is_finished(made), callbacks(made)) == (False, "- - waiting")


@needs_row_locks
@commits
def test_an_addition_beside_an_open_look_sees_that_it_has_ended() -> None:
    made = make(1, callbacks=("on_finish",))
    run()
    looked, refused = threading.Event(), threading.Event()

    def ending() -> None:
        with writing("default"):
            look(connection, [made])
            looked.set()
            assert not refused.wait(0.5), "nobody can know yet whether it has ended"

    def addition() -> None:
        assert looked.wait(20)
        with pytest.raises(BatchIsFinished):
            add(made)
        refused.set()

    in_threads(ending, addition)
    assert (is_finished(made), counts(made)) == (True, {"succeeded": 1})


@commits
def test_the_end_and_an_addition_at_once_are_one_after_the_other() -> None:
    for _ in range(15):
        made = make(1, callbacks=("on_finish",))
        run()
        added: list[UUID] = []

        def late(made: UUID = made, added: list[UUID] = added) -> None:
            try:
                added += add(made)
            except BatchIsFinished:
                return
            except DatabaseError as error:
                if not is_database_conflict(error) and connection.vendor != "sqlite":
                    raise

        in_threads(late, fold)
        fold()
        assert is_finished(made) == (not added), "it ended beside a job that it did not see"
        Job.objects.filter(status="ready").delete()


@commits
def test_two_that_end_the_last_jobs_release_each_callback_once() -> None:
    for _ in range(10):
        made = make(2, callbacks=("on_success", "on_finish"))
        attempts = claim_jobs()
        released = Delta.objects.filter(queue="callbacks", name="waiting>ready")

        def end(attempt: Any, made: UUID = made) -> Callable[[], None]:
            def work() -> None:
                with writing("default"):
                    record(connection, [Finished(attempt, Succeeded(1))], worker_name="w")
                close(made)
                close(made)

            return work

        in_threads(*(end(attempt) for attempt in attempts))
        close(made)
        assert (is_finished(made), callbacks(made)) == (True, "ready - ready")
        assert sum(released.values_list("value", flat=True)) == 2
        clear_all()


def close(made: UUID) -> None:
    """Look, again after a lost race, as maintenance does."""
    for _ in range(50):
        try:
            return batch.close_finished([made], using="default")
        except DatabaseError as error:
            if not is_database_conflict(error) and connection.vendor != "sqlite":
                raise
    raise AssertionError("it lost every race")


def clear_all() -> None:
    for model in (Job, Delta, Batch, BatchCount):
        model.objects.all().delete()


@needs_row_locks
@commits
def test_a_callback_that_somebody_has_locked_is_released_later() -> None:
    made = make(1)
    run()
    row = Batch.objects.get(id=made)
    assert row.on_finish_id
    with locked(db.JOB, "id", row.on_finish_id, "FOR UPDATE"):
        fold_once()
        assert (is_finished(made), callbacks(made)) == (True, "ready cancelled waiting")
        fold_once()
        assert callbacks(made).endswith("waiting")
    fold()
    assert callbacks(made) == "ready cancelled ready"


@commits
def test_an_end_that_is_rolled_back_ends_nothing_and_comes_again() -> None:
    made = make(1)
    run()

    def end() -> None:
        with writing("default"):
            look(connection, rollup.fold(using="default", limit=1000).batches)
            assert is_finished(made)
            raise RuntimeError("killed before the commit")

    with pytest.raises(RuntimeError):
        end()
    assert (is_finished(made), callbacks(made)) == (False, "waiting waiting waiting")
    fold()
    assert callbacks(made) == "ready cancelled ready"


@needs_row_locks
@commits
def test_a_seal_that_the_last_fold_did_not_see_is_not_forgotten() -> None:
    made = make(1, is_sealed=False)
    (attempt,) = claim_jobs()
    sealed, folded = threading.Event(), threading.Event()

    def seal() -> None:
        with transaction.atomic():
            batch.seal(made, using="default")
            sealed.set()
            assert folded.wait(20)

    def last_job() -> None:
        assert sealed.wait(20)
        with transaction.atomic():
            record(connection, [Finished(attempt, Succeeded(1))], worker_name="w")
        fold()
        folded.set()

    in_threads(seal, last_job)
    assert not is_finished(made)
    fold()
    assert is_finished(made)


@commits
def test_sealing_waits_for_nobody_who_adds_jobs() -> None:
    if connection.vendor != "postgresql":
        pytest.skip("only PostgreSQL has a lock that goes beside an update")
    made = make(1, is_sealed=False)
    with locked(db.BATCH, "id", made, connection_lock()), transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL lock_timeout = '2s'")
        assert batch.seal(made, using="default")
        batch.mark_read([made])


# -- retention --------------------------------------------------------------------------------------


def age(days: float = 8, **which: Any) -> None:
    """Let what is dated have been dated so many days earlier."""
    for job in Job.objects.filter(prune_at__isnull=False, **which):
        Job.objects.filter(id=job.id).update(prune_at=job.prune_at - timedelta(days=days))


def prune(keeper: Keeper | None = None) -> None:
    with writing("default"):
        sweep.prune(using="default", limit=100, keeper=keeper)


def test_a_batch_goes_as_a_whole_when_every_job_is_due() -> None:
    made = make(3, callbacks=("on_success",))
    jobs = run(2)
    fold()
    age()
    prune()
    assert Job.objects.filter(id__in=jobs).count() == 2, "one lives"
    run(1, failed=True)
    fold()
    age()
    prune()
    assert Job.objects.filter(batch=made).count() == 3, "one is kept for ever"
    control.cancel(Job.objects.filter(status="failed").values_list("id", flat=True))
    age(60)
    prune()
    fold()
    assert not Job.objects.filter(batch=made).exists()
    assert not Batch.objects.exists()
    assert not BatchCount.objects.exists(), "no number outlives its batch"
    (callback,) = Job.objects.all()
    assert (callback.status, callback.reason) == ("cancelled", "cancelled: its batch was deleted")


def test_jobs_that_are_due_at_different_times_wait_for_the_last_and_are_asked_about_once() -> None:
    made = make(4)
    run(2)
    run()
    fold()
    first, second, *_ = Job.objects.filter(batch=made).order_by("id")
    age(id__in=[first.id])
    keeper = Keeper()
    prune(keeper)
    first.refresh_from_db()
    last = max(job.prune_at for job in Job.objects.filter(batch=made) if job.prune_at)
    assert first.prune_at == last
    age(id__in=[second.id])
    with CaptureQueriesContext(connection) as queries:
        prune(keeper)
    assert not [query["sql"] for query in queries if "MAX(" in query["sql"]]
    second.refresh_from_db()
    assert second.prune_at == last


def test_a_batch_whose_jobs_were_all_deleted_is_removed_in_time() -> None:
    made, young, unfinished = make(1), make(1), make(1, is_sealed=False)
    run()
    fold()
    control.delete(Job.objects.filter(batch__isnull=False).values_list("id", flat=True))
    Batch.objects.filter(id=made).update(finished_at=db.server_now(connection) - timedelta(days=8))
    walk = Walk()
    for _ in range(4):
        with writing("default"):
            walk.step(using="default", limit=2)
    assert set(Batch.objects.values_list("id", flat=True)) == {young, unfinished}


def test_a_batch_that_was_forgotten_is_found_by_the_walk() -> None:
    made = make(1)
    run()
    fold()
    Batch.objects.filter(id=made).update(finished_at=None)
    with writing("default"):
        Walk().step(using="default", limit=5)
    assert is_finished(made)

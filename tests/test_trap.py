"""What a project's tests use: traps, eager jobs, fixtures, trying a task twice."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.db import connection, transaction
from django.test import TestCase

from django_jobs import Retry, chain, group, job
from django_jobs.models import Job, Queue
from django_jobs.statuses import Status
from django_jobs.testing import JobFailed, Trap, assert_idempotent, eager_jobs, run_jobs, trap_jobs

pytestmark = pytest.mark.django_db

DONE: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_done() -> None:
    DONE.clear()


@job
def note(text: str, times: int = 1) -> str:
    """Note it."""
    DONE.append(text * times)
    return text * times


@job(queue_name="mail", priority=5)
def mail(to: str) -> None:
    """Send it."""
    DONE.append(to)


@job
def parent() -> None:
    """Enqueue two."""
    note.enqueue("child")
    mail.enqueue("child")


@job
def broken() -> None:
    """Raise."""
    raise ValueError("it broke")


@job(takes_context=True, max_attempts=3, backoff=600)
def third_time_lucky(context: Any) -> int:
    """Ask twice for another try."""
    DONE.append(context.attempt)
    if context.attempt < 3:
        raise Retry("not yet")
    return int(context.attempt)


@job
def after_commit() -> None:
    """Register a function for the commit."""
    transaction.on_commit(lambda: DONE.append("committed"))
    DONE.append("ran")


@job
def make_group(name: str) -> None:
    """Not idempotent."""
    Group.objects.create(name=f"{name}{Group.objects.count()}")


@job
def ensure_group(name: str) -> None:
    """Idempotent."""
    Group.objects.get_or_create(name=name)


@job(atomic=True)
def make_group_atomically(name: str) -> None:
    """Once, whatever happens."""
    Group.objects.create(name=name)


# --- trap ---


def test_a_trap_tells_what_was_enqueued_and_runs_only_that() -> None:
    before = note.enqueue("before")
    with trap_jobs() as trap:
        note.enqueue("a", times=2)
        note.enqueue_many([("b",), ("c",)])
        chain(mail.s("x"), mail.s("y")).enqueue()
    note.enqueue("after")
    assert [job.args for job in trap] == [["a"], ["b"], ["c"], ["x"], ["y"]]
    trap.assert_count(5)
    trap.assert_count(2, mail)
    assert trap.assert_enqueued(note, args=("a", 2)).kwargs == {"times": 2}
    trap.assert_enqueued(note, kwargs={"text": "b"})
    trap.assert_enqueued(mail, queue="mail", priority=5, times=2)
    trap.assert_enqueued(mail, status="waiting", times=1)
    trap.assert_not_enqueued(broken)
    assert trap.perform() == 5
    assert DONE == ["x", "y", "aa", "b", "c"], "the higher priority first, and in the order of the graph"
    assert before.refresh() is None
    assert before.job_status == Status.READY


def test_what_is_missing_is_told_with_what_there_is() -> None:
    with trap_jobs() as trap:
        note.enqueue("a", times=2)
        for _ in range(25):
            mail.enqueue("x" * 500)
    with pytest.raises(AssertionError) as caught:
        trap.assert_enqueued(note, args=("a",))
    assert "args=('a',)" in str(caught.value)
    assert "note('a', times=2) [ready]" in str(caught.value)
    assert "and 6 more" in str(caught.value)
    assert len(str(caught.value)) < 8_000
    for wrong in (
        lambda: trap.assert_count(3),
        lambda: trap.assert_not_enqueued(),
        lambda: trap.assert_not_enqueued(mail),
        lambda: trap.assert_enqueued(broken),
        lambda: trap.assert_enqueued(mail, times=1),
        lambda: trap.assert_enqueued(mail, queue="other"),
    ):
        with pytest.raises(AssertionError):
            wrong()
    with pytest.raises(TypeError, match="knows queue, priority"):
        trap.assert_enqueued(mail, que="mail")
    with trap_jobs() as empty:
        pass
    assert str(empty) == "Nothing was enqueued."


def test_what_is_rolled_back_was_not_enqueued() -> None:
    with trap_jobs() as trap, transaction.atomic():
        note.enqueue("a")
        transaction.set_rollback(True)
    trap.assert_not_enqueued()


def test_jobs_of_jobs_are_kept_and_run() -> None:
    with trap_jobs() as trap:
        parent.enqueue()
    assert trap.perform(limit=1) == 1
    trap.assert_enqueued(note, args=("child",))
    assert trap.perform() == 2
    assert sorted(DONE) == ["child", "child"]


def test_traps_in_one_another() -> None:
    with trap_jobs() as outer:
        note.enqueue("a")
        with trap_jobs() as inner:
            note.enqueue("b")
        note.enqueue("c")
    assert [job.args for job in inner] == [["b"]]
    assert [job.args for job in outer] == [["a"], ["b"], ["c"]]


def test_the_error_of_a_trapped_job_is_raised_with_its_traceback_unless_it_is_not_asked_for() -> None:
    with trap_jobs() as trap:
        broken.enqueue()
    with pytest.raises(ValueError, match="it broke") as caught:
        trap.perform()
    assert caught.traceback[-1].name == "broken"
    assert Job.objects.get().status == Status.FAILED
    with trap_jobs() as trap:
        broken.enqueue()
    assert trap.perform(raise_errors=False) == 1


@pytest.mark.django_db(transaction=True)
def test_other_threads_are_caught_too() -> None:
    def other() -> None:
        try:
            note.enqueue("thread")
        finally:
            connection.close()

    with trap_jobs() as trap:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(20)
    trap.assert_enqueued(note, args=("thread",))


# --- run ---


def test_run_raises_and_runs_what_is_due_later_and_one_queue() -> None:
    third_time_lucky.enqueue()
    assert run_jobs() == 1
    assert run_jobs(scheduled=True) == 2
    assert DONE == [1, 2, 3]
    mail.enqueue("a")
    note.enqueue("b")
    assert run_jobs(queue="mail") == 1
    assert DONE[-1] == "a"
    broken.enqueue()
    with pytest.raises(ValueError, match="it broke"):
        run_jobs(raise_errors=True)
    Job.objects.all().delete()
    note.using(max_attempts=1).enqueue("x")
    Job.objects.update(attempts_used=1)
    with pytest.raises(Exception, match="not started"):
        run_jobs(raise_errors=True)
    with pytest.raises(JobFailed):
        raise JobFailed(Job.objects.get())


class InATestCase(TestCase):
    """Nothing is committed here."""

    def test_functions_that_wait_for_the_commit_are_called(self) -> None:
        transaction.on_commit(lambda: DONE.append("before"))
        note.using(enqueue_on_commit=True).enqueue("late")
        after_commit.enqueue()
        assert run_jobs() == 2
        assert DONE[0] == "before"
        assert DONE[-2:] == ["ran", "committed"] or DONE[-3:-1] == ["ran", "committed"]
        assert "late" in DONE

    def test_or_not(self) -> None:
        transaction.on_commit(lambda: DONE.append("never"))
        after_commit.enqueue()
        assert run_jobs(commit=False) == 1
        assert DONE == ["ran"]

    def test_graphs_run_in_their_order(self) -> None:
        chain(note.s("a"), group(note.s("b"), note.s("c")), note.s("d")).enqueue()
        assert run_jobs() == 4
        assert DONE == ["a", "b", "c", "d"]


# --- eager ---


def test_eager_jobs_have_ended_when_enqueue_returns() -> None:
    with eager_jobs():
        result = note.enqueue("a")
        assert (result.return_value, result.job_status, DONE) == ("a", Status.SUCCEEDED, ["a"])
        assert [each.return_value for each in note.enqueue_many([("b",), ("c",)])] == ["b", "c"]
        assert broken.enqueue().job_status == Status.FAILED
        assert third_time_lucky.enqueue().return_value == 3
        assert note.using(run_after=3600).enqueue("later").return_value == "later"
        DONE.clear()
        parent.enqueue()
        assert sorted(DONE) == ["child", "child"]
        DONE.clear()
        graph = chain(note.s("x"), group(note.s("y"), note.s("z")), note.s("end")).enqueue()
        assert DONE == ["x", "y", "z", "end"]
        assert {each.job_status for each in graph} == {Status.SUCCEEDED}
    assert note.enqueue("not now").job_status == Status.READY
    with eager_jobs(raise_errors=True), pytest.raises(ValueError, match="it broke"):
        broken.enqueue()


@pytest.mark.django_db(transaction=True)
def test_an_eager_coroutine_and_a_job_for_after_the_commit() -> None:
    with eager_jobs():
        with transaction.atomic():
            result = note.using(enqueue_on_commit=True).enqueue("late")
            assert DONE == []
        assert DONE == ["late"]
        assert result.return_value == "late"


def test_eager_leaves_what_was_there_and_what_http_workers_run() -> None:
    before = note.enqueue("before")
    Queue.objects.create(name="web", is_http=True)
    with eager_jobs():
        note.enqueue("now")
        assert note.using(queue_name="web").enqueue("elsewhere").job_status == Status.READY
    before.refresh()
    assert (before.job_status, DONE) == (Status.READY, ["now"])


# --- twice ---


def test_a_task_that_does_its_work_twice_is_found() -> None:
    assert assert_idempotent(ensure_group, "a").return_value is None
    assert assert_idempotent(make_group_atomically, "b").job_status == Status.SUCCEEDED
    assert Group.objects.count() == 2
    with pytest.raises(AssertionError, match="is not idempotent") as caught:
        assert_idempotent(make_group, "c")
    assert "auth.Group" in str(caught.value)
    assert "added" in str(caught.value)
    with pytest.raises(AssertionError, match=r"from \['x'\]\n  to \['x', 'x'\]"):
        assert_idempotent(note, "x", state=lambda: list(DONE))
    with pytest.raises(ValueError, match="it broke"):
        assert_idempotent(broken)
    assert not User.objects.exists()


# --- fixtures ---


def test_the_fixtures(trap_jobs: Trap, run_jobs: Any) -> None:
    note.enqueue("a")
    trap_jobs.assert_count(1, note)
    assert run_jobs() == 1


def test_the_fixture_of_eager_jobs(eager_jobs: None) -> None:
    assert note.enqueue("a").return_value == "a"
    with pytest.raises(ValueError, match="it broke"):
        broken.enqueue()


@pytest.mark.once
def test_a_test_run_of_a_project_that_does_not_use_it_is_left_alone() -> None:
    """The plugin is loaded wherever the package is installed."""
    code = "import sys, django_jobs.pytest_plugin; sys.exit(any(name.startswith('django.') for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_what_the_api_enqueues_is_trapped_and_runs_at_once_where_jobs_do() -> None:
    from tests.api.calls import Api

    api = Api()
    with trap_jobs() as trap:
        api.ok("POST", "/jobs/", {"task": note.module_path, "args": ["over http"]}, status=201)
    trap.assert_enqueued(note, args=("over http",))
    with eager_jobs():
        api.ok("POST", "/jobs/", {"task": note.module_path, "args": ["at once"]}, status=201)
    assert DONE == ["at once"]


def test_a_robust_function_of_a_commit_that_fails_ends_nothing() -> None:
    def broken() -> None:
        raise ValueError("it broke")

    transaction.on_commit(broken, robust=True)
    transaction.on_commit(lambda: DONE.append("after"))
    note.enqueue("a")
    assert run_jobs() == 1
    assert DONE == ["after", "a"]
    transaction.on_commit(broken)
    with pytest.raises(ValueError, match="it broke"):
        run_jobs()

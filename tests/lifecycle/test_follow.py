"""Graphs in the database: stored in one go, children released once, cancelled to any depth, taken back with a requeue."""

from __future__ import annotations

import threading
from datetime import timedelta
from uuid import UUID

import pytest
from django.db import OperationalError, connection, transaction

from django_jobs import db
from django_jobs.lifecycle import control, graph, sweep
from django_jobs.lifecycle.follow import follow_ended
from django_jobs.lifecycle.record import record
from django_jobs.lifecycle.spec import JobSpec, NewJob
from django_jobs.models import Edge, Ended, Job
from django_jobs.outcomes import Attempt, ErrorInfo, Failed, Finished, HandedBack, Succeeded, TimedOut
from django_jobs.statuses import FINAL, Status
from tests.support.jobs import claim_jobs, locked, make_job

pytestmark = pytest.mark.django_db
commits = pytest.mark.django_db(transaction=True)
needs_row_locks = pytest.mark.skipif(
    not connection.features.has_select_for_update_skip_locked, reason="this database has no row locks"
)

ERROR = ErrorInfo("builtins.ValueError", "no")


def store(text: str, **policies: str) -> dict[str, UUID]:
    """Store a graph such as "a>b a>c b>d c>d": a letter is a job, `x>y`: y comes after x. Return the ids by letter."""
    names = list(dict.fromkeys(text.replace(">", " ").split()))
    jobs = {name: NewJob(JobSpec(task="tests.nowhere.task", **policies), [], {}) for name in names}
    edges = [(jobs[parent].id, jobs[child].id) for parent, _, child in (part.partition(">") for part in text.split()) if child]
    graph.insert_graph(list(jobs.values()), edges, using="default")
    return {name: job.id for name, job in jobs.items()}


def statuses(ids: dict[str, UUID]) -> str:
    """Return the first letters of the statuses, in order."""
    found = dict(Job.objects.values_list("id", "status"))
    return " ".join(f"{name}:{found.get(job_id, '-')}" for name, job_id in ids.items())


def end(*ids: UUID, failed: bool = False) -> None:
    """Run these jobs, which must be ready, to their end; nobody follows them yet."""
    attempts = {attempt.job_id: attempt for attempt in claim_jobs()}
    assert set(ids) <= set(attempts)
    outcome = Failed(ERROR) if failed else Succeeded(1)
    with transaction.atomic():
        record(connection, [Finished(attempts[job_id], outcome) for job_id in ids], worker_name="w")
        for job_id in attempts.keys() - set(ids):  # the others go back
            give_back(attempts[job_id])


def give_back(attempt: Attempt) -> None:
    record(connection, [Finished(attempt, HandedBack())], worker_name="w")


def follow() -> list[str]:
    """Do what the next cycle of a worker does; return the names of the events."""
    with transaction.atomic():
        return [event.name for event in follow_ended(connection, limit=100).events]


def test_a_diamond_is_released_step_by_step() -> None:
    ids = store("a>b a>c b>d c>d")
    assert statuses(ids) == "a:ready b:waiting c:waiting d:waiting"
    assert len(set(Job.objects.values_list("graph", flat=True))) == 1
    end(ids["a"])
    assert statuses(ids) == "a:succeeded b:waiting c:waiting d:waiting", "not before the commit"
    follow()
    assert statuses(ids) == "a:succeeded b:ready c:ready d:waiting"
    end(ids["b"])
    follow()
    assert statuses(ids) == "a:succeeded b:succeeded c:ready d:waiting"
    end(ids["c"])
    follow()
    assert statuses(ids) == "a:succeeded b:succeeded c:succeeded d:ready"
    assert not Ended.objects.exists()


@pytest.mark.parametrize(
    ("policies", "after"),
    [
        ({}, "a:failed b:waiting c:waiting"),
        ({"on_parent_failure": "wait"}, "a:failed b:waiting c:waiting"),
        ({"on_parent_failure": "cancel"}, "a:failed b:cancelled c:cancelled"),
        ({"on_parent_failure": "run"}, "a:failed b:ready c:waiting"),
    ],
)
def test_b43_what_children_do_when_a_parent_fails(policies: dict[str, str], after: str) -> None:
    ids = store("a>b b>c", **policies)
    end(ids["a"], failed=True)
    follow()
    assert statuses(ids) == after
    child = Job.objects.get(id=ids["b"])
    if child.status != Status.READY:
        assert str(ids["a"]) in child.reason
        assert "has failed" in child.reason


@pytest.mark.parametrize(
    ("policies", "after"),
    [
        ({}, "a:cancelled b:cancelled c:cancelled d:cancelled"),
        ({"on_parent_cancel": "run"}, "a:cancelled b:ready c:waiting d:waiting"),
        ({"on_parent_cancel": "wait"}, "a:cancelled b:waiting c:waiting d:waiting"),
    ],
)
def test_a_cancel_goes_down_to_any_depth_at_once(policies: dict[str, str], after: str) -> None:
    ids = store("a>b b>c c>d", **policies)
    report = control.cancel([ids["a"]], by="me", reason="no use")
    assert statuses(ids) == after
    if not policies:
        assert [event.name for event in report.events] == ["job_cancelled"] * 4
        for name in "bcd":
            job = Job.objects.get(id=ids[name])
            assert job.finished_at is not None
            assert job.prune_at is not None
            assert "was cancelled" in job.reason


def test_one_cancelled_parent_of_several_is_enough() -> None:
    """Given (done, cancelled): a child that asked for both would wait for ever."""
    ids = store("a>d b>d d>e")
    end(ids["a"])
    follow()
    control.cancel([ids["b"]])
    assert statuses(ids) == "a:succeeded d:cancelled b:cancelled e:cancelled"


def test_a_parent_marked_done_counts_as_success() -> None:
    ids = store("a>b b>c")
    end(ids["a"], failed=True)
    follow()
    control.done([ids["a"]], by="me")
    assert statuses(ids) == "a:succeeded b:ready c:waiting"
    # A job that waits may be marked, too: its own children go on.
    control.done([ids["c"]], by="me")
    assert statuses(ids) == "a:succeeded b:ready c:succeeded"


def test_b43_a_repaired_parent_brings_its_children_each_once() -> None:
    ids = store("a>b b>c")
    end(ids["a"], failed=True)
    follow()
    control.requeue([ids["a"]])
    assert statuses(ids) == "a:ready b:waiting c:waiting"
    end(ids["a"])
    follow()
    assert statuses(ids) == "a:succeeded b:ready c:waiting"
    assert Job.objects.get(id=ids["b"]).reason == ""


def test_requeueing_a_parent_takes_back_children_that_have_not_started_and_leaves_the_others() -> None:
    ids = store("a>b a>c a>d")
    end(ids["a"])
    follow()
    end(ids["b"])
    Job.objects.filter(id=ids["d"]).update(status=Status.SCHEDULED)
    control.requeue([ids["a"]])
    assert statuses(ids) == "a:ready b:succeeded c:waiting d:waiting"
    end(ids["a"])
    follow()
    assert statuses(ids) == "a:succeeded b:succeeded c:ready d:ready"


def test_a_requeued_child_waits_again_where_a_parent_is_not_done() -> None:
    ids = store("a>d b>d")
    end(ids["a"])
    control.cancel([ids["b"]])
    assert statuses(ids) == "a:succeeded d:cancelled b:cancelled"
    report = control.requeue([ids["d"]])
    assert report.changed == [ids["d"]]
    assert statuses(ids) == "a:succeeded d:waiting b:cancelled"
    assert str(ids["b"]) in Job.objects.get(id=ids["d"]).reason
    # Both at once: the parent is ready, the child waits for it.
    control.cancel([ids["d"]])
    control.requeue(ids.values())
    assert statuses(ids) == "a:ready d:waiting b:ready"


def test_a_whole_cancelled_graph_can_be_requeued_in_one_go() -> None:
    ids = store("a>b a>c b>d c>d")
    control.cancel(ids.values())
    assert statuses(ids) == "a:cancelled b:cancelled c:cancelled d:cancelled"
    control.requeue(ids.values())
    assert statuses(ids) == "a:ready b:waiting c:waiting d:waiting"


@pytest.mark.parametrize("ended", ["succeeded", "failed", "cancelled", "running"])
def test_a_child_may_be_added_to_a_job_that_is_stored_whatever_has_become_of_it(ended: str) -> None:
    parent = make_job(Status(ended)) if ended != "running" else make_job()
    if ended == "running":
        claim_jobs()
    child = NewJob(JobSpec(task="tests.nowhere.task"), [], {})
    graph.insert_graph([child], [(parent.id, child.id)], using="default")
    expected = {"succeeded": "ready", "failed": "waiting", "cancelled": "cancelled", "running": "waiting"}[ended]
    assert Job.objects.get(id=child.id).status == expected
    parent.refresh_from_db()
    assert parent.graph == Job.objects.get(id=child.id).graph
    # A third joins the graph that there is.
    third = NewJob(JobSpec(task="tests.nowhere.task"), [], {})
    assert graph.insert_graph([third], [(parent.id, third.id)], using="default") == parent.graph


def test_a_job_that_got_a_child_while_it_ran_is_followed() -> None:
    parent = make_job()
    (attempt,) = claim_jobs()
    child = NewJob(JobSpec(task="tests.nowhere.task"), [], {})
    graph.insert_graph([child], [(parent.id, child.id)], using="default")
    assert attempt.graph is None
    with transaction.atomic():
        recorded = record(connection, [Finished(attempt, Succeeded(None))], worker_name="w")
    assert recorded.has_ended
    follow()
    assert Job.objects.get(id=child.id).status == Status.READY


def test_a_parent_that_is_not_there_is_an_error_and_stores_nothing() -> None:
    child = NewJob(JobSpec(task="tests.nowhere.task"), [], {})
    with pytest.raises(Job.DoesNotExist), transaction.atomic():
        graph.insert_graph([child], [(child.id.__class__(int=1), child.id)], using="default")
    assert not Job.objects.exists()
    assert not Edge.objects.exists()


@pytest.mark.parametrize("status", ["ready", "failed", "succeeded"])
def test_b43_deleting_a_parent_cancels_those_that_wait_for_it(status: str) -> None:
    ids = store("a>b b>c")
    if status != "ready":
        end(ids["a"], failed=status == "failed")
        follow()
    control.delete([ids["a"]])
    if status == "succeeded":
        assert statuses(ids) == "a:- b:ready c:waiting"
    else:
        assert statuses(ids) == "a:- b:cancelled c:cancelled"
        assert "deleted" in Job.objects.get(id=ids["b"]).reason
    assert not Edge.objects.filter(parent=ids["a"]).exists()


def test_a_child_that_runs_after_a_cancel_runs_after_a_deletion() -> None:
    ids = store("a>b b>c", on_parent_cancel="run")
    control.delete([ids["a"]])
    assert statuses(ids) == "a:- b:ready c:waiting"


def test_a_time_out_counts_as_a_failure() -> None:
    ids = store("a>b", on_parent_failure="cancel")
    Job.objects.filter(id=ids["a"]).update(max_attempts=1)
    (attempt,) = claim_jobs()
    with transaction.atomic():
        record(connection, [Finished(attempt, TimedOut(ERROR))], worker_name="w")
    assert follow() == ["job_cancelled"]
    assert statuses(ids) == "a:timed_out b:cancelled"
    assert "has timed out" in Job.objects.get(id=ids["b"]).reason


def test_a_retry_is_no_end() -> None:
    ids = store("a>b", on_parent_failure="cancel")
    (attempt,) = claim_jobs()
    with transaction.atomic():
        recorded = record(connection, [Finished(attempt, Failed(ERROR, final=False))], worker_name="w")
    assert not recorded.has_ended
    assert not Ended.objects.exists()
    assert statuses(ids).endswith("b:waiting")


def _finish(attempt: Attempt, barrier: threading.Barrier, failures: list[BaseException]) -> None:
    """Record a success and follow it, as two processes do, each over its own connection."""
    try:
        barrier.wait(10)
        for _ in range(50):  # SQLite has one writer at a time
            try:
                with graph.writing("default"):
                    record(connection, [Finished(attempt, Succeeded(None))], worker_name="w")
                break
            except OperationalError:
                continue
        barrier.wait(10)
        graph.follow_rest(using="default")
    except BaseException as error:
        failures.append(error)
    finally:
        connection.close()


@commits
def test_two_parents_that_end_at_one_moment_release_their_child_once() -> None:
    """The diamond: whichever is followed second sees both, and the child's move is counted once."""
    failures: list[BaseException] = []
    for _ in range(5):
        ids = store("a>d b>d")
        attempts = {attempt.job_id: attempt for attempt in claim_jobs()}
        barrier = threading.Barrier(2)
        threads = [threading.Thread(target=_finish, args=(attempts[ids[name]], barrier, failures)) for name in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert failures == []
        graph.follow_rest(using="default")
        assert statuses(ids) == "a:succeeded d:ready b:succeeded"
        Job.objects.all().delete()


@commits
@needs_row_locks
def test_a_child_that_somebody_has_locked_is_left_for_the_next_look() -> None:
    ids = store("a>b")
    end(ids["a"])
    with locked(db.JOB, "id", ids["b"], "FOR UPDATE"):
        with transaction.atomic():
            followed = follow_ended(connection, limit=10)
        assert followed.again
        assert statuses(ids) == "a:succeeded b:waiting"
        assert Ended.objects.count() == 1
    follow()
    assert statuses(ids) == "a:succeeded b:ready"


@commits
@needs_row_locks
def test_a_parent_whose_child_is_locked_can_not_be_requeued_now() -> None:
    ids = store("a>b")
    end(ids["a"])
    follow()
    with locked(db.JOB, "id", ids["b"], "FOR UPDATE"):
        report = control.requeue([ids["a"]])
    assert list(report.refused) == [ids["a"]]
    assert "try again" in report.refused[ids["a"]]
    assert statuses(ids) == "a:succeeded b:ready"


def test_a_group_of_thousands_costs_its_follow_up_a_few_looks() -> None:
    count = 2_000
    spec = JobSpec(task="tests.nowhere.task")
    members = [NewJob(spec, [], {}) for _ in range(count)]
    last = NewJob(spec, [], {})
    graph.insert_graph([*members, last], [(job.id, last.id) for job in members], using="default")
    done = 0
    while attempts := claim_jobs(count=200):
        if attempts[0].job_id == last.id:
            break
        with transaction.atomic():
            record(connection, [Finished(attempt, Succeeded(None)) for attempt in attempts], worker_name="w")
        done += len(attempts)
        with transaction.atomic():
            follow_ended(connection, limit=1000)
        assert Job.objects.get(id=last.id).status == (Status.READY if done == count else Status.WAITING)
    assert done == count


def test_results_of_parents_come_in_the_order_in_which_they_were_named() -> None:
    ids = store("c>d a>d b>d")
    for number, name in enumerate("abc"):
        Job.objects.filter(id=ids[name]).update(result=number)
    assert graph.parent_results(ids["d"], using="default") == [(ids["c"], 2), (ids["a"], 0), (ids["b"], 1)]


def test_what_was_changed_by_hand_is_found_again() -> None:
    ids = store("a>b a>c")
    Job.objects.filter(id=ids["a"]).update(status=Status.SUCCEEDED, finished_at=db.server_now(connection))
    followed, last = graph.release_forgotten(using="default", limit=1)
    assert last == ids["b"]
    assert followed.queues == {"default"}
    graph.release_forgotten(using="default", limit=5, after=last)
    assert statuses(ids) == "a:succeeded b:ready c:ready"


def test_no_job_of_a_graph_is_both_final_and_waiting_for_its_children_to_be_looked_at() -> None:
    """After everything is followed nothing is left over, whatever happened."""
    ids = store("a>b b>c a>c")
    control.cancel([ids["a"]])
    graph.follow_rest(using="default")
    assert not Ended.objects.exists()
    assert all(Status(status) in FINAL for status in Job.objects.values_list("status", flat=True))


def test_b56_a_graph_is_pruned_as_a_whole() -> None:
    """What is unfinished needs the results of what has ended, however long ago."""
    ids = store("a>b b>c")
    other = make_job(Status.SUCCEEDED)
    long_ago = db.server_now(connection) - timedelta(days=30)
    Job.objects.filter(id=ids["a"]).update(status=Status.SUCCEEDED, finished_at=long_ago, prune_at=long_ago)
    Job.objects.filter(id=other.id).update(finished_at=long_ago, prune_at=long_ago + timedelta(seconds=1))
    with transaction.atomic():
        assert sweep.prune(using="default", limit=1).touched == 1
    assert Job.objects.filter(id=ids["a"]).exists()
    with transaction.atomic():
        sweep.prune(using="default", limit=1)
    assert not Job.objects.filter(id=other.id).exists(), "what is kept for others stands in nobody's way"
    Job.objects.filter(id__in=ids.values()).update(status=Status.SUCCEEDED, finished_at=long_ago, prune_at=long_ago)
    with transaction.atomic():
        sweep.prune(using="default", limit=10)
    assert not Job.objects.exists()
    assert not Edge.objects.exists()

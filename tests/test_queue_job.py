"""The page docs/queue_job.md, row by row: each row that claims something is tried here, through what users have."""

from __future__ import annotations

import gc
import os
import re
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from django.contrib.auth.models import Group, User
from django.core.management import call_command
from django.db import OperationalError
from django.test import Client
from django.urls import reverse
from django.utils import timezone, translation

from django_jobs import (
    Batch,
    Fail,
    Retry,
    Skip,
    as_user,
    chain,
    conf,
    current_job,
    current_user,
    graph,
    group,
    job,
    later,
    split,
    unique_by,
)
from django_jobs.conf.settings import load
from django_jobs.exceptions import InvalidGraph
from django_jobs.lifecycle import control
from django_jobs.models import Edge, Job, JobAttempt, JobLock, Queue
from django_jobs.signals import EVENTS
from django_jobs.statuses import Status
from django_jobs.testing import eager_jobs, run_jobs, trap_jobs
from tests.support.jobs import claim_jobs

PAGE = Path(__file__).parents[1] / "docs" / "queue_job.md"
pytestmark = pytest.mark.django_db
_CELLS = re.compile(r"^\| (?P<left>.+?) \| (?P<right>.+) \|$")


class Row(NamedTuple):
    section: str
    left: str
    right: str


def rows() -> Iterator[Row]:
    section = ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            section = line[3:]
        elif (cells := _CELLS.match(line)) and cells["left"] != "queue_job":
            yield Row(section, cells["left"].replace("`", ""), cells["right"])


CLAIMED = [row for row in rows() if not row.right.startswith(("**No**", "**Not yet**"))]
TRIED: dict[tuple[str, str], Callable[[], None]] = {}


def tries(section: str, *lefts: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Say which rows a function tries."""

    def add(function: Callable[[], None]) -> Callable[[], None]:
        for left in lefts:
            assert (section, left) not in TRIED, left
            TRIED[section, left] = function
        return function

    return add


def test_each_row_that_claims_something_is_tried_and_nothing_else_is() -> None:
    assert {(row.section, row.left) for row in CLAIMED} == set(TRIED)
    assert len(list(rows())) > 75


LOG: list[Any] = []


@job
def say(text: str) -> str:
    """Say something, and tell what was said."""
    LOG.append(text)
    return text


@job
def many(items: list[int]) -> int:
    """Take several."""
    LOG.append(items)
    return len(items)


@job(takes_context=True)
def look(context: Any) -> list[Any]:
    """Tell what is around."""
    user = current_user()
    here = current_job()
    return [
        translation.get_language(),
        str(timezone.get_current_timezone()),
        user.username if user else None,
        here is not None and here.job_id == context.job_id,
    ]


@job(serializer="typed")
def typed(group: Group, when: timedelta) -> str:
    """Take an object."""
    return f"{group.name} {when}"


@job(backoff={1: 10, 5: (60, 300)}, max_attempts=None, takes_context=True)
def picky(context: Any, how: str) -> None:
    """End as it is told."""
    match how:
        case "retry":
            raise Retry("not yet", after=1, count=False)
        case "pattern":
            raise Retry("not yet")
        case "fail":
            raise Fail("never")
        case "skip":
            raise Skip("nothing to do")
    raise ValueError(how)


@job(on_failure=lambda result: LOG.append(str(result.id)))
def unlucky() -> None:
    """Fail."""
    raise ValueError("no luck")


@job
def deadlock() -> None:
    """Lose a race in the database."""
    raise OperationalError(1213, "Deadlock found")


@job(atomic=True)
def undone() -> None:
    """Write, then fail."""
    Group.objects.create(name="undone")
    raise ValueError


@job
def kept() -> None:
    """Write, then fail."""
    Group.objects.create(name="kept")
    raise ValueError


def row(result: Any) -> Job:
    return Job.objects.get(id=result.id)


# --- enqueue ---


@tries(
    "Enqueue",
    "with_delay().method()",
    "method that is always delayed, with options beside it",
    "description: the docstring's first line",
)
def methods() -> None:
    from tests.test_later import Account  # a proxy with marked methods

    renamed = later(Account.objects.create(username="ada")).rename("countess")
    assert row(renamed).queue == "accounts", "the options beside the method"
    result = say.enqueue("x")
    assert run_jobs() == 2
    result.refresh()
    assert result.return_value == "x"
    assert Account.objects.get().username == "countess"
    admin = Client()
    admin.force_login(User.objects.create_superuser("root"))
    text = admin.get(reverse("admin:django_jobs_job_change", args=[result.id])).content.decode()
    assert "Say something, and tell what was said." in text


@tries(
    "Enqueue", "with_delay(priority, eta, max_retries, description, channel, identity_key)", "eta: a time, a timedelta, seconds"
)
def options() -> None:
    given = say.using(
        priority=7, run_after=timedelta(hours=1), max_attempts=2, description="d", queue_name="a.b", unique="k"
    ).enqueue("x")
    found = row(given)
    assert (found.priority, found.max_attempts, found.description, found.queue, found.unique_key) == (7, 2, "d", "a.b", "k")
    assert found.status == Status.SCHEDULED
    for start in (3600, "1h", timezone.now() + timedelta(hours=1)):
        assert row(say.using(run_after=start).enqueue("x")).status == Status.SCHEDULED
    high, low = say.using(priority=5).enqueue("high"), say.using(priority=-5).enqueue("low")
    run_jobs()
    assert LOG == ["high", "low"], "a greater number is sooner"
    assert high.id != low.id


@tries("Enqueue", "delayable().set(...)", ".on_done(...)", "chain, group, nested")
def graphs() -> None:
    first = say.s("a").using(priority=3)
    assert not Job.objects.exists()
    first.then(group(say.s("b"), chain(say.s("c"), say.s("d"))), say.s("e")).enqueue()
    run_jobs()
    assert LOG[0] == "a"
    assert LOG[-1] == "e"
    assert LOG.index("c") < LOG.index("d")


@tries("Enqueue", ".split(size), .split(size, chain=True)")
def splits() -> None:
    split(many, list(range(7)), 3).enqueue()
    assert [found.description for found in Job.objects.order_by("id")] == [
        "many (split 1/3)",
        "many (split 2/3)",
        "many (split 3/3)",
    ]
    assert run_jobs() == 3
    assert sorted(len(items) for items in LOG) == [1, 3, 3]
    split(many, [1, 2], 1, chain=True).enqueue()
    assert Job.objects.filter(status=Status.WAITING).count() == 1


@tries("Enqueue", "a graph that is never delayed warns", "cycles are refused")
def careless() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        chain(say.s("a"), say.s("b"))
        gc.collect()
    assert any("never enqueued" in str(each.message) or "enqueue" in str(each.message) for each in caught)
    drawing, late = graph(), say.s("late")
    early = drawing.add(say.s("early"), after=[late])
    drawing.add(late, after=[early])
    with pytest.raises(InvalidGraph, match="cycle"):
        drawing.enqueue()
    assert not Job.objects.exists()


@tries("Enqueue", "keys of the context that are kept (language, zone, companies)", "job_uuid in the context")
def surroundings() -> None:
    user = User.objects.create_user("ann")
    with translation.override("de"), timezone.override("Asia/Tokyo"), as_user(user):
        result = look.enqueue()
    run_jobs()
    result.refresh()
    assert result.return_value == ["de", "Asia/Tokyo", "ann", True]
    assert row(result).created_by == "ann"


@tries("Enqueue", "recordsets as arguments", "hooks that store more columns on a job")
def objects() -> None:
    found = Group.objects.create(name="editors")
    result = typed.using(metadata={"order": 7}, tags=["x"], related=found).enqueue(found, timedelta(hours=1))
    run_jobs()
    result.refresh()
    assert result.return_value == "editors 1:00:00"
    assert row(result).metadata == {"order": 7}


@tries("Enqueue", "no delay: run at once in tests")
def eager() -> None:
    with eager_jobs():
        assert say.enqueue("now").return_value == "now"


# --- identity ---


@tries("Identity", "identity_key", "identity_exact", "a function of the job", "a twin that runs does not count")
def identity() -> None:
    assert say.using(unique="k").enqueue("a").id == say.using(unique="k").enqueue("b").id
    assert say.using(unique="args").enqueue("a").id == say.using(unique="args").enqueue(text="a").id
    assert say.using(unique=lambda text: text[0]).enqueue("ax").id == say.using(unique=lambda text: text[0]).enqueue("ay").id
    assert say.using(unique=unique_by("text")).enqueue("q").id == say.using(unique=unique_by("text")).enqueue("q").id
    claim_jobs()
    assert say.using(unique="k").enqueue("a").id == str(Job.objects.get(unique_key="k").id)
    first = say.using(unique="s", unique_until="started").enqueue("a")
    claim_jobs()
    assert say.using(unique="s", unique_until="started").enqueue("a").id != first.id


@tries("Identity", "a graph counts as duplicate only when every member has its twin", "requeue ignores identity")
def twins() -> None:
    unique = say.using(unique="args")
    first = chain(unique.s("a"), unique.s("b")).enqueue()
    again = chain(unique.s("a"), unique.s("b")).enqueue()
    assert [each.id for each in first] == [each.id for each in again]
    assert Job.objects.count() == 2
    longer = chain(unique.s("a"), unique.s("c")).enqueue()
    assert next(iter(longer)).id == next(iter(first)).id
    assert Job.objects.count() == 3
    control.cancel([each.id for each in Job.objects.filter(args=["a"])])
    holder = unique.enqueue("a")
    cancelled = Job.objects.get(args=["a"], status=Status.CANCELLED)
    assert holder.id in control.requeue([cancelled.id]).refused[cancelled.id]


# --- retries ---


@tries("Retries and failures", "RetryableJobError(seconds, ignore_retry)", "FailedJobError", "NothingToDoJob")
def outcomes() -> None:
    found = {how: picky.enqueue(how) for how in ("retry", "fail", "skip")}
    run_jobs()
    retry, fail, skip = (row(found[how]) for how in ("retry", "fail", "skip"))
    assert (retry.status, retry.attempts_used, retry.starts) == (Status.SCHEDULED, 0, 1)
    assert (fail.status, fail.error_message) == (Status.FAILED, "never")
    assert (skip.status, skip.reason) == (Status.SUCCEEDED, "nothing to do")


@tries("Retries and failures", "retry_pattern {1: 10, 5: (60, 300)}", "max_retries, 0: without end")
def patterns() -> None:
    result = picky.enqueue("pattern")
    for attempt in range(1, 8):
        assert run_jobs() == 1
        found = row(result)
        pause = (found.due_at - found.last_started_at).total_seconds()
        assert (9 < pause < 12) if attempt < 5 else (59 < pause < 302)
        control.run_now([found.id])
    assert row(result).attempts_used == 7
    five = say.using(max_attempts=5)
    assert row(five.enqueue("x")).max_attempts == 5


@tries("Retries and failures", "concurrency errors of the database are retried in 5 s", "on_fail_method")
def conflicts_and_hooks() -> None:
    lost = deadlock.enqueue()
    run_jobs()
    found = row(lost)
    assert found.status == Status.SCHEDULED
    assert 4 < (found.due_at - found.last_started_at).total_seconds() < 7
    result = unlucky.enqueue()
    run_jobs()
    assert [result.id] == LOG
    # Also when nobody runs it: here a person gives up what is marked as failed already, and nothing is told twice.
    control.cancel([row(result).id])
    assert [result.id] == LOG


# --- states ---


@tries("States and verbs", "wait_dependencies", "pending; with an eta", "done", "failed", "a failed parent: children wait")
def states() -> None:
    first, second = chain(unlucky.s(), say.s("b")).enqueue()
    late = say.using(run_after=60).enqueue("late")
    assert (row(first).status, row(second).status, row(late).status) == (Status.READY, Status.WAITING, Status.SCHEDULED)
    run_jobs()
    assert (row(first).status, row(second).status) == (Status.FAILED, Status.WAITING)
    assert "has failed" in row(second).reason
    ran = chain(unlucky.s(), say.s("b").using(on_parent_failure="run")).enqueue()
    stopped = chain(unlucky.s(), say.s("c").using(on_parent_failure="cancel")).enqueue()
    run_jobs()
    assert [row(each).status for each in ran] == [Status.FAILED, Status.SUCCEEDED]
    assert [row(each).status for each in stopped] == [Status.FAILED, Status.CANCELLED]


@tries("States and verbs", "enqueued, started", "cancelled", "cancel what has not started")
def cancels() -> None:
    running = say.enqueue("a")
    claim_jobs()
    assert row(running).status == Status.RUNNING
    assert JobLock.objects.count() == 1
    assert control.cancel([row(running).id]).requested == [row(running).id]
    deep = chain(*(say.s(str(number)) for number in range(4))).enqueue()
    control.cancel([row(next(iter(deep))).id])
    for each in deep:
        assert row(each).status == Status.CANCELLED
        assert row(each).finished_at is not None
        assert row(each).reason


@tries("States and verbs", "requeue", "set done, with who", "bulk: requeue, set done, cancel")
def verbs() -> None:
    first, second, third = chain(unlucky.s(), say.s("b"), say.s("c")).enqueue()
    run_jobs()
    control.done([row(first).id], by="ann", reason="by hand")
    assert row(first).reason == "marked as done by ann: by hand"
    run_jobs()
    assert row(third).status == Status.SUCCEEDED
    control.requeue([row(second).id, row(third).id])
    assert [row(each).status for each in (second, third)] == [Status.READY, Status.WAITING]
    assert row(second).attempts_used == 0
    out = StringIO()
    call_command("jobs", "cancel", "--status", "ready", stdout=out)
    assert row(second).status == Status.CANCELLED


# --- fields and channels ---


@tries(
    "Fields",
    "uuid, graph_uuid",
    "name, func_string",
    "model_name, method_name, records",
    "args, kwargs, result",
    "state, priority, channel",
    "exc_name, exc_message, exc_info",
    "date_created, date_enqueued, date_started, date_done, date_cancelled, eta, exec_time",
    "retry, max_retries",
    "identity_key",
    "worker_pid",
    "user_id, company_id",
    "dependency graph, graph_jobs_count",
)
def fields() -> None:
    first, second = chain(say.s("a"), unlucky.s()).enqueue()
    run_jobs()
    good, bad = row(first), row(second)
    assert good.graph == bad.graph is not None
    assert (good.task, good.args, good.kwargs, good.result) == (say.module_path, ["a"], {}, "a")
    assert (bad.error_class, bad.error_message) == ("builtins.ValueError", "no luck")
    assert "no luck" in JobAttempt.objects.get(job=bad).traceback
    assert None not in (good.enqueued_at, good.last_started_at, good.started_at, good.finished_at, good.run_seconds)
    assert (good.attempts_used, good.max_attempts, good.starts, good.worker) == (1, 5, 1, "run_jobs")
    assert Edge.objects.filter(parent=good, child=bad).exists()
    names = {field.name for field in Job._meta.fields}
    page = " ".join(each.right for each in CLAIMED if each.section == "Fields")
    for name in re.findall(r"`(\w+)`", page):
        assert name in names, name


@tries(
    "Channels",
    "a tree of channels",
    "a channel that nobody declared",
    "paused channel, with what is below it",
    "retry pattern and timeout of a channel",
    "removal_interval",
)
def channels() -> None:
    Queue.objects.create(name="billing", timeout=30, backoff=[5], retention={"succeeded": 60})
    found = row(say.using(queue_name="billing.invoices").enqueue("x"))
    assert (found.timeout, found.backoff, found.retention) == (30, [5], {"succeeded": 60})
    assert row(say.using(queue_name="nobody.knows").enqueue("y")).timeout is None
    control.pause_queue("billing", by="ann", reason="month's end")
    assert run_jobs() == 1
    control.resume_queue("billing")
    assert run_jobs() == 1


# --- runner ---


@tries(
    "The runner",
    "jobrunner, one per server, elected",
    "wakes by NOTIFY",
    "dead jobs are found by a lock",
    "a commit in the job frees the lock",
    "environment variables",
    "cron that drains",
)
def runner() -> None:
    """Told by tests of real processes, which are named here so that they can't vanish unseen."""
    folder = Path(__file__).parent
    for path, name in {
        "process/test_taking.py": "test_an_idle_worker_is_woken_within_fifty_milliseconds",
        "process/test_deaths.py": "test_a_child_that_dies_has_its_jobs_run_again_within_two_seconds",
        "process/test_graphs.py": "test_drain_runs_a_graph_to_its_end",
        "process/test_contention.py": "def test_",
        "docs/test_invariants.py": "test_only_the_control_loop_and_the_listener_make_connections_of_their_own",
    }.items():
        assert name in (folder / path).read_text(), name
    os.environ["DJANGO_JOBS_GRACE"] = "17"
    try:
        assert load({}, os.environ)[0].grace == 17
    finally:
        del os.environ["DJANGO_JOBS_GRACE"]


# --- people ---


@tries("What people see", "list, filters, search", "the job's form", "related action", "dependency graph")
def pages() -> None:
    admin = Client()
    admin.force_login(User.objects.create_superuser("root"))
    subject = Group.objects.create(name="editors")
    first, second = chain(say.using(related=subject).s("a"), unlucky.s()).enqueue()
    run_jobs()
    listing = admin.get(reverse("admin:django_jobs_job_changelist") + "?status=failed").content.decode()
    assert str(second.id) in listing
    assert str(first.id) not in listing
    form = admin.get(reverse("admin:django_jobs_job_change", args=[first.id])).content.decode()
    assert "dj-graph" in form
    assert reverse("admin:auth_group_change", args=[subject.pk]) in form
    assert "Traceback" in admin.get(reverse("admin:django_jobs_job_change", args=[second.id])).content.decode()


@tries("What people see", "failure subscribes, posts a message", "queue_job_subscribe: opt out", "queue_job_web_notify")
def notifications() -> None:
    from django_jobs.contrib.notify import models

    names = {model.__name__ for model in vars(models).values() if isinstance(model, type)}
    assert {"Notice", "Subscription", "Preference"} <= names
    text = (Path(__file__).parent / "contrib" / "test_notify.py").read_text()
    for word in ("Subscription", "Preference", "Notice", "outbox"):
        assert word in text


@tries("What people see", "queue_job_batch")
def batches() -> None:
    with Batch("import") as batch:
        batch.add(say, "a")
        batch.add(unlucky)
    batch.refresh()
    assert batch.status in ("pending", "enqueued")
    run_jobs()
    batch.refresh()
    assert batch.status == "finished"
    progress = batch.progress
    assert (progress.total, progress.percent_complete, progress.percent_failed) == (2, 100, 50)
    batch.mark_read()
    batch.refresh()
    assert batch.is_read


@tries("Modules and tests", "mail_queue_job", "queue_job_context")
def modules() -> None:
    from django_jobs.contrib import mail

    assert mail.__doc__
    assert "CONTEXT" in conf.settings._FIELDS
    assert "job_failed" in EVENTS


@tries("Modules and tests", "trap_jobs, assert_jobs_count, assert_enqueued_job", "perform_enqueued_jobs")
def traps() -> None:
    with trap_jobs() as trap:
        chain(say.s("a"), say.s("b")).enqueue()
    trap.assert_count(2)
    trap.assert_enqueued(say, args=("a",))
    assert trap.perform() == 2
    assert LOG == ["a", "b"]


def test_a_failed_job_keeps_what_it_wrote_unless_it_is_atomic() -> None:
    kept.enqueue()
    undone.enqueue()
    run_jobs()
    assert [found.name for found in Group.objects.all()] == ["kept"]


@pytest.mark.parametrize("function", list(dict.fromkeys(TRIED.values())), ids=lambda function: function.__name__)
def test_rows(function: Callable[[], None]) -> None:
    LOG.clear()
    function()

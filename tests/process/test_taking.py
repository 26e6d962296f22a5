"""Which jobs a worker takes, when, and what it gives back."""

from __future__ import annotations

import statistics
import time
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
import time_machine
from django.db import connection, transaction

from django_jobs import db
from django_jobs.compat import InvalidTask
from django_jobs.exceptions import InvalidOption
from django_jobs.lifecycle.control import pause_queue, resume_queue, run_now
from django_jobs.models import Job, JobAttempt, JobLock
from django_jobs.statuses import Status
from tests.process.conftest import Site, Start
from tests.project import jobs
from tests.support.worker import Ledger, ended, never, row, until

only_postgresql = pytest.mark.skipif(connection.vendor != "postgresql", reason="LISTEN/NOTIFY is PostgreSQL's")


@only_postgresql
def test_an_idle_worker_is_woken_within_fifty_milliseconds(start: Start, ledger: Ledger) -> None:
    start("--threads=2", POLL_INTERVAL=30)
    ended(jobs.noop.enqueue())
    delays = []
    for _ in range(15):
        job = jobs.ledger.enqueue()
        committed = time.monotonic()
        delays.append(ledger.started(job).at - committed)
        ended(job)
    assert statistics.median(delays) < 0.05, delays


@only_postgresql
def test_without_a_notification_the_poll_finds_it(start: Start, ledger: Ledger) -> None:
    start("--threads=1", "--no-listen", POLL_INTERVAL=0.5)
    ended(jobs.noop.enqueue())
    job = jobs.ledger.enqueue()
    enqueued = time.monotonic()
    assert ledger.started(job).at - enqueued < 0.5 + 1


@pytest.mark.promise
def test_what_is_enqueued_in_a_transaction_is_found_after_its_commit_and_never_before(start: Start, ledger: Ledger) -> None:
    start("--threads=1")
    ended(jobs.noop.enqueue())
    with transaction.atomic():
        job = jobs.ledger.enqueue()
        never(lambda: ledger.starts(job), "it ran before the commit", during=0.5)
    ledger.started(job)
    with transaction.atomic():
        gone = jobs.ledger.enqueue()
        transaction.set_rollback(True)
    never(lambda: ledger.starts(gone), "a rolled-back job ran", during=0.5)


@pytest.mark.promise
def test_what_was_claimed_ahead_is_given_back_within_half_a_second(start: Start, ledger: Ledger, tmp_path: Path) -> None:
    """Quick jobs make a worker claim ahead; when slow ones come in between, it gives back what it can't begin."""
    first = start("--threads=1", "--async-jobs=1")
    quick = jobs.noop.enqueue_many([()] * 200)
    slow = jobs.gate.using(priority=-1).enqueue(str(tmp_path / "gate"))
    behind = [jobs.ledger.using(priority=-2).enqueue() for _ in range(30)]
    ended(*quick)
    ledger.started(slow)
    until(lambda: JobLock.objects.count() == 1, "all but the one that runs to be given back", within=3)
    assert Job.objects.filter(id__in=[job.id for job in behind], status=Status.READY, attempts_used=0).count() == 30
    start("--threads=2")
    for job in ended(*behind):
        assert (job.status, job.attempts_used) == (Status.SUCCEEDED, 1)
        assert len(ledger.starts(job)) == 1
    assert not JobAttempt.objects.exists()
    (tmp_path / "gate").touch()
    ended(slow)
    assert first.is_running


def test_queues_by_name_by_pattern_and_by_exclusion(start: Start, ledger: Ledger) -> None:
    def one(queue: str):
        return jobs.ledger.using(queue_name=queue).enqueue()

    start("--threads=1", "--queue=mail", "--queue=billing.*", "--exclude=billing.slow")
    taken = [one("mail"), one("billing"), one("billing.eu"), one("billing.eu.de")]
    left = [one("default"), one("mail.bulk"), one("billing.slow"), one("billing.slow.de"), one("billings")]
    ended(*taken)
    never(lambda: any(ledger.starts(job) for job in left), "a job of another queue was taken", during=1.2)
    assert {row(job).status for job in left} == {Status.READY}
    start("--threads=1", "--exclude=billing")
    ended(*left[:2], left[4])
    assert {row(job).status for job in left[2:4]} == {Status.READY}


@pytest.mark.promise
def test_the_first_queue_is_served_before_the_second_and_higher_priorities_first(
    start: Start, ledger: Ledger, tmp_path: Path
) -> None:
    low = jobs.ledger.using(queue_name="second", priority=100).enqueue()
    high = [jobs.ledger.using(queue_name="first", priority=priority).enqueue() for priority in (-5, 0, 7)]
    start("--threads=1", "--queue=first", "--queue=second")
    ended(low, *high)
    assert [line.key for line in ledger.starts()] == [high[2].id, high[1].id, high[0].id, low.id]


@pytest.mark.promise
def test_a_pause_acts_at_once_and_on_the_subtree(start: Start, ledger: Ledger, tmp_path: Path) -> None:
    start("--threads=2")
    running = jobs.gate.using(queue_name="shop.mail").enqueue(str(tmp_path / "gate"))
    ledger.started(running)
    pause_queue("shop")
    held = [jobs.ledger.using(queue_name=name).enqueue() for name in ("shop", "shop.mail", "shop.mail.eu")]
    other = jobs.ledger.using(queue_name="shopping").enqueue()
    ended(other)
    never(lambda: any(ledger.starts(job) for job in held), "a paused queue was served", during=1.2)
    (tmp_path / "gate").touch()
    assert ended(running)[0].status == Status.SUCCEEDED, "what runs goes on"
    resume_queue("shop")
    resumed = time.monotonic()
    ended(*held)
    assert time.monotonic() - resumed < 5


# -- unknown tasks


def test_b22_a_task_that_one_worker_does_not_know_is_left_to_the_one_that_does(start: Start, ledger: Ledger, site: Site) -> None:
    text = (
        "from django_jobs import job\nfrom tests.project.jobs import say\nimport os, time\n"
        "@job(takes_context=True)\n"
        "def own(context, seconds):\n    say(context, 'START'); time.sleep(seconds); say(context, 'END')\n"
    )
    knowing = site(name="extra", jobs=text, here=True)
    from extra.jobs import own

    ignorant = start("--threads=2")
    healthy = [jobs.ledger.enqueue()]
    job = own.enqueue(0)
    healthy.append(jobs.ledger.enqueue())
    ended(*healthy)
    until(lambda: row(job).parked == "unknown_task", "it to be parked")
    assert (row(job).status, row(job).attempts_used) == (Status.READY, 0)
    able = start("--threads=2", "--no-maintenance", env=knowing)
    # One that knows the task brings it back; `maintenance` of a second worker of that kind does so.
    able_too = start("--queue=nothing", env=knowing)
    assert ended(job)[0].status == Status.SUCCEEDED
    able_too.kill_tree()
    second = own.enqueue(3600)
    ledger.started(second)
    able.kill_tree()
    until(lambda: row(second).status in (Status.READY, Status.SCHEDULED), "the ignorant one to put it back", within=20)
    never(lambda: row(second).status in (Status.FAILED, Status.RUNNING), "it was failed for being unknown", during=1)
    assert ignorant.is_running
    assert ended(jobs.add.enqueue(1, 2))[0].result == 3


def test_b22_modules_that_cannot_be_imported_and_calls_that_no_longer_fit(start: Start, ledger: Ledger, site: Site) -> None:
    environment = {
        **site(name="broken_syntax", jobs="def f(:\n"),
        **site(name="broken_import", jobs="import no_such_module\n"),
        **site(
            name="broken_exit",
            jobs="import sys\nsys.exit(3)\n",
            settings="INSTALLED_APPS += ['broken_syntax', 'broken_import']",
        ),
    }
    start("--threads=1", env=environment, UNKNOWN_TASK_GRACE=1)
    now = db.server_now(connection)
    names = [
        "broken_syntax.jobs.f",
        "broken_import.jobs.f",
        "broken_exit.jobs.f",
        "tests.project.jobs.renamed",
        "tests.project.jobs.LEDGER",
        "os.system",
    ]
    rows = [Job.objects.create(task=name, due_at=now, enqueued_at=now, args=["x"], max_attempts=5) for name in names]
    outgrown = Job.objects.create(task="tests.project.jobs.add", due_at=now, enqueued_at=now, args=[1, 2, 3], max_attempts=5)
    assert ended(jobs.add.enqueue(1, 2))[0].result == 3
    job = ended(outgrown)[0]
    assert (job.status, job.error_class) == (Status.FAILED, "builtins.TypeError")
    for job in ended(*rows):
        assert job.status == Status.FAILED, job.task
        assert job.reason
        assert job.starts == 0 or job.attempts_used == 0


# -- times


def test_b33_a_job_starts_at_its_time_however_that_is_written(start: Start, ledger: Ledger) -> None:
    start("--threads=4", env={"TZ": "America/New_York"})
    ended(jobs.noop.enqueue())
    delay = 2.0
    began = time.monotonic()
    at = datetime.now(UTC) + timedelta(seconds=delay)
    several = [
        jobs.ledger.using(run_after=at).enqueue(),
        jobs.ledger.using(run_after=at.astimezone(timezone(timedelta(hours=5, minutes=30)))).enqueue(),
        jobs.ledger.using(run_after=timedelta(seconds=delay)).enqueue(),
        jobs.ledger.using(run_after=delay).enqueue(),
    ]
    for job in several:
        assert delay <= ledger.started(job).at - began < delay + 1.5
    with pytest.raises(InvalidTask, match="run_after"):  # naive
        jobs.ledger.using(run_after=datetime.now()).enqueue()
    with pytest.raises(InvalidOption, match="run_after"):  # beyond all dates
        jobs.ledger.using(run_after=10**12).enqueue()
    far = jobs.ledger.using(run_after=3600).enqueue()
    run_now([far.job_id])
    ledger.started(far)


def test_b33_a_counter_at_its_maximum_stops_no_other_job(start: Start, ledger: Ledger) -> None:
    full = jobs.ledger.using(max_attempts=None).enqueue()
    Job.objects.filter(id=full.id).update(starts=2**31 - 1, attempts_used=2**31 - 1)
    start("--threads=1")
    assert ended(jobs.add.enqueue(1, 2))[0].result == 3
    never(lambda: ledger.starts(full), "it can't be counted any more", during=0.2)


SKEWED = "import time, time_machine\ntime_machine.travel(time.time() + {0}, tick=True).start()\n"


def test_b34_workers_whose_clocks_are_wrong_judge_nobody_dead_and_start_nothing_early(
    start: Start, ledger: Ledger, tmp_path: Path
) -> None:
    """Three hosts: the clock of one is right, the others are ten minutes ahead and behind; who enqueues is ahead, too."""
    runners = []
    for number, skew in enumerate((0, 600, -600)):
        folder = tmp_path / f"clock{number}"
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(SKEWED.format(skew))
        runners.append(start("--threads=3", env={"PYTHONPATH": f"{folder}:{Path(__file__).parents[2]}"}).works())
        shown = datetime.strptime(runners[-1].text()[:8], "%H:%M:%S")
        behind = (datetime.now(UTC).replace(tzinfo=None) + timedelta(seconds=skew) - shown).seconds
        assert behind < 60, "its log shows another time: its clock is not what this test is about"
    with time_machine.travel(datetime.now(UTC) + timedelta(seconds=600), tick=True):
        began = time.monotonic()
        delayed = [jobs.ledger.using(run_after=2.0).enqueue() for _ in range(6)]
        long = [jobs.ledger.enqueue(5) for _ in range(4)]
    for job in delayed:
        assert ledger.started(job).at - began >= 2.0
    for job in ended(*long, *delayed):
        assert (job.status, job.starts) == (Status.SUCCEEDED, 1)
        assert 0 <= job.run_seconds < 20
        assert job.finished_at >= job.started_at >= job.enqueued_at
        assert abs((job.finished_at - datetime.now(UTC)).total_seconds()) < 60
    assert not JobAttempt.objects.exists()
    assert all(runner.is_running for runner in runners)

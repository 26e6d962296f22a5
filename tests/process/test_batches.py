"""Batches run by real worker processes that are killed: every job counted, each callback once, the end told soon."""

from __future__ import annotations

import os
import random
import signal
from typing import Any

import pytest
from django.db import connection, transaction

from django_jobs import Batch
from django_jobs.lifecycle.batch_look import numbers_of
from django_jobs.lifecycle.record import record
from django_jobs.models import Batch as Row
from django_jobs.models import Job
from django_jobs.outcomes import Finished, Succeeded
from django_jobs.statuses import Status
from tests.process.conftest import Start
from tests.project import jobs, tasks
from tests.support.jobs import claim_jobs
from tests.support.worker import Ledger, until


def finished(batch: Batch, within: float = 60.0) -> Row:
    """Wait until the batch has finished, and its callbacks have ended."""
    row = until(lambda: Row.objects.filter(id=batch.id, finished_at__isnull=False).first(), "the batch to finish", within=within)
    ids = [job for job in (row.on_success_id, row.on_failure_id, row.on_finish_id) if job]
    until(lambda: not Job.objects.filter(id__in=ids, status__in=["ready", "running"]).exists(), "the callbacks", within=within)
    return row


def late(row: Row) -> float:
    """Return the seconds from the end of the last job to that of the batch."""
    last = Job.objects.filter(batch=row.id).order_by("-finished_at").values_list("finished_at", flat=True)[0]
    assert last
    assert row.finished_at
    return (row.finished_at - last).total_seconds()


def test_the_end_is_told_within_moments_of_the_last_job(start: Start, ledger: Ledger) -> None:
    start("--processes=2", "--threads=2").works(2)
    with Batch(on_success=tasks.told.s("good"), on_finish=tasks.told.s("end")) as batch:
        batch.add_many(tasks.member, [(number, 0.01) for number in range(100)])
    row = finished(batch)
    assert late(row) < 2
    assert [line.word for line in sorted(ledger.lines(key=batch.id), key=lambda line: line.word)] == ["end", "good"]


@pytest.mark.promise
def test_with_processes_killed_all_the_while_each_callback_runs_once(start: Start, ledger: Ledger) -> None:
    """Jobs that add others, that fail, that kill their process, and children killed from outside."""
    chance = random.Random(7)
    batches = []
    for number in range(6):
        callbacks = {name: tasks.told.s(name) for name in ("on_success", "on_failure", "on_finish")}
        with Batch(f"batch {number}", **callbacks) as batch:
            batch.add_many(tasks.member.using(max_attempts=20, backoff=0.1), [(n, chance.random() / 30) for n in range(40)])
            batch.add(tasks.spreads.using(max_attempts=20, backoff=0.1), 2)
            batch.add(jobs.die.using(max_attempts=20, backoff=0.1), "kill", times=1)
            if number % 2:
                batch.add(tasks.refuses, number)
        batches.append(batch)
    runner = start("--processes=3", "--threads=2", GRACE=5).works(3)
    for _ in range(4):
        before = _ended()
        until(lambda before=before: _ended() > before + 20 or not _live(), "more jobs to end", within=60)
        if children := runner.children():
            os.kill(chance.choice(children), signal.SIGKILL)
    for number, batch in enumerate(batches):
        row = finished(batch, within=90)
        counts = numbers_of(connection, [batch.id])[batch.id]
        real = Job.objects.filter(batch=batch.id)
        assert {status: counts[status] for status in Status} == {status: real.filter(status=status).count() for status in Status}
        wanted = [row.on_finish_id, row.on_failure_id if number % 2 else row.on_success_id]
        ended = Job.objects.filter(id__in=[row.on_success_id, row.on_failure_id, row.on_finish_id], status="succeeded")
        assert set(ended.values_list("id", flat=True)) == set(wanted)
        # Told once; once more only where a process died in the midst of it.
        lines = ledger.lines(key=batch.id)
        lost = sum(job.attempts.count() for job in ended)
        assert len(wanted) <= len(lines) <= len(wanted) + lost


def _ended() -> int:
    return Job.objects.filter(batch__isnull=False, finished_at__isnull=False).count()


def _live() -> bool:
    return Job.objects.filter(batch__isnull=False, finished_at__isnull=True).exists()


@pytest.mark.promise
def test_the_end_is_found_when_the_worker_died_right_after_the_last_job(start: Start, ledger: Ledger) -> None:
    """Between the commit of an outcome and the look at its batch: what is left is in the database."""
    with Batch(on_finish=tasks.told.s("end")) as batch:
        batch.add(tasks.member, 1)
    _record(claim_jobs())
    assert Row.objects.get().finished_at is None
    start("--threads=1")
    row = finished(batch, within=20)
    assert late(row) < 20
    assert [line.word for line in ledger.lines(key=batch.id)] == ["end"]


def _record(attempts: list[Any]) -> None:
    with transaction.atomic():
        record(connection, [Finished(attempt, Succeeded(1)) for attempt in attempts], worker_name="dead")

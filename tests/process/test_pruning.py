"""Old jobs are deleted in small batches beside the work."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
from django.db import connection

from django_jobs import db
from django_jobs.compat import TaskResultDoesNotExist
from django_jobs.models import Job
from django_jobs.statuses import Status
from tests.process.conftest import Start
from tests.project import jobs
from tests.support.worker import Ledger, ended, resident_mb, row

OLD = 8_000


def test_b56_pruning_by_two_workers_delays_no_job_and_takes_no_memory(start: Start, ledger: Ledger) -> None:
    runners = [start("--threads=2").works() for _ in range(2)]
    short, default = jobs.noop.using(retention=0.1).enqueue(), jobs.add.enqueue(1, 2)
    ended(short, default)
    now = db.server_now(connection)
    hour_ago = now - timedelta(hours=1)
    common = {"task": "tests.project.jobs.noop", "due_at": hour_ago, "enqueued_at": hour_ago}
    done = {**common, "status": Status.SUCCEEDED, "finished_at": hour_ago, "prune_at": hour_ago}
    old = Job.objects.bulk_create([Job(**done) for _ in range(OLD)], batch_size=1_000)
    kept = Job.objects.create(**{**done, "status": Status.FAILED, "prune_at": None})
    before = [resident_mb(runner.pid) for runner in runners]
    delays = []
    while Job.objects.filter(task=common["task"]).count() > 1:
        job = jobs.ledger.enqueue()
        committed = time.monotonic()
        delays.append(ledger.started(job).at - committed)
        assert len(delays) < 2_000, "it never ends"
    assert len(delays) > 3, "all was deleted at once"
    assert max(delays) < 1.0 + (0 if connection.vendor == "postgresql" else 0.2), delays
    assert list(Job.objects.filter(task=common["task"])) == [kept]
    for runner, megabytes in zip(runners, before, strict=True):
        assert runner.is_running
        assert resident_mb(runner.pid) < megabytes + 30
    for gone in (old[0].id, short.id):
        with pytest.raises(TaskResultDoesNotExist):
            jobs.noop.get_result(str(gone))
    assert row(default).status == Status.SUCCEEDED, "a week is the default"

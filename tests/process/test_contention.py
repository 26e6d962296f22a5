"""Workers claim while programs enqueue and somebody keeps the database busy: no caller sees it, no job is lost or doubled."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest
from django.db import connection, transaction

from django_jobs.models import Job, JobAttempt, JobLock, Queue
from django_jobs.statuses import Status
from tests.process.conftest import ROOT, Start
from tests.project import jobs
from tests.support.databases import to_url
from tests.support.worker import Ledger, ended, until

PROGRAMS, TRANSACTIONS, EACH = 3, 60, 4

#: Enqueues in an application's transactions beside rows of its own, every fourth of which is taken back.
PROGRAM = f"""
import django, sys
django.setup()
from django.db import transaction
from django_jobs.models import Queue
from tests.project.jobs import ledger

for number in range({TRANSACTIONS}):
    with transaction.atomic():
        Queue.objects.create(name=f"contention.{{sys.argv[1]}}.{{number}}")
        results = [ledger.enqueue() for _ in range({EACH - 1})] + ledger.enqueue_many([()])
        back = number % 4 == 0
        transaction.set_rollback(back)
    for result in results:
        print(result.id, "back" if back else "kept", flush=True)
"""


def enqueuers() -> list[subprocess.Popen[str]]:
    environment = {
        **os.environ,
        "DATABASE_URL": to_url(connection.settings_dict),
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "PYTHONPATH": str(ROOT),
    }
    return [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(number)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(PROGRAMS)
    ]


def told(programs: list[subprocess.Popen[str]]) -> tuple[set[str], set[str]]:
    """Wait for the programs, none of which may have seen an error; return the jobs that were kept and those taken back."""
    kept, back = set(), set()
    for program in programs:
        out, error = program.communicate(timeout=60)
        assert program.returncode == 0, error
        for line in out.splitlines():
            job, word = line.split()
            (kept if word == "kept" else back).add(job)
    assert len(kept) == PROGRAMS * EACH * (TRANSACTIONS - TRANSACTIONS // 4)
    assert len(back) == PROGRAMS * EACH * (TRANSACTIONS // 4)
    return kept, back


def assert_each_ran_once(ledger: Ledger, kept: set[str], back: set[str]) -> None:
    found = ended(*kept, within=60)
    assert {(job.status, job.starts) for job in found} == {(Status.SUCCEEDED, 1)}
    assert Counter(line.key for line in ledger.starts()) == Counter(kept), "a job ran twice, or one that was taken back ran"
    assert not Job.objects.filter(id__in=back).exists()
    assert Job.objects.count() == len(kept)
    assert not JobAttempt.objects.exists()
    until(lambda: not JobLock.objects.exists(), "the last lock rows to go")


@pytest.mark.promise
def test_b14_claiming_and_enqueuing_at_once_lock_nobody_out(start: Start, ledger: Ledger) -> None:
    workers = [start("--threads=4").works() for _ in range(2)]
    programs = enqueuers()
    assert_each_ran_once(ledger, *told(programs))
    assert all(worker.is_running for worker in workers)
    share = Counter(line.pid for line in ledger.starts())
    if connection.vendor != "sqlite":  # there, whoever has the file has it
        assert set(share) == {worker.child() for worker in workers}
        assert min(share.values()) > 0.05 * share.total(), f"one locked out the other: {share}"
    for worker in workers:
        assert "eadlock" not in worker.text()
        assert "Traceback" not in worker.text()
        assert worker.stop() == 0


@pytest.mark.promise
@pytest.mark.skipif(connection.vendor != "sqlite", reason="elsewhere a transaction locks rows, not the database")
def test_b14_a_busy_file_is_waited_for(start: Start, ledger: Ledger) -> None:
    """Somebody has a write transaction open most of the time, for less than the grace each time."""
    workers = [start("--threads=2", GRACE=10).works() for _ in range(2)]
    stop, held = threading.Event(), []

    def hold() -> None:
        while not stop.is_set():
            with transaction.atomic():
                Queue.objects.update_or_create(name="busy", defaults={"description": ""})
                began = time.monotonic()
                stop.wait(4)
                held.append(time.monotonic() - began)
            stop.wait(0.5)
        connection.close()

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        running = [jobs.ledger.enqueue(1) for _ in range(2)]
        programs = enqueuers()
        until(lambda: len(held) >= 2, "two long transactions")
    finally:
        stop.set()
        holder.join()
    kept, back = told(programs)
    assert_each_ran_once(ledger, kept | {job.id for job in running}, back)
    assert all(worker.is_running for worker in workers)

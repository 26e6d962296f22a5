"""Processes of a worker, and what jobs fork, share neither sockets nor random state."""

from __future__ import annotations

from django.db import connection

from django_jobs.models import JobAttempt
from django_jobs.statuses import Status
from tests.process.conftest import Site, Start
from tests.project import jobs
from tests.support.worker import Ledger, ended

APPS = """
import random, threading
from django.apps import AppConfig

class Config(AppConfig):
    name = "early"
    default = True

    def ready(self):
        from django.db import connection
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        self.log = open(__file__ + ".log", "a")
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        random.random()
"""
SETTINGS = "import warnings\nwarnings.filterwarnings('ignore', 'Accessing the database during app initialization')\n"


def test_b13_processes_share_neither_sessions_nor_random_state(start: Start, ledger: Ledger, site: Site) -> None:
    """Also where the project's `ready()` uses the database, starts a thread and random numbers, before a worker begins."""
    environment = site(name="early", apps=APPS, settings=SETTINGS)
    runner = start("--processes=3", "--threads=2", env=environment).works(3)
    enqueued = jobs.values.enqueue_many([()] * 120)
    found = [job.result for job in ended(*enqueued)]
    assert len({each["uuid"] for each in found}) == len({each["random"] for each in found}) == len(found)
    used = {each["pid"] for each in found}
    assert len(used) > 1
    assert used <= set(runner.children())
    if connection.vendor != "sqlite":
        owners = {each["session"]: each["pid"] for each in found}
        assert all(owners[each["session"]] == each["pid"] for each in found), "two processes use one session"
    assert "Traceback" not in runner.text()


def test_b13_a_job_that_forks_leaves_the_workers_sessions_alone(start: Start, ledger: Ledger) -> None:
    runner = start("--threads=2", "--async-jobs=0").works()
    pid = runner.child()
    beside = jobs.ledger.enqueue(1.5)
    ledger.started(beside)
    for job in ended(*[jobs.fork.enqueue() for _ in range(6)], beside):
        assert (job.status, job.starts) == (Status.SUCCEEDED, 1), job.error_message
    assert ended(jobs.queries.enqueue(3))[0].status == Status.SUCCEEDED
    assert runner.child() == pid
    assert not JobAttempt.objects.exists()
    assert "lost" not in runner.text()
    assert "lost its database connection" not in runner.text()

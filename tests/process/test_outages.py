"""The database is away, comes back, cuts connections, stands behind a pooler: nothing runs twice, nothing is lost."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from django.core.management import call_command
from django.db import DatabaseError, InterfaceError, OperationalError, connection, connections
from pytest_django import DjangoDbBlocker

from devtools import servers
from django_jobs.models import Job, JobAttempt, JobLock
from django_jobs.statuses import Status
from tests.process.conftest import Runners, Site, Start
from tests.project import jobs
from tests.support.pooler import Pooler
from tests.support.worker import Ledger, ended, never, row, until, using_database

GRACE = 2
#: The database is away for longer than any grace lasts. Seconds.
AWAY = 2 * GRACE + 0.5

only_postgresql = pytest.mark.skipif(connection.vendor != "postgresql", reason="the pooler speaks PostgreSQL's protocol")
can_start_server = pytest.mark.skipif(
    not {"postgresql": servers.installed_postgres, "mysql": servers.offers_mariadb}.get(connection.vendor, bool)(),
    reason="no server is installed that a test could stop",
)


class OwnServer:
    """A server of the test's own, which it can stop and start."""

    def __init__(self, server: servers.Server) -> None:
        self.server = server
        self.url = server.url("outages")
        options = parse_qs(urlsplit(self.url).query)
        self.socket = Path(options["unix_socket"][0] if "unix_socket" in options else options["host"][0] + "/.s.PGSQL.5432")

    def down(self) -> None:
        """Stop it in order, and wait until it has stopped."""
        self.server.toggle()
        until(lambda: not self.socket.exists(), "the end of the server")

    def up(self) -> float:
        """Start it, wait until it answers, and return that moment."""
        self.server.toggle()
        until(self.answers, "the server's answer")
        return time.monotonic()

    def answers(self) -> bool:
        """Whether this process has a connection now."""
        connections["default"].close()
        try:
            connections["default"].ensure_connection()
        except (OperationalError, InterfaceError, DatabaseError):
            return False
        return True

    @contextmanager
    def away(self, seconds: float) -> Iterator[None]:
        """Stop it for the block; it is away for so long at least, and comes back in any case."""
        self.down()
        since = time.monotonic()
        try:
            yield
            until(lambda: time.monotonic() - since >= seconds)
        finally:
            self.up()


@pytest.fixture
def own_server(django_db_blocker: DjangoDbBlocker) -> Iterator[OwnServer]:
    if connection.vendor == "postgresql":
        binaries = servers.installed_postgres()
        assert binaries
        server = servers.start_postgres(binaries)
    else:
        server = servers.start_mariadb()
    try:
        own = OwnServer(server)
        with django_db_blocker.unblock(), using_database(own.url):
            with connections["default"]._nodb_cursor() as cursor:
                cursor.execute("CREATE DATABASE outages")
            call_command("migrate", verbosity=0)
            yield own
    finally:
        server.stop()


@pytest.fixture
def apart(own_server: OwnServer, tmp_path: Path) -> Iterator[Runners]:
    """Return runners that work on the server of the test's own."""
    runners = Runners(tmp_path)
    yield runners
    runners.close()


@pytest.mark.promise
@can_start_server
def test_b12_a_database_that_is_away_is_waited_for_and_nothing_runs_twice(own_server: OwnServer, apart: Runners) -> None:
    ledger = apart.ledger
    with own_server.away(3):
        runner = apart.start("--threads=2", GRACE=GRACE)
        until(lambda: "database" in runner.text(), "it to say so")
    assert runner.is_running
    first = jobs.values.enqueue()
    pid = ended(first, within=30)[0].result["pid"]
    with own_server.away(1):
        pass
    assert ended(jobs.values.enqueue(), within=30)[0].result["pid"] == pid, "the same process goes on after an idle time"
    other = apart.start("--threads=2", GRACE=GRACE).works()
    held = [jobs.ledger.enqueue(AWAY + 3) for _ in range(2)]
    waiting = jobs.ledger.using(run_after=3600).enqueue()
    for job in held:
        ledger.started(job)
    until(lambda: all(row(job).status == Status.RUNNING for job in held))
    with own_server.away(AWAY):
        pass
    assert ended(jobs.add.enqueue(1, 2), within=30)[0].result == 3
    for job in ended(*held):
        assert (job.status, job.starts) == (Status.SUCCEEDED, 1)
        assert (len(ledger.starts(job)), len(ledger.ends(job))) == (1, 1)
    assert not JobAttempt.objects.exists()
    assert not JobLock.objects.exists()
    assert row(waiting).status == Status.SCHEDULED
    assert runner.is_running
    assert other.is_running


@can_start_server
def test_b12_what_finished_while_the_database_was_away_is_recorded_once(own_server: OwnServer, apart: Runners) -> None:
    runner = apart.start("--threads=3", GRACE=GRACE).works()
    gate = apart.folder / "gate"
    several = [jobs.gate.enqueue(str(gate)), jobs.gate.enqueue(str(gate)), jobs.when_told.enqueue(str(gate), "raise")]
    pids = {apart.ledger.started(job).pid for job in several}
    with own_server.away(AWAY):
        gate.touch()
        until(lambda: len(apart.ledger.ends()) == 2 and apart.ledger.lines("THEN False"), "the ends, with nowhere to record them")
        impatient = apart.start("--threads=1", GRACE=GRACE)
        until(lambda: "database" in impatient.text(), "it to say so")
        assert impatient.stop(within=20) == 0, "it can be stopped while it waits"
    done, also, failed = ended(*several)
    assert (done.status, also.status, failed.status) == (Status.SUCCEEDED, Status.SUCCEEDED, Status.FAILED)
    assert len(apart.ledger.starts()) == 3
    assert pids == {runner.child()}
    assert JobAttempt.objects.get().job_id == failed.id


# -- a pooler that hands out a session for each transaction

POOLED = """
import os
DATABASES["direct"] = {**DATABASES["default"]}
DATABASES["default"] = {**DATABASES["default"], "HOST": os.environ["POOLER"], "DISABLE_SERVER_SIDE_CURSORS": True}
TASKS["default"]["OPTIONS"] = {"direct_database": "direct"}
"""


@only_postgresql
def test_b11_jobs_behind_a_pooler_by_transaction_and_control_past_it(
    start: Start, ledger: Ledger, site: Site, tmp_path: Path
) -> None:
    """Two workers, one of which dies halfway; jobs that retry, that wait for their time, that ask much, and plain ones."""
    with Pooler(connection.settings_dict, tmp_path / "pooler", size=4) as pooler:
        environment = {**site(name="pooled", settings=POOLED), "POOLER": str(pooler.folder)}
        doomed = start("--threads=4", env=environment).works()
        runner = start("--threads=4", env=environment).works()
        delayed = [jobs.ledger.using(run_after=1.5).enqueue() for _ in range(10)]
        retried = [jobs.again.using(max_attempts=2, backoff=0.05).enqueue() for _ in range(10)]
        asking = jobs.queries.enqueue_many([(12,)] * 200)  # more often than psycopg's threshold for preparing a statement
        spreading = [jobs.spread.enqueue(12) for _ in range(8)]
        held = [jobs.ledger.enqueue(1) for _ in range(4)]
        plain = [jobs.ledger.enqueue() for _ in range(40)]
        for job in held:
            ledger.started(job)
        dead = doomed.child()
        doomed.kill_tree()
        everything = ended(*delayed, *retried, *asking, *spreading, *held, *plain, within=60)
        for job in everything:
            lost = [line for line in ledger.starts(job) if line.pid == dead]
            wanted = 2 if job.task.endswith("again") else 1
            if job.task.endswith(("ledger", "again")):
                assert 1 <= len(ledger.starts(job)) <= wanted + len(lost)
            assert job.status == (Status.FAILED if wanted == 2 else Status.SUCCEEDED), job.error_message
        assert Job.objects.filter(task="tests.project.jobs.noop").count() >= 8 * 12
        again = jobs.ledger.enqueue()
        enqueued = time.monotonic()
        assert ledger.started(again).at - enqueued < 1.5, "no notification arrives, nor does the poll find it"
        ended(again)
        assert pooler.transactions > 200, "the jobs' sessions do not go through the pooler"
        assert pooler.sessions <= 4
        assert "rror" not in runner.text().replace("JobError", "")


@only_postgresql
def test_b11_without_a_way_past_the_pooler_the_worker_refuses_to_start(start: Start, ledger: Ledger, site: Site) -> None:
    without = "\n".join(line for line in POOLED.splitlines() if "TASKS" not in line)
    runner = start(env={**site(name="pooled", settings=without), "POOLER": os.devnull})
    assert runner.wait() != 0
    assert "django_jobs.E009" in runner.text()
    assert "direct_database" in runner.text()


@pytest.mark.promise
@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has no sessions")
def test_b12_sessions_killed_under_a_running_job_change_nothing(start: Start, ledger: Ledger) -> None:
    runner = start("--threads=2")
    start("--threads=2")
    job = jobs.ledger.enqueue(3)
    pid = ledger.started(job).pid
    for _ in range(3):
        kill_sessions()
        never(lambda: len(ledger.starts(job)) > 1, "it was started again", during=0.3)
    after = jobs.add.enqueue(1, 2)
    assert ended(after, within=30)[0].result == 3
    assert ended(job)[0].status == Status.SUCCEEDED
    assert (len(ledger.starts(job)), ledger.ends(job)[0].pid) == (1, pid)
    assert ended(jobs.queries.enqueue(3))[0].status == Status.SUCCEEDED
    assert runner.is_running
    assert Job.objects.filter(status=Status.FAILED).count() == 0


def kill_sessions() -> None:
    """End every session of the test database but our own."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            return
        cursor.execute("SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()")
        for (number,) in cursor.fetchall():
            cursor.execute(f"KILL {int(number)}")

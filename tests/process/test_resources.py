"""What a worker uses stays flat, however many jobs it runs and however they end: sessions, memory, files, threads, zombies."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from django.db import connection

from django_jobs.models import Job
from django_jobs.statuses import Status
from tests.process.conftest import Site, Start
from tests.project import jobs
from tests.support.worker import Ledger, Runner, ended, is_alive, open_files, processes_with, ps, resident_mb, threads, until

TWO_ALIASES = """
DEBUG = True
DATABASES["default"]["CONN_MAX_AGE"] = 60
DATABASES["other"] = {**DATABASES["default"]}
"""
THREADS, COROUTINES, ALIASES = 2, 2, 2
#: The worker's own: for its process's rows, maintenance, the registry, notifications; listeners of events have two threads.
OWN_SESSIONS = 6
#: A third of the descriptors that a process may have by default is far more than one worker needs.
FILES = 128


def sessions() -> int:
    """Return how many sessions of the test database there are beside our own."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )
        else:
            cursor.execute("SELECT count(*) FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()")
        return int(cursor.fetchone()[0])


def run(count: int, make: Callable[[int], list[object]], watch: Callable[[], None] = lambda: None) -> None:
    """Run so many jobs in portions, calling `watch` meanwhile."""
    left = count
    while left > 0:
        make(min(left, 500))
        left -= 500
        until(lambda: watch() or not Job.objects.filter(status__in=["ready", "scheduled", "running"]).exists(), "the jobs' end")


@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has no sessions")
def test_b15_sessions_and_memory_stay_flat_with_every_query_logged(start: Start, ledger: Ledger, site: Site) -> None:
    environment = site(name="two_aliases", settings=TWO_ALIASES)
    runner = start(f"--threads={THREADS}", f"--async-jobs={COROUTINES}", env=environment).works()
    most: list[int] = []

    def some(count: int) -> list[object]:
        jobs.aqueries.enqueue_many([(2,)] * (count // 10))
        return jobs.on_two.enqueue_many([(5,)] * (count - count // 10))

    def look() -> None:
        most.append(sessions())

    run(300, some, look)
    early = resident_mb(runner.child())
    run(3_000, some, look)
    assert Job.objects.exclude(status=Status.SUCCEEDED).count() == 0
    # Each thread has one of each alias; coroutines share the threads in which Django runs what is not asynchronous.
    assert max(most) <= ALIASES * (THREADS + COROUTINES) + OWN_SESSIONS
    assert resident_mb(runner.child()) < 1.15 * early
    assert runner.stop() == 0
    until(lambda: sessions() == 0, "the end of its sessions", within=5)


@dataclass
class Use:
    """What a worker tree uses."""

    files: dict[int, int]
    threads: dict[int, int]

    @classmethod
    def of(cls, runner: Runner) -> Use:
        pids = [runner.pid, *(pid for pid in runner.children() if is_alive(pid))]
        return cls({pid: open_files(pid) for pid in pids}, {pid: threads(pid) for pid in pids})

    def assert_no_more_than(self, before: Use, runner: Runner) -> None:
        """A process that took the place of another may have what that one had."""
        assert len(self.files) == len(before.files)
        assert max(self.files.values()) <= max(before.files.values()) + 5
        assert self.files[runner.pid] <= before.files[runner.pid] + 5
        assert max(self.threads.values()) <= max(before.threads.values()) + 1
        assert self.threads[runner.pid] <= before.threads[runner.pid] + 1


def zombies(runner: Runner) -> list[int]:
    """Return the processes of the tree that have ended and were not collected."""
    tree = {runner.pid, *runner.children()}
    return [
        found.pid
        for pid in filter(str.isdigit, os.listdir("/proc"))
        if (found := ps(int(pid))) and found.state == "Z" and (found.parent in tree)
    ]


def limited(start: Start, *options: str) -> Runner:
    return start(*options, prefix=("sh", "-c", f'ulimit -n {FILES}; exec "$@"', "sh")).works()


def test_b16_files_and_threads_stay_flat_over_jobs_of_every_end(start: Start, ledger: Ledger) -> None:
    runner = limited(start, "--threads=2", "--async-jobs=2")

    def some(count: int) -> list[object]:
        third = count // 3
        late = jobs.stubborn.using(timeout=0.05, max_attempts=1)
        return [
            *jobs.noop.enqueue_many([()] * third),
            *jobs.boom.enqueue_many([()] * third),
            *jobs.queries.enqueue_many([(1,)] * third),
            *late.enqueue_many([("except Exception",)] * (count // 20)),
        ]

    run(100, some)
    child, before = runner.child(), Use.of(runner)
    run(2_000, some)
    assert runner.child() == child
    Use.of(runner).assert_no_more_than(before, runner)
    assert zombies(runner) == []
    assert Job.objects.filter(status=Status.TIMED_OUT).count() > 80
    assert "Too many open files" not in runner.text()


def test_b16_files_and_zombies_of_isolated_jobs_and_killed_processes(start: Start, ledger: Ledger) -> None:
    runner = limited(start, "--threads=2")
    own = jobs.alone.using(max_attempts=1)
    ended(*[own.enqueue("nothing") for _ in range(2)], own.using(timeout=0.1, timeout_grace=0.1).enqueue("sleep"))
    before = Use.of(runner)
    several = [own.enqueue("nothing") for _ in range(8)]
    late = [own.using(timeout=0.1, timeout_grace=0.1).enqueue("sleep") for _ in range(4)]
    assert {job.status for job in ended(*several, within=60)} == {Status.SUCCEEDED}
    assert {job.status for job in ended(*late, within=60)} == {Status.TIMED_OUT}
    until(lambda: len(processes_with(runner.mark)) == 2, "the end of their processes")
    Use.of(runner).assert_no_more_than(before, runner)
    hogs = [jobs.stubborn.using(timeout=0.1, timeout_grace=0.1, max_attempts=1).enqueue("sleep") for _ in range(2)]
    assert {job.status for job in ended(*hogs, within=60)} == {Status.TIMED_OUT}
    killed = [jobs.die.using(max_attempts=1).enqueue("kill") for _ in range(2)]
    assert {job.status for job in ended(*killed, within=60)} == {Status.FAILED}
    assert ended(jobs.add.enqueue(1, 2))[0].result == 3
    until(lambda: zombies(runner) == [], "no zombies", within=5)
    until(lambda: len(processes_with(runner.mark)) == 2, "the end of all processes but the supervisor and its one")
    Use.of(runner).assert_no_more_than(before, runner)
    assert "Too many open files" not in runner.text()

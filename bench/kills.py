"""`python -m bench.kills --rounds 500`: kill -9 at random moments, under load, and check every promise about deaths afterwards.

Several worker trees drain one database while more jobs are enqueued. Each round kills something: a process, a whole tree, a
supervisor alone, or asks a tree to stop. A ledger outside the database (see `tests.project.jobs`) shows every real start; a log
of the kills shows who was dead when. Then: every job has ended, none is lost, none is left running, no lock row is left; every
start after a job's first is explained by an attempt record; and no job was started while the process of its start before was
still alive and had not ended it.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, field

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "bench.settings")

import django

django.setup()

from django.core.management import call_command  # noqa: E402
from django.db.models import Count  # noqa: E402

from bench import tasks  # noqa: E402
from django_jobs.models import Job, JobAttempt, JobLock, Queue  # noqa: E402
from django_jobs.statuses import FINAL  # noqa: E402
from tests.project import jobs as project  # noqa: E402

#: Short, so that the deaths of whole trees are found while the storm still goes on.
ENVIRONMENT = {"DJANGO_JOBS_GRACE": "2", "DJANGO_JOBS_SLICE": "0.5", "DJANGO_JOBS_SWEEP_INTERVAL": "0.5"}
KINDS = {"process": 70, "tree": 14, "supervisor": 8, "stop": 8}
SETTLE_SECONDS = 120.0


@dataclass
class Storm:
    """One run. `kills` maps a process id to the time by which it was dead."""

    rounds: int
    trees: int = 2
    processes: int = 2
    backlog: int = 60
    seed: int = 0
    folder: str = ""
    kills: dict[int, float] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    enqueued: int = 0

    def run(self) -> list[str]:
        """Rage, settle, check; return what is wrong."""
        self._random = random.Random(self.seed)
        self._running: list[subprocess.Popen[bytes]] = []
        self._leaving: list[subprocess.Popen[bytes]] = []
        with tempfile.TemporaryDirectory() as self.folder:
            os.environ[project.LEDGER] = f"{self.folder}/ledger"
            for model in (JobLock, JobAttempt, Job, Queue):
                model.objects.all().delete()
            try:
                for _ in range(self.trees):
                    self._start()
                for _ in range(self.rounds):
                    self._fill()
                    self._await_starts()
                    time.sleep(self._random.uniform(0.0, 0.6))
                    self._kill()
                self._settle()
            finally:
                self._stop_all()
            return self._check()

    # -- raging

    def _start(self) -> None:
        self._running.append(
            subprocess.Popen(
                [sys.executable, "-m", "django", "runjobs", "-v0", "--processes", str(self.processes), "--threads", "3"],
                env={**os.environ, **ENVIRONMENT, "PYTHONPATH": os.getcwd()},
                stderr=subprocess.DEVNULL,
            )
        )

    def _fill(self) -> None:
        """Keep a backlog of jobs of different lengths and kinds."""
        missing = self.backlog - Job.objects.filter(status__in=["ready", "scheduled"]).count()
        for _ in range(max(0, missing)):
            seconds = self._random.choice([0.0, 0.0, 0.0, 0.01, 0.05, 0.3, 1.0])
            task = self._random.choices([tasks.survivor, tasks.asurvivor, tasks.written], [6, 2, 2])[0]
            task.enqueue(seconds)
            self.enqueued += 1

    def _await_starts(self) -> None:
        """Wait, for a bounded time, until jobs have begun since the last kill:

        a storm over processes that only start tells nothing.
        """
        before = _size(f"{self.folder}/ledger")
        limit = time.monotonic() + 10.0
        while _size(f"{self.folder}/ledger") == before and time.monotonic() < limit:
            time.sleep(0.01)

    def _kill(self) -> None:
        kind = self._random.choices(list(KINDS), list(KINDS.values()))[0]
        tree = self._random.choice(self._running)
        children = _children(tree.pid)
        self.counts[kind] += 1
        if kind == "stop":
            tree.send_signal(signal.SIGTERM)
            self._running.remove(tree)
            self._leaving.append(tree)
            self._start()
            return
        if kind == "process":
            victims = [self._random.choice(children)] if children else []
        elif kind == "supervisor":
            victims = [tree.pid]
        else:
            victims = [tree.pid, *children]
        for pid in victims:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self.kills[pid] = time.monotonic()
        if kind != "process":
            tree.wait()
            self._running.remove(tree)
            self._start()

    def _settle(self) -> None:
        limit = time.monotonic() + SETTLE_SECONDS
        while Job.objects.exclude(status__in=[status.value for status in FINAL]).exists() and time.monotonic() < limit:
            time.sleep(0.2)

    def _stop_all(self) -> None:
        for tree in [*self._running, *self._leaving]:
            with suppress(ProcessLookupError):
                tree.send_signal(signal.SIGTERM)
        for tree in [*self._running, *self._leaving]:
            with suppress(subprocess.TimeoutExpired):
                tree.wait(40)
            if tree.poll() is None:
                tree.kill()
        self._leaving.clear()

    # -- checking

    def _check(self) -> list[str]:
        wrong: list[str] = []
        statuses = dict(Job.objects.values_list("status").annotate(n=Count("id")).order_by())
        self.counts.update({f"jobs {status}": count for status, count in statuses.items()})
        if sum(statuses.values()) != self.enqueued:
            wrong.append(f"{self.enqueued} jobs were enqueued, {sum(statuses.values())} are there")
        if set(statuses) - {"succeeded"}:
            wrong.append(f"not every job succeeded: {statuses}")
        if JobLock.objects.exists():
            wrong.append(f"{JobLock.objects.count()} lock rows are left")
        records = dict(JobAttempt.objects.values_list("job_id").annotate(n=Count("id")).order_by())
        starts = self._ledger()
        for job, entries in starts.items():
            begun = [entry for entry in entries if entry[2] == "START"]
            self.counts["starts"] += len(begun)
            self.counts["second starts"] += len(begun) - 1
            recorded = records.get(uuid.UUID(job), 0)
            if len(begun) - 1 > recorded:
                wrong.append(f"job {job} was started {len(begun)} times, with {recorded} records")
            wrong += self._overlaps(job, entries)
        rows = Queue.objects.filter(name__startswith="written-").count()
        atomic = Job.objects.filter(task="bench.tasks.written", status="succeeded").count()
        if rows != atomic:
            wrong.append(f"{atomic} transactional jobs have left {rows} rows")
        missing = self.enqueued - len(starts)
        if missing:
            wrong.append(f"{missing} jobs have no start in the ledger")
        return wrong

    def _ledger(self) -> dict[str, list[tuple[float, int, str]]]:
        entries: dict[str, list[tuple[float, int, str]]] = defaultdict(list)
        for line in pathlib.Path(self.folder, "ledger").read_text().splitlines():
            job, _, pid, at, word = line.split()
            entries[job].append((float(at), int(pid), word))
        return {job: sorted(found) for job, found in entries.items()}

    def _overlaps(self, job: str, entries: list[tuple[float, int, str]]) -> list[str]:
        wrong = []
        open_pid: int | None = None
        for at, pid, word in entries:
            if word == "END":
                open_pid = None
                continue
            if open_pid is not None and not self.kills.get(open_pid, float("inf")) <= at:
                wrong.append(f"job {job} was started in {pid} while {open_pid} was alive and had not ended it")
            open_pid = pid
        return wrong


def _size(path: str) -> int:
    return os.path.getsize(path) if os.path.exists(path) else 0


def _children(pid: int) -> list[int]:
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(child) for child in file.read().split()]
    except OSError:
        return []


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.kills", description=__doc__)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--trees", type=int, default=2)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    call_command("migrate", verbosity=0)
    storm = Storm(rounds=options.rounds, trees=options.trees, seed=options.seed)
    begin = time.monotonic()
    wrong = storm.run()
    print(f"{options.rounds} rounds in {time.monotonic() - begin:.0f} s, seed {options.seed}: {dict(storm.counts)}")
    for line in wrong[:50]:
        print("WRONG:", line)
    print(f"{storm.enqueued} jobs, {len(wrong)} violations")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()

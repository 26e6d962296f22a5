"""`python -m bench [case ...]`: run benchmarks on the PostgreSQL database that `DATABASE_URL` names, print a table, write JSON.

Each figure is a median of several rounds with its spread, beside the ceiling measured in the same run; compare ratios, not
seconds. The server should have its default durability (fsync and synchronous_commit on). The database's job tables are emptied.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "bench.settings")

import django

django.setup()

from django.core.management import call_command  # noqa: E402
from django.db import connection  # noqa: E402

from bench import batch, ceiling, tasks, timed_out  # noqa: E402
from django_jobs.models import Job  # noqa: E402

WAIT_SECONDS = 300.0


def dsn() -> str:
    """Return the database's address as psycopg takes it."""
    params = connection.get_connection_params()
    names = ("dbname", "user", "password", "host", "port")
    return " ".join(f"{name}={params[name]}" for name in names if params.get(name))


def clear() -> None:
    """Empty the job tables."""
    with connection.cursor() as cursor:
        cursor.execute(
            "TRUNCATE django_jobs_job, django_jobs_joblock, django_jobs_jobattempt, django_jobs_cancelrequest, django_jobs_worker"
        )
        cursor.execute("VACUUM ANALYZE django_jobs_job, django_jobs_joblock")


class Worker:
    """A real `runjobs` in a process of its own."""

    def __init__(self, *options: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "django", "runjobs", "-v0", *options],
            env={**os.environ, **environment, "PYTHONPATH": os.getcwd()},
            stderr=subprocess.DEVNULL,
        )

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(40)
            except subprocess.TimeoutExpired:
                self.process.kill()


def wait_until(test: Callable[[], bool], what: str) -> None:
    """Wait until `test()`, for a bounded time."""
    limit = time.monotonic() + WAIT_SECONDS
    while not test():
        if time.monotonic() > limit:
            raise SystemExit(f"gave up waiting for {what}")
        time.sleep(0.02)


def drain(task: Any, jobs: int, *options: str, enqueue: Callable[[Any, int], None] | None = None) -> float:
    """Return jobs per second from the first start to the last end, by the database's clock. `enqueue`: how they are stored."""
    clear()
    if enqueue is None:
        task.enqueue_many([()] * jobs)
    else:
        enqueue(task, jobs)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE django_jobs_job")
    with Worker("--drain", *options) as worker:
        worker.process.wait(WAIT_SECONDS)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FILTER (WHERE status = 'succeeded'), extract(epoch FROM max(finished_at) - min(started_at))"
            " FROM django_jobs_job"
        )
        done, seconds = cursor.fetchone()
    if done != jobs:
        raise SystemExit(f"{done} of {jobs} jobs succeeded")
    return jobs / float(seconds)


def commits() -> int:
    """Return how many transactions this database has committed."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()")
        return int(cursor.fetchone()[0])


def bench_drain(jobs: int) -> dict[str, float]:
    """Drain no-op jobs with two processes: threads, then coroutines; and with one ORM query each."""
    top = ceiling.drain(dsn(), jobs * 2)
    before = commits()
    threads = drain(tasks.noop, jobs, "--processes", "2", "--threads", "1", "--async-jobs", "0")
    time.sleep(1.0)  # the server's statistics lag by up to a second
    used = commits() - before
    four = drain(tasks.noop, jobs, "--processes", "2", "--threads", "4", "--async-jobs", "0")
    coroutines = drain(tasks.anoop, jobs, "--processes", "2")
    query = drain(tasks.one_query, jobs // 2, "--processes", "2")
    return {
        "ceiling_drain_per_s": top,
        "drain_per_s": threads,
        "drain_of_ceiling": threads / top,
        "drain_4_threads_of_ceiling": four / top,
        "drain_coroutines_of_ceiling": coroutines / top,
        "drain_one_query_per_s": query,
        "commits_per_job": used / jobs,
    }


def bench_enqueue(jobs: int) -> dict[str, float]:
    """Enqueue one by one in autocommit, and in bulk."""
    single_top = ceiling.insert_single(dsn(), 2000)
    bulk_top = ceiling.insert_bulk(dsn(), 50_000)
    clear()
    begin = time.monotonic()
    for _ in range(2000):
        tasks.noop.enqueue()
    single = 2000 / (time.monotonic() - begin)
    clear()
    begin = time.monotonic()
    tasks.noop.enqueue_many([()] * 50_000)
    bulk = 50_000 / (time.monotonic() - begin)
    return {
        "ceiling_insert_per_s": single_top,
        "enqueue_per_s": single,
        "enqueue_of_ceiling": single / single_top,
        "ceiling_bulk_per_s": bulk_top,
        "bulk_per_s": bulk,
        "bulk_of_ceiling": bulk / bulk_top,
    }


def bench_pickup(jobs: int) -> dict[str, float]:
    """The time from enqueue to the first line of the function, with an idle worker, 20 jobs a second."""
    clear()
    with tempfile.TemporaryDirectory() as folder, Worker("--processes", "2"):
        warm, path = f"{folder}/warm", f"{folder}/stamps"
        for _ in range(5):
            tasks.stamp.enqueue(time.time(), warm)
        wait_until(lambda: Job.objects.filter(status="succeeded").count() >= 5, "the worker to start")
        count = min(jobs, 200)
        for _ in range(count):
            tasks.stamp.enqueue(time.time(), path)
            time.sleep(0.05)
        wait_until(lambda: Job.objects.filter(status="succeeded").count() >= count + 5, "the jobs to end")
        waits = sorted(float(line) * 1000 for line in pathlib.Path(path).read_text().split())
    return {
        "pickup_p50_ms": waits[len(waits) // 2],
        "pickup_p99_ms": waits[int(len(waits) * 0.99)],
        "pickup_max_ms": waits[-1],
    }


def bench_recovery(jobs: int) -> dict[str, float]:
    """Seconds from `kill -9` to the next start of the same job: of one process, and of a whole tree, with the default grace."""
    result: dict[str, float] = {}
    for name in ("process", "tree"):
        clear()
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/stamps"

            def starts(path: str = path) -> int:
                return len(pathlib.Path(path).read_text().split()) if os.path.exists(path) else 0

            with Worker("--processes", "1", "--name", "first") as first:
                tasks.sleepy.enqueue(60.0, path)
                wait_until(lambda: starts() == 1, "the first start")
                time.sleep(1.0)
                children = _children(first.process.pid)
                if name == "process":
                    begin = time.monotonic()
                    os.kill(children[0], signal.SIGKILL)
                    wait_until(lambda: starts() == 2, "the second start")
                else:
                    with Worker("--processes", "1", "--name", "second"):
                        time.sleep(12.0)  # it has lived for one grace
                        begin = time.monotonic()
                        first.process.kill()
                        for child in children:
                            os.kill(child, signal.SIGKILL)
                        wait_until(lambda: starts() == 2, "the second start")
                        result[f"recovery_{name}_s"] = time.monotonic() - begin
                        _kill_all("second")
                        continue
                result[f"recovery_{name}_s"] = time.monotonic() - begin
                first.process.send_signal(signal.SIGTERM)
                first.process.send_signal(signal.SIGTERM)
    return result


def _children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]


def _kill_all(name: str) -> None:
    subprocess.run(["pkill", "-TERM", "-f", f"runjobs.*--name {name}"], check=False)
    subprocess.run(["pkill", "-TERM", "-f", f"runjobs.*--name {name}"], check=False)


def bench_timed_out(jobs: int) -> dict[str, float]:
    """The first page of timed-out jobs, with 2,000 and with 2,000,000 others: the ratio has to be 1.3 at most."""
    return timed_out.bench_timed_out()


def bench_batch(jobs: int) -> dict[str, float]:
    """Store and drain no-op jobs as one batch, and without: the ratio has to be 0.9 at least, of both."""
    return batch.bench_batch(jobs, drain)


#: These take their own medians.
ONCE = ("recovery", "timed_out")
CASES: dict[str, Callable[[int], dict[str, float]]] = {
    "drain": bench_drain,
    "enqueue": bench_enqueue,
    "pickup": bench_pickup,
    "recovery": bench_recovery,
    "timed_out": bench_timed_out,
    "batch": bench_batch,
}


def main() -> None:
    """Run the cases that were asked for."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="case", help=f"any of {', '.join(CASES)} (default: all)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--output", type=pathlib.Path, help="write the figures here, as JSON")
    options = parser.parse_args()
    if unknown := set(options.cases) - set(CASES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    if connection.vendor != "postgresql":
        parser.error("the ceiling is measured on PostgreSQL: set DATABASE_URL=postgres://...")
    call_command("migrate", verbosity=0)
    figures: dict[str, list[float]] = {}
    for case in options.cases or CASES:
        for _ in range(1 if case in ONCE else options.rounds):
            for name, value in CASES[case](options.jobs).items():
                figures.setdefault(name, []).append(value)
    summary = {
        name: {"median": statistics.median(values), "low": min(values), "high": max(values), "rounds": len(values)}
        for name, values in figures.items()
    }
    for name, row in summary.items():
        print(f"{name:32} {row['median']:12,.3f}   ({row['low']:,.3f} to {row['high']:,.3f}, {row['rounds']} rounds)")
    if options.output:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
        machine = {"python": platform.python_version(), "cores": os.cpu_count(), "django": django.__version__, "commit": commit}
        options.output.write_text(json.dumps({"machine": machine, "figures": summary}, indent=1) + "\n")


if __name__ == "__main__":
    main()

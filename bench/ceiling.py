"""The ceiling: raw SQL by psycopg 3, no job function.

`python -m bench.ceiling DSN JOBS` drains a table of its own with two processes.
"""

from __future__ import annotations

import multiprocessing
import sys
import time

import psycopg

BATCH = 100

SCHEMA = """
DROP TABLE IF EXISTS bench_ceiling;
CREATE TABLE bench_ceiling (
    id bigserial PRIMARY KEY, task text NOT NULL, args jsonb NOT NULL, queue text NOT NULL DEFAULT 'default',
    status text NOT NULL DEFAULT 'ready', priority smallint NOT NULL DEFAULT 0, due_at timestamptz NOT NULL DEFAULT now(),
    result jsonb, finished_at timestamptz);
CREATE INDEX bench_ceiling_claim ON bench_ceiling (priority DESC, due_at, id) WHERE status = 'ready';
"""
FILL = "INSERT INTO bench_ceiling (task, args) SELECT 'noop', '[]' FROM generate_series(1, %s)"
CLAIM = (
    "UPDATE bench_ceiling SET status = 'running' WHERE id = ANY(ARRAY("
    f"SELECT id FROM bench_ceiling WHERE status = 'ready' ORDER BY priority DESC, due_at, id LIMIT {BATCH}"
    " FOR UPDATE SKIP LOCKED)) RETURNING id, task, args"
)
COMPLETE = "UPDATE bench_ceiling SET status = 'done', finished_at = clock_timestamp() WHERE id = ANY(%s)"


def work(dsn: str) -> None:
    """Claim 100, complete 100, until there are none left."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        while rows := connection.execute(CLAIM).fetchall():
            connection.execute(COMPLETE, [[row[0] for row in rows]])


def drain(dsn: str, jobs: int, processes: int = 2) -> float:
    """Return jobs per second."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(SCHEMA)
        connection.execute(FILL, [jobs])
        connection.execute("ANALYZE bench_ceiling")
    workers = [multiprocessing.Process(target=work, args=[dsn]) for _ in range(processes)]
    begin = time.monotonic()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return jobs / (time.monotonic() - begin)


def insert_single(dsn: str, jobs: int) -> float:
    """Return inserts per second, one by one, each committed."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(SCHEMA)
        begin = time.monotonic()
        for _ in range(jobs):
            connection.execute("INSERT INTO bench_ceiling (task, args) VALUES (%s, %s)", ["noop", "[]"])
        return jobs / (time.monotonic() - begin)


def insert_bulk(dsn: str, jobs: int) -> float:
    """Return inserts per second, by unnest in chunks of 1,000."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(SCHEMA)
        begin = time.monotonic()
        for _ in range(jobs // 1000):
            connection.execute(
                "INSERT INTO bench_ceiling (task, args) SELECT * FROM unnest(%s::text[], %s::jsonb[])",
                [["noop"] * 1000, ["[]"] * 1000],
            )
        return jobs / (time.monotonic() - begin)


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    print(f"{drain(sys.argv[1], int(sys.argv[2])):.0f}")

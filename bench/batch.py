"""Jobs of one batch against the same jobs without: nothing that all of them change may slow them down."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from django.db import connection

from bench import tasks
from django_jobs import Batch
from django_jobs.models import Batch as Row


def bench_batch(jobs: int, drain: Callable[..., float]) -> dict[str, float]:
    """Return both rates of storing and of draining, their ratios, and how late the batch's end was noted.

    In turns, without, with, with, without, so that what warms up or fills up favours neither.
    """
    stored: dict[bool, list[float]] = {False: [], True: []}
    drained: dict[bool, list[float]] = {False: [], True: []}
    late = []
    for is_batch in (False, True, True, False):
        with connection.cursor() as cursor:
            cursor.execute("TRUNCATE django_jobs_batch, django_jobs_batchcount, django_jobs_delta, django_jobs_count")

        def enqueue(task: Any, count: int, is_batch: bool = is_batch) -> None:
            begin = time.monotonic()
            if is_batch:
                with Batch("bench") as batch:
                    batch.add_many(task, [()] * count)
            else:
                task.enqueue_many([()] * count)
            stored[is_batch].append(count / (time.monotonic() - begin))

        options = ("--processes", "2", "--threads", "1", "--async-jobs", "0")
        drained[is_batch].append(drain(tasks.noop, jobs, *options, enqueue=enqueue))
        if is_batch:
            late.append(_late())
    plain, batch = (sum(drained[which]) / 2 for which in (False, True))
    return {
        "no_batch_drain_per_s": plain,
        "batch_drain_per_s": batch,
        "batch_drain_ratio": batch / plain,
        "batch_store_ratio": sum(stored[True]) / sum(stored[False]),
        "batch_end_after_last_job_s": max(late),
    }


def _late() -> float:
    """Return the seconds from the last job's end to the batch's."""
    row = Row.objects.get()
    if row.finished_at is None:
        raise SystemExit("the batch has not finished")
    with connection.cursor() as cursor:
        cursor.execute("SELECT extract(epoch FROM %s - max(finished_at)) FROM django_jobs_job", [row.finished_at])
        return float(cursor.fetchone()[0])

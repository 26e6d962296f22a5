"""The first page of timed-out jobs, through the API's own view: three of them among two thousand others and among two million."""

from __future__ import annotations

import statistics
import time
from typing import Any

from django.conf import settings
from django.db import connection
from django.test import RequestFactory

FEW, MANY = 2_000, 2_000_000
TIMED_OUT = 3
REQUESTS, ROUNDS = 100, 7

#: Nine of ten have succeeded, the others failed, wait or are cancelled; ids rise as UUIDv7 does. Timed-out ones lie among them.
FILL = """
    INSERT INTO django_jobs_job (
        id, backend, task, description, args, kwargs, serializer, metadata, tags, context, queue, priority, status, parked,
        reason, due_at, starts, attempts_used, deaths, last_outcome, worker, error_class, error_message, fingerprint,
        enqueued_at, finished_at, is_http
    )
    SELECT
        CAST(lpad(to_hex(n), 8, '0') || '-0000-7000-8000-000000000000' AS uuid), 'default', 't', '', '[]', '{}', 'json', '{}',
        '[]', '{}', 'q' || mod(n, 5), 0, status, '', '', now(), 1, 1, 0, '', '', '', '', '', now(),
        CASE WHEN status <> 'ready' THEN now() - n * interval '1 s' END, true
    FROM (
        SELECT n, CASE
            WHEN mod(n, %(every)s) = %(every)s / 2 THEN 'timed_out'
            WHEN mod(n, 100) < 90 THEN 'succeeded'
            WHEN mod(n, 100) < 94 THEN 'failed'
            WHEN mod(n, 100) < 97 THEN 'ready'
            ELSE 'cancelled'
        END AS status
        FROM generate_series(1, %(rows)s) AS n
    ) AS made
"""


def fill(rows: int) -> None:
    """Put so many jobs into the empty table, three of them timed out, and let the planner know them."""
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE django_jobs_job CASCADE")
        cursor.execute(FILL, {"rows": rows, "every": rows // TIMED_OUT + 1})
        cursor.execute("VACUUM ANALYZE django_jobs_job")
        cursor.execute("SELECT count(*) FROM django_jobs_job WHERE status = 'timed_out'")
        found = cursor.fetchone()[0]
    if found != TIMED_OUT:
        raise SystemExit(f"{found} jobs have timed out, not {TIMED_OUT}")


def page_ms(view: Any, secret: str) -> list[float]:
    """Return how long a request for the first page takes, as the medians of several rounds, in milliseconds."""
    factory = RequestFactory(headers={"authorization": f"Bearer {secret}"})
    medians = []
    for _ in range(ROUNDS):
        times = []
        for _ in range(REQUESTS):
            begin = time.perf_counter()
            response = view(factory.get("/jobs/timed-out/"))
            times.append(time.perf_counter() - begin)
            if len(response.data["results"]) != TIMED_OUT:
                raise SystemExit(f"the page has {len(response.data['results'])} jobs")
        medians.append(statistics.median(times) * 1000)
    return medians


def bench_timed_out() -> dict[str, float]:
    """Return the times of the first page, and their ratio, which has to be 1.3 at most."""
    from django_jobs.api.jobs import TimedOutView
    from django_jobs.lifecycle.tokens import make_token

    if "testserver" not in settings.ALLOWED_HOSTS:
        settings.ALLOWED_HOSTS = [*settings.ALLOWED_HOSTS, "testserver"]
    _token, secret = make_token("bench", verbs=["view"], using="default")
    view = TimedOutView.as_view()
    fill(FEW)
    page_ms(view, secret)  # warm
    few = statistics.median(page_ms(view, secret))
    fill(MANY)
    many = statistics.median(page_ms(view, secret))
    return {"timed_out_few_ms": few, "timed_out_many_ms": many, "timed_out_ratio": many / few}

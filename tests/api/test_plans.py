"""The lists of the API in a table of 200,000 jobs: read from indexes, neither sorted nor counted."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from bench.timed_out import FILL
from tests.api.calls import Api

pytestmark = [
    pytest.mark.skipif(connection.vendor != "postgresql", reason="reads PostgreSQL's plans"),
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
]
ROWS = 200_000


def filled() -> Api:
    """Fill the table, once for all that is looked at."""
    with connection.cursor() as cursor:
        cursor.execute(FILL, {"rows": ROWS, "every": ROWS // 3 + 1})
        cursor.execute(
            "INSERT INTO django_jobs_jobtag (job_id, tag) SELECT id, 'tag' FROM django_jobs_job WHERE status = 'timed_out'"
        )
        cursor.execute("VACUUM ANALYZE django_jobs_job")
        cursor.execute("VACUUM ANALYZE django_jobs_jobtag")
    return Api()


def plans(api: Api, path: str) -> tuple[Any, list[tuple[str, str]]]:
    """Return the answer to a GET, and each statement about jobs with its plan."""
    with CaptureQueriesContext(connection) as captured:
        answer = api.ok("GET", path)
    found = []
    for sql in [each["sql"] for each in captured if "django_jobs_job" in each["sql"]]:
        with connection.cursor() as cursor:
            cursor.execute("EXPLAIN " + sql.replace("%", "%%"), None)
            found.append((sql, "\n".join(row[0] for row in cursor.fetchall())))
    assert found
    return answer, found


OTHERS = (
    "/jobs/",
    *(f"/jobs/?status={status}" for status in ("failed", "ready", "running", "scheduled", "succeeded", "open", "ended")),
    "/jobs/?ended=true&status=failed,timed_out",
    "/jobs/?status=timed_out&task=none",
    "/jobs/timed-out/?queue=q1",
    "/jobs/timed-out/?queue=none",
    "/jobs/?status=timed_out&tag=tag",
    "/tags/tag/",
    "/tags/none/",
    "/queues/q1/job-ids/?status=timed_out",
)


def test_lists_are_read_from_indexes_in_a_big_table(transactional_db: None) -> None:
    api = filled()
    bounded = Api("view", queues=("q0", "q1", "q2", "q3", "q4"))
    for caller, path in ((api, "/jobs/timed-out/"), (api, "/jobs/?status=timed_out"), (bounded, "/jobs/timed-out/")):
        check_pages(caller, path, may_sort=caller is bounded)
    for path in OTHERS:
        for sql, plan in plans(api, path)[1]:
            assert "Seq Scan on django_jobs_job " not in plan, f"{path}: {sql}\n{plan}"
            assert "tag" in path or " Sort " not in plan, f"{path}: {sql}\n{plan}"


def check_pages(caller: Api, path: str, *, may_sort: bool) -> None:
    """Walk a list of timed-out jobs one by one: each page comes from one index, each job is there once."""
    seen: list[str] = []
    url: str | None = f"{path}{'&' if '?' in path else '?'}page_size=1"
    while url is not None:
        page, found = plans(caller, url)
        seen += [job["id"] for job in page["results"]]
        for sql, plan in found:
            assert re.search(r"Index (Only )?Scan using django_jobs_(final|trouble)", plan), f"{url}: {sql}\n{plan}"
            assert "Seq Scan" not in plan, f"{url}: {sql}\n{plan}"
            assert may_sort or " Sort " not in plan, f"{url}: {sql}\n{plan}"
        url = page["next"]
    assert len(seen) == len(set(seen)) == 3

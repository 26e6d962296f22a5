"""Pages by keyset: each row once, in a total order, while rows come and go."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from django_jobs import db
from django_jobs.models import Job
from django_jobs.statuses import Status
from tests.api.conftest import PREFIX, Api
from tests.support.jobs import claim_jobs, make_job

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.api.echo")]


def walk(api: Api, path: str, between: Callable[[], Any] = lambda: None) -> list[str]:
    """Follow `next` to the end; `between` is done after each page."""
    rows: list[str] = []
    for _turn in range(100):
        answer = api.get(path).json()
        assert answer["previous"] is None
        rows += answer["results"]
        if answer["next"] is None:
            return rows
        assert answer["next"].startswith("http://testserver" + PREFIX)
        path = answer["next"].removeprefix("http://testserver" + PREFIX)
        between()
    raise AssertionError("the pages have no end")


def jobs_of_every_kind() -> list[str]:
    """Return the ids in the order of the list "open"."""
    now = db.server_now(connection)
    for _each in range(3):
        make_job(priority=5)
    claim_jobs(count=3)
    running = [str(pk) for pk in Job.objects.order_by("due_at", "id").values_list("pk", flat=True)]
    ready = [str(make_job(priority=priority, due_at=now).pk) for priority in (9, 3, 3, 0)]
    http = [str(make_job(is_http=True, due_at=now).pk) for _each in range(2)]
    parked = [str(make_job(parked=why, task="a.b").pk) for why in ("paused", "unknown")]
    scheduled = [str(make_job(Status.SCHEDULED, due_at=now + timedelta(hours=hours)).pk) for hours in (1, 2)]
    waiting = [str(make_job(Status.WAITING).pk)]
    return running + ready + http + parked + scheduled + waiting


@pytest.mark.parametrize("size", [1, 2, 3, 5, 14, 100])
def test_a_list_of_several_parts_is_walked_once(token: Callable[..., Api], size: int) -> None:
    expected = jobs_of_every_kind()
    make_job(Status.FAILED)
    assert walk(token("view"), f"open/?page_size={size}") == expected


def test_final_jobs_come_newest_first_also_those_of_one_moment(token: Callable[..., Api]) -> None:
    now = db.server_now(connection)
    jobs = [make_job(Status.TIMED_OUT, finished_at=now - timedelta(seconds=age)) for age in (0, 0, 0, 5, 9)]
    expected = [str(job.pk) for job in sorted(jobs[:3], key=lambda job: job.pk, reverse=True) + jobs[3:]]
    assert walk(token("view"), "open/?list=timed_out&page_size=1") == expected


def test_rows_that_come_and_go_meanwhile_cost_no_other_row(token: Callable[..., Api]) -> None:
    stays = [make_job(Status.FAILED) for _each in range(6)]
    goes = make_job(Status.FAILED)

    def between() -> None:
        make_job(Status.FAILED)  # newer than the first page: not in the rest
        Job.objects.filter(pk=goes.pk).delete()

    rows = walk(token("view"), "open/?list=failed&page_size=2", between)
    assert [row for row in rows if row != str(goes.pk)] == [str(job.pk) for job in reversed(stays)]
    assert len(set(rows)) == len(rows)


def test_the_row_of_the_cursor_may_be_gone(token: Callable[..., Api]) -> None:
    jobs = [make_job() for _each in range(4)]
    api = token("view")
    first = api.get("open/?list=all&page_size=2").json()
    Job.objects.filter(pk=jobs[2].pk).delete()
    following = api.get(first["next"].removeprefix("http://testserver" + PREFIX)).json()
    assert following == {"results": [str(jobs[1].pk), str(jobs[0].pk)], "next": None, "previous": None}


def test_a_page_is_one_statement_a_part_and_no_count(token: Callable[..., Api]) -> None:
    for _each in range(5):
        make_job(Status.FAILED)
    api = token("view")
    api.get("open/?list=failed")
    with CaptureQueriesContext(
        connection,
    ) as queries:
        api.get("open/?list=failed&page_size=2")
    assert len([query for query in queries if "django_jobs_job" in query["sql"]]) == 1
    assert not [query for query in queries if "COUNT(" in query["sql"].upper()]


def test_other_parameters_stay_in_the_next_address(token: Callable[..., Api]) -> None:
    for _each in range(3):
        make_job(Status.FAILED)
    following = token("view").get("open/?list=failed&page_size=1").json()["next"]
    assert "list=failed" in following
    assert "page_size=1" in following


@pytest.mark.parametrize("size", ["0", "-1", "501", "x", "1e2", "٣", "9" * 30, ""])
def test_a_size_that_is_none_is_refused(token: Callable[..., Api], size: str) -> None:
    assert "page_size" in token("view").error("GET", f"open/?page_size={size}", 400)["fields"]


def test_sizes_have_a_default_and_a_cap(settings: Any, token: Callable[..., Api]) -> None:
    settings.DJANGO_JOBS = {"API_PAGE_SIZE": 2, "API_PAGE_SIZE_MAX": 3}
    for _each in range(5):
        make_job()
    api = token("view")
    assert len(api.get("open/").json()["results"]) == 2
    assert len(api.get("open/?page_size=3").json()["results"]) == 3
    api.error("GET", "open/?page_size=4", 400)


def encoded(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    "cursor",
    [
        "x",
        "%C3%A9",
        "a" * 5000,
        encoded(None),
        encoded([]),
        encoded({}),
        encoded(["all"]),
        encoded(["none", 1]),
        encoded(["all", "no id"]),
        encoded(["all", 5]),
        encoded(["all", None]),
        encoded(["all", ["x"]]),
        encoded([["all"], "x"]),
        encoded(["failed", "2026-01-01T00:00:00Z", "no id"]),
        encoded(["failed", "no time", "018f0000-0000-7000-8000-000000000000"]),
        encoded(["failed", "2026-01-01T00:00:00", "018f0000-0000-7000-8000-000000000000"]),
        encoded(["all", "018f0000-0000-7000-8000-000000000000", 1]),
        encoded(["parked", "a\x00", "b", "018f0000-0000-7000-8000-000000000000"]),
        encoded(["ready", 2**70, "2026-01-01T00:00:00Z", "018f0000-0000-7000-8000-000000000000"]),
        encoded(["ready", True, "2026-01-01T00:00:00Z", "018f0000-0000-7000-8000-000000000000"]),
        encoded("[" * 200),
    ],
)
@pytest.mark.parametrize("name", ["all", "failed", "parked", "ready"])
def test_a_cursor_that_nobody_gave_is_refused(token: Callable[..., Api], cursor: str, name: str) -> None:
    assert "cursor" in token("view").error("GET", f"open/?list={name}&cursor={cursor}", 400)["fields"]


@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.recursive(st.none() | st.integers() | st.text(max_size=30) | st.booleans(), st.lists, max_leaves=5))
def test_no_cursor_at_all_makes_it_stumble(token: Callable[..., Api], value: Any) -> None:
    api = token("view")
    for name in ("all", "ready"):
        values = value if isinstance(value, list) else [value]
        response = api.get(f"open/?list={name}&cursor={encoded([name, *values])}")
        assert response.status_code in (200, 400), response.content

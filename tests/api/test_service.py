"""The endpoints about the whole: the root, the version, the numbers, the workers."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_jobs import __version__, db
from django_jobs.models import Job, JobLock, Queue, Worker, WorkerKind
from django_jobs.statuses import Status
from django_jobs.task import job
from tests.api.conftest import PREFIX, Api
from tests.support.jobs import make_job, running_job

pytestmark = pytest.mark.django_db


@job
def nothing() -> None:
    """Do nothing."""


def make_worker(**values: Any) -> Worker:
    values = {"kind": WorkerKind.PROCESS, "name": "host/1", "host": "host", "pid": 1, "slots": 4} | values
    return Worker.objects.create(id=uuid.uuid4(), **values)


def test_the_root_lists_addresses_that_answer(token: Callable[..., Api]) -> None:
    api = token()
    links = api.get("").json()
    assert {"info", "health", "metrics", "version", "schema", "workers"} <= set(links)
    for link in links.values():
        assert link.startswith("http://testserver" + PREFIX)
        assert api.get(link.removeprefix("http://testserver" + PREFIX)).status_code in (200, 503)


def test_the_version_is_json_text(token: Callable[..., Api]) -> None:
    assert token("view").get("version/").json() == __version__
    assert token("view").get("info/version").json() == __version__


def test_info_has_every_status_of_each_queue_and_totals_that_survive_deletion(token: Callable[..., Api]) -> None:
    Queue.objects.create(name="declared")
    for queue in ("mail", "mail", "post"):
        nothing.using(queue_name=queue).enqueue()
    api = token("view")
    found = api.get("info/").json()
    assert {queue: counts["ready"] for queue, counts in found["queues"].items()} == {"declared": 0, "mail": 2, "post": 1}
    assert all(set(counts) == {status.value for status in Status} for counts in found["queues"].values())
    assert found["jobs"]["ready"] == 3
    assert found["statistics"]["total_jobs_created"] == 3
    assert set(found["statistics"]) >= {
        f"total_jobs_{name}" for name in ("succeeded", "failed", "timed_out", "cancelled", "retried")
    }

    from django_jobs.lifecycle import control

    control.delete([job.pk for job in Job.objects.filter(queue="mail")], by="x", reason="", using="default")
    found = api.get("info/").json()
    assert "mail" not in found["queues"]
    assert (found["jobs"]["ready"], found["statistics"]["total_jobs_created"]) == (1, 3)


def test_info_shows_a_bounded_token_its_queues_alone(token: Callable[..., Api]) -> None:
    Queue.objects.create(name="post.x")
    for queue in ("mail", "mail.bulk", "post"):
        nothing.using(queue_name=queue).enqueue()
    found = token("view", queues=["mail.*"]).get("info/").json()
    assert list(found["queues"]) == ["mail", "mail.bulk"]
    assert (found["jobs"]["ready"], found["statistics"]["total_jobs_created"]) == (2, 2)


def test_info_counts_no_jobs(token: Callable[..., Api]) -> None:
    make_job()
    api = token("view")
    api.get("info/")
    with CaptureQueriesContext(connection) as queries:
        api.get("info/")
    assert not [query["sql"] for query in queries if '"django_jobs_job"' in query["sql"] or "`django_jobs_job`" in query["sql"]]


def test_workers_are_shown_with_what_they_have_in_hand(token: Callable[..., Api]) -> None:
    now = db.server_now(connection)
    worker = make_worker(queues=["mail"], running=1, memory_mb=80.5)
    silent = make_worker(started_at=now - timedelta(hours=1), seen_at=now - timedelta(minutes=10))
    stopped = make_worker(started_at=now - timedelta(hours=2), stopped_at=now, stop_reason="stopped")
    running = running_job(worker.pk, queue="mail")
    api = token("view")
    rows = api.get("workers/").json()["results"]
    assert [(row["id"], row["state"]) for row in rows] == [(str(worker.pk), "alive"), (str(silent.pk), "silent")]
    assert rows[0].items() >= {"kind": "process", "queues": ["mail"], "slots": 4, "memory_mb": 80.5, "stopped_at": None}.items()
    (in_hand,) = rows[0]["jobs"]
    assert in_hand["id"] == str(running.pk)
    assert (in_hand["queue"], in_hand["attempt"], in_hand["prefetched"]) == ("mail", 1, False)
    assert in_hand["claimed_at"].endswith("Z")
    assert [row["id"] for row in api.get("workers/?state=stopped").json()["results"]] == [str(stopped.pk)]
    assert len(api.get("workers/?state=all").json()["results"]) == 3
    assert "state" in api.error("GET", "workers/?state=dead", 400)["fields"]


def test_workers_come_in_pages_with_a_bounded_number_of_statements(token: Callable[..., Api]) -> None:
    moment = db.server_now(connection)
    workers = [make_worker(started_at=moment) for _each in range(5)]
    for worker in workers:
        running_job(worker.pk)
    api = token("view")
    path, seen = "workers/?page_size=2", []
    while path:
        with CaptureQueriesContext(connection) as queries:
            answer = api.get(path).json()
        assert len([query for query in queries if "django_jobs_" in query["sql"]]) <= 6
        seen += [(row["id"], len(row["jobs"])) for row in answer["results"]]
        path = (answer["next"] or "").removeprefix("http://testserver" + PREFIX)
    assert sorted(seen) == sorted((str(worker.pk), 1) for worker in workers)


def test_workers_hide_jobs_that_the_caller_does_not_see(
    settings: Any, user: Callable[..., Api], token: Callable[..., Api]
) -> None:
    settings.DJANGO_JOBS = {"VISIBLE_TO": lambda user, jobs: jobs.filter(created_by=user.get_username())}
    worker = make_worker()
    hers = running_job(worker.pk, created_by="ann")
    running_job(worker.pk, created_by="bob")
    assert JobLock.objects.count() == 2
    (row,) = user("view_job").get("workers/").json()["results"]
    assert [job["id"] for job in row["jobs"]] == [str(hers.pk)]
    assert token("view", queues=["mail"]).error("GET", "workers/", 403)["code"] == "forbidden"

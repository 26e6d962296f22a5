"""Batches over HTTP: made with jobs and callbacks, added to, how far they are, cancelled, requeued, read."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from django.db import connection

from django_jobs.lifecycle import batch, rollup
from django_jobs.lifecycle.batch_look import look
from django_jobs.lifecycle.recover import writing
from django_jobs.models import Batch, Job
from tests.project.tasks import told

from .calls import Api, http_queue

pytestmark = [pytest.mark.django_db, pytest.mark.once]

ADD = "tests.project.jobs.add"


@pytest.fixture
def api() -> Api:
    http_queue("web")
    return Api()


def fold() -> None:
    """Do what maintenance does."""
    with writing("default"):
        look(connection, rollup.fold(using="default", limit=1000).batches)


def made(api: Api, jobs: int = 2, **said: Any) -> dict[str, Any]:
    items = [{"queue": "web", "input": number} for number in range(jobs)]
    found: dict[str, Any] = api.ok("POST", "/batches/", {"jobs": items, **said}, status=201)
    return found


def test_a_batch_is_made_run_and_read(api):
    callback = {"task": told.module_path, "args": ["done"]}
    new = made(api, 2, name="import", metadata={"file": "a.csv"}, on_finish=callback, on_success={"queue": "web", "input": "ok"})
    assert (new["name"], new["status"], new["metadata"], new["sealed_at"] is None) == (
        "import",
        "enqueued",
        {"file": "a.csv"},
        False,
    )
    assert new["progress"] == {
        "total": 2,
        "ended": 0,
        "succeeded": 0,
        "failed": 0,
        "percent_complete": 0.0,
        "percent_failed": 0.0,
    }
    assert Job.objects.get(pk=new["on_finish"]).kwargs == {"batch_id": new["id"]}
    assert Job.objects.get(pk=new["on_success"]).status == "waiting"
    first, second = api.ok("POST", "/queues/web/claim/", {"limit": 2})["jobs"]
    assert first["batch"] == new["id"]
    url = f"/batches/{new['id']}/"
    assert api.ok("GET", url)["status"] == "progress"
    api.ok("PATCH", f"/jobs/{first['id']}/", {"token": first["token"], "status": "succeeded"}, status=204)
    api.ok("PATCH", f"/jobs/{second['id']}/", {"token": second["token"], "status": "failed", "final": True}, status=204)
    fold()
    body = api.ok("GET", url)
    assert (body["status"], body["counts"]["failed"], body["progress"]["percent_failed"]) == ("finished", 1, 50.0)
    assert body["read_at"] is None
    assert api.ok("PATCH", url, {"read": True})["read_at"]
    assert api.ok("GET", "/batches/?read=true&finished=true")["results"][0]["id"] == new["id"]
    assert api.ok("GET", "/batches/?read=false")["results"] == []
    report = api.ok("POST", f"{url}requeue-failed/", {"reason": "again"})
    assert (report["changed"], report["more"]) == (1, False)
    body = api.ok("GET", url)
    assert (body["status"], body["read_at"]) == ("progress", None)


def test_jobs_are_added_until_the_batch_has_finished(api):
    new = made(api, 0, seal=False)
    url = f"/batches/{new['id']}/"
    (added,) = api.ok("POST", f"{url}jobs/", [{"queue": "web", "input": 1}], status=201)["results"]
    assert [job["id"] for job in api.ok("GET", f"/jobs/?batch={new['id']}")["results"]] == [added["id"]]
    assert api.ok("GET", f"/jobs/?batch={uuid4()}")["results"] == []
    assert api.ok("PATCH", url, {"sealed": True})["status"] == "enqueued"
    assert api.ok("POST", f"{url}cancel/", {"reason": "wrong"})["changed"] == 1
    body = api.ok("GET", url)
    assert (body["status"], body["counts"]["cancelled"]) == ("finished", 1)
    error = api.error("POST", f"{url}jobs/", [{"queue": "web", "input": 1}], status=409)
    assert "has finished" in error["message"]
    assert (error["from"], error["to"]) == ("finished", "progress")
    assert Job.objects.count() == 1


def test_the_same_request_sent_again_makes_one_batch(api):
    body = {"jobs": [{"queue": "web", "input": 1}]}
    one = api.call("POST", "/batches/", body, Idempotency_Key="k")
    two = api.call("POST", "/batches/", body, Idempotency_Key="k")
    assert (one.status_code, two.status_code, one.json()["id"]) == (201, 201, two.json()["id"])
    assert one.headers["Location"].endswith(f"/batches/{one.json()['id']}/")
    assert (Batch.objects.count(), Job.objects.count()) == (1, 1)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"names": "x"}, "names"),
        ({"name": "x" * 256}, "name"),
        ({"name": 1}, "name"),
        ({"jobs": {}}, "jobs"),
        ({"seal": "maybe"}, "seal"),
        ({"metadata": []}, "metadata"),
        ({"on_finish": {"task": "nowhere.task"}}, "on_finish.task"),
        ({"on_finish": {"task": ADD, "args": [1]}}, "on_finish.args"),
        ({"on_failure": []}, None),
    ],
)
def test_what_is_wrong_is_refused_with_its_place_and_stores_nothing(api, body, field):
    error = api.error("POST", "/batches/", body, status=400)
    assert field is None or field in error["fields"]
    assert not Batch.objects.exists()


def test_a_bad_job_leaves_no_batch(api):
    error = api.error("POST", "/batches/", {"jobs": [{"queue": "web", "input": 1}, {"task": "nowhere.task"}]}, status=400)
    assert error["index"] == 1
    assert not Batch.objects.exists()
    assert not Job.objects.exists()


def test_there_is_no_such_batch(api):
    for method, path, body in (
        ("GET", "", None),
        ("PATCH", "", {"read": True}),
        ("POST", "jobs/", [{"queue": "web", "input": 1}]),
        ("POST", "cancel/", None),
        ("POST", "requeue-failed/", None),
    ):
        api.error(method, f"/batches/{uuid4()}/{path}", ... if body is None else body, status=404)


def test_a_batch_is_not_opened_by_hand(api):
    new = made(api)
    assert "sealed" in api.error("PATCH", f"/batches/{new['id']}/", {"sealed": False}, status=400)["fields"]
    api.error("PATCH", f"/batches/{new['id']}/", {}, status=400)


def test_a_large_batch_is_cancelled_in_pieces(api, settings):
    settings.DJANGO_JOBS = {"API_BULK_MAX": 3}
    new = made(api, 3)
    with writing("default"):
        batch.join(Batch.objects.get().id, using="default")
    api.ok("POST", f"/batches/{new['id']}/jobs/", [{"queue": "web", "input": 1}] * 2, status=201)
    api.error("POST", f"/batches/{new['id']}/jobs/", [{"queue": "web", "input": 1}] * 4, status=413)
    reports = [api.ok("POST", f"/batches/{new['id']}/cancel/") for _ in range(2)]
    assert [(report["changed"], report["more"]) for report in reports] == [(3, True), (2, False)]


def test_numbers_are_for_those_who_see_every_job(api, settings):
    settings.DJANGO_JOBS = {"VISIBLE_TO": lambda user, jobs: jobs.filter(created_by=user.get_username())}
    api.error("GET", "/batches/", status=403)

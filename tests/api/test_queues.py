"""Queues: settings by PUT and PATCH, deletion, size, ids, pauses; tags."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import override_settings
from django.utils import timezone

from django_jobs.inputs import INPUT_TASK
from django_jobs.lifecycle import queues as lifecycle
from django_jobs.lifecycle.inherit import forget_queues
from django_jobs.models import Job, JobTag, Queue
from django_jobs.statuses import FINAL, Status
from tests.api.calls import PREFIX, Api, http_queue
from tests.support.jobs import in_threads, make_job, running_job

pytestmark = pytest.mark.django_db
NOTHING = {
    "timeout": None,
    "heartbeat_timeout": None,
    "retries": None,
    "max_attempts": None,
    "retry_delays": None,
    "retention": None,
    "expires_after": None,
}


@pytest.fixture
def api() -> Api:
    forget_queues()
    return Api()


# Settings.


def test_put_declares_and_then_replaces(api: Api) -> None:
    response = api.call("PUT", "/queues/web/", {"timeout": "2m15s", "retries": 3, "description": "d", "is_http": True})
    assert (response.status_code, response["Location"]) == (201, f"http://testserver{PREFIX}/queues/web/")
    shown = response.json()
    assert shown == api.ok("GET", "/queues/web/")
    assert (shown["timeout"], shown["retries"], shown["max_attempts"], shown["is_http"]) == ("2m15s", 3, 4, True)
    response = api.call("PUT", "/queues/web", {"heartbeat_timeout": 30})
    assert (response.status_code, response["Location"]) == (204, f"http://testserver{PREFIX}/queues/web/")
    shown = api.ok("GET", "/queues/web/")
    assert {name: shown[name] for name in NOTHING} == NOTHING | {"heartbeat_timeout": "30s"}
    assert (shown["description"], shown["is_http"]) == ("", None)


def test_put_leaves_a_pause_as_it_is(api: Api) -> None:
    api.ok("PUT", "/queues/web/", {}, status=201)
    api.ok("POST", "/queues/web/pause/", {"reason": "because"})
    api.ok("PUT", "/queues/web/", {"timeout": 5}, status=204)
    assert api.ok("GET", "/queues/web/")["paused"]["reason"] == "because"


def test_patch_merges(api: Api) -> None:
    api.ok("PUT", "/queues/web/", {"timeout": 60, "retention": {"failed": "1d"}, "is_http": True}, status=201)
    api.ok("PATCH", "/queues/web/", {"retry_delays": [1, "1m"], "expires_after": "1h"}, status=204)
    shown = api.ok("GET", "/queues/web/")
    assert (shown["timeout"], shown["retry_delays"], shown["is_http"]) == ("1m", ["1s", "1m"], True)
    assert shown["retention"] == {"failed": "1d", "succeeded": "1h"}
    api.ok("PATCH", "/queues/web/", {"timeout": None}, status=204)
    assert api.ok("GET", "/queues/web/")["timeout"] is None
    api.error("PATCH", "/queues/none/", {}, status=404)


def test_post_declares_once(api: Api) -> None:
    response = api.call("POST", "/queues/", {"name": "web", "is_http": True})
    assert (response.status_code, response["Location"]) == (201, f"http://testserver{PREFIX}/queues/web/")
    assert api.error("POST", "/queues/", {"name": "web"}, status=409)["code"] == "conflict"
    assert list(api.error("POST", "/queues/", {}, status=400)["fields"]) == ["name"]


def test_a_job_gets_what_its_queue_says_and_keeps_it(api: Api) -> None:
    api.ok("PUT", "/queues/web/", {"timeout": 60, "retries": 1, "retry_delays": [7], "is_http": True}, status=201)
    made = api.ok("POST", "/jobs/", {"queue": "web.below"}, status=201)
    assert (made["timeout"], made["retries"], made["retry_delays"]) == ("1m", 1, ["7s"])
    own = api.ok("POST", "/jobs/", {"queue": "web", "timeout": 5, "retries": 0}, status=201)
    assert (own["timeout"], own["retries"]) == ("5s", 0)
    api.ok("PUT", "/queues/web/", {"timeout": 99, "is_http": True}, status=204)
    assert api.ok("GET", f"/jobs/{made['id']}/")["timeout"] == "1m", "later changes are for later jobs"
    assert api.ok("POST", "/jobs/", {"queue": "web"}, status=201)["timeout"] == "1m39s"


def test_what_is_effective_is_shown_with_what_is_said(api: Api) -> None:
    api.ok("PUT", "/queues/web/", {"timeout": 60, "is_http": True}, status=201)
    api.ok("PUT", "/queues/web.below/", {"retries": 1}, status=201)
    shown = api.ok("GET", "/queues/web.below/")
    assert shown["timeout"] is None
    effective = shown["effective"]
    assert (effective["timeout"], effective["retries"], effective["is_http"]) == ("1m", 1, True)
    assert effective["retention"]["timed_out"] is None
    assert effective["expires_after"] == "1w"


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({"timeout": -1}, "timeout"),
        ({"timeout": []}, "timeout"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"retries": 2**31}, "retries"),
        ({"retry_delays": "callable"}, "retry_delays"),
        ({"retention": {"ready": 1}}, "retention"),
        ({"retention": {"succeeded": 1, "completed": 2}}, "retention"),
        ({"description": 5}, "description"),
        ({"is_http": "perhaps"}, "is_http"),
        ({"capacity": 5}, "capacity"),
        ({"name": "other"}, "name"),
        ({"retry_delay": 5}, "retry_delay"),
    ],
)
@pytest.mark.parametrize("method", ["PUT", "PATCH"])
def test_bad_settings_name_the_field(api: Api, method: str, said: dict[str, Any], field: str) -> None:
    Queue.objects.create(name="web", timeout=7.0)
    assert list(api.error(method, "/queues/web/", said, status=400)["fields"]) == [field]
    assert Queue.objects.get().timeout == 7.0


@pytest.mark.parametrize("name", ["a%20b", "a..b", "ü", "x" * 101, "a%00b", "a%2Fb"])
def test_a_name_that_no_queue_can_have(api: Api, name: str) -> None:
    for method, path in (("PUT", ""), ("GET", ""), ("POST", "claim/"), ("GET", "size/"), ("GET", "job-ids/"), ("POST", "pause/")):
        body: Any = ... if method == "GET" else {}
        assert api.call(method, f"/queues/{name}/{path}", body).status_code in (400, 404)
    assert not Queue.objects.exists()


def test_queues_are_listed_by_name(api: Api) -> None:
    for name in ("c", "a", "b"):
        Queue.objects.create(name=name)
    assert [queue["name"] for queue in api.walk("/queues/?page_size=2")] == ["a", "b", "c"]
    assert [queue["name"] for queue in Api("view", queues=("b",)).walk("/queues/")] == ["b"]


@pytest.mark.django_db(transaction=True)
def test_put_at_the_same_moment_declares_once(api: Api) -> None:
    answers = in_threads(*[lambda: api.call("PUT", "/queues/web/", {"timeout": 5}).status_code] * 4)
    assert sorted(answers) == [201, 204, 204, 204]


# Deletion.


def test_an_empty_queue_is_deleted(api: Api) -> None:
    http_queue()
    api.ok("DELETE", "/queues/web/", status=204)
    api.error("DELETE", "/queues/web/", status=404)
    api.error("GET", "/queues/web/", status=404)


@pytest.mark.parametrize("status", [status for status in Status if status not in (Status.SUCCEEDED, Status.CANCELLED)])
def test_a_queue_with_jobs_left_stays(api: Api, status: Status) -> None:
    http_queue()
    job = running_job(queue="web") if status == Status.RUNNING else make_job(status, queue="web")
    assert api.error("DELETE", "/queues/web/", status=409)["code"] == "conflict"
    assert Queue.objects.exists()
    assert Job.objects.filter(pk=job.pk).exists()


def test_what_has_succeeded_or_was_cancelled_is_left_to_its_retention(api: Api) -> None:
    http_queue()
    jobs = [make_job(status, queue="web") for status in (Status.SUCCEEDED, Status.CANCELLED)]
    api.ok("DELETE", "/queues/web/", status=204)
    assert Job.objects.count() == len(jobs)


def test_cascade_deletes_the_jobs_in_pieces_and_nobody_elses(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "BATCH", 3)
    http_queue()
    for status in sorted({*FINAL, Status.READY, Status.SCHEDULED, Status.WAITING}):
        for _ in range(4):
            make_job(status, queue="web")
    make_job(queue="web", parked="paused")
    other = make_job(queue="web.below")
    api.ok("DELETE", "/queues/web/?cascade=true", status=204)
    assert list(Job.objects.values_list("pk", flat=True)) == [other.pk]
    assert not Queue.objects.exists()


def test_cascade_refuses_what_runs(api: Api) -> None:
    http_queue()
    running_job(queue="web")
    make_job(Status.FAILED, queue="web")
    assert api.error("DELETE", "/queues/web/?cascade=true", status=409)["deleted"] == 0
    assert Job.objects.count() == 2
    assert Queue.objects.exists()
    api.error("DELETE", "/queues/web/?cascade=perhaps", status=400)


def test_cascade_over_more_than_one_call_can_do(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "BATCH", 2)
    monkeypatch.setattr(lifecycle, "DELETE_SECONDS", 0.0)
    http_queue()
    for _ in range(5):
        make_job(queue="web")
    answers = [api.call("DELETE", "/queues/web/?cascade=true") for _ in range(4)]
    assert [answer.status_code for answer in answers] == [202, 202, 202, 204]
    assert answers[0].json() == {"deleted": 2, "more": True}
    assert not Job.objects.exists()


# What is in it.


def only_high(user: Any, jobs: Any) -> Any:
    return jobs.filter(priority__gt=0)


def test_the_size_is_what_is_ready(api: Api) -> None:
    http_queue()
    api.ok("POST", "/jobs/", [{"queue": "web", "priority": number} for number in range(3)], status=201)
    api.ok("POST", "/jobs/", {"queue": "web", "run_after": "1h"}, status=201)
    api.ok("POST", "/jobs/", {"queue": "web.below"}, status=201)
    assert api.ok("GET", "/queues/web/size/") == 3
    assert api.ok("GET", "/queues/undeclared/size") == 0
    with override_settings(DJANGO_JOBS={"VISIBLE_TO": f"{__name__}.only_high"}):
        assert api.ok("GET", "/queues/web/size/") == 2
    api.ok("POST", "/queues/web/claim/")
    assert api.ok("GET", "/queues/web/size/") == 2
    api.ok("POST", "/queues/web/pause/")
    assert api.ok("GET", "/queues/web/size/") == 2, "those of a paused queue wait, too"


def test_the_ids_of_a_queue_by_status(api: Api) -> None:
    jobs = {status: make_job(status, queue="web") for status in Status if status != Status.RUNNING}
    jobs[Status.RUNNING] = running_job(queue="web", priority=50)
    Job.objects.filter(pk=jobs[Status.READY].pk).update(status="ready", worker="")
    make_job(queue="other")
    shown = api.ok("GET", "/queues/web/job-ids/")
    assert set(shown) == set(Status)
    stored = {str(pk): status for pk, status in Job.objects.filter(queue="web").values_list("pk", "status")}
    assert {each: status for status, part in shown.items() for each in part["results"]} == stored
    assert all(part["next"] is None for part in shown.values())
    empty = api.ok("GET", "/queues/nothing/job-ids/")
    assert empty == {status: {"results": [], "next": None} for status in Status}


def test_ids_go_on_page_by_page(api: Api) -> None:
    for number in range(7):
        make_job(queue="web", priority=number % 3, is_http=bool(number % 2))
        make_job(queue="web", parked="paused", priority=number)
        make_job(Status.TIMED_OUT, queue="web")
    shown = api.ok("GET", "/queues/web/job-ids/?page_size=3")
    for status, count in (("ready", 14), ("timed_out", 7)):
        found = list(shown[status]["results"])
        assert len(found) == 3
        found += api.walk(shown[status]["next"])
        assert len(found) == len(set(found)) == count
        assert found == api.walk(f"/queues/web/job-ids/?status={status}")
    assert api.walk("/queues/web/job-ids/?status=queued") == api.walk("/queues/web/job-ids/?status=ready")
    assert list(api.error("GET", "/queues/web/job-ids/?cursor=x", status=400)["fields"]) == ["cursor"]
    assert list(api.error("GET", "/queues/web/job-ids/?status=x", status=400)["fields"]) == ["status"]


def test_ids_and_size_only_of_what_the_caller_sees() -> None:
    make_job(queue="web")
    api = Api("view", queues=("mine",))
    for path in ("", "size/", "job-ids/"):
        api.error("GET", f"/queues/web/{path}", status=404)
    assert api.ok("GET", "/queues/mine/size/") == 0


# Pauses.


def test_pause_and_resume(api: Api) -> None:
    http_queue()
    api.ok("POST", "/jobs/", {"queue": "web.below"}, status=201)
    shown = api.ok("POST", "/queues/web/pause/", {"reason": "disk full", "until": "1h"})["paused"]
    assert (shown["reason"], shown["by"]) == ("disk full", f"token {api.token.name}")
    assert shown["until"] is not None
    assert api.ok("POST", "/queues/web.below/claim/", status=204) is None
    assert api.ok("POST", "/queues/web/resume/", {"reason": "mended"})["paused"] is None
    assert len(api.ok("POST", "/queues/web.below/claim/")["jobs"]) == 1
    assert api.error("POST", "/queues/web/resume/", status=409)["code"] == "conflict"
    assert api.ok("POST", "/queues/undeclared/pause/")["paused"]["until"] is None


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"until": "2020-01-01T00:00:00Z"}, "until"),
        ({"until": "2030-01-01T00:00:00"}, "until"),
        ({"until": 0}, "until"),
        ({"until": -5}, "until"),
        ({"reason": 5}, "reason"),
        ({"why": "x"}, "why"),
    ],
)
def test_a_bad_pause(api: Api, body: dict[str, Any], field: str) -> None:
    assert list(api.error("POST", "/queues/web/pause/", body, status=400)["fields"]) == [field]
    assert not Queue.objects.exists()


# Tags.


def test_the_jobs_with_a_tag_in_every_queue(api: Api) -> None:
    http_queue()
    made = [
        api.ok("POST", "/jobs/", {"queue": "web", "tags": ["blue sky", f"n{number}"]}, status=201)["id"] for number in range(5)
    ]
    assert JobTag.objects.filter(tag="blue sky").count() == 5
    assert api.walk("/tags/blue%20sky/?page_size=2") == made[::-1]
    assert api.walk("/tags/n3") == [made[3]]
    assert api.walk("/tags/unknown/") == []
    api.ok("PATCH", f"/jobs/{made[3]}/", {"tags": ["red"]}, status=204)
    assert api.walk("/tags/red/") == [made[3]]
    assert api.walk("/tags/n3/") == []
    api.ok("DELETE", f"/jobs/{made[3]}/", status=204)
    assert api.walk("/tags/red/") == []
    assert Api("view", queues=("other",)).walk("/tags/n1/") == []


@pytest.mark.parametrize(("tag", "status"), [("%20", 404), ("x" * 101, 400), ("a%00b", 404)])
def test_what_is_no_tag(api: Api, tag: str, status: int) -> None:
    api.error("GET", f"/tags/{tag}/", status=status)


# Verbs in bulk.


def test_b09_a_mixed_selection_is_reported_job_by_job(api: Api) -> None:
    gone = make_job(Status.FAILED)
    jobs = {
        "running": running_job(priority=100),
        "succeeded": make_job(Status.SUCCEEDED),
        "timed_out": make_job(Status.TIMED_OUT, attempts_used=5),
        "cancelled": make_job(Status.CANCELLED),
        "held": make_job(Status.FAILED, unique_key="k"),
    }
    make_job(unique_key="k")
    Job.objects.filter(pk=gone.pk).delete()
    asked = [str(job.pk) for job in jobs.values()] + [str(gone.pk)]
    dry = api.ok("POST", "/jobs/requeue/", {"ids": asked, "dry_run": True})
    assert Job.objects.get(pk=jobs["timed_out"].pk).status == "timed_out"
    assert (dry["dry_run"], dry["matched"], dry["changed"], dry["refused"]) == (True, 6, 4, 2)
    report = api.ok("POST", "/jobs/requeue/", {"ids": asked, "reason": "again"})
    outcomes = {each["id"]: each["outcome"] for each in report["results"]}
    assert list(outcomes) == asked
    assert [outcomes[str(job.pk)] for job in jobs.values()] == ["refused", "changed", "changed", "changed", "refused"]
    assert outcomes[str(gone.pk)] == "refused"
    assert all(each["message"] for each in report["results"] if each["outcome"] == "refused")
    assert (report["changed"], report["refused"], report["more"]) == (3, 3, False)
    ready = Job.objects.filter(status="ready", reason__endswith=": again")
    assert ready.count() == report["changed"], "the number that is told is what changed"
    running = Job.objects.get(pk=jobs["running"].pk)
    assert (running.status, running.starts) == ("running", 1)


@override_settings(DJANGO_JOBS={"API_BULK_MAX": 3})
def test_a_filter_takes_as_many_as_one_request_may(api: Api) -> None:
    for _ in range(5):
        make_job(Status.TIMED_OUT, queue="web")
    live, other = make_job(queue="web"), make_job(Status.TIMED_OUT)
    body = {"filter": {"queue": "web", "status": "all"}}
    reports = [api.ok("POST", "/jobs/cancel/", {"filter": {"queue": "web", "status": ["timed_out"]}}) for _ in range(3)]
    assert [(report["changed"], report["more"]) for report in reports] == [(3, True), (2, False), (0, False)]
    assert {job.status for job in Job.objects.filter(pk__in=[live.pk])} == {"ready"}
    assert Job.objects.get(pk=other.pk).status == "timed_out"
    assert api.ok("POST", "/jobs/delete/", {**body, "dry_run": True})["matched"] == 3
    api.error("POST", "/jobs/cancel/", {"ids": [str(job.pk) for job in Job.objects.all()[:4]]}, status=413)


def test_a_filter_leaves_out_what_the_verb_does_not_take(api: Api) -> None:
    jobs = {status: make_job(status, queue="web") for status in Status if status != Status.RUNNING}
    report = api.ok("POST", "/jobs/done/", {"filter": {"queue": "web"}, "dry_run": True})
    wanted = {jobs[status].pk for status in ("waiting", "scheduled", "ready", "failed", "timed_out")}
    assert {each["id"] for each in report["results"]} == {str(pk) for pk in wanted}
    report = api.ok("POST", "/jobs/run-now/", {"filter": {"queue": "web"}})
    assert [each["id"] for each in report["results"]] == [str(jobs[Status.SCHEDULED].pk)]


def test_a_running_job_is_asked_to_stop(api: Api) -> None:
    job = running_job()
    report = api.ok("POST", "/jobs/cancel/", {"filter": {"status": "running"}})
    assert (report["requested"], report["changed"]) == (1, 0)
    assert report["results"] == [{"id": str(job.pk), "outcome": "requested"}]
    assert api.ok("POST", "/jobs/delete/", {"ids": [str(job.pk)]})["refused"] == 1
    assert api.ok("POST", "/jobs/delete/", {"ids": [str(job.pk)], "force": True})["requested"] == 1


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "ids"),
        ({"ids": ["x"]}, "ids.0"),
        ({"ids": []}, "ids"),
        ({"ids": "x"}, "ids"),
        ({"ids": [5]}, "ids.0"),
        ({"filter": {}}, "filter"),
        ({"filter": []}, "filter"),
        ({"filter": {"stauts": "failed"}}, "filter.stauts"),
        ({"filter": {"status": "nonsense"}}, "status"),
        ({"filter": {"status": []}}, "status"),
        ({"filter": {"status": None}}, "filter.status"),
        ({"filter": {"unique_key": None}}, "filter.unique_key"),
        ({"filter": {"status": [5]}}, "status"),
        ({"filter": {"since": 5}}, "since"),
        ({"filter": {"queue": 5}}, "queue"),
        ({"filter": {"tag": 5}}, "tag"),
        ({"filter": {"ended": 5}}, "ended"),
        ({"filter": {"status": "failed"}, "dry_run": "perhaps"}, "dry_run"),
        ({"filter": {"status": "failed"}, "reason": 5}, "reason"),
        ({"filter": {"status": "failed"}, "nonsense": 5}, "nonsense"),
    ],
)
def test_bad_bulk_requests(api: Api, body: dict[str, Any], field: str) -> None:
    job = make_job(Status.FAILED)
    assert list(api.error("POST", "/jobs/requeue/", body, status=400)["fields"]) == [field]
    job.refresh_from_db()
    assert job.status == "failed"


def test_each_bulk_verb_needs_its_own() -> None:
    make_job(Status.FAILED)
    api = Api("view")
    for verb in ("requeue", "cancel", "done", "run-now", "delete"):
        api.error("POST", f"/jobs/{verb}/", {"filter": {"status": "failed"}}, status=403)
    assert Job.objects.get().status == "failed"


def test_a_bulk_verb_keeps_to_the_callers_queues() -> None:
    mine, other = make_job(Status.FAILED, queue="mine"), make_job(Status.FAILED, queue="other")
    api = Api(queues=("mine",))
    assert api.ok("POST", "/jobs/requeue/", {"filter": {"status": "failed"}})["changed"] == 1
    assert api.ok("POST", "/jobs/requeue/", {"ids": [str(other.pk)]})["refused"] == 1
    assert Job.objects.get(pk=mine.pk).status == "ready"
    assert Job.objects.get(pk=other.pk).status == "failed"


# Timed out.


def test_timed_out_jobs_are_found_once_and_gone_at_once(api: Api) -> None:
    old = make_job(Status.TIMED_OUT, queue="web", finished_at=timezone.now() - timedelta(days=400))
    new = make_job(Status.TIMED_OUT, queue="web", task=INPUT_TASK, args=[1])
    more = [make_job(Status.TIMED_OUT, queue="web") for _ in range(3)]
    make_job(Status.SCHEDULED, queue="web", last_outcome="timed_out")
    for path in ("/jobs/timed-out/", "/jobs/?status=timed_out", "/jobs/timed-out?page_size=1&queue=web"):
        assert [each["id"] for each in api.walk(path)] == [str(job.pk) for job in (*more[::-1], new, old)]
    api.ok("POST", f"/jobs/{old.pk}/requeue/")
    api.ok("POST", f"/jobs/{new.pk}/cancel/")
    api.ok("DELETE", f"/jobs/{more[0].pk}/", status=204)
    api.ok("POST", "/jobs/requeue/", {"filter": {"status": "timed_out"}})
    assert api.walk("/jobs/timed-out/") == []
    api.error("GET", "/jobs/timed-out/?status=failed", status=400)


def hides(user: Any, jobs: Any) -> Any:
    return jobs if getattr(user, "is_superuser", False) else jobs.filter(created_by="nobody")


@pytest.mark.once
def test_where_jobs_are_hidden_what_acts_on_all_of_a_queue_is_for_those_who_see_all(settings: Any) -> None:
    settings.DJANGO_JOBS = {"VISIBLE_TO": hides}
    http_queue("web")
    job = make_job(queue="web", is_http=True)
    some = Api("claim", "queues", "delete", "view")
    assert some.error("POST", "/queues/web/claim/", status=403)
    assert some.error("DELETE", "/queues/web/?cascade=true", status=403)
    assert Job.objects.filter(pk=job.pk, status="ready").exists()


@pytest.mark.once
def test_a_queue_goes_with_its_jobs_only_for_who_may_delete_jobs_and_not_half() -> None:
    http_queue("web")
    waiting, running = make_job(queue="web", is_http=True), running_job(queue="web")
    assert "delete" in str(Api("queues").error("DELETE", "/queues/web/?cascade=true", status=403))
    api = Api("queues", "delete")
    assert "run" in api.error("DELETE", "/queues/web/?cascade=true", status=409)["message"]
    assert Job.objects.filter(pk__in=[waiting.pk, running.pk]).count() == 2, "a refusal changes nothing"

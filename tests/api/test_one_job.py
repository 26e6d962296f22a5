"""Change, delete and steer one job; and what the holder of its token reports."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_jobs.lifecycle.lease import claim_http
from django_jobs.models import CancelRequest, Job, JobAttempt, JobLock, JobTag, LockKind, Queue
from django_jobs.statuses import FINAL, PENDING, Move, Status, sources
from tests.api.calls import Api, http_queue
from tests.support.jobs import make_job, running_job

pytestmark = pytest.mark.django_db


@pytest.fixture
def api() -> Api:
    http_queue()
    return Api()


def claimed(api: Api, **item: Any) -> dict[str, Any]:
    """Enqueue a job and claim it."""
    api.ok("POST", "/jobs/", {"queue": "web", "input": 1, **item}, status=201)
    (job,) = api.ok("POST", "/queues/web/claim/", {"limit": 1})["jobs"]
    return dict(job)


def in_status(status: Status) -> Job:
    return running_job() if status == Status.RUNNING else make_job(status)


# PATCH without a token.


def test_what_can_be_changed(api: Api) -> None:
    job = make_job(queue="web", is_http=True)
    changes = {
        "tags": ["a", "b"],
        "priority": 9,
        "description": "d",
        "metadata": {"k": 1},
        "timeout": "10m",
        "heartbeat_timeout": "30s",
        "retries": 2,
        "retry_delays": [5, 10],
        "retention": {"failed": "1d"},
        "start_by": "2099-01-01T00:00:00Z",
    }
    assert api.ok("PATCH", f"/jobs/{job.pk}/", changes, status=204) is None
    shown = api.ok("GET", f"/jobs/{job.pk}/")
    changes |= {"retry_delays": ["5s", "10s"], "start_by": "2099-01-01T00:00:00.000000Z"}
    assert shown.pop("retention")["failed"] == changes.pop("retention")["failed"]
    assert {name: shown[name] for name in changes} == changes
    assert shown["reason"] == f"edited by token {api.token.name}"
    assert set(JobTag.objects.filter(job=job).values_list("tag", flat=True)) == {"a", "b"}


def test_expires_after_leaves_the_rest_of_the_retention(api: Api) -> None:
    job = make_job(retention={"failed": 60.0})
    api.ok("PATCH", f"/jobs/{job.pk}/", {"expires_after": "2m"}, status=204)
    shown = api.ok("GET", f"/jobs/{job.pk}/")
    assert (shown["retention"]["failed"], shown["expires_after"]) == ("1m", "2m")
    api.ok("PATCH", f"/jobs/{job.pk}/", {"retention": {"cancelled": "3m"}}, status=204)
    assert Job.objects.get(pk=job.pk).retention == {"cancelled": 180.0}


def test_a_start_time_moves_the_job(api: Api) -> None:
    job = make_job()
    api.ok("PATCH", f"/jobs/{job.pk}/", {"run_after": "1h"}, status=204)
    job.refresh_from_db()
    assert job.status == Status.SCHEDULED
    assert abs(job.due_at - timezone.now() - timedelta(hours=1)) < timedelta(minutes=1)
    api.ok("PATCH", f"/jobs/{job.pk}/", {"run_after": None}, status=204)
    job.refresh_from_db()
    assert job.status == Status.READY


def test_another_queue_decides_who_runs_it(api: Api) -> None:
    job = make_job(queue="web", is_http=True)
    api.ok("PATCH", f"/jobs/{job.pk}/", {"queue": "plain"}, status=204)
    job.refresh_from_db()
    assert (job.queue, job.is_http) == ("plain", False)
    free = api.ok("POST", "/jobs/", {"queue": "web", "input": 1}, status=201)["id"]
    assert "names no task" in api.error("PATCH", f"/jobs/{free}/", {"queue": "plain"}, status=409)["message"]
    assert Job.objects.get(pk=free).queue == "web"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"priority": 1000}, "priority"),
        ({"priority": None}, "priority"),
        ({"timeout": "x"}, "timeout"),
        ({"retries": -1}, "retries"),
        ({"tags": [5]}, "tags"),
        ({"metadata": []}, "metadata"),
        ({"queue": "a b"}, "queue"),
        ({"queue": None}, "queue"),
        ({"status": "nonsense"}, "status"),
        ({"status": 5}, "status"),
        ({"run_after": "2030-01-01T00:00:00"}, "run_after"),
        ({"prioritty": 5}, "prioritty"),
        ({"task": "x"}, "task"),
        ({"id": "x"}, "id"),
        ({"output": 5}, "token"),
        ({"status": "completed"}, "token"),
        ({"status": "failed", "error": "x"}, "token"),
        ({"token": "x", "output": 5}, "token"),
    ],
)
def test_bad_changes_name_the_field(api: Api, changes: dict[str, Any], field: str) -> None:
    job = make_job()
    assert list(api.error("PATCH", f"/jobs/{job.pk}/", {"description": "new", **changes}, status=400)["fields"]) == [field]
    job.refresh_from_db()
    assert job.description == ""


@pytest.mark.parametrize("body", [{}, [], 5, "x", None])
def test_a_change_of_nothing_is_refused(api: Api, body: Any) -> None:
    api.error("PATCH", f"/jobs/{make_job().pk}/", body, status=400)


@pytest.mark.parametrize("status", sorted(FINAL))
def test_what_has_ended_is_not_changed(api: Api, status: Status) -> None:
    error = api.error("PATCH", f"/jobs/{make_job(status).pk}/", {"priority": 1}, status=409)
    assert (error["code"], error["from"]) == ("conflict", status)


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("word", ["queued", "ready", "cancelled", "running", "waiting", "scheduled"])
def test_a_status_by_patch_as_ocypod_has_it(api: Api, status: Status, word: str) -> None:
    job = in_status(status)
    allowed = {"queued": sources(Move.REQUEUE, Status.READY), "cancelled": sources(Move.CANCEL, Status.CANCELLED)}
    allowed["ready"] = allowed["queued"]
    allowed["cancelled"] = allowed["cancelled"] | {Status.RUNNING}  # asked of its worker
    if status in allowed.get(word, ()):
        api.ok("PATCH", f"/jobs/{job.pk}/", {"status": word}, status=204)
        return
    error = api.error("PATCH", f"/jobs/{job.pk}/", {"status": word}, status=409)
    assert error["from"] == status
    job.refresh_from_db()
    assert job.status == status


def test_requeue_and_changes_are_one_write(api: Api) -> None:
    job = make_job(Status.TIMED_OUT, timeout=5.0)
    api.ok("PATCH", f"/jobs/{job.pk}/", {"status": "queued", "timeout": 60}, status=204)
    job.refresh_from_db()
    assert (job.status, job.timeout, job.attempts_used) == (Status.READY, 60.0, 0)
    busy = running_job()
    api.error("PATCH", f"/jobs/{busy.pk}/", {"status": "queued", "timeout": 60}, status=409)
    busy.refresh_from_db()
    assert busy.timeout is None, "all of it or nothing"


def test_each_change_needs_its_own_verb() -> None:
    job = make_job(Status.FAILED)
    api = Api("view", "requeue")
    assert api.error("PATCH", f"/jobs/{job.pk}/", {"status": "cancelled"}, status=403)["verbs"] == ["cancel"]
    assert api.error("PATCH", f"/jobs/{job.pk}/", {"priority": 1}, status=403)["verbs"] == ["change"]
    assert api.error("PATCH", f"/jobs/{job.pk}/", {"token": str(uuid.uuid4())}, status=403)["verbs"] == ["claim"]
    api.ok("PATCH", f"/jobs/{job.pk}/", {"status": "queued"}, status=204)


# DELETE.


@pytest.mark.parametrize("status", [status for status in Status if status != Status.RUNNING])
def test_a_job_is_deleted_with_its_attempts(api: Api, status: Status) -> None:
    job = make_job(status)
    JobAttempt.objects.create(job=job, number=1, ended_at=timezone.now(), outcome="failed")
    api.ok("DELETE", f"/jobs/{job.pk}/", status=204)
    assert not Job.objects.exists()
    assert not JobAttempt.objects.exists()
    api.error("DELETE", f"/jobs/{job.pk}/", status=404)


def test_a_running_job_is_deleted_by_force_alone(api: Api) -> None:
    job = running_job()
    assert api.error("DELETE", f"/jobs/{job.pk}/", status=409)["from"] == "running"
    api.error("DELETE", f"/jobs/{job.pk}/?force=perhaps", status=400)
    api.ok("DELETE", f"/jobs/{job.pk}/?force=true", status=202)
    assert CancelRequest.objects.get(job=job).delete_job
    held = claimed(api)
    api.ok("DELETE", f"/jobs/{held['id']}/?force=true", status=204)
    assert api.error("PUT", f"/jobs/{held['id']}/heartbeat/", {"token": held["token"]}, status=404)["code"] == "not_found"


# Verbs.


MOVES = {
    "requeue": (sources(Move.REQUEUE, Status.READY), Status.READY),
    "cancel": (sources(Move.CANCEL, Status.CANCELLED), Status.CANCELLED),
    "done": (sources(Move.DONE, Status.SUCCEEDED), Status.SUCCEEDED),
    "run-now": ({Status.SCHEDULED}, Status.READY),
}


@pytest.mark.parametrize("verb", MOVES)
@pytest.mark.parametrize("status", Status)
def test_b45_each_verb_from_each_status(api: Api, verb: str, status: Status) -> None:
    job = in_status(status)
    allowed, target = MOVES[verb]
    path = f"/jobs/{job.pk}/{verb}/"
    if status in allowed:
        shown = api.ok("POST", path, {"reason": "because"})
        assert shown["status"] == target
        assert shown["reason"].endswith(f"by token {api.token.name}: because")
        return
    if (verb, status) == ("cancel", Status.RUNNING):
        assert api.ok("POST", path, status=202)["status"] == "running"
        assert CancelRequest.objects.filter(job=job).exists()
        return
    error = api.error("POST", path, status=409)
    assert (error["code"], error["from"], error["to"]) == ("conflict", status, target)
    if verb == "cancel":
        assert "too late" in error["message"]
    job.refresh_from_db()
    assert job.status == status


def test_b09_a_requeued_job_starts_afresh(api: Api) -> None:
    long_ago = timezone.now() - timedelta(days=3)
    job = make_job(
        Status.TIMED_OUT,
        queue="web",
        is_http=True,
        priority=7,
        timeout=60.0,
        max_attempts=2,
        attempts_used=2,
        started_at=long_ago,
        last_started_at=long_ago,
        output="half",
        error_class="E",
    )
    shown = api.ok("POST", f"/jobs/{job.pk}/requeue/")
    assert (shown["priority"], shown["queue"], shown["timeout"], shown["max_attempts"]) == (7, "web", "1m", 2)
    assert (shown["attempts_used"], shown["started_at"], shown["output"], shown["error"]) == (0, None, None, None)
    (again,) = api.ok("POST", "/queues/web/claim/", {})["jobs"]
    left = JobLock.objects.get(job=job).expires_at - timezone.now()
    assert again["id"] == str(job.pk)
    assert timedelta(seconds=50) < left <= timedelta(seconds=61), "its whole time limit"


def test_requeue_may_keep_the_attempts(api: Api) -> None:
    job = make_job(Status.FAILED, attempts_used=3)
    assert api.ok("POST", f"/jobs/{job.pk}/requeue/", {"keep_attempts": True})["attempts_used"] == 3


def test_a_requeue_whose_key_is_held_is_refused(api: Api) -> None:
    job = make_job(Status.FAILED, unique_key="k")
    rival = make_job(unique_key="k")
    assert str(rival.pk) in api.error("POST", f"/jobs/{job.pk}/requeue/", status=409)["message"]


def test_requeue_with_claim_runs_at_once_in_the_callers_hands(api: Api) -> None:
    before = make_job(queue="web", is_http=True, priority=100)
    job = make_job(Status.TIMED_OUT, queue="web", is_http=True, timeout=60.0)
    shown = api.ok("POST", f"/jobs/{job.pk}/requeue/", {"claim": True, "worker": "me"})
    assert (shown["id"], shown["status"], shown["worker"]) == (str(job.pk), "running", "me")
    assert shown["attempt"] == 2
    assert JobLock.objects.get(job=job).kind == LockKind.HTTP
    before.refresh_from_db()
    assert before.status == Status.READY, "whatever else waits"
    api.ok("PATCH", f"/jobs/{job.pk}/", {"status": "completed", "output": 5, "token": shown["token"]}, status=204)
    assert api.ok("GET", f"/jobs/{job.pk}/output/") == 5


def test_requeue_with_claim_changes_nothing_where_it_can_not_be_claimed(api: Api) -> None:
    plain = make_job(Status.FAILED)
    assert "HTTP" in api.error("POST", f"/jobs/{plain.pk}/requeue/", {"claim": True}, status=409)["message"]
    Queue.objects.filter(name="web").update(paused_at=timezone.now())
    paused = make_job(Status.FAILED, queue="web", is_http=True)
    assert "paused" in api.error("POST", f"/jobs/{paused.pk}/requeue/", {"claim": True}, status=409)["message"]
    assert set(Job.objects.values_list("status", flat=True)) == {"failed"}
    busy = running_job()
    api.error("POST", f"/jobs/{busy.pk}/requeue/", {"claim": True}, status=409)
    assert Api("requeue").error("POST", f"/jobs/{plain.pk}/requeue/", {"claim": True}, status=403)["verbs"] == ["claim"]


def test_a_timed_out_job_is_acknowledged_by_a_cancel(api: Api) -> None:
    job = make_job(Status.TIMED_OUT)
    api.ok("POST", f"/jobs/{job.pk}/cancel/", {"reason": "seen"})
    assert api.walk("/jobs/timed-out/") == []


@pytest.mark.parametrize("body", [{"reason": 5}, {"reason": "x" * 501}, {"nonsense": 1}, {"force": "perhaps"}, []])
def test_a_bad_body_of_a_verb(api: Api, body: Any) -> None:
    api.error("POST", f"/jobs/{make_job().pk}/cancel/", body, status=400)


# The holder of the token.


@pytest.mark.parametrize("word", ["completed", "succeeded"])
@pytest.mark.parametrize("output", [{"n": [1, "ü"]}, "text", 0, False, None])
def test_the_end_and_the_output_in_one_write(api: Api, word: str, output: Any) -> None:
    job = claimed(api)
    api.ok("PUT", f"/jobs/{job['id']}/output/", {"half": 1}, status=204, X_Job_Token=job["token"])
    api.ok("PATCH", f"/jobs/{job['id']}/", {"status": word, "output": output, "token": job["token"]}, status=204)
    shown = api.ok("GET", f"/jobs/{job['id']}/")
    assert (shown["status"], shown["ended"], shown["output"]) == ("succeeded", True, output)
    assert not JobLock.objects.exists()


def test_output_that_is_absent_is_left_as_it_is(api: Api) -> None:
    job = claimed(api)
    api.ok("PATCH", f"/jobs/{job['id']}/", {"output": {"half": 1}, "token": job["token"]}, status=204)
    api.ok("PATCH", f"/jobs/{job['id']}/", {"progress": {"done": 1, "total": 2}, "token": job["token"]}, status=204)
    shown = api.ok("GET", f"/jobs/{job['id']}/")
    assert (shown["output"], shown["status"]) == ({"half": 1}, "running")
    assert shown["progress"] == {"done": 1, "total": 2, "message": ""}
    assert shown["last_heartbeat"] is not None
    api.ok("PATCH", f"/jobs/{job['id']}/", {"output": None, "token": job["token"]}, status=204)
    assert api.ok("GET", f"/jobs/{job['id']}/output/") is None
    api.ok("PUT", f"/jobs/{job['id']}/output/", {"half": 2}, status=204, X_Job_Token=job["token"])
    api.ok("PATCH", f"/jobs/{job['id']}/", {"status": "completed", "token": job["token"]}, status=204)
    assert api.ok("GET", f"/jobs/{job['id']}/output/") == {"half": 2}


def test_a_failure_is_retried_while_attempts_remain(api: Api) -> None:
    job = claimed(api, retries=1, retry_delays=["0s"])
    said = {"status": "failed", "error": {"class": "Oops", "message": "it broke", "traceback": "line 1"}, "logs": "a\nb"}
    api.ok("PATCH", f"/jobs/{job['id']}/", {**said, "token": job["token"]}, status=204)
    shown = api.ok("GET", f"/jobs/{job['id']}/")
    assert (shown["status"], shown["ended"], shown["last_outcome"]) == ("ready", False, "failed")
    assert shown["error"] == {"class": "Oops", "message": "it broke"}
    (record,) = api.walk(f"/jobs/{job['id']}/attempts/")
    assert (record["outcome"], record["error"]["traceback"], record["logs"]) == ("failed", "line 1", "a\nb")
    (again,) = api.ok("POST", "/queues/web/claim/")["jobs"]
    assert (again["attempt"], again["retries_attempted"]) == (2, 1)
    api.ok("PATCH", f"/jobs/{job['id']}/", {"status": "failed", "token": again["token"]}, status=204)
    assert api.ok("GET", f"/jobs/{job['id']}/")["status"] == "failed"


def test_a_final_failure_is_not_retried(api: Api) -> None:
    job = claimed(api, retries=5)
    api.ok("PATCH", f"/jobs/{job['id']}/", {"status": "failed", "final": True, "error": "no", "token": job["token"]}, status=204)
    shown = api.ok("GET", f"/jobs/{job['id']}/")
    assert (shown["status"], shown["error"]["message"]) == ("failed", "no")


@pytest.mark.parametrize(("word", "status"), [("timed_out", "timed_out"), ("cancelled", "cancelled")])
def test_other_ends(api: Api, word: str, status: str) -> None:
    job = claimed(api, retries=0)
    api.ok("PATCH", f"/jobs/{job['id']}/", {"status": word, "reason": "why", "output": 1, "token": job["token"]}, status=204)
    shown = api.ok("GET", f"/jobs/{job['id']}/")
    assert (shown["status"], shown["output"], shown["last_outcome"]) == (status, 1, word)


def test_the_token_may_be_in_the_header(api: Api) -> None:
    job = claimed(api)
    for body in ({"output": 1}, {"status": "completed"}):
        api.ok("PATCH", f"/jobs/{job['id']}/", body, status=204, X_Job_Token=job["token"])
    other = str(uuid.uuid4())
    again = claimed(api)
    error = api.error("PATCH", f"/jobs/{again['id']}/", {"token": other}, status=400, X_Job_Token=again["token"])
    assert list(error["fields"]) == ["token"]


def test_a_heartbeat_extends_the_lease(api: Api) -> None:
    job = claimed(api, heartbeat_timeout=20)
    JobLock.objects.update(expires_at=timezone.now() + timedelta(seconds=2))
    response = api.call("PUT", f"/jobs/{job['id']}/heartbeat/", {"token": job["token"]})
    assert response.status_code == 204
    assert response["Lease-Expires"].endswith("Z")
    assert JobLock.objects.get().expires_at - timezone.now() > timedelta(seconds=15)
    response = api.call("PUT", f"/jobs/{job['id']}/heartbeat", X_Job_Token=job["token"])
    assert response.status_code == 204
    endless = claimed(api)
    response = api.call("PUT", f"/jobs/{endless['id']}/heartbeat/", {"token": endless["token"]})
    assert "Lease-Expires" not in response


CALLS = [
    ("PUT", "heartbeat/", {}),
    ("PUT", "output/", 5),
    ("PATCH", "", {"output": 1}),
    ("PATCH", "", {"status": "completed"}),
    ("PATCH", "", {"status": "failed", "error": "x"}),
]


@pytest.mark.parametrize(("method", "path", "body"), CALLS)
def test_who_was_cancelled_or_lost_the_attempt_learns_it(api: Api, method: str, path: str, body: Any) -> None:
    job = claimed(api)
    api.ok("POST", f"/jobs/{job['id']}/cancel/", {"reason": "not wanted"})
    error = api.error(method, f"/jobs/{job['id']}/{path}", body, status=409, X_Job_Token=job["token"])
    assert (error["code"], error["status"]) == ("lease_lost", "cancelled")
    assert "not wanted" in error["reason"]
    taken = claimed(api)
    api.ok("POST", f"/jobs/{taken['id']}/cancel/")
    again = api.ok("POST", f"/jobs/{taken['id']}/requeue/", {"claim": True})
    error = api.error(method, f"/jobs/{taken['id']}/{path}", body, status=409, X_Job_Token=taken["token"])
    assert (error["status"], "taken over" in error["reason"]) == ("running", True)
    assert Job.objects.get(pk=taken["id"]).status == "running", "the other's run goes on"
    api.ok("PATCH", f"/jobs/{taken['id']}/", {"status": "completed"}, status=204, X_Job_Token=again["token"])


@pytest.mark.parametrize(("method", "path", "body"), CALLS)
def test_a_foreign_token_says_nothing_about_a_job_of_a_django_worker(api: Api, method: str, path: str, body: Any) -> None:
    job = running_job()
    error = api.error(method, f"/jobs/{job.pk}/{path}", body, status=409, X_Job_Token=str(job.last_token))
    assert error["code"] == "lease_lost"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"status": "completed", "error": "x"}, "error"),
        ({"status": "completed", "final": True}, "final"),
        ({"status": "completed", "progress": {}}, "progress"),
        ({"status": "failed", "error": 5}, "error"),
        ({"status": "failed", "error": {"clas": "x"}}, "error.clas"),
        ({"status": "failed", "error": {"message": 5}}, "error.message"),
        ({"status": "failed", "final": "perhaps"}, "final"),
        ({"status": "nonsense"}, "status"),
        ({"error": "x"}, "error"),
        ({"final": True}, "final"),
        ({"logs": "x"}, "logs"),
        ({"progress": 5}, "progress"),
        ({"progress": {"done": "x"}}, "progress.done"),
        ({"progress": {"don": 1}}, "progress.don"),
        ({"progress": {"message": 1}}, "progress.message"),
        ({"priority": 5}, "priority"),
        ({"output": {"a": 2**70}}, 'output["a"]'),
        ({"output": {"a": ["b\0"]}}, 'output["a"][0]'),
        ({"status": "completed", "output": 2**70}, "output"),
    ],
)
def test_bad_reports_name_the_field_and_end_nothing(api: Api, body: dict[str, Any], field: str) -> None:
    job = claimed(api)
    assert list(api.error("PATCH", f"/jobs/{job['id']}/", {**body, "token": job["token"]}, status=400)["fields"]) == [field]
    assert Job.objects.get(pk=job["id"]).status == "running"


@pytest.mark.parametrize("word", ["ready", "queued"])
def test_an_attempt_that_is_given_back_is_not_counted(api: Api, word: str) -> None:
    job = claimed(api)
    api.ok("PATCH", f"/jobs/{job['id']}/", {"status": word, "token": job["token"], "reason": "stopping"}, status=204)
    row = Job.objects.get(pk=job["id"])
    assert (row.status, row.attempts_used, row.reason) == ("ready", 0, "stopping")
    error = api.error("PATCH", f"/jobs/{job['id']}/", {"status": "succeeded", "token": job["token"]}, status=409)
    assert error["code"] == "lease_lost"
    again = claimed_again(api, job)
    api.error("PATCH", f"/jobs/{job['id']}/", {"status": word, "token": again["token"], "error": "x"}, status=400)


def claimed_again(api: Api, job: dict[str, Any]) -> dict[str, Any]:
    """Claim the same job once more."""
    (found,) = api.ok("POST", f"/queues/{job['queue']}/claim/", {})["jobs"]
    assert found["id"] == job["id"]
    return dict(found)


@pytest.mark.parametrize("status", ["running", "scheduled"])
def test_an_attempt_ends_in_an_end(api: Api, status: str) -> None:
    job = claimed(api)
    error = api.error("PATCH", f"/jobs/{job['id']}/", {"status": status, "token": job["token"]}, status=409)
    assert (error["from"], error["to"]) == ("running", status)


@pytest.mark.parametrize(("path", "body"), [("heartbeat/", {}), ("output/", 5)])
def test_without_a_token_nothing_is_written(api: Api, path: str, body: Any) -> None:
    job = claimed(api)
    api.error("PUT", f"/jobs/{job['id']}/{path}", body, status=400)
    api.error("PUT", f"/jobs/{job['id']}/{path}", body, status=400, X_Job_Token="5")
    assert Job.objects.get(pk=job["id"]).last_heartbeat_at is None


def test_an_output_without_a_body_is_refused_and_null_is_written(api: Api) -> None:
    job = claimed(api)
    api.ok("PUT", f"/jobs/{job['id']}/output/", [1], status=204, X_Job_Token=job["token"])
    api.error("PUT", f"/jobs/{job['id']}/output/", status=400, X_Job_Token=job["token"])
    assert api.ok("GET", f"/jobs/{job['id']}/output/") == [1]
    api.ok("PUT", f"/jobs/{job['id']}/output/", None, status=204, X_Job_Token=job["token"])
    assert api.ok("GET", f"/jobs/{job['id']}/output/") is None


def test_b23_zero_bytes_in_errors_and_logs_are_made_visible(api: Api) -> None:
    job = claimed(api, retries=0)
    api.ok("PATCH", f"/jobs/{job['id']}/", {"progress": {"message": "a\0b"}, "token": job["token"]}, status=204)
    said = {"status": "failed", "error": {"class": "E\0", "message": "a\0b", "traceback": "\0"}, "logs": "l\0g"}
    api.ok("PATCH", f"/jobs/{job['id']}/", {**said, "token": job["token"]}, status=204)
    shown = api.ok("GET", f"/jobs/{job['id']}/")
    assert (shown["status"], shown["error"]) == ("failed", {"class": "E\\x00", "message": "a\\x00b"})
    assert shown["progress"]["message"] == "a\\x00b"
    (record,) = api.walk(f"/jobs/{job['id']}/attempts/")
    assert (record["logs"], record["error"]["traceback"]) == ("l\\x00g", "\\x00")


@pytest.mark.parametrize("value", [b"NaN", b"Infinity", b'{"a": 1, "a": 2}', b"[1e400]", b'"\\ud800"'])
def test_b26_output_that_is_no_json_ends_nothing_and_can_be_said_again(api: Api, value: bytes) -> None:
    job = claimed(api)
    body = b'{"status": "completed", "token": "' + job["token"].encode() + b'", "output": ' + value + b"}"
    assert api.error("PATCH", f"/jobs/{job['id']}/", body, status=400)["code"] == "invalid"
    api.error("PUT", f"/jobs/{job['id']}/output/", value, status=400, X_Job_Token=job["token"])
    api.ok("PATCH", f"/jobs/{job['id']}/", {"status": "failed", "final": True, "token": job["token"]}, status=204)
    assert Job.objects.get(pk=job["id"]).starts == 1


def test_b45_a_report_after_a_cancel_is_too_late_and_nothing_starts_again(api: Api) -> None:
    for body in ({"status": "failed", "error": "x"}, {"status": "completed"}, {"status": "timed_out"}):
        job = claimed(api, retries=5)
        api.ok("POST", f"/jobs/{job['id']}/cancel/")
        api.error("PATCH", f"/jobs/{job['id']}/", {**body, "token": job["token"]}, status=409)
        api.error("POST", f"/jobs/{job['id']}/cancel/", status=409)
        assert api.ok("GET", f"/jobs/{job['id']}/")["status"] == "cancelled"
    assert api.ok("POST", "/queues/web/claim/", status=204) is None


def test_what_a_claim_says_is_all_that_a_worker_needs() -> None:
    http_queue()
    Api().ok("POST", "/jobs/", {"queue": "web", "input": {"a": 1}, "timeout": 60}, status=201)
    (lease,) = claim_http("web", limit=1, using="default")
    assert lease.expires_at is not None
    assert set(PENDING)  # nothing else is claimed
    worker = Api("claim")
    worker.ok("PUT", f"/jobs/{lease.attempt.job_id}/heartbeat/", {"token": str(lease.attempt.token)}, status=204)
    worker.error("GET", f"/jobs/{lease.attempt.job_id}/", status=403)

"""The list of jobs and one job: filters, pages, fields, who sees what."""

from __future__ import annotations

import random
import threading
import uuid
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest
from django.db import connection
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_jobs.api.serializers import FIELDS, LIST_FIELDS, PAYLOAD
from django_jobs.inputs import INPUT_TASK
from django_jobs.models import Job, JobAttempt, JobTag
from django_jobs.statuses import FINAL, LIVE, Status
from tests.api.calls import Api, http_queue
from tests.support.jobs import make_job, other_connection, running_job

pytestmark = pytest.mark.django_db
in_commits = pytest.mark.django_db(transaction=True)


@pytest.fixture
def api() -> Api:
    return Api()


def ids(*jobs: Job) -> list[str]:
    return [str(job.pk) for job in jobs]


def listed(api: Api, query: str = "") -> list[str]:
    return [each["id"] for each in api.walk(f"/jobs/{query}")]


def of_each_status() -> dict[str, Job]:
    jobs = {"running": running_job()}
    jobs |= {status.value: make_job(status) for status in Status if status != Status.RUNNING}
    return jobs


# Filters.


def test_all_jobs_are_listed_the_newest_first(api: Api) -> None:
    jobs = [make_job(status) for status in (Status.FAILED, Status.READY, Status.SUCCEEDED)]
    assert listed(api) == ids(*reversed(jobs))


@pytest.mark.parametrize(
    ("query", "statuses"),
    [
        *[(f"status={status}", {status}) for status in Status],
        ("status=queued", {"ready"}),
        ("status=completed", {"succeeded"}),
        ("status=failed,timed_out", {"failed", "timed_out"}),
        ("status=failed&status=ready", {"failed", "ready"}),
        ("status=ended", set(FINAL)),
        ("status=open", set(LIVE)),
        ("status=all", set(Status)),
        ("ended=true", set(FINAL)),
        ("ended=false", set(LIVE)),
        ("status=failed,ready&ended=true", {"failed"}),
        ("status=ready&ended=true", set()),
    ],
)
def test_by_status(api: Api, query: str, statuses: set[str]) -> None:
    jobs = of_each_status()
    assert set(listed(api, f"?{query}")) == {str(jobs[status].pk) for status in statuses}


def test_ready_takes_in_what_is_parked_or_for_http_workers(api: Api) -> None:
    plain, parked, http = make_job(), make_job(parked="paused"), make_job(is_http=True)
    assert set(listed(api, "?status=ready")) == set(ids(plain, parked, http))
    assert listed(api, "?status=parked") == ids(parked)
    assert listed(api, "?status=http") == ids(http)


def test_by_queue_task_outcome_error_key_and_tag(api: Api) -> None:
    mail = make_job(queue="mail", task="a.b")
    below = make_job(queue="mail.bulk", last_outcome="failed", error_class="a.Error")
    other = make_job(queue="mailing", unique_key="k", tags=["x"])
    JobTag.objects.create(job=other, tag="x")
    assert listed(api, "?queue=mail") == ids(mail)
    assert listed(api, "?queue=mail.*") == ids(below, mail)
    assert listed(api, "?task=a.b") == ids(mail)
    assert listed(api, "?last_outcome=failed") == ids(below)
    assert listed(api, "?error=a.Error") == ids(below)
    assert listed(api, "?unique_key=k") == ids(other)
    assert listed(api, "?tag=x") == ids(other)
    assert listed(api, "?tag=x&queue=mail") == []


def test_jobs_that_wait_for_a_retry_are_found_by_their_last_outcome(api: Api) -> None:
    job = make_job(Status.SCHEDULED, last_outcome="timed_out", due_at=timezone.now() + timedelta(hours=1))
    make_job(Status.TIMED_OUT, last_outcome="timed_out")
    assert listed(api, "?ended=false&last_outcome=timed_out") == ids(job)


def test_by_time(api: Api) -> None:
    now = timezone.now()
    job = make_job()
    before, after = (now + timedelta(seconds=seconds) for seconds in (-60, 60))
    assert listed(api, f"?since={before.isoformat()}") == ids(job), "a plus that nobody has escaped"
    assert listed(api, f"?since={quote(after.isoformat())}") == []
    assert listed(api, f"?until={quote(before.isoformat())}") == []
    assert listed(api, f"?until={quote(after.isoformat())}") == ids(job)


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("status=nonsense", "status"),
        ("status=", "status"),
        ("ended=maybe", "ended"),
        ("queue=a b", "queue"),
        ("queue=*", "queue"),
        ("queue=", "queue"),
        ("task=", "task"),
        ("tag=", "tag"),
        ("tag=" + "x" * 101, "tag"),
        ("since=yesterday", "since"),
        ("since=2026-01-01T00:00:00", "since"),
        ("since=0001-01-01T00:00:00%2B14:00", "since"),
        ("until=1969-01-01T00:00:00Z", "until"),
        ("last_outcome=bad", "last_outcome"),
        ("unique_key=" + "x" * 129, "unique_key"),
        ("queue=a&queue=b", "queue"),
        ("fields=nonsense", "fields"),
        ("fields=", "fields"),
        ("page_size=0", "page_size"),
        ("page_size=-1", "page_size"),
        ("page_size=1000000000", "page_size"),
        ("page_size=x", "page_size"),
        ("cursor=forged", "cursor"),
        ("cursor=WyJhbGwiLCAiYSJd", "cursor"),
        ("page=1000000000000", "page"),
        ("args__contains=1", "args__contains"),
        ("stauts=ready", "stauts"),
        ("task=a%00b", "task"),
    ],
)
def test_b60_bad_queries_name_the_field(api: Api, query: str, field: str) -> None:
    make_job()
    error = api.error("GET", f"/jobs/?{query}", status=400)
    assert list(error["fields"]) == [field]


def test_the_nearest_name_is_told(api: Api) -> None:
    assert "'status'" in api.error("GET", "/jobs/?stauts=ready", status=400)["message"]


# Pages.


def test_a_cursor_of_another_list_is_refused(api: Api) -> None:
    for _ in range(3):
        make_job(Status.FAILED)
    url = api.ok("GET", "/jobs/?status=failed&page_size=1")["next"]
    assert api.error("GET", url.replace("status=failed", "status=ready"), status=400)["fields"]["cursor"]


def test_a_list_shows_nothing_of_unknown_size(api: Api) -> None:
    make_job(Status.FAILED, args=["x" * 10_000], error_class="E", error_message="y" * 10_000)
    (job,) = api.ok("GET", "/jobs/")["results"]
    assert tuple(job) == LIST_FIELDS
    assert len(job["error"]["message"]) == 500
    (job,) = api.ok("GET", "/jobs/?fields=id,args")["results"]
    assert (tuple(job), len(job["args"][0])) == (("id", "args"), 10_000)


def test_what_is_not_shown_is_not_read(api: Api) -> None:
    for _ in range(3):
        make_job()
    with CaptureQueriesContext(connection) as queries:
        api.ok("GET", "/jobs/?fields=id,status&status=ready")
    read = [query["sql"] for query in queries if "django_jobs_job" in query["sql"]]
    assert len(read) == 3, "the three parts of what is ready, and no job by itself"
    assert not any("kwargs" in sql or "error_message" in sql for sql in read)


def test_the_number_of_statements_does_not_grow_with_the_page(api: Api) -> None:
    counts = []
    api.ok("GET", "/jobs/")  # the token's first use is written down
    for _ in range(2):
        for _ in range(20):
            make_job(Status.FAILED, tags=["a"])
        with CaptureQueriesContext(connection) as queries:
            api.ok("GET", "/jobs/?status=failed")
        counts.append(len(queries))
    assert counts[0] == counts[1]


class Crowd:
    """Jobs that come, change and go while somebody walks the pages."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        moment = timezone.now()
        self.stay = [
            make_job(
                self.random.choice([Status.FAILED, Status.READY, Status.SCHEDULED, Status.SUCCEEDED]),
                due_at=moment,  # equal times: the order is total all the same
                tags=["t"],
            )
            for _ in range(23)
        ]
        Job.objects.filter(pk__in=[job.pk for job in self.stay], status__in=sorted(FINAL)).update(finished_at=moment)
        self.guests = [make_job(self.random.choice([Status.FAILED, Status.READY])) for _ in range(12)]

    def stir(self) -> None:
        """Add, change, and take away."""
        self.guests.append(make_job(self.random.choice([Status.FAILED, Status.READY, Status.SCHEDULED]), priority=5))
        guest = self.guests.pop(self.random.randrange(len(self.guests)))
        if self.random.random() < 0.5:
            Job.objects.filter(pk=guest.pk).delete()
        else:
            Job.objects.filter(pk=guest.pk).update(status="succeeded", finished_at=timezone.now())


LISTS = ["", "?status=failed", "?status=ready", "?status=scheduled", "?ended=true", "?ended=false", "?status=failed,ready"]


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(seed=st.integers(0, 10_000), size=st.integers(1, 12), query=st.sampled_from(LISTS))
def test_b60_a_job_that_stays_is_seen_exactly_once(api: Api, seed: int, size: int, query: str) -> None:
    Job.objects.all().delete()
    crowd = Crowd(seed)
    wanted = {str(job.pk) for job in crowd.stay if _is_meant(job, query)}
    seen: list[str] = []
    url: str | None = f"/jobs/{query}{'&' if query else '?'}page_size={size}"
    for _ in range(200):
        assert url is not None
        page = api.ok("GET", url)
        assert len(page["results"]) <= size
        seen += [each["id"] for each in page["results"]]
        crowd.stir()
        if (url := page["next"]) is None:
            break
    assert url is None, "the walk ends"
    assert [each for each in seen if seen.count(each) > 1 and each in wanted] == []
    assert wanted <= set(seen)


def _is_meant(job: Job, query: str) -> bool:
    match query.removeprefix("?"):
        case "":
            return True
        case "ended=true":
            return job.status in FINAL
        case "ended=false":
            return job.status in LIVE
        case text:
            return job.status in text.removeprefix("status=").split(",")


@in_commits
@pytest.mark.skipif(connection.vendor == "sqlite", reason="one writer at a time")
@pytest.mark.parametrize("query", ["", "?status=failed", "?ended=true"])
def test_b60_while_others_write_all_the_time(api: Api, query: str) -> None:
    moment = timezone.now()
    stay = {str(make_job(Status.FAILED, finished_at=moment).pk) for _ in range(150)}
    stop = threading.Event()

    def churn() -> None:
        with other_connection() as other, other.cursor() as cursor:
            while not stop.is_set():
                cursor.execute("SELECT 1")
                job = make_job(Status.FAILED)
                Job.objects.filter(pk=job.pk).update(status="ready", finished_at=None)
                Job.objects.filter(pk=job.pk).delete()
        connection.close()

    thread = threading.Thread(target=churn, daemon=True)
    thread.start()
    try:
        for _ in range(3):
            seen = listed(api, f"{query}{'&' if query else '?'}page_size=20")
            assert sorted(each for each in seen if each in stay) == sorted(stay)
    finally:
        stop.set()
        thread.join(20)


# One job.


def test_one_job_and_some_of_its_fields(api: Api) -> None:
    job = make_job(args=[1], description="d")
    assert tuple(api.ok("GET", f"/jobs/{job.pk}/")) == FIELDS
    assert api.ok("GET", f"/jobs/{job.pk}?fields=status,id") == {"status": "ready", "id": str(job.pk)}
    assert api.ok("GET", f"/jobs/{job.pk}/status") == "ready"
    assert api.error("GET", f"/jobs/{job.pk}/?fields=statsu", status=400)["fields"]["fields"]


@pytest.mark.parametrize("path", ["", "status/", "output/", "attempts/"])
@pytest.mark.parametrize("pk", [str(uuid.UUID(int=5)), "5", "x" * 36])
def test_an_unknown_id_is_404(api: Api, path: str, pk: str) -> None:
    assert api.error("GET", f"/jobs/{pk}/{path}", status=404)["code"] == "not_found"


def test_times_have_their_offset_and_durations_a_normal_form(api: Api) -> None:
    job = make_job(Status.FAILED, timeout=135.0)
    shown = api.ok("GET", f"/jobs/{job.pk}/")
    assert shown["timeout"] == "2m15s"
    times = ("created_at", "due_at", "started_at", "ended_at")
    assert all(shown[name].endswith("Z") and len(shown[name]) == 27 for name in times)


def test_without_the_payload_permission_nothing_of_it_is_shown() -> None:
    job = make_job(Status.SUCCEEDED, args=["secret"], kwargs={"k": "secret"}, result="secret", metadata={"m": "secret"})
    api = Api("view")
    shown = api.ok("GET", f"/jobs/{job.pk}/")
    assert not PAYLOAD & set(shown)
    for name in sorted(PAYLOAD):
        assert api.error("GET", f"/jobs/{job.pk}/?fields={name}", status=403)["verbs"] == ["payload"]
        api.error("GET", f"/jobs/?fields=id,{name}", status=403)
    api.error("GET", f"/jobs/{job.pk}/output/", status=403)
    assert "secret" not in str(api.walk("/jobs/"))


def test_a_token_for_a_queue_sees_nothing_of_another() -> None:
    mine, other = make_job(queue="mine"), make_job(queue="other")
    api = Api(queues=("mine",))
    assert listed(api) == ids(mine)
    assert listed(api, "?queue=other") == []
    for path in ("", "status/", "output/", "attempts/"):
        api.error("GET", f"/jobs/{other.pk}/{path}", status=404)
    for verb in ("requeue", "cancel", "done", "run-now"):
        api.error("POST", f"/jobs/{other.pk}/{verb}/", status=404)
    api.error("DELETE", f"/jobs/{other.pk}/", status=404)
    api.error("PATCH", f"/jobs/{other.pk}/", {"priority": 5}, status=404)


def only_mine(user: Any, jobs: Any) -> Any:
    return jobs.filter(queue="mine")


@override_settings(DJANGO_JOBS={"VISIBLE_TO": f"{__name__}.only_mine"})
def test_the_projects_own_hook_narrows_lists_and_single_jobs(api: Api) -> None:
    mine, other = make_job(queue="mine"), make_job(queue="other")
    assert listed(api) == ids(mine)
    api.error("GET", f"/jobs/{other.pk}/", status=404)
    report = api.ok("POST", "/jobs/cancel/", {"ids": ids(mine, other)})
    assert [each["outcome"] for each in report["results"]] == ["changed", "refused"]


def test_the_attempts_of_a_job(api: Api) -> None:
    job = make_job(Status.FAILED)
    for number in range(1, 4):
        JobAttempt.objects.create(
            job=job, number=number, ended_at=timezone.now(), outcome="failed", error_class="E", traceback=f"line {number}"
        )
    shown = api.walk(f"/jobs/{job.pk}/attempts/?page_size=2")
    assert [each["number"] for each in shown] == [3, 2, 1]
    assert shown[0]["error"] == {"class": "E", "message": "", "traceback": "line 3"}


def test_output_is_the_partial_one_until_there_is_a_result(api: Api) -> None:
    http_queue()
    partial = make_job(task=INPUT_TASK, args=[1], output={"half": 1})
    ended = make_job(Status.SUCCEEDED, output={"half": 1}, result={"whole": 2})
    failed = make_job(Status.FAILED, output={"half": 1})
    nothing = make_job()
    shown = [api.ok("GET", f"/jobs/{job.pk}/output/") for job in (partial, ended, failed, nothing)]
    assert shown == [{"half": 1}, {"whole": 2}, {"half": 1}, None]


def test_a_parameter_is_given_once(api: Api) -> None:
    for name in ("page_size", "cursor", "queue", "fields"):
        body = api.error("GET", f"/jobs/?{name}=1&{name}=2", status=400)
        assert name in body["fields"]
    api.ok("GET", "/jobs/?status=failed&status=ready")


@pytest.mark.once
def test_a_filter_without_a_status_neither_runs_again_what_has_succeeded_nor_deletes_what_waits(api: Api) -> None:

    jobs = {status: make_job(status, queue="big") for status in ("succeeded", "failed", "timed_out", "cancelled", "ready")}
    report = api.ok("POST", "/jobs/requeue/", {"filter": {"queue": "big"}, "dry_run": True})
    assert {each["id"] for each in report["results"]} == {str(jobs["failed"].pk), str(jobs["timed_out"].pk)}
    report = api.ok("POST", "/jobs/requeue/", {"filter": {"queue": "big", "status": ["succeeded"]}, "dry_run": True})
    assert [each["id"] for each in report["results"]] == [str(jobs["succeeded"].pk)]
    assert "filter" in api.error("POST", "/jobs/delete/", {"filter": {"queue": "big"}}, status=400)["fields"]
    assert api.ok("POST", "/jobs/delete/", {"filter": {"queue": "big", "status": "all"}})["changed"] == 5

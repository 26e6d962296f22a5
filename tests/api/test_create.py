"""POST /jobs/: what is stored, and what is refused before anything is."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import connection
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from django_jobs import as_user
from django_jobs.compat import task_enqueued
from django_jobs.inputs import INPUT_TASK
from django_jobs.models import ApiToken, IdempotencyKey, Job, JobTag
from tests.api.calls import PREFIX, Api, http_queue
from tests.support.jobs import in_threads, make_job

pytestmark = pytest.mark.django_db
in_commits = pytest.mark.django_db(transaction=True)
ADD = "tests.project.jobs.add"


@pytest.fixture
def api() -> Api:
    http_queue()
    return Api()


def test_a_registered_task_with_its_arguments(api: Api) -> None:
    response = api.call("POST", "/jobs/", {"task": ADD, "args": [1], "kwargs": {"b": 2}})
    body = response.json()
    assert response.status_code == 201
    assert response["Location"] == f"http://testserver{PREFIX}/jobs/{body['id']}/"
    assert (body["task"], body["args"], body["kwargs"], body["input"]) == (ADD, [1], {"b": 2}, None)
    assert (body["status"], body["queue"], body["ended"]) == ("ready", "default", False)
    job = Job.objects.get()
    assert str(job.pk) == body["id"]
    assert (job.args, job.kwargs, job.is_http) == ([1], {"b": 2}, False)
    assert job.created_by == f"token {api.token.name}"


@pytest.mark.parametrize("body", [{"task": ADD, "args": [1, 2]}, {"queue": "web", "input": 1}], ids=["task", "input"])
def test_a_job_is_of_the_user_of_the_token_whoever_has_a_session_beside_it(api: Api, body: Any) -> None:
    user = get_user_model().objects.create_user("ada")
    ApiToken.objects.filter(pk=api.token.pk).update(user_id=user.pk)
    with as_user(get_user_model().objects.create_user("bob")):
        api.ok("POST", "/jobs/", body, status=201)
    job = Job.objects.get()
    assert (job.created_by, job.context) == (f"ada (token {api.token.name})", {"user": str(user.pk)})
    ApiToken.objects.filter(pk=api.token.pk).update(user_id="")
    with as_user(user):
        api.ok("POST", "/jobs/", body, status=201)
    assert Job.objects.latest("id").context == {}


def test_a_free_input_in_a_queue_for_http_workers(api: Api) -> None:
    body = api.ok("POST", "/jobs/", {"queue": "web", "input": {"url": "https://example.com", "n": [1, None, "ü"]}}, status=201)
    assert body["task"] is None
    assert body["input"] == {"url": "https://example.com", "n": [1, None, "ü"]}
    assert (body["args"], body["kwargs"]) == (None, None)
    job = Job.objects.get()
    assert (job.task, job.args, job.is_http) == (INPUT_TASK, [body["input"]], True)


def test_a_job_without_anything_is_a_null_input(api: Api) -> None:
    assert api.ok("POST", "/jobs/", {"queue": "web"}, status=201)["input"] is None


def test_a_registered_task_may_be_for_http_workers(api: Api) -> None:
    body = api.ok("POST", "/jobs/", {"queue": "web", "task": ADD, "args": [1, 2]}, status=201)
    assert (body["task"], body["input"]) == (ADD, None)
    assert Job.objects.get().is_http


def test_every_option_is_kept_and_shown(api: Api) -> None:
    body = api.ok(
        "POST",
        "/jobs/",
        {
            "queue": "web",
            "input": 1,
            "timeout": "2m15s",
            "heartbeat_timeout": 20,
            "retries": 3,
            "retry_delays": [10, "1m", [60, 90]],
            "retention": {"failed": "1w", "completed": 0},
            "tags": ["a", "b", "a"],
            "priority": 7,
            "start_by": "2h",
            "unique_key": "order-17",
            "description": "an order",
            "metadata": {"customer": 5},
        },
        status=201,
    )
    shown = {name: body[name] for name in ("timeout", "heartbeat_timeout", "retries", "max_attempts", "retry_delays", "tags")}
    assert shown == {
        "timeout": "2m15s",
        "heartbeat_timeout": "20s",
        "retries": 3,
        "max_attempts": 4,
        "retry_delays": ["10s", "1m", ["1m", "1m30s"]],
        "tags": ["a", "b"],
    }
    assert (body["priority"], body["unique_key"], body["description"]) == (7, "order-17", "an order")
    assert body["metadata"] == {"customer": 5}
    assert body["retention"]["failed"] == "1w"
    assert (body["retention"]["succeeded"], body["expires_after"]) == (None, None)
    assert JobTag.objects.count() in (0, 2)
    start_by = datetime.fromisoformat(body["start_by"]) - datetime.fromisoformat(body["created_at"])
    assert abs(start_by - timedelta(hours=2)) < timedelta(seconds=5)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ({"timeout": 0}, {"timeout": None}),
        ({"timeout": "0s"}, {"timeout": None}),
        ({"retries": None}, {"retries": None, "max_attempts": None}),
        ({"retries": 0}, {"retries": 0, "max_attempts": 1}),
        ({"max_attempts": 2}, {"retries": 1, "max_attempts": 2}),
        ({"retry_delays": []}, {"retry_delays": None}),
        ({"retry_delays": "5s"}, {"retry_delays": "5s"}),
        ({"backoff": {"1": 10, "5": [60, 90]}}, {"retry_delays": {"1": "10s", "5": ["1m", "1m30s"]}}),
        ({"backoff": {"base": 10, "max": 60}}, {"retry_delays": {"base": "10s", "factor": 2.0, "max": "1m", "jitter": 0.25}}),
        ({"expires_after": "10m"}, {"expires_after": "10m"}),
        ({"expires_after": "0s"}, {"expires_after": None}),
        ({"retention": "1d"}, {"retention": dict.fromkeys(("cancelled", "failed", "succeeded", "timed_out"), "1d")}),
        ({"tags": None}, {"tags": []}),
    ],
)
@pytest.mark.parametrize("item", [{"queue": "web"}, {"task": ADD, "args": [1, 2]}])
def test_options_in_the_shapes_in_which_they_may_be_given(
    api: Api, item: dict[str, Any], said: dict[str, Any], shown: dict[str, Any]
) -> None:
    body = api.ok("POST", "/jobs/", {**item, **said}, status=201)
    assert {name: body[name] for name in shown} == shown


@pytest.mark.parametrize(
    ("item", "field"),
    [
        ({"task": "os.system", "args": ["x"]}, "task"),
        ({"task": "no.such.task"}, "task"),
        ({"task": 5}, "task"),
        ({"task": ADD, "args": [1]}, "args"),
        ({"task": ADD, "kwargs": {"a": 1, "c": 2}}, "kwargs"),
        ({"task": ADD, "args": "12"}, "args"),
        ({"task": ADD, "kwargs": [1]}, "kwargs"),
        ({"task": ADD, "args": [1, 2], "input": 3}, "input"),
        ({"task": ADD, "args": [1, 2**70]}, "args[1]"),
        ({"queue": "web", "args": [1]}, "task"),
        ({"queue": "plain"}, "task"),
        ({}, "task"),
        ({"queue": "web", "input": {"a": [1, 2**70]}}, 'input["a"][1]'),
        ({"queue": "", "task": ADD, "args": [1, 2]}, "queue"),
        ({"queue": "a b", "input": 1}, "queue"),
        ({"queue": ["web"], "input": 1}, "queue"),
        ({"queue": "web", "timeout": -1}, "timeout"),
        ({"queue": "web", "timeout": "soon"}, "timeout"),
        ({"queue": "web", "timeout": True}, "timeout"),
        ({"queue": "web", "timeout": 10**12}, "timeout"),
        ({"queue": "web", "heartbeat_timeout": {}}, "heartbeat_timeout"),
        ({"queue": "web", "retries": -1}, "retries"),
        ({"queue": "web", "retries": 1.5}, "retries"),
        ({"queue": "web", "retries": 2**31}, "retries"),
        ({"queue": "web", "max_attempts": 0}, "max_attempts"),
        ({"queue": "web", "retries": 1, "max_attempts": 2}, "retries"),
        ({"queue": "web", "retry_delays": [-1]}, "retry_delays[0]"),
        ({"queue": "web", "retry_delays": "callable"}, "retry_delays"),
        ({"queue": "web", "retry_delays": True}, "retry_delays"),
        ({"queue": "web", "retention": {"ready": 1}}, "retention"),
        ({"queue": "web", "retention": {"failed": "x"}}, "retention.failed"),
        ({"queue": "web", "retention": {"succeeded": 1}, "expires_after": 1}, "expires_after"),
        ({"queue": "web", "tags": "a"}, "tags"),
        ({"queue": "web", "tags": [""]}, "tags"),
        ({"queue": "web", "tags": [[1]]}, "tags"),
        ({"queue": "web", "tags": ["x" * 101]}, "tags"),
        ({"queue": "web", "description": "x" * 256}, "description"),
        ({"queue": "web", "metadata": []}, "metadata"),
        ({"queue": "web", "unique_key": ""}, "unique_key"),
        ({"queue": "web", "unique_key": "x" * 129}, "unique_key"),
        ({"queue": "web", "on_conflict": "replace"}, "on_conflict"),
        ({"queue": "web", "tiemout": 5}, "tiemout"),
        ({"queue": "web", "start_by": "2020-01-01"}, "start_by"),
    ],
)
def test_bad_input_names_the_field_and_stores_nothing(api: Api, item: dict[str, Any], field: str) -> None:
    error = api.error("POST", "/jobs/", item, status=400)
    assert error["code"] == "invalid"
    assert list(error["fields"]) == [field]
    many = api.error("POST", "/jobs/", [{"queue": "web"}, item], status=400)
    assert (many["index"], list(many["fields"])) == (1, [field])
    assert not Job.objects.exists()


def test_a_module_is_never_imported_because_a_request_names_it(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """B22: the name of a task is looked up among those that are there."""
    import importlib

    def refuse(*args: Any) -> None:
        raise AssertionError("imported")

    monkeypatch.setattr(importlib, "import_module", refuse)
    error = api.error("POST", "/jobs/", {"task": "antigravity.fly"}, status=400)
    assert "antigravity.fly" in error["fields"]["task"][0]


def test_b22_jobs_of_tasks_that_are_gone_can_be_read_cancelled_requeued_and_deleted(api: Api) -> None:
    for name in ("renamed.task", "broken.module.task", "tests.project.jobs.NOT_CALLABLE"):
        job = make_job(task=name, args=[1], kwargs={"lost": 2})
        assert api.ok("GET", f"/jobs/{job.pk}/")["task"] == name
        assert api.ok("POST", f"/jobs/{job.pk}/cancel/")["status"] == "cancelled"
        assert api.ok("POST", f"/jobs/{job.pk}/requeue/")["status"] == "ready"
        assert api.ok("DELETE", f"/jobs/{job.pk}/", status=204) is None
    assert not Job.objects.exists()


@pytest.mark.parametrize("place", ["input", "tags", "description", "unique_key", "metadata", "queue", "task"])
def test_b23_a_zero_byte_is_refused_at_once(api: Api, place: str) -> None:
    value: Any = {"tags": ["a\0b"], "metadata": {"k\0": "v\0"}}.get(place, "a\0b")
    assert api.error("POST", "/jobs/", {"queue": "web", place: value}, status=400)["code"] == "invalid"
    assert not Job.objects.exists()


@pytest.mark.parametrize("body", [b'{"queue": "web", "input": NaN}', b'{"queue": "web", "input": Infinity}', b'{"queue": 1e999}'])
def test_b26_what_is_not_a_number_is_no_json(api: Api, body: bytes) -> None:
    assert api.error("POST", "/jobs/", body, status=400)["code"] == "invalid"


@pytest.mark.parametrize("offset", ["+00:00", "Z", "+05:30", "-08:00"])
def test_b33_a_time_with_its_offset_is_that_moment(api: Api, offset: str) -> None:
    due = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=30)
    hours = {"+05:30": timedelta(hours=5, minutes=30), "-08:00": timedelta(hours=-8)}.get(offset, timedelta())
    text = (due + hours).strftime("%Y-%m-%dT%H:%M:%S") + offset
    body = api.ok("POST", "/jobs/", {"task": ADD, "args": [1, 2], "run_after": text}, status=201)
    assert body["status"] == "scheduled"
    assert datetime.fromisoformat(body["run_after"]) == due


@pytest.mark.parametrize("delay", [30, "30s", 30.0])
def test_b33_a_delay_counts_from_now(api: Api, delay: Any) -> None:
    body = api.ok("POST", "/jobs/", {"queue": "web", "run_after": delay}, status=201)
    late = datetime.fromisoformat(body["due_at"]) - datetime.fromisoformat(body["created_at"])
    assert abs(late - timedelta(seconds=30)) < timedelta(seconds=2)
    assert body["status"] == "scheduled"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("run_after", "2030-01-01T00:00:00"),
        ("run_after", "2030-01-01"),
        ("run_after", "2030-13-01T00:00:00Z"),
        ("run_after", "9999-12-31T23:59:59Z"),
        ("run_after", "tomorrow"),
        ("run_after", -5),
        ("run_after", 10**12),
        ("run_after", True),
        ("run_after", []),
        *[("priority", value) for value in (-(2**31) - 1, 2**31, 10**12, 1.5, "high", None, True, 101, -101)],
    ],
)
@pytest.mark.parametrize("item", [{"queue": "web"}, {"task": ADD, "args": [1, 2]}])
def test_b33_other_times_and_priorities_are_refused_with_the_field_named(
    api: Api, item: dict[str, Any], field: str, value: Any
) -> None:
    assert list(api.error("POST", "/jobs/", {**item, field: value}, status=400)["fields"]) == [field]
    assert not Job.objects.exists()


def test_many_jobs_come_in_the_order_of_the_items(api: Api) -> None:
    items = [{"queue": "web", "input": number, "priority": number % 3} for number in range(25)]
    results = api.ok("POST", "/jobs/", items, status=201)["results"]
    jobs = Job.objects.in_bulk([uuid.UUID(each["id"]) for each in results])
    assert [jobs[uuid.UUID(each["id"])].args[0] for each in results] == list(range(25))
    assert all(each["created"] for each in results)


@pytest.mark.parametrize(
    ("items", "status"), [([], 400), ([{"queue": "web"}] * 1001, 413), ([5], 400), (5, 400), ("x", 400), (None, 400)]
)
def test_a_body_that_is_no_list_of_jobs(api: Api, items: Any, status: int) -> None:
    api.error("POST", "/jobs/", items, status=status)
    assert not Job.objects.exists()


@override_settings(DJANGO_JOBS={"API_BULK_MAX": 5000, "API_MAX_BODY_BYTES": 10_000_000})
def test_b39_one_bad_item_of_many_stores_nothing_and_says_which(api: Api) -> None:
    good = [{"task": ADD, "args": [number, 1], "unique_key": f"k{number}"} for number in range(4999)]
    for number in range(3):
        make_job(unique_key=f"k{number * 7}")
    for bad in ({"task": ADD, "args": [1, 2**70]}, {"task": "no.such.task"}):
        error = api.error("POST", "/jobs/", [*good[:4000], bad, *good[4001:]], status=400)
        assert error["index"] == 4000
        assert Job.objects.count() == 3
    with CaptureQueriesContext(connection) as queries:
        results = api.ok("POST", "/jobs/", [*good, {**good[100], "args": [0, 0]}], status=201)["results"]
    assert [index for index, each in enumerate(results) if not each["created"]] == [0, 7, 14, 4999]
    assert results[4999]["id"] == results[100]["id"]
    assert len({each["id"] for each in results}) == 4999
    assert Job.objects.count() == 3 + 4996
    assert len(queries) < 120, "statements grow with the batches, not with the items"


def test_b39_signals_are_sent_as_for_a_single_job(api: Api) -> None:
    heard: list[str] = []

    def listen(sender: Any, task_result: Any, **kwargs: Any) -> None:
        heard.append(task_result.id)

    task_enqueued.connect(listen)
    try:
        one = api.ok("POST", "/jobs/", {"task": ADD, "args": [1, 2]}, status=201)["id"]
        many = api.ok("POST", "/jobs/", [{"task": ADD, "args": [n, 2]} for n in range(3)], status=201)["results"]
    finally:
        task_enqueued.disconnect(listen)
    assert heard == [one, *(each["id"] for each in many)]


def test_a_unique_key_that_a_live_job_has_gives_that_job(api: Api) -> None:
    first = api.call("POST", "/jobs/", {"queue": "web", "input": 1, "unique_key": "k"})
    second = api.call("POST", "/jobs/", {"queue": "web", "input": 2, "unique_key": "k"})
    assert (first.status_code, second.status_code) == (201, 200)
    assert second.json()["id"] == first.json()["id"]
    assert second["Location"] == first["Location"]
    error = api.error("POST", "/jobs/", {"queue": "web", "unique_key": "k", "on_conflict": "raise"}, status=409)
    assert (error["code"], error["job"]) == ("conflict", first.json()["id"])
    api.ok("POST", f"/jobs/{first.json()['id']}/cancel/")
    assert api.ok("POST", "/jobs/", {"queue": "web", "unique_key": "k"}, status=201)["id"] != first.json()["id"]


def test_a_job_that_the_caller_may_not_see_is_not_told_of(api: Api) -> None:
    hidden = api.ok("POST", "/jobs/", {"queue": "web", "unique_key": "k"}, status=201)["id"]
    http_queue("mine")
    error = Api("enqueue", queues=("mine",)).error("POST", "/jobs/", {"queue": "mine", "unique_key": "k"}, status=409)
    assert hidden not in str(error)


@in_commits
def test_one_key_at_the_same_moment_is_one_job(api: Api) -> None:
    def post() -> Any:
        return api.call("POST", "/jobs/", {"queue": "web", "unique_key": "k"})

    answers = in_threads(*[post] * 4)
    assert sorted(answer.status_code for answer in answers) == [200, 200, 200, 201]
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert Job.objects.count() == 1


# Idempotency.


def test_the_same_request_again_gets_the_same_answer(api: Api) -> None:
    item = {"queue": "web", "input": {"a": 1, "b": 2}}
    first = api.call("POST", "/jobs/", item, Idempotency_Key="abc")
    again = api.call("POST", "/jobs/", b'{"input": {"b": 2, "a": 1}, "queue": "web"}', Idempotency_Key="abc")
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.json() == first.json()
    assert again["Location"] == first["Location"]
    assert Job.objects.count() == 1
    many = [api.ok("POST", "/jobs/", [item] * 3, status=201, Idempotency_Key="many") for _ in range(2)]
    assert many[0] == many[1]
    assert Job.objects.count() == 4


def test_the_same_key_with_another_request_is_refused(api: Api) -> None:
    api.ok("POST", "/jobs/", {"queue": "web", "input": 1}, status=201, Idempotency_Key="abc")
    error = api.error("POST", "/jobs/", {"queue": "web", "input": 2}, status=409, Idempotency_Key="abc")
    assert list(error["fields"]) == ["Idempotency-Key"]
    assert Job.objects.count() == 1


def test_a_key_is_its_callers_own(api: Api) -> None:
    other = Api()
    ids = {each.ok("POST", "/jobs/", {"queue": "web"}, status=201, Idempotency_Key="abc")["id"] for each in (api, other)}
    assert len(ids) == 2


def test_a_request_that_failed_keeps_no_key(api: Api) -> None:
    api.error("POST", "/jobs/", {"queue": "web", "timeout": "x"}, status=400, Idempotency_Key="abc")
    assert not IdempotencyKey.objects.exists()
    assert api.ok("POST", "/jobs/", {"queue": "web", "timeout": 5}, status=201, Idempotency_Key="abc")["timeout"] == "5s"


@pytest.mark.parametrize("key", ["", " ", "x" * 256, "ü"])
def test_a_bad_key_is_refused(api: Api, key: str) -> None:
    assert list(api.error("POST", "/jobs/", {"queue": "web"}, status=400, Idempotency_Key=key)["fields"]) == ["Idempotency-Key"]


@in_commits
def test_the_same_request_at_the_same_moment_makes_one_job(api: Api) -> None:
    def post() -> str:
        return str(api.ok("POST", "/jobs/", {"queue": "web", "input": 1}, status=201, Idempotency_Key="abc")["id"])

    assert len(set(in_threads(*[post] * 4))) == 1
    assert Job.objects.count() == 1


# Who may.


def test_a_token_for_one_queue_enqueues_nowhere_else() -> None:
    http_queue()
    http_queue("other")
    api = Api("enqueue", queues=("web",))
    api.ok("POST", "/jobs/", {"queue": "web"}, status=201)
    for item in ({"queue": "other"}, {"task": ADD, "args": [1, 2]}):
        error = api.error("POST", "/jobs/", item, status=403)
        assert error["queue"] == item.get("queue", "default")
    assert api.error("POST", "/jobs/", [{"queue": "web"}, {"queue": "other"}], status=403)["index"] == 1
    assert Job.objects.count() == 1


def test_what_is_stored_is_not_told_to_who_may_not_see_it() -> None:
    http_queue()
    body = Api("enqueue").ok("POST", "/jobs/", {"queue": "web", "input": "secret", "metadata": {"k": "secret"}}, status=201)
    assert "secret" not in str(body)
    assert Job.objects.get().args == ["secret"]

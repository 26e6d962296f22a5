"""Whatever a request holds, the answer is below 500 and says what is wrong: values of every kind in every place."""

from __future__ import annotations

import uuid
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_jobs.api import create, filters, reports, values
from django_jobs.models import Job
from django_jobs.statuses import Status
from tests.api.calls import Api, http_queue
from tests.support.jobs import make_job

pytestmark = [pytest.mark.django_db, pytest.mark.once]
fuzzed = settings(
    max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None
)

ODD = st.sampled_from(
    [
        None,
        True,
        False,
        0,
        -1,
        2**31,
        2**63,
        10**40,
        1.5,
        -0.0,
        1e308,
        "",
        " ",
        "x",
        "\x00",
        "\ud800",
        "ü" * 300,
        "x" * 5000,
        "0s",
        "1h",
        "99999999999w",
        "2030-01-01T00:00:00Z",
        "0001-01-01T00:00:00+14:00",
        "9999-12-31T23:59:59-14:00",
        "2030-01-01",
        "queued",
        "completed",
        "failed",
        "web",
        "web.*",
        "tests.project.jobs.add",
        str(uuid.UUID(int=5)),
        [],
        {},
        [[]],
        [None],
        [""],
        [{}],
        {"": None},
        {"failed": []},
        {"1": 5},
        {"base": 0},
        {"base": 1, "factor": "x"},
        {"status": "all"},
        {"class": None},
    ]
)
JSON = st.recursive(ODD, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3))


def some_of(*names: str) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(names), JSON, max_size=4)


@pytest.fixture
def api() -> Api:
    http_queue()
    return Api()


def answered(response: Any) -> None:
    assert response.status_code < 500
    if response.status_code >= 400:
        error = response.json()["error"]
        assert error["code"]
        assert error["message"]


@fuzzed
@given(item=some_of(*create.FIELDS), is_many=st.booleans(), queue=st.sampled_from(["web", "plain", None]))
def test_new_jobs(api: Api, item: dict[str, Any], is_many: bool, queue: str | None) -> None:
    item = {"queue": queue} | item if queue else item
    response = api.call("POST", "/jobs/", [item, item] if is_many else item)
    answered(response)
    assert response.status_code in (200, 201, 400, 409)


@fuzzed
@given(
    body=some_of(
        *values.LIMITS, *values.DESCRIPTION, *filters.FILTERS, *reports.ERROR_FIELDS, "output", "final", "logs", "progress"
    )
    | JSON,
    with_token=st.booleans(),
    state=st.sampled_from(Status),
)
def test_changes_of_a_job(api: Api, body: Any, with_token: bool, state: Status) -> None:
    job = (
        make_job(state, queue="web", is_http=True)
        if state != Status.RUNNING
        else make_job(queue="web", is_http=True, priority=50)
    )
    headers = {}
    if state == Status.RUNNING:
        (claimed,) = api.ok("POST", "/queues/web/claim/")["jobs"]
        job = Job.objects.get(pk=claimed["id"])
        headers = {"X_Job_Token": claimed["token"]} if with_token else {}
    answered(api.call("PATCH", f"/jobs/{job.pk}/", body, **headers))
    answered(api.call("PUT", f"/jobs/{job.pk}/output/", body, **headers))
    answered(api.call("PUT", f"/jobs/{job.pk}/heartbeat/", body, **headers))
    answered(api.call("GET", f"/jobs/{job.pk}/"))


@fuzzed
@given(
    verb=st.sampled_from(["requeue", "cancel", "done", "run-now", "delete"]),
    body=some_of("ids", "dry_run", "reason", "keep_attempts", "force") | JSON,
    choice=some_of(*filters.FILTERS),
    one=some_of("reason", "keep_attempts", "claim", "worker", "force") | JSON,
)
def test_verbs(api: Api, verb: str, body: Any, choice: dict[str, Any], one: Any) -> None:
    job = make_job(Status.FAILED)
    if isinstance(body, dict) and "ids" not in body:
        body = {**body, "filter": choice}
    answered(api.call("POST", f"/jobs/{verb}/", body))
    answered(api.call("POST", f"/jobs/{job.pk}/{verb}/", one))


@fuzzed
@given(
    said=some_of("name", "description", "is_http", *values.LIMITS) | JSON,
    claim=some_of("limit", "worker") | JSON,
    pause=some_of("reason", "until") | JSON,
    name=st.sampled_from(["web", "new", "a.b", "ü", "a b", "x" * 120]),
)
def test_queues(api: Api, said: Any, claim: Any, pause: Any, name: str) -> None:
    name = quote(name)
    answered(api.call("PUT", f"/queues/{name}/", said))
    answered(api.call("PATCH", f"/queues/{name}/", said))
    answered(api.call("POST", "/queues/", said))
    answered(api.call("POST", f"/queues/{name}/claim/", claim))
    answered(api.call("POST", f"/queues/{name}/pause/", pause))
    answered(api.call("POST", f"/queues/{name}/resume/", pause))
    answered(api.call("GET", f"/queues/{name}/"))
    answered(api.call("DELETE", f"/queues/{name}/?cascade=true"))


@fuzzed
@given(
    path=st.sampled_from(["/jobs/", "/jobs/timed-out/", "/queues/", "/queues/web/job-ids/", "/tags/t/"]),
    query=st.dictionaries(
        st.sampled_from([*filters.FILTERS, "fields", "cursor", "page_size", "nonsense"]),
        st.text(max_size=20) | ODD.filter(lambda value: isinstance(value, str)),
        max_size=3,
    ),
)
def test_queries(api: Api, path: str, query: dict[str, str]) -> None:
    make_job(Status.TIMED_OUT, queue="web")
    pairs = "&".join(f"{name}={quote(value.encode('utf-8', 'surrogatepass'))}" for name, value in query.items())
    answered(api.call("GET", f"{path}?{pairs}"))


@fuzzed
@given(body=st.binary(max_size=30) | st.text(max_size=30).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_bodies_that_are_hardly_json(api: Api, body: bytes) -> None:
    for method, path in (("POST", "/jobs/"), ("POST", "/queues/web/claim/"), ("PUT", "/queues/web/"), ("POST", "/jobs/cancel/")):
        answered(api.call(method, path, body))

"""`Client`: what it sends, what it makes of the answers, and what it sends again."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from django_jobs.client import (
    ApiError,
    ClaimedJob,
    Client,
    Conflict,
    Forbidden,
    Invalid,
    LeaseLost,
    NotFound,
    Throttled,
    Unauthorized,
    Unavailable,
)
from django_jobs.client.jobs import moment_of, seconds_of
from tests.client.fake import Fake, claimed, lost, refusal

ID = "0198c0de-0000-7000-8000-000000000001"


@pytest.fixture
def server() -> Fake:
    return Fake()


@pytest.fixture
def client(server: Fake, monkeypatch: pytest.MonkeyPatch) -> Client:
    """Return a client that notes its pauses in `slept` instead of taking them."""
    client = Client("https://jobs.example/api/jobs", "dj_secret", retry_delays=(1.0, 2.0), transport=server.transport)
    slept: list[float] = []
    monkeypatch.setattr(client.wire, "_sleep", slept.append)
    client.slept = slept  # type: ignore[attr-defined]
    return client


def created(**fields: Any) -> httpx.Response:
    return httpx.Response(201, json={"id": ID, "status": "ready", **fields})


def page(ids: list[int], next_: str | None = None) -> httpx.Response:
    return httpx.Response(200, json={"results": [{"id": str(each)} for each in ids], "next": next_, "previous": None})


# --- requests ---


def test_a_task_is_enqueued_with_the_token_and_a_key_of_its_own(server: Fake, client: Client) -> None:
    server.script += [created(), created()]
    job = client.enqueue("shop.tasks.total", args=[[1, 2]], tags=["a"], run_after=timedelta(minutes=1))
    client.enqueue("shop.tasks.total")
    first, second = server.seen
    assert (job.id, job.status) == (ID, "ready")
    assert (first.method, first.path) == ("POST", "/api/jobs/jobs/")
    assert first.body == {"task": "shop.tasks.total", "args": [[1, 2]], "kwargs": {}, "tags": ["a"], "run_after": 60.0}
    assert first.headers["Authorization"] == "Bearer dj_secret"
    assert first.headers["Content-Type"] == "application/json"
    assert first.headers["Idempotency-Key"] != second.headers["Idempotency-Key"]


def test_input_is_enqueued_also_when_it_is_null(server: Fake, client: Client) -> None:
    server.script.append(created())
    client.enqueue(queue="resize", input=None, idempotency_key="mine", start_by=datetime(2030, 1, 2, tzinfo=UTC))
    assert server.seen[0].body == {"queue": "resize", "input": None, "start_by": "2030-01-02T00:00:00+00:00"}
    assert server.seen[0].headers["Idempotency-Key"] == "mine"


@pytest.mark.parametrize(
    "arguments",
    [{}, {"task": "a.b", "queue": "q", "input": 1}, {"input": 1}, {"queue": "q", "input": 1, "args": [1]}],
    ids=["nothing", "both", "no queue", "input with args"],
)
def test_what_is_neither_a_task_nor_an_input_is_not_sent(server: Fake, client: Client, arguments: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        client.enqueue(**arguments)
    assert server.seen == []


def test_what_json_can_not_hold_is_not_sent(server: Fake, client: Client) -> None:
    with pytest.raises(ValueError, match="JSON"):
        client.enqueue(queue="q", input=float("nan"))
    with pytest.raises(TypeError):
        client.enqueue(queue="q", input={1, 2})
    with pytest.raises(ValueError, match="time zone"):
        client.enqueue(queue="q", input=1, run_after=datetime(2030, 1, 1))
    assert server.seen == []


def test_several_jobs_are_one_request(server: Fake, client: Client) -> None:
    server.script.append(httpx.Response(201, json={"results": [{"id": "a", "created": True}, {"id": "b", "created": False}]}))
    jobs = client.enqueue_many([{"queue": "q", "input": 1}, {"task": "a.b", "args": [2]}])
    assert [(job.id, job["created"]) for job in jobs] == [("a", True), ("b", False)]
    assert server.seen[0].body == [{"queue": "q", "input": 1}, {"task": "a.b", "args": [2], "kwargs": {}}]


def test_a_job_is_read_whole_or_in_part(server: Fake, client: Client) -> None:
    server.script += [httpx.Response(200, json={"id": ID, "status": "ready", "timeout": "2m 15s"})]
    server.script += [httpx.Response(200, json={"status": "failed"})]
    job = client.get(uuid.UUID(ID))
    assert (job.timeout, job["timeout"], job.heartbeat_timeout, job.output) == (135.0, "2m 15s", None, None)
    assert client.status(job) == "failed"
    assert [seen.path for seen in server.seen] == [f"/api/jobs/jobs/{ID}/"] * 2
    assert server.seen[1].query == {"fields": "status"}
    with pytest.raises(KeyError):
        job["output"]


def test_pages_are_fetched_as_they_are_needed_and_only_from_this_server(server: Fake, client: Client) -> None:
    server.script += [page([1, 2], "http://elsewhere.example/x/?cursor=abc%3D&page_size=2&status=failed"), page([3])]
    found = client.jobs(status="failed", page_size=2, tag=["a", "b"], ended=True)
    assert server.seen == []
    assert next(found).id == "1"
    assert [job.id for job in found] == ["2", "3"]
    first, second = server.seen
    assert first.query == {"status": "failed", "page_size": "2", "tag": "a,b", "ended": "true"}
    assert (second.path, second.query) == ("/api/jobs/jobs/", {"cursor": "abc=", "page_size": "2", "status": "failed"})
    assert second.headers["Host"] == "jobs.example"


def test_ids_and_names_can_not_leave_their_place_in_the_address(server: Fake, client: Client) -> None:
    client.delete("../queues/x")
    client.claim("a/b?c")
    assert [seen.raw for seen in server.seen] == ["/api/jobs/jobs/..%2Fqueues%2Fx/", "/api/jobs/queues/a%2Fb%3Fc/claim/"]


@pytest.mark.parametrize("verb", ["cancel", "requeue", "done", "run_now"])
def test_a_verb_is_a_post_with_its_options(server: Fake, client: Client, verb: str) -> None:
    server.script.append(httpx.Response(200, json={"id": ID, "status": "there"}))
    assert getattr(client, verb)(ID, reason="because").status == "there"
    seen = server.seen[0]
    assert (seen.method, seen.path, seen.body) == (
        "POST",
        f"/api/jobs/jobs/{ID}/{verb.replace('_', '-')}/",
        {"reason": "because"},
    )


def test_what_verbs_can_be_told_besides(server: Fake, client: Client) -> None:
    server.script += [httpx.Response(200, json={"id": ID}), httpx.Response(200, json={"id": ID})]
    server.script += [httpx.Response(200, json=claimed()), httpx.Response(202)]
    client.cancel(ID, force=True)
    client.requeue(ID, keep_attempts=True)
    assert client.requeue_and_claim(ID, worker="me").attempt == 1
    client.delete(ID, force=True)
    assert [seen.body for seen in server.seen] == [
        {"force": True},
        {"keep_attempts": True},
        {"claim": True, "worker": "me"},
        None,
    ]
    assert server.seen[-1].query == {"force": "true"}


def test_a_change_is_a_patch(server: Fake, client: Client) -> None:
    client.change(ID, timeout=timedelta(seconds=5), tags=("x",))
    assert (server.seen[0].method, server.seen[0].body) == ("PATCH", {"timeout": 5.0, "tags": ["x"]})


def test_everything_of_an_attempt_names_its_token(server: Fake, client: Client) -> None:
    server.queue.append(claimed(input=7, heartbeat_timeout="30s", lease_expires_at="2030-01-01T00:00:00.5Z"))
    (job,) = client.claim("q", limit=5, wait=3, worker="me")
    assert server.seen[0].body == {"limit": 5, "wait": 3, "worker": "me"}
    assert (job.input, job.attempt, job.heartbeat_timeout) == (7, 1, 30.0)
    assert job.lease_expires_at == datetime(2030, 1, 1, 0, 0, 0, 500_000, tzinfo=UTC)
    client.heartbeat(job)
    client.heartbeat(job, progress={"done": 1})
    client.save(job, None)
    client.finish(job, None)
    client.finish(job, logs="so")
    client.fail(job, "no", error_class="ValueError", traceback="...", final=True, output=[])
    client.hand_back(job)
    sent = [(seen.method, seen.path.removeprefix(f"/api/jobs/jobs/{job.id}/"), seen.body) for seen in server.seen[1:]]
    assert sent == [
        ("PUT", "heartbeat/", None),
        ("PUT", "heartbeat/", {"progress": {"done": 1}}),
        ("PUT", "output/", None),
        ("PATCH", "", {"status": "succeeded", "output": None}),
        ("PATCH", "", {"status": "succeeded", "logs": "so"}),
        (
            "PATCH",
            "",
            {
                "status": "failed",
                "error": {"message": "no", "class": "ValueError", "traceback": "..."},
                "final": True,
                "output": [],
            },
        ),
        ("PATCH", "", {"status": "ready"}),
    ]
    assert {seen.headers["X-Job-Token"] for seen in server.seen[1:]} == {job.token}


def test_an_empty_queue_is_an_empty_list(client: Client) -> None:
    assert client.claim("q") == []


# --- errors ---


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "invalid", Invalid),
        (401, "unauthenticated", Unauthorized),
        (403, "forbidden", Forbidden),
        (404, "not_found", NotFound),
        (405, "method_not_allowed", ApiError),
        (409, "conflict", Conflict),
        (413, "too_large", Invalid),
        (429, "throttled", Throttled),
        (500, "", Unavailable),
        (503, "unavailable", Unavailable),
    ],
)
def test_an_answer_becomes_its_error(server: Fake, client: Client, status: int, code: str, kind: type[ApiError]) -> None:
    server.rules[f"/api/jobs/jobs/{ID}/"] = lambda seen: refusal(status, code, "Not so.", fields={"tags": ["too many", "bad"]})
    with pytest.raises(ApiError, match="Not so") as caught:
        client.get(ID)
    assert type(caught.value) is kind
    assert (caught.value.status, caught.value.code) == (status, code or f"http_{status}")
    assert caught.value.fields == {"tags": ["too many", "bad"]}
    assert str(caught.value) == "Not so. (tags: too many bad)"


def test_a_lost_lease_has_its_reason(server: Fake, client: Client) -> None:
    server.script.append(lost("This attempt has ended: the job is cancelled (too late).", "cancelled"))
    with pytest.raises(LeaseLost) as caught:
        client.heartbeat(ClaimedJob(claimed()))
    assert (caught.value.reason, caught.value.job_status) == (
        "This attempt has ended: the job is cancelled (too late).",
        "cancelled",
    )
    assert isinstance(caught.value, Conflict)


def test_a_job_that_was_deleted_is_a_lost_lease(server: Fake, client: Client) -> None:
    server.script.append(refusal(404, "not_found"))
    with pytest.raises(LeaseLost, match="deleted"):
        client.finish(ClaimedJob(claimed()), 1)


def test_a_page_that_is_not_the_api_is_an_error_that_says_so(server: Fake, client: Client) -> None:
    server.script += [httpx.Response(200, html="<h1>Welcome</h1>"), httpx.Response(404, text="nothing\nhere")]
    server.script += [httpx.Response(302, headers={"Location": "https://login.example/"})]
    with pytest.raises(ApiError, match="text/html") as caught:
        client.get(ID)
    assert caught.value.code == "not_json"
    with pytest.raises(NotFound, match="404: nothing") as missing:
        client.get(ID)
    assert missing.value.code == "http_404"
    with pytest.raises(ApiError, match=r"302 to https://login\.example/"):
        client.get(ID)


def test_an_address_without_a_scheme_is_refused() -> None:
    with pytest.raises(ValueError, match="http"):
        Client("jobs.example/api/", "x")


# --- again ---

AWAY = [
    httpx.ConnectError("refused"),
    httpx.ReadTimeout("slow"),
    httpx.RemoteProtocolError("Server disconnected"),
    httpx.Response(429),
    httpx.Response(502),
    httpx.Response(503),
    httpx.Response(504),
]


@pytest.mark.parametrize("answer", AWAY, ids=lambda answer: getattr(answer, "status_code", None) or type(answer).__name__)
def test_an_enqueue_is_sent_again_with_the_same_key(server: Fake, client: Client, answer: Any) -> None:
    server.script += [answer, answer, created()]
    assert client.enqueue(queue="q", input=1).id == ID
    assert len({seen.headers["Idempotency-Key"] for seen in server.seen}) == 1
    assert len(server.seen) == 3
    first, second = client.slept  # type: ignore[attr-defined]
    assert 0.5 <= first <= 1.0 <= second <= 2.0


def test_it_gives_up_after_the_last_pause(server: Fake, client: Client) -> None:
    server.script += [httpx.ConnectError("refused")] * 3
    with pytest.raises(Unavailable, match="refused") as caught:
        client.get(ID)
    assert (caught.value.status, caught.value.code, caught.value.sent) == (0, "unavailable", False)
    assert len(server.seen) == 3


@pytest.mark.parametrize("status", [400, 401, 404, 409, 500])
def test_what_would_be_the_same_again_is_not_sent_again(server: Fake, client: Client, status: int) -> None:
    server.script.append(httpx.Response(status))
    with pytest.raises(ApiError):
        client.enqueue(queue="q", input=1)
    assert len(server.seen) == 1


@pytest.mark.parametrize("answer", AWAY, ids=lambda answer: getattr(answer, "status_code", None) or type(answer).__name__)
def test_a_claim_is_sent_again_only_if_it_surely_did_not_arrive(server: Fake, client: Client, answer: Any) -> None:
    """Else jobs would be claimed that nobody knows of."""
    server.queue.append(claimed())
    server.script.append(answer)
    if isinstance(answer, httpx.ConnectError) or getattr(answer, "status_code", 0) == 429:
        assert len(client.claim("q")) == 1
    else:
        with pytest.raises(Unavailable) as caught:
            client.claim("q")
        assert caught.value.sent
        assert len(server.seen) == 1


@pytest.mark.parametrize(("said", "least"), [("7", 7.0), ("Fri, 01 Jan 2100 00:00:00 GMT", None), ("soon", 0.0), ("3600", None)])
def test_the_server_says_when_to_come_again(server: Fake, client: Client, said: str, least: float | None) -> None:
    """One that asks for too long a wait is not waited for; what can't be read is as if it had said nothing."""
    server.script += [httpx.Response(429, headers={"Retry-After": said}), httpx.Response(200, json={"id": ID})]
    if least is None:
        with pytest.raises(Throttled) as caught:
            client.get(ID)
        assert (caught.value.retry_after or 0) > 60
    else:
        assert client.get(ID).id == ID
        assert client.slept[0] >= least  # type: ignore[attr-defined]


@pytest.mark.parametrize("status", ["failed", "ready", "scheduled"])
def test_an_end_whose_answer_was_lost_is_known_by_where_the_job_is(server: Fake, client: Client, status: str) -> None:
    server.script += [httpx.ReadTimeout("slow"), lost(f"This attempt has ended: the job is {status}.", status)]
    client.fail(ClaimedJob(claimed()), "no")
    assert len(server.seen) == 2


@pytest.mark.parametrize(
    ("first", "status"), [(httpx.ReadTimeout("slow"), "running"), (httpx.ConnectError("refused"), "succeeded")]
)
def test_an_end_that_is_not_ours_is_a_lost_lease(server: Fake, client: Client, first: Exception, status: str) -> None:
    """Another attempt runs now; or ours never arrived, so that somebody else ended the job."""
    server.script += [first, lost(status=status)]
    with pytest.raises(LeaseLost):
        client.finish(ClaimedJob(claimed()), 1)


def test_a_delete_whose_answer_was_lost_is_done(server: Fake, client: Client) -> None:
    server.script += [httpx.ReadTimeout("slow"), refusal(404, "not_found")]
    client.delete(ID)
    server.script += [refusal(404, "not_found")]
    with pytest.raises(NotFound):
        client.delete(ID)


# --- values ---


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("1w2d7h", 802_800.0),
        ("2m 15s", 135.0),
        ("0.25s", 0.25),
        ("250ms", 0.25),
        (30, 30.0),
        ("0s", None),
        (0, None),
        (None, None),
    ],
)
def test_durations_are_read(said: Any, seconds: float | None) -> None:
    assert seconds_of(said) == seconds


def test_times_are_read() -> None:
    assert moment_of("2026-01-02T03:04:05.678901Z") == datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    assert moment_of(None) is None

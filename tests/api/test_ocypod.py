"""The page docs/ocypod.md, row by row, on a live server: each row says what is tried here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from uuid import UUID

import pytest
from django.core.management import call_command
from django.db import connection
from pytest_django.live_server_helper import LiveServer

from django_jobs import __version__
from django_jobs.conf import jobs_settings
from django_jobs.conf import settings as conf_settings
from django_jobs.lifecycle.tokens import VERBS, make_token
from django_jobs.statuses import Status

from .ocypod import MISSING, Site, monitors, rows, until

pytestmark = pytest.mark.once
ROWS = list(rows())
TRIED: dict[tuple[str, str], Callable[[Site], None]] = {}


def tries(section: str, *lefts: str) -> Callable[[Callable[[Site], None]], Callable[[Site], None]]:
    """Say which rows of the page a function tries."""

    def add(function: Callable[[Site], None]) -> Callable[[Site], None]:
        for left in lefts:
            assert (section, left) not in TRIED, left
            TRIED[section, left] = function
        return function

    return add


@pytest.fixture
def site(transactional_db: None, live_server: LiveServer) -> Iterator[Site]:
    """Ask a live server with a token for everything."""
    _token, secret = make_token("ocypod", verbs=list(VERBS), using="default")
    found = Site(live_server.url, secret)
    yield found
    found.http.close()


def test_each_row_of_the_page_is_tried_and_nothing_else_is():
    found = [(row.section, row.left) for row in ROWS]
    assert len(found) == len(set(found))
    assert {row.section for row in ROWS} == set(re.findall(r"^## (.+)$", _page(), re.MULTILINE))
    assert set(TRIED) == set(found)
    assert len(found) == sum(line.startswith("| ") for line in _page().splitlines()) - len({row.section for row in ROWS})


def _page() -> str:
    from .ocypod import PAGE

    return PAGE.read_text()


# Endpoints


@tries("Endpoints", "GET /queue")
def _queues(site: Site) -> None:
    name = site.queue()
    found = site.ask("GET", "/queues?page_size=500")["results"]
    assert name in [queue["name"] for queue in found]
    assert [queue["name"] for queue in found] == sorted(queue["name"] for queue in found)
    site.ask("GET", "/queues/", status=200)


@tries("Endpoints", "GET /queue/{q}")
@tries("What its users asked for", "all settings of a queue are shown (1)")
def _queue(site: Site) -> None:
    name = site.queue(timeout="90s")
    found = site.ask("GET", f"/queues/{name}")
    assert {"timeout", "heartbeat_timeout", "expires_after", "retries", "retry_delays"} <= set(found) & set(found["effective"])
    assert (found["timeout"], found["heartbeat_timeout"]) == ("1m30s", None)
    assert found["effective"]["expires_after"] == "1w"
    site.ask("GET", f"/queues/{site.name()}", status=404)
    site.ask("GET", "/queues/a..b", status=400)


@tries("Endpoints", "PUT /queue/{q}")
def _put_queue(site: Site) -> None:
    name = site.name()
    response, _queue = site.answer("PUT", f"/queues/{name}", {"timeout": "1m", "retries": 2}, status=201)
    assert response.headers["Location"] == f"{site.url}/queues/{name}/"
    response, _body = site.answer("PUT", f"/queues/{name}", {"retries": 3}, status=204)
    assert response.headers["Location"].endswith(f"/queues/{name}/")
    found = site.ask("GET", f"/queues/{name}")
    assert (found["timeout"], found["retries"]) == (None, 3)
    site.ask("PATCH", f"/queues/{name}", {"timeout": "2m"}, status=204)
    found = site.ask("GET", f"/queues/{name}")
    assert (found["timeout"], found["retries"]) == ("2m", 3)
    site.ask("PUT", f"/queues/{name}", {"retries": -1}, status=400)
    site.ask("PUT", "/queues/a%20b", {}, status=400)


@tries("Endpoints", "DELETE /queue/{q}")
@tries("Different on purpose", "a queue with open jobs is not deleted")
def _delete_queue(site: Site) -> None:
    name = site.queue()
    job = f"/jobs/{site.job(name)['id']}"
    assert site.ask("DELETE", f"/queues/{name}", status=409)["error"]["code"] == "conflict"
    site.ask("DELETE", f"/queues/{name}?cascade=true", status=204)
    site.ask("GET", job, status=404)
    site.ask("DELETE", f"/queues/{name}", status=404)
    empty = site.queue()
    site.ask("DELETE", f"/queues/{empty}", status=204)


@tries("Endpoints", "GET /queue/{q}/size")
def _size(site: Site) -> None:
    name = site.queue()
    assert site.ask("GET", f"/queues/{name}/size") == 0
    site.job(name)
    site.job(name)
    site.claim(name)
    assert site.ask("GET", f"/queues/{name}/size") == 1
    assert site.ask("GET", f"/queues/{site.name()}/size") == 0


@tries("Endpoints", "GET /queue/{q}/job")
def _claim(site: Site) -> None:
    name = site.queue()
    site.ask("POST", f"/queues/{name}/claim", status=204)
    made = [site.job(name)["id"] for _number in range(3)]
    first = site.claim(name)
    assert (first["id"], first["input"], first["status"]) == (made[0], {"n": 1}, "running")
    assert first["started_at"]
    found = site.ask("POST", f"/queues/{name}/claim", {"limit": 10})["jobs"]
    assert {job["id"] for job in found} == set(made[1:])
    site.ask("POST", f"/queues/{name}/claim", {"wait": "50ms"}, status=204)
    site.ask("POST", f"/queues/{site.name()}/claim", status=404)


@tries("Endpoints", "POST /queue/{q}/job")
def _create(site: Site) -> None:
    name = site.queue()
    said = {
        "timeout": "1m",
        "heartbeat_timeout": "10s",
        "expires_after": "1h",
        "retries": 2,
        "retry_delays": ["1s"],
        "tags": ["a"],
    }
    response, job = site.answer("POST", "/jobs", {"queue": name, "input": [1], **said}, status=201)
    assert response.headers["Location"] == f"{site.url}/jobs/{job['id']}/"
    assert {field: job[field] for field in said} == said
    many = site.ask("POST", "/jobs", [{"queue": name, "input": 1}, {"queue": name, "input": 2}], status=201)["results"]
    assert len(many) == 2
    error = site.ask("POST", "/jobs", [{"queue": name, "input": 1}, {"queue": name, "tags": 7}], status=400)["error"]
    assert error["index"] == 1
    assert site.ask("GET", f"/queues/{name}/size") == 3


@tries("Endpoints", "GET /queue/{q}/job_ids")
@tries("What its users asked for", "ids of a queue's jobs by status (10)")
def _job_ids(site: Site) -> None:
    name = site.queue()
    ready = [site.job(name)["id"], site.job(name)["id"]]
    found = site.ask("GET", f"/queues/{name}/job-ids")
    assert set(found) == set(Status)
    assert found["ready"]["results"] == ready
    page = site.ask("GET", f"/queues/{name}/job-ids?status=queued&page_size=1")
    assert page["results"] == ready[:1]
    assert site.ask("GET", page["next"])["results"] == ready[1:]


@tries("Endpoints", "GET /job/{id}")
def _get(site: Site) -> None:
    job = site.job(site.queue())
    assert site.ask("GET", f"/jobs/{job['id']}?fields=id,input") == {"id": job["id"], "input": {"n": 1}}
    assert site.ask("GET", f"/jobs/{job['id']}")["queue"] == job["queue"]
    assert "fields" in site.ask("GET", f"/jobs/{job['id']}?fields=inputs", status=400)["error"]["fields"]
    site.ask("GET", f"/jobs/{MISSING}", status=404)


@tries("Endpoints", "PATCH /job/{id}")
def _patch(site: Site) -> None:
    address, token = site.running()
    site.ask("PATCH", address, {"status": "completed", "output": {"a": 1}, "token": token}, status=204)
    found = site.ask("GET", address)
    assert (found["status"], found["output"], found["ended"]) == ("succeeded", {"a": 1}, True)
    error = site.ask("PATCH", address, {"status": "failed", "token": token}, status=409)["error"]
    assert (error["code"], error["status"]) == ("lease_lost", "succeeded")
    assert error["reason"]
    site.ask("PATCH", f"/jobs/{MISSING}", {"status": "cancelled"}, status=404)


@tries("Endpoints", "DELETE /job/{id}")
@tries("Different on purpose", "a running job is not deleted")
def _delete(site: Site) -> None:
    job = f"/jobs/{site.job(site.queue())['id']}"
    site.ask("DELETE", job, status=204)
    site.ask("DELETE", job, status=404)
    address, token = site.running()
    site.ask("DELETE", address, status=409)
    response = site.http.delete(f"{address}?force=true")
    assert response.status_code in (202, 204)
    refused = site.http.put(f"{address}/heartbeat", json={"token": token})
    assert refused.status_code in (404, 409)


@tries("Endpoints", "GET /job/{id}/status")
def _status(site: Site) -> None:
    assert site.status(f"/jobs/{site.job(site.queue())['id']}") == "ready"
    site.ask("GET", f"/jobs/{MISSING}/status", status=404)


@tries("Endpoints", "GET /job/{id}/output", "PUT /job/{id}/output")
def _output(site: Site) -> None:
    address, token = site.running()
    assert site.ask("GET", f"{address}/output") is None
    site.ask("PUT", f"{address}/output", [1, None], status=204, X_Job_Token=token)
    assert site.ask("GET", f"{address}/output") == [1, None]
    site.ask("PUT", f"{address}/output", None, status=204, X_Job_Token=token)
    assert site.ask("GET", f"{address}/output") is None
    site.ask("PUT", f"{address}/output", 1, status=400)
    ended = site.ended("failed")
    site.ask("PUT", f"{ended}/output", 1, status=409, X_Job_Token=token)


@tries("Endpoints", "PUT /job/{id}/heartbeat")
def _heartbeat(site: Site) -> None:
    address, token = site.running(heartbeat_timeout="1m")
    assert site.ask("GET", address)["last_heartbeat"] is None
    response, _body = site.answer("PUT", f"{address}/heartbeat", {"token": token}, status=204)
    assert response.headers["Lease-Expires"].endswith("Z")
    assert site.ask("GET", address)["last_heartbeat"]
    site.ask("PATCH", address, {"status": "completed", "token": token}, status=204)
    site.ask("PUT", f"{address}/heartbeat", {"token": token}, status=409)


@tries("Endpoints", "GET /tag/{t}")
def _tag(site: Site) -> None:
    tag = site.name()
    ids = {site.job(site.queue(), tags=[tag, "more"])["id"] for _number in range(2)}
    assert set(site.ask("GET", f"/tags/{tag}")["results"]) == ids
    assert site.ask("GET", f"/tags/{site.name()}")["results"] == []


@tries("Endpoints", "GET /info")
def _info(site: Site) -> None:
    before = site.ask("GET", "/info")["statistics"]
    name = site.queue()
    address = site.ended("completed", name)
    site.job(name)
    found = site.ask("GET", "/info")
    assert set(found["queues"][name]) == set(Status)
    assert (found["queues"][name]["ready"], found["queues"][name]["succeeded"]) == (1, 1)
    site.ask("DELETE", address, status=204)
    after = site.ask("GET", "/info")
    assert after["queues"][name]["succeeded"] == 0
    for word, more in (("created", 2), ("succeeded", 1)):
        assert after["statistics"][f"total_jobs_{word}"] == before[f"total_jobs_{word}"] + more
    assert {"failed", "timed_out", "cancelled"} <= {key.removeprefix("total_jobs_") for key in before}


@tries("Endpoints", "GET /info/version")
def _version(site: Site) -> None:
    assert site.ask("GET", "/version") == site.ask("GET", "/info/version") == __version__


@tries("Endpoints", "GET /health")
@tries("Different on purpose", "health is 503 when it is not healthy")
def _health(site: Site) -> None:
    found = site.ask("GET", "/health", status=503)  # nobody works here
    assert found["status"] == "unhealthy"
    assert {check["name"]: check["ok"] for check in found["checks"]} | {"workers": True} == {
        "database": True,
        "workers": True,
        "maintenance": False,
    }


@tries("Endpoints", "PUT /job/{id}/retry")
def _retry(site: Site) -> None:
    address = site.ended("timed_out", site.queue(retries=0))
    held = site.ask("POST", f"{address}/requeue", {"claim": True})
    assert held["status"] == "running"
    site.ask("PATCH", address, {"status": "completed", "token": held["token"]}, status=204)
    assert site.status(address) == "succeeded"
    again = site.ask("POST", f"{address}/requeue", {"claim": True, "keep_attempts": True})
    assert again["attempts_used"] == held["attempts_used"] + 1 or again["attempt"] == held["attempt"] + 1


@tries("Endpoints", "GET /queue/{q}/reattempt/{ts}")
def _reattempt(site: Site) -> None:
    name, key = site.queue(), site.name()
    first = site.ask("POST", "/jobs", {"queue": name, "input": 1}, status=201, Idempotency_Key=key)
    assert site.ask("POST", "/jobs", {"queue": name, "input": 1}, status=201, Idempotency_Key=key) == first
    assert site.ask("GET", f"/queues/{name}/size") == 1


# Job fields


@tries("Job fields", "id")
@tries("Different on purpose", "ids are UUIDs")
def _id(site: Site) -> None:
    name = site.queue()
    made = [site.job(name)["id"] for _number in range(3)]
    assert sorted(made) == made
    assert all(UUID(each).version == 7 for each in made)


@tries("Job fields", "queue", "status", "input", "created_at")
def _plain_fields(site: Site) -> None:
    name = site.queue()
    job = site.job(name)
    assert (job["queue"], job["status"], job["input"], job["task"]) == (name, "ready", {"n": 1}, None)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", job["created_at"])


@tries("Job fields", "tags")
def _tags_field(site: Site) -> None:
    assert site.job(site.queue(), tags=["b", "a", "b"])["tags"] == ["b", "a"]
    assert site.job(site.queue(), tags=None)["tags"] == []
    assert site.job(site.queue())["tags"] == []


@tries("Job fields", "started_at", "ended_at", "last_heartbeat", "output")
def _times(site: Site) -> None:
    address, token = site.running()
    site.ask("PUT", f"{address}/output", "half", status=204, X_Job_Token=token)
    found = site.ask("GET", address)
    assert found["started_at"] <= found["last_heartbeat"]
    assert (found["ended_at"], found["output"]) == (None, "half")
    site.ask("PATCH", address, {"status": "completed", "output": "whole", "token": token}, status=204)
    found = site.ask("GET", address)
    assert found["ended_at"] >= found["started_at"]
    assert found["output"] == "whole"
    site.ask("PATCH", address, {"status": "queued"}, status=204)
    found = site.ask("GET", address)
    assert [found[name] for name in ("started_at", "ended_at", "last_heartbeat", "output")] == [None] * 4


@tries("Job fields", "timeout", "heartbeat_timeout")
@tries("Queue settings", "timeout", "heartbeat_timeout")
def _limits(site: Site) -> None:
    job = site.job(site.queue(retries=1))
    assert (job["timeout"], job["heartbeat_timeout"]) == (None, None)
    name = site.queue(timeout="5m", heartbeat_timeout=30)
    job = site.job(name)
    assert (job["timeout"], job["heartbeat_timeout"]) == ("5m", "30s")
    job = site.job(name, timeout="1m75s", heartbeat_timeout="0s")
    assert (job["timeout"], job["heartbeat_timeout"]) == ("2m15s", None)


@tries("Job fields", "expires_after")
@tries("Queue settings", "expires_after")
@tries("What its users asked for", "timed-out jobs are not purged (21)")
def _expires_after(site: Site) -> None:
    job = site.job(site.queue())
    assert job["expires_after"] == job["retention"]["succeeded"] == "1w"
    assert job["retention"]["failed"] is job["retention"]["timed_out"] is None
    name = site.queue(expires_after="0s")
    assert site.job(name)["expires_after"] is None
    job = site.job(name, expires_after="5m", retention={"timed_out": "1d"})
    assert (job["expires_after"], job["retention"]["timed_out"]) == ("5m", "1d")


@tries("Job fields", "retries", "retries_attempted")
@tries("Queue settings", "retries")
def _retries(site: Site) -> None:
    name = site.name()
    site.ask("PUT", f"/queues/{name}", {"is_http": True}, status=201)
    assert site.job(name)["retries"] == 4
    address, token = site.running(site.queue(retries=2, retry_delays=0))
    assert site.ask("GET", f"{address}?fields=retries,max_attempts,retries_attempted,attempts_used") == {
        "retries": 2,
        "max_attempts": 3,
        "retries_attempted": 0,
        "attempts_used": 1,
    }
    site.ask("PATCH", address, {"status": "failed", "token": token}, status=204)
    queue = site.ask("GET", address)["queue"]
    assert site.claim(queue)["retries_attempted"] == 1


@tries("Job fields", "retry_delays")
@tries("Queue settings", "retry_delays")
def _retry_delays(site: Site) -> None:
    name = site.queue(retry_delays=["10s", 60])
    assert site.job(name)["retry_delays"] == ["10s", "1m"]
    assert site.job(name, retry_delays="5s")["retry_delays"] == "5s"
    assert site.job(site.queue(), retry_delays=[])["retry_delays"] is None


@tries("Job fields", "ended")
def _ended(site: Site) -> None:
    name = site.queue(retries=1, retry_delays="1h")
    address, token = site.running(name)
    site.ask("PATCH", address, {"status": "failed", "token": token}, status=204)
    assert site.ask("GET", f"{address}?fields=status,ended") == {"status": "scheduled", "ended": False}
    for status in ("completed", "failed", "timed_out", "cancelled"):
        assert site.ask("GET", f"{site.ended(status)}?fields=ended") == {"ended": True}


# Statuses, transitions


@tries("Statuses", "queued", "running", "completed", "failed", "timed_out", "cancelled")
def _statuses(site: Site) -> None:
    ours = {"queued": "ready", "completed": "succeeded"}
    for status in ("queued", "running", "completed", "failed", "timed_out", "cancelled"):
        address, _token = site.in_status(status)
        found = site.ask("GET", address)
        assert found["status"] == ours.get(status, status)
        listed = site.ask("GET", f"/jobs?queue={found['queue']}&status={status}")["results"]
        assert [job["id"] for job in listed] == [found["id"]]
    assert site.job(site.queue(), run_after="1h")["status"] == "scheduled"


def _from(source: str, **to: int) -> Callable[[Site], None]:
    def check(site: Site) -> None:
        words = ("queued", "running", "completed", "failed", "timed_out", "cancelled")
        for target in words:
            address, token = site.in_status(source)
            said = {"status": target} | ({"token": token} if token else {})
            expected = to.get(target)
            response = site.http.patch(address, json=said)
            if expected is not None:
                assert response.status_code == expected, (source, target, response.text)
                assert site.status(address) == {"queued": "ready", "completed": "succeeded"}.get(target, target)
                continue
            assert response.status_code in (400, 409), (source, target)
            error = response.json()["error"]
            if response.status_code == 409:
                assert {"from", "to"} <= set(error)
            else:
                assert "token" in error["fields"]

    return check


tries("Transitions", "from queued")(_from("queued", cancelled=204))
tries("Transitions", "from completed")(_from("completed", queued=204))
tries("Transitions", "from failed")(_from("failed", queued=204, cancelled=204))
tries("Transitions", "from timed_out")(_from("timed_out", queued=204, cancelled=204))
tries("Transitions", "from cancelled")(_from("cancelled", queued=204))


@tries("Transitions", "from running")
def _from_running(site: Site) -> None:
    _from("running", queued=204, completed=204, failed=204, timed_out=204, cancelled=204)(site)
    address, token = site.running()
    site.ask("PATCH", address, {"status": "cancelled"}, status=204)
    monitors()
    error = site.ask("PUT", f"{address}/heartbeat", {"token": token}, status=409)["error"]
    assert (error["code"], error["status"]) == ("lease_lost", "cancelled")


# Values


@tries("Values", "names of queues")
def _names(site: Site) -> None:
    name = f"{site.name()}.A-b_{'9' * 80}"
    site.ask("PUT", f"/queues/{name}", {}, status=201)
    for wrong in ("a%20b", "%C3%A4", ".a", "a..b", "x" * 101):
        site.ask("PUT", f"/queues/{wrong}", {}, status=400)


@tries("Values", "tags")
def _tag_values(site: Site) -> None:
    name = site.queue()
    site.job(name, tags=["ä b/c", "x" * 100])
    for wrong in ([""], ["  "], ["x" * 101], [1], "text"):
        site.ask("POST", "/jobs", {"queue": name, "tags": wrong}, status=400)


@tries("Values", "durations")
def _durations(site: Site) -> None:
    name = site.queue()
    for said, normal in (("30s", "30s"), ("1w2d7h", "1w2d7h"), (135, "2m15s"), ("0s", None), (0, None)):
        assert site.job(name, timeout=said)["timeout"] == normal
    for wrong in ("soon", -1, "1x", [], True):
        assert "timeout" in site.ask("POST", "/jobs", {"queue": name, "timeout": wrong}, status=400)["error"]["fields"]


@tries("Values", "input and output")
def _json(site: Site) -> None:
    for value in (None, True, 0, -1.5, "ä\U0001f600", [], {}, {"a": [None, {"b": 1}]}):
        name = site.queue()
        address, token = site.running(name, input=value)
        assert site.ask("GET", f"{address}?fields=input") == {"input": value}
        site.ask("PATCH", address, {"status": "completed", "output": value, "token": token}, status=204)
        assert site.ask("GET", f"{address}/output") == value


@tries("Values", "malformed bodies")
def _malformed(site: Site) -> None:
    response = site.http.post("/jobs", content=b'{"a": ', headers={"Content-Type": "application/json"})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid"
    assert "retries" in site.ask("POST", "/jobs", {"queue": site.queue(), "retries": "x"}, status=400)["error"]["fields"]


@tries("Values", "large bodies")
@tries("Configuration", "max_body_size")
def _large(site: Site) -> None:
    most = jobs_settings().api_max_body_bytes
    assert most == 2**20
    name = site.queue()
    error = site.ask("POST", "/jobs", {"queue": name, "input": "x" * most}, status=413)["error"]
    assert (error["code"], error["limit"]) == ("too_large", most)
    site.job(name, input="x" * (most // 2))


@tries("Values", "unknown keys")
@tries("Different on purpose", "unknown keys are 400")
def _unknown(site: Site) -> None:
    name = site.queue()
    error = site.ask("POST", "/jobs", {"queue": name, "retrys": 1}, status=400)["error"]
    assert "retries" in error["fields"]["retrys"][0]
    site.ask("PATCH", f"/jobs/{site.job(name)['id']}", {"retries_attempted": 0}, status=400)
    site.ask("GET", "/jobs?statuss=failed", status=400)


# Monitors


@tries("Monitors", "timeout")
def _timeout(site: Site) -> None:
    for limit in ("timeout", "heartbeat_timeout"):
        address, token = site.running(**{limit: "100ms"})

        def swept(address: str = address) -> bool:
            monitors()
            return site.status(address) == "timed_out"

        until(swept)
        assert site.ask("PUT", f"{address}/heartbeat", {"token": token}, status=409)["error"]["status"] == "timed_out"
    assert jobs_settings().sweep_interval <= 1


@tries("Monitors", "retry")
def _retry_monitor(site: Site) -> None:
    name = site.queue(retries=1, retry_delays=["100ms"])
    for status in ("failed", "timed_out"):
        address, token = site.running(name)
        site.ask("PATCH", address, {"status": status, "token": token}, status=204)
        assert site.status(address) == "scheduled"

        def staged(address: str = address) -> bool:
            monitors()
            return site.status(address) == "ready"

        until(staged)
        site.ask("PATCH", address, {"status": status, "token": site.claim(name)["token"]}, status=204)
        assert site.ask("GET", f"{address}?fields=status,ended") == {"status": status, "ended": True}


@tries("Monitors", "expiry")
@tries("Configuration", "expiry_check_statuses", "expiry_check_interval")
def _expiry(site: Site) -> None:
    name = site.queue(retention={"succeeded": "1ms", "timed_out": None})
    kept, gone = site.ended("timed_out", name), site.ended("completed", name)

    def pruned() -> bool:
        monitors()
        return site.http.get(gone).status_code == 404

    until(pruned)
    assert site.status(kept) == "timed_out"
    assert jobs_settings().prune_batch > 0


# Configuration


@tries("Configuration", "host, port, threads", "url", "key_namespace")
@tries("What its users asked for", "a container (6, 33)")
def _server(site: Site) -> None:
    # The project's own server answers, from the project's own database.
    assert site.url.startswith("http://")
    job = site.job(site.queue())
    with connection.cursor() as cursor:
        cursor.execute("SELECT queue FROM django_jobs_job WHERE queue = %s", [job["queue"]])
        assert [tuple(row) for row in cursor.fetchall()] == [(job["queue"],)]


@tries("Configuration", "timeout_check_interval", "retry_check_interval", "shutdown_timeout")
@tries("Configuration", "${VAR}")
@tries("What its users asked for", "environment variables in the configuration (20)")
def _settings(site: Site) -> None:
    environment = {"DJANGO_JOBS_SWEEP_INTERVAL": "2s", "DJANGO_JOBS_STOP_TIMEOUT": "1m"}
    read, problems = conf_settings.load({}, environment)
    assert (read.sweep_interval, read.stop_timeout, problems) == (2.0, 60.0, [])
    _read, problems = conf_settings.load({}, {"DJANGO_JOBS_GRACE": "x", "DJANGO_JOBS_MAX_ATTEMPTS": "y"})
    assert {problem.setting for problem in problems} == {"GRACE", "MAX_ATTEMPTS"}


@tries("Configuration", "next_job_delay")
def _wait(site: Site) -> None:
    name = site.queue()
    site.ask("POST", f"/queues/{name}/claim", {"wait": "100ms"}, status=204)
    error = site.ask("POST", f"/queues/{name}/claim", {"wait": "61s"}, status=400)["error"]
    assert "wait" in error["fields"]
    assert jobs_settings().api_wait_max == 60


@tries("Configuration", "log_level")
def _logs(site: Site) -> None:
    from django_jobs.api import errors

    assert errors.logger.name.startswith("django_jobs.")


@tries("Configuration", "[queue.NAME]")
@tries("What its users asked for", "queues in the configuration (11)")
def _declared(site: Site) -> None:
    name, other = site.name(), site.queue()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DJANGO_JOBS_QUEUES", f'{{"{name}": {{"timeout": "7s"}}}}')
        conf_settings.forget()
        call_command("jobs", "sync-queues", verbosity=0)
        assert site.ask("GET", f"/queues/{name}")["effective"]["timeout"] == "7s"
    conf_settings.forget()
    site.ask("GET", f"/queues/{other}")


# What its users asked for, and what is different


@tries("What its users asked for", "documented statuses that exist (18)")
def _described(site: Site) -> None:
    schema = site.ask("GET", "/schema")
    assert schema["components"]["schemas"]["DjangoJobsStatus"]["enum"] == [status.value for status in Status]


@tries("What its users asked for", "timed-out jobs without retries left, found at once (21)", "no job is there twice (21)")
def _timed_out(site: Site) -> None:
    name = site.queue()
    addresses = [site.ended("timed_out", name) for _number in range(4)]
    waiting, token = site.running(site.queue(retries=1, retry_delays="1h"))
    site.ask("PATCH", waiting, {"status": "timed_out", "token": token}, status=204)

    def listed() -> list[str]:
        return [f"/jobs/{job['id']}" for job in site.ask("GET", f"/jobs/timed-out?queue={name}")["results"]]

    assert listed() == addresses[::-1]
    assert waiting.removeprefix("/jobs/") not in site.http.get("/jobs/timed-out?page_size=500").text
    site.ask("PATCH", addresses[0], {"status": "queued"}, status=204)
    site.ask("PATCH", addresses[1], {"status": "cancelled"}, status=204)
    site.ask("DELETE", addresses[2], status=204)
    assert listed() == addresses[3:]
    ids = [each for part in site.ask("GET", f"/queues/{name}/job-ids").values() for each in part["results"]]
    assert len(ids) == len(set(ids)) == 3


@tries("What its users asked for", "acknowledge a timed-out job (21)")
def _acknowledge(site: Site) -> None:
    first, second = site.ended("timed_out"), site.ended("timed_out")
    site.ask("PATCH", first, {"status": "cancelled"}, status=204)
    site.ask("POST", f"{second}/cancel", {"reason": "seen"})
    assert site.status(first) == site.status(second) == "cancelled"


@tries("What its users asked for", "one database, several users (22)")
def _tokens(site: Site) -> None:
    own, other = site.queue(), site.queue()
    ids = {name: site.job(name)["id"] for name in (own, other)}
    _token, secret = make_token("bounded", verbs=list(VERBS), queues=[own], using="default")
    bounded = {"Authorization": f"Bearer {secret}"}
    assert [job["id"] for job in site.ask("GET", "/jobs", **bounded)["results"]] == [ids[own]]
    site.ask("GET", f"/jobs/{ids[other]}", status=404, **bounded)
    site.ask("POST", f"/queues/{other}/claim", status=403, **bounded)


@tries("What its users asked for", "requeue a timed-out job without a new one (23)")
def _requeue(site: Site) -> None:
    name = site.queue(retries=0)
    address = site.ended("timed_out", name)
    site.ask("PATCH", address, {"status": "queued"}, status=204)
    assert site.ask("GET", f"{address}?fields=status,attempts_used,queue") == {
        "status": "ready",
        "attempts_used": 0,
        "queue": name,
    }
    site.ask("PATCH", address, {"status": "timed_out", "token": site.claim(name)["token"]}, status=204)
    site.ask("POST", f"{address}/requeue", {"keep_attempts": True})
    assert site.ask("GET", f"{address}?fields=status,attempts_used") == {"status": "ready", "attempts_used": 1}


@tries("What its users asked for", "requests that don't get in each other's way (26)")
def _transactions(site: Site) -> None:
    name = site.queue()
    site.ask("POST", "/jobs", [{"queue": name}, {"queue": name, "priority": "x"}], status=400)
    assert site.ask("GET", f"/queues/{name}/size") == 0
    address, token = site.running(name)
    site.ask("PATCH", address, {"status": "completed", "output": 1, "final": 7, "token": token}, status=400)
    assert site.ask("GET", f"{address}?fields=status,output") == {"status": "running", "output": None}


@tries("Different on purpose", "a claim is POST")
def _claim_is_post(site: Site) -> None:
    name = site.queue()
    site.job(name)
    site.ask("GET", f"/queues/{name}/claim", status=405)
    assert site.ask("GET", f"/queues/{name}/size") == 1


@tries("Different on purpose", "a token for each attempt")
def _token_of_attempt(site: Site) -> None:
    name = site.queue(retries=3, retry_delays=0)
    address, lost = site.running(name)
    site.ask("PATCH", address, {"status": "failed", "token": lost}, status=204)
    held = site.claim(name)["token"]
    assert held != lost
    for said in ({"status": "completed", "token": lost}, {"output": 1, "token": lost}):
        site.ask("PATCH", address, said, status=409)
    site.ask("PATCH", address, {"status": "completed"}, status=400)
    site.ask("PUT", f"{address}/heartbeat", {"token": held}, status=204)
    assert site.status(address) == "running"


@tries("Different on purpose", "access only with a token or a permission")
def _closed(site: Site) -> None:
    for path in ("/jobs", "/info", "/health", "/version", "/nothing"):
        error = site.ask("GET", path, status=401, Authorization="")["error"]
        assert error["code"] == "unauthenticated"


@tries("Different on purpose", "errors are JSON")
def _errors(site: Site) -> None:
    for method, path, status in (("GET", f"/jobs/{MISSING}", 404), ("GET", "/nothing", 404), ("PUT", "/jobs", 405)):
        response, body = site.answer(method, path, status=status)
        assert response.headers["Content-Type"] == "application/json"
        assert {"code", "message"} <= set(body["error"])


@tries("Different on purpose", "output: null is written")
def _null(site: Site) -> None:
    address, token = site.running()
    site.ask("PATCH", address, {"output": 1, "token": token}, status=204)
    site.ask("PATCH", address, {"progress": {"done": 1}, "token": token}, status=204)
    assert site.ask("GET", f"{address}/output") == 1
    site.ask("PATCH", address, {"output": None, "token": token}, status=204)
    assert site.ask("GET", f"{address}/output") is None


@tries("Different on purpose", "lists come in pages")
def _pages(site: Site) -> None:
    name = site.queue()
    made = [site.job(name)["id"] for _number in range(3)]
    page = site.ask("GET", f"/jobs?queue={name}&page_size=2&fields=id")
    assert [job["id"] for job in page["results"]] == made[:0:-1]
    assert [job["id"] for job in site.ask("GET", page["next"])["results"]] == made[:1]
    site.ask("GET", "/jobs?page_size=501", status=400)


@tries("Different on purpose", "an empty retry_delays is a growing pause")
def _growing(site: Site) -> None:
    name = site.queue(retries=1, retry_delays=[])
    address, token = site.running(name)
    site.ask("PATCH", address, {"status": "failed", "token": token}, status=204)
    assert site.status(address) == "scheduled"
    address, token = site.running(site.queue(retries=1, retry_delays=0))
    site.ask("PATCH", address, {"status": "failed", "token": token}, status=204)
    assert site.status(address) == "ready"


def _by_what_tries_them() -> dict[Callable[[Site], None] | str, list[str]]:
    """Return what tries the rows of the page; a row that nothing tries stands for itself, and fails."""
    found: dict[Callable[[Site], None] | str, list[str]] = {}
    for row in ROWS:
        found.setdefault(TRIED.get((row.section, row.left), row.left), []).append(f"{row.section}: {row.left}")
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tried", "rows"), [pytest.param(*each, id="; ".join(each[1])) for each in _by_what_tries_them().items()]
)
def test_rows(site: Site, tried: Callable[[Site], None] | str, rows: list[str]):
    assert callable(tried), f"nothing tries {rows}"
    tried(site)

"""Claims over HTTP: what they give, that no two give the same, and how they wait."""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.db import connection, transaction
from django.test import override_settings

from django_jobs import db
from django_jobs.api import longpoll
from django_jobs.inputs import INPUT_TASK
from django_jobs.lifecycle import sweep
from django_jobs.models import Job, JobLock
from django_jobs.statuses import Status
from tests.api.calls import PREFIX, Api, http_queue
from tests.support.jobs import in_threads, make_job

pytestmark = pytest.mark.django_db(transaction=True)
#: Without notifications a claim is woken by the poll, once a second.
SOON = 0.9 if connection.vendor == "postgresql" else 3.0
THREAD = "django_jobs long poll default"


@pytest.fixture
def api() -> Api:
    http_queue()
    return Api()


@pytest.fixture(autouse=True)
def _no_thread_left(transactional_db: None) -> Iterator[None]:
    yield
    longpoll.hub("default").stop()
    longpoll._forget()


def put(api: Api, **item: Any) -> str:
    return str(api.ok("POST", "/jobs/", {"queue": "web", **item}, status=201)["id"])


def waiting(api: Api, count: int = 1, **body: Any) -> list[Callable[[], Any]]:
    """Return functions that claim and wait; each returns the seconds that it took, and the response."""

    def claim() -> tuple[float, Any]:
        begin = time.monotonic()
        response = api.call("POST", "/queues/web/claim/", {"wait": 20, **body})
        return time.monotonic() - begin, response

    return [claim] * count


def until(test: Callable[[], bool], what: str, seconds: float = 15.0) -> None:
    """Wait until `test()`, for a bounded time."""
    end = time.monotonic() + seconds
    pause = threading.Event()
    while not test():
        assert time.monotonic() < end, f"gave up waiting for {what}"
        pause.wait(0.01)


def when_waiting(count: int, act: Callable[[], Any]) -> Callable[[], Any]:
    """Return a function that acts once so many claims wait."""

    def run() -> Any:
        until(lambda: longpoll.hub("default").count >= count, "the claims to wait")
        return act()

    return run


def taken(*answers: tuple[float, Any]) -> list[str]:
    """Return the ids of the jobs in the answers."""
    return [job["id"] for _seconds, response in answers if response.status_code == 200 for job in response.json()["jobs"]]


# What a claim gives.


def test_a_claim_gives_jobs_with_tokens_in_the_order_of_the_queue(api: Api) -> None:
    low = put(api, input={"a": 1}, timeout=60)
    high = put(api, priority=5)
    put(api, queue="web.below")
    jobs = api.ok("POST", "/queues/web/claim/", {"limit": 10, "worker": "me"})["jobs"]
    assert [job["id"] for job in jobs] == [high, low]
    assert (jobs[1]["input"], jobs[1]["status"], jobs[1]["worker"], jobs[1]["attempt"]) == ({"a": 1}, "running", "me", 1)
    assert jobs[0]["lease_expires_at"] is None, "no limit, no end"
    assert jobs[1]["lease_expires_at"].endswith("Z")
    assert {job["token"] for job in jobs} == {str(row.token) for row in JobLock.objects.all()}
    assert api.ok("POST", "/queues/web/claim", status=204) is None


def test_a_registered_task_is_served_with_its_arguments(api: Api) -> None:
    put(api, task="tests.project.jobs.add", args=[1], kwargs={"b": 2})
    (job,) = api.ok("POST", "/queues/web/claim/")["jobs"]
    assert (job["task"], job["args"], job["kwargs"], job["input"]) == ("tests.project.jobs.add", [1], {"b": 2}, None)


def test_without_a_limit_a_claim_gives_one(api: Api) -> None:
    for _ in range(2):
        put(api)
    assert len(api.ok("POST", "/queues/web/claim/")["jobs"]) == 1


def test_a_worker_sees_the_input_of_what_it_claims_and_needs_no_other_verb(api: Api) -> None:
    put(api, input="secret")
    assert Api("claim", queues=("web",)).ok("POST", "/queues/web/claim/")["jobs"][0]["input"] == "secret"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": 101}, "limit"),
        ({"limit": "x"}, "limit"),
        ({"limit": True}, "limit"),
        ({"wait": -1}, "wait"),
        ({"wait": 61}, "wait"),
        ({"wait": "x"}, "wait"),
        ({"worker": "x" * 65}, "worker"),
        ({"worker": 5}, "worker"),
        ({"limits": 5}, "limits"),
    ],
)
def test_bad_claims_take_nothing(api: Api, body: dict[str, Any], field: str) -> None:
    put(api)
    assert list(api.error("POST", "/queues/web/claim/", body, status=400)["fields"]) == [field]
    assert Job.objects.get().status == "ready"


def test_where_nothing_can_come_a_claim_says_so_and_does_not_wait(api: Api) -> None:
    begin = time.monotonic()
    api.error("POST", "/queues/unknown/claim/", {"wait": 20}, status=404)
    api.ok("PUT", "/queues/plain/", {}, status=201)
    make_job(queue="plain")
    assert "is_http" in api.error("POST", "/queues/plain/claim/", {"wait": 20}, status=409)["message"]
    assert time.monotonic() - begin < 5
    assert api.ok("POST", "/queues/web.undeclared/claim/", status=204) is None


def test_get_claims_nothing(api: Api) -> None:
    put(api)
    api.error("GET", "/queues/web/claim/", status=405)
    assert Job.objects.get().status == "ready"


def test_a_token_claims_in_its_own_queues_alone(api: Api) -> None:
    http_queue("other")
    assert Api("claim", queues=("other",)).error("POST", "/queues/web/claim/", status=403)["queue"] == "web"
    Api("view").error("POST", "/queues/web/claim/", status=403)


def test_claims_at_once_never_give_a_job_twice(api: Api) -> None:
    ids = {each["id"] for each in api.ok("POST", "/jobs/", [{"queue": "web"}] * 60, status=201)["results"]}

    def drain() -> list[str]:
        found: list[str] = []
        while (response := api.call("POST", "/queues/web/claim/", {"limit": 3})).status_code == 200:
            found += [job["id"] for job in response.json()["jobs"]]
        # A claim that meets others' locks may find nothing; what is left shows below.
        return found

    found = [job_id for part in in_threads(*[drain] * 4) for job_id in part] + drain()
    assert len(found) == len(set(found)) == 60
    assert set(found) == ids
    assert set(Job.objects.values_list("starts", flat=True)) == {1}


# Waiting.


def test_a_waiting_claim_gets_the_job_as_it_comes(api: Api) -> None:
    (seconds, response), (job_id, began) = in_threads(
        *waiting(api), when_waiting(1, lambda: (put(api, input="new"), time.monotonic()))
    )
    assert response.json()["jobs"][0]["id"] == job_id
    assert seconds < 15
    assert time.monotonic() - began < SOON + 1


def test_many_wait_with_one_thread_and_each_job_goes_to_one(api: Api) -> None:
    threads: list[str] = []

    def feed() -> list[str]:
        threads.extend(thread.name for thread in threading.enumerate())
        ids = [put(api) for _ in range(3)]
        more = api.ok("POST", "/jobs/", [{"queue": "web"}] * 5, status=201)["results"]
        return ids + [each["id"] for each in more]

    *answers, ids = in_threads(*waiting(api, 8), when_waiting(8, feed), timeout=60)
    assert sorted(taken(*answers)) == sorted(ids)
    assert all(seconds < 15 for seconds, _response in answers)
    assert threads.count(THREAD) == 1


@pytest.mark.skipif(connection.vendor != "postgresql", reason="asks PostgreSQL for its sessions")
def test_who_waits_holds_no_database_connection(api: Api) -> None:
    def sessions() -> int:
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
            return int(cursor.fetchone()[0])

    before = sessions()
    counts: list[int] = []

    def look() -> None:
        until(lambda: sessions() <= before + 3, "the sessions to be closed")
        counts.append(sessions())

    in_threads(*waiting(api, 8, wait=4), when_waiting(8, look))
    assert counts[0] <= before + 3, "the listener's two, and the test's own"


def test_who_waits_in_vain_gets_nothing_in_time(api: Api) -> None:
    ((seconds, response),) = in_threads(*waiting(api, wait="0.4s"))
    assert response.status_code == 204
    assert 0.3 < seconds < 5
    assert "Retry-After" not in response
    assert longpoll.hub("default").count == 0


@override_settings(DJANGO_JOBS={"API_WAITING_MAX": 1})
def test_no_more_wait_than_may(api: Api) -> None:
    def second() -> tuple[float, Any]:
        answer: tuple[float, Any] = waiting(api)[0]()
        put(api)
        return answer

    first, (seconds, response) = in_threads(*waiting(api), when_waiting(1, second))
    assert (response.status_code, response["Retry-After"]) == (204, "1")
    assert seconds < 5
    assert first[1].status_code == 200


def test_a_job_that_becomes_due_wakes(api: Api) -> None:
    job = make_job(
        Status.SCHEDULED,
        queue="web",
        is_http=True,
        task=INPUT_TASK,
        args=[1],
        due_at=db.server_now(connection) + timedelta(hours=1),
    )

    def stage() -> None:
        Job.objects.filter(pk=job.pk).update(due_at=db.server_now(connection))
        with transaction.atomic():
            swept = sweep.stage_due(using="default", limit=10)
            assert swept.touched == 1
        from django_jobs import wakeup

        wakeup.wake("default", swept.queues)

    (seconds, response), _ = in_threads(*waiting(api), when_waiting(1, stage))
    assert response.json()["jobs"][0]["id"] == str(job.pk)
    assert seconds < 15


def test_a_job_of_another_queue_wakes_nobody(api: Api) -> None:
    http_queue("other")
    (_seconds, response), _ = in_threads(*waiting(api, wait=1), when_waiting(1, lambda: put(api, queue="other")))
    assert response.status_code == 204
    assert Job.objects.get().status == "ready"


def test_a_thread_that_has_died_is_replaced(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(longpoll, "CHECK_SECONDS", 0.1)

    def kill() -> str:
        longpoll.hub("default").stop()
        return put(api)

    answer, job_id = in_threads(*waiting(api), when_waiting(1, kill))
    assert taken(answer) == [job_id]
    assert answer[0] < 15


@pytest.mark.skipif(connection.vendor != "postgresql", reason="LISTEN is PostgreSQL's")
def test_a_listener_that_is_cut_off_is_no_loss(api: Api) -> None:
    def cut() -> str:
        with connection.cursor() as cursor:
            until(lambda: _cut_listeners(cursor) > 0, "the listener")
        return put(api)

    answer, job_id = in_threads(*waiting(api), when_waiting(1, cut))
    assert taken(answer) == [job_id]
    assert answer[0] < 15


def _cut_listeners(cursor: Any) -> int:
    cursor.execute(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
        " WHERE datname = current_database() AND query LIKE 'LISTEN %' AND state = 'idle'"
    )
    return int(cursor.fetchone()[0])


def test_the_thread_ends_when_nobody_waits(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(longpoll, "IDLE_SECONDS", 0.1)
    in_threads(*waiting(api, wait="0.2s"))
    until(lambda: THREAD not in [thread.name for thread in threading.enumerate()], "the thread to end")


def test_who_was_woken_too_late_wakes_the_next() -> None:
    hub = longpoll.Hub("default")
    try:
        with hub.waiting("web") as second:
            with hub.waiting("web") as first:
                assert first is not None
                assert second is not None
                second.event.clear()
                hub.wake("web")
                hub.wake("web")
                assert (first.event.is_set(), second.event.is_set()) == (True, True)
                second.event.clear()
            assert second.event.is_set(), "the first left without having looked"
    finally:
        hub.stop()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_begins_anew() -> None:
    hub = longpoll.hub("default")
    with hub.waiting("web"):
        pid = os.fork()
        if pid == 0:
            os._exit(0 if not longpoll._hubs and longpoll.hub("default") is not hub else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.skipif(connection.vendor == "sqlite", reason="the live server shares the one connection of a database in memory")
def test_over_real_http(api: Api, live_server: Any) -> None:
    address = urlsplit(live_server.url)

    def send(method: str, path: str, body: Any) -> tuple[int, Any]:
        client = http.client.HTTPConnection(address.hostname or "", address.port, timeout=30)
        headers = {"Authorization": f"Bearer {api.secret}", "Content-Type": "application/json"}
        client.request(method, PREFIX + path, json.dumps(body), headers)
        response = client.getresponse()
        text = response.read()
        client.close()
        return response.status, json.loads(text) if text else None

    (status, claimed), (created, job) = in_threads(
        lambda: send("POST", "/queues/web/claim", {"wait": 20}),
        when_waiting(1, lambda: send("POST", "/jobs", {"queue": "web", "input": [1, 2]})),
    )
    assert (status, created) == (200, 201)
    (held,) = claimed["jobs"]
    assert (held["id"], held["input"]) == (job["id"], [1, 2])
    assert send("PUT", f"/jobs/{job['id']}/heartbeat", {"token": held["token"]})[0] == 204
    done = {"status": "completed", "output": 3, "token": held["token"]}
    assert send("PATCH", f"/jobs/{job['id']}", done)[0] == 204
    assert send("PATCH", f"/jobs/{job['id']}", done)[0] == 409
    assert send("GET", f"/jobs/{job['id']}/output", None) == (200, 3)

"""The client against a real server: real processes, real kills, a network that is cut."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.db import connection

from django_jobs import db
from django_jobs.client import Client, Conflict, Forbidden, Invalid, Job, LeaseLost, NotFound, Unauthorized
from django_jobs.lifecycle.tokens import make_token
from django_jobs.models import Job as Row
from django_jobs.models import Queue
from tests.client.conftest import Program
from tests.support.http_site import HttpSite
from tests.support.jobs import locked
from tests.support.proxy import Proxy
from tests.support.worker import Runner, row, until

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("queue")]
#: What a lease is in these tests. Seconds.
LEASE = 2


def status(job: Job, wanted: str) -> Row:
    """Wait until the job has a status, and return its row."""
    return until(lambda: found if (found := row(job)).status == wanted else None, f"{job.id} to be {wanted}")


def put(client: Client, name: str, **options: Any) -> Job:
    """Enqueue a job for the worker program; `until` is the file for which it waits."""
    own = {key: str(options.pop(key)) for key in ("until", "checks") if key in options}
    return client.enqueue(queue="q", input={"name": name, **own}, **options)


# --- calls ---


def test_a_job_from_end_to_end(client: Client) -> None:
    job = client.enqueue(queue="q", input={"a": [1, None]}, heartbeat_timeout=30, timeout="10m", tags=["x"], description="one")
    assert (job.status, job.input, job.tags) == ("ready", {"a": [1, None]}, ["x"])
    (held,) = client.claim("q", limit=5, worker="me")
    assert (held.id, held.input, held.attempt, held.heartbeat_timeout, held.timeout) == (job.id, {"a": [1, None]}, 1, 30.0, 600.0)
    assert held.lease_expires_at is not None
    client.heartbeat(held)
    client.heartbeat(held, progress={"done": 1, "total": 2, "message": "half"})
    client.save(held, ["part"])
    assert client.output(job) == ["part"]
    found = client.get(job)
    assert (found.status, found.ended, found["worker"]) == ("running", False, "me")
    assert found["progress"] == {"done": 1, "total": 2, "message": "half"}
    client.finish(held, {"b": 2}, logs="done it\n")
    assert (client.status(job), client.output(job)) == ("succeeded", {"b": 2})
    with pytest.raises(LeaseLost, match="has ended") as caught:
        client.heartbeat(held)
    assert caught.value.job_status == "succeeded"


def test_null_is_an_output_and_nothing_leaves_what_was_saved(client: Client) -> None:
    for output, wanted in ((None, None), ((), "part")):
        job = client.enqueue(queue="q", input=1)
        (held,) = client.claim("q")
        client.save(held, "part")
        client.finish(held, None) if output is None else client.finish(held)
        assert client.output(job) == wanted


def test_failures_are_tried_again_unless_they_are_final(client: Client, sweeps: Runner) -> None:
    job = client.enqueue(queue="q", input=1)
    (held,) = client.claim("q")
    client.fail(held, "no", error_class="shop.Broken", traceback="Traceback ...")
    (held,) = until(lambda: client.claim("q", wait=1), "the retry")
    assert held.attempt == 2
    client.fail(held, "never", final=True)
    found = client.get(job)
    assert (found.status, found.ended, found.error["message"]) == ("failed", True, "never")


def test_what_is_handed_back_runs_again(client: Client, sweeps: Runner) -> None:
    job = client.enqueue(queue="q", input=1)
    (held,) = client.claim("q")
    client.hand_back(held)
    (again,) = until(lambda: client.claim("q", wait=1), "the same job")
    assert (again.id, again.attempt) == (job.id, 2)
    assert Row.objects.get(pk=job.id).attempts_used == 1, "the one that was given back is not counted"
    with pytest.raises(LeaseLost, match="taken over") as caught:
        client.finish(held)
    assert caught.value.job_status == "running"


def test_the_same_key_is_the_same_job(client: Client) -> None:
    first = client.enqueue(queue="q", input=1, idempotency_key="order-7")
    assert client.enqueue(queue="q", input=1, idempotency_key="order-7").id == first.id
    with pytest.raises(Conflict):
        client.enqueue(queue="q", input=2, idempotency_key="order-7")
    assert Row.objects.count() == 1


def test_many_jobs_and_their_pages(client: Client) -> None:
    made = client.enqueue_many([{"queue": "q", "input": number, "tags": ["many"]} for number in range(7)])
    assert [job["created"] for job in made] == [True] * 7
    found = list(client.jobs(queue="q", status=["ready", "failed"], page_size=3))
    assert sorted(job.id for job in found) == sorted(job.id for job in made)
    assert list(client.jobs(status="failed")) == []


def test_verbs(client: Client) -> None:
    job = client.enqueue(queue="q", input=1, run_after=3600)
    assert job.status == "scheduled"
    client.change(job, priority=7, tags=["late"])
    assert client.run_now(job, reason="can't wait").status == "ready"
    assert client.cancel(job, reason="not needed").status == "cancelled"
    assert client.requeue(job).status == "ready"
    assert client.done(job, reason="by hand").status == "succeeded"
    held = client.requeue_and_claim(job, worker="me")
    assert (held.id, held["priority"], held.tags) == (job.id, 7, ["late"])
    client.fail(held, "x", final=True)
    client.delete(job)
    with pytest.raises(NotFound):
        client.get(job)
    assert client.info()["queues"]["q"]["ready"] == 0


def test_refusals(client: Client, site: HttpSite) -> None:
    with pytest.raises(Invalid) as caught:
        client.enqueue(queue="q", input=1, timeot=3)
    assert list(caught.value.fields) == ["timeot"]
    with pytest.raises(NotFound):
        client.claim("nowhere")
    with Client(site.url, "dj_wrong") as stranger, pytest.raises(Unauthorized):
        stranger.get("0198c0de-0000-7000-8000-000000000001")
    with (
        Client(site.url, make_token("seer", verbs=["view"], using="default")[1]) as seer,
        pytest.raises(Forbidden, match="claim"),
    ):
        seer.claim("q")


# --- deaths ---


def test_the_job_of_a_killed_worker_runs_again(client: Client, program: Program, sweeps: Runner, tmp_path: Path) -> None:
    job = put(client, "a", until=tmp_path / "go", heartbeat_timeout=LEASE)
    first = program.start()
    until(lambda: program.notes("a", "start"), "the first start")
    os.killpg(first.pid, signal.SIGKILL)
    first.wait(20)
    second = program.start()
    until(lambda: len(program.notes("a", "start")) == 2, "the second start")
    (tmp_path / "go").touch()
    assert status(job, "succeeded").starts == 2
    assert [(attempt, pid) for attempt, pid, _ in program.notes("a", "start")] == [(1, first.pid), (2, second.pid)]


def test_a_heart_keeps_a_long_job(client: Client, program: Program, sweeps: Runner, tmp_path: Path) -> None:
    """Twice as long as its lease, by the server's clock."""
    job = put(client, "a", until=tmp_path / "go", heartbeat_timeout=LEASE)
    program.start()
    first = until(lambda: row(job).last_heartbeat_at, "a heartbeat")
    until(lambda: (row(job).last_heartbeat_at - first).total_seconds() > 2 * LEASE, "heartbeats for two leases")
    (tmp_path / "go").touch()
    assert status(job, "succeeded").starts == 1


def test_a_cancel_reaches_the_handler(client: Client, program: Program, tmp_path: Path) -> None:
    job = put(client, "a", until=tmp_path / "never", checks=True, heartbeat_timeout=LEASE)
    program.start()
    until(lambda: program.notes("a", "start"), "its start")
    assert client.cancel(job, reason="not needed").status == "cancelled"
    until(lambda: program.notes("a", "stopped lease_lost"), "the handler's stop")
    after = put(client, "b")
    status(after, "succeeded")
    assert row(job).status == "cancelled"
    assert "not needed" in program.log()


def test_what_was_taken_over_is_not_recorded(client: Client, program: Program, sweeps: Runner, tmp_path: Path) -> None:
    """A worker that is stopped for longer than its lease finds, when it goes on, that another has its job."""
    job = put(client, "a", until=tmp_path / "go", heartbeat_timeout=LEASE)
    first = program.start()
    until(lambda: program.notes("a", "start"), "its start")
    os.kill(first.pid, signal.SIGSTOP)
    program.start()
    until(lambda: len(program.notes("a", "start")) == 2, "the second start")
    (tmp_path / "go").touch()
    status(job, "succeeded")
    os.kill(first.pid, signal.SIGCONT)
    until(lambda: "what it did is not recorded" in program.log(), "the news")
    found = row(job)
    assert (found.status, found.starts) == ("succeeded", 2)
    status(put(client, "b"), "succeeded")


# --- stops ---


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_worker_finishes_what_it_runs(client: Client, program: Program, tmp_path: Path, number: int) -> None:
    job, later = put(client, "a", until=tmp_path / "go"), put(client, "b")
    worker = program.start()
    until(lambda: program.notes("a", "start"), "its start")
    os.kill(worker.pid, number)
    (tmp_path / "go").touch()
    assert worker.wait(20) == 0
    assert (row(job).status, row(later).status) == ("succeeded", "ready")
    assert "ended in order" in program.log()


def test_a_worker_that_is_stopped_hands_back_what_it_can_not_finish(client: Client, program: Program, tmp_path: Path) -> None:
    job = put(client, "a", until=tmp_path / "never", checks=True)
    worker = program.start(options=json.dumps({"stop_timeout": 0.2}))
    until(lambda: program.notes("a", "start"), "its start")
    os.kill(worker.pid, signal.SIGTERM)
    assert worker.wait(20) == 0
    found = row(job)
    assert (found.status, found.starts) in (("ready", 1), ("scheduled", 1))


def test_an_idle_worker_stops_and_loses_nothing(client: Client, program: Program) -> None:
    """Jobs come while it is told to stop: each has run, or is there for the next."""
    worker = program.start(options=json.dumps({"wait": 5}))
    first = put(client, "first")
    status(first, "succeeded")
    os.kill(worker.pid, signal.SIGTERM)
    jobs = [put(client, f"n{number}") for number in range(10)]
    assert worker.wait(20) == 0
    assert {row(job).status for job in jobs} <= {"ready", "succeeded"}
    assert Row.objects.filter(status="running").count() == 0


# --- cuts ---


def test_the_network_is_cut_while_a_job_runs(
    client: Client, site: HttpSite, program: Program, sweeps: Runner, tmp_path: Path
) -> None:
    """For less than its lease: nothing happens. Its end is told when the network is back."""
    with Proxy(site.port) as proxy:
        job = put(client, "a", until=tmp_path / "go", heartbeat_timeout=60)
        program.start(url=site.url_at(proxy.port), options=json.dumps({"heartbeat_every": 0.2}))
        until(lambda: row(job).last_heartbeat_at, "a heartbeat")
        proxy.cut()
        until(lambda: "the heartbeat was not taken" in program.log(), "a heartbeat that fails")
        (tmp_path / "go").touch()
        until(lambda: "how it ended can't be told yet" in program.log(), "an end that can't be told")
        assert row(job).status == "running"
        proxy.mend()
        assert status(job, "succeeded").starts == 1
        status(put(client, "b"), "succeeded")
    assert len(program.notes("a", "start")) == 1


def test_the_network_is_cut_for_longer_than_the_lease(
    client: Client, site: HttpSite, program: Program, sweeps: Runner, tmp_path: Path
) -> None:
    """The worker that is cut off stops its copy by its own clock, and another runs the job."""
    with Proxy(site.port) as proxy:
        job = put(client, "a", until=tmp_path / "go", checks=True, heartbeat_timeout=LEASE)
        program.start(url=site.url_at(proxy.port))
        until(lambda: program.notes("a", "start"), "its start")
        proxy.cut()
        until(lambda: program.notes("a", "stopped over"), "the stop of the copy")
        program.start()
        until(lambda: len(program.notes("a", "start")) == 2, "the second start")
        (tmp_path / "go").touch()
        assert status(job, "succeeded").starts == 2
        proxy.mend()
        status(put(client, "b"), "succeeded")


def test_answers_that_are_lost(client: Client, site: HttpSite, token: str) -> None:
    """What was sent has been done: an enqueue makes one job, an end that is told again is no error."""
    with Proxy(site.port) as proxy, Client(site.url_at(proxy.port), token, retry_delays=[0.01] * 100) as cut_off:
        slept = cut_off.wire._sleep

        def mend(seconds: float) -> None:
            slept(seconds)
            proxy.mend()

        cut_off.wire._sleep = mend
        proxy.swallow()
        job = cut_off.enqueue(queue="q", input=1)
        assert Row.objects.count() == 1
        (held,) = cut_off.claim("q")
        proxy.swallow()
        cut_off.finish(held, "once")
        assert row(job).result == "once"
        proxy.swallow()
        cut_off.delete(job)
        assert Row.objects.count() == 0


def test_nothing_is_claimed_for_a_client_that_has_gone(client: Client, site: HttpSite, token: str, queue: Queue) -> None:
    """Its long poll is the first in the line when a job comes; whoever waits behind it gets the job."""
    gone = http.client.HTTPConnection("127.0.0.1", site.port, timeout=20)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    gone.request(
        "POST", urlsplit(site.url).path.rstrip("/") + "/queues/q/claim/", json.dumps({"wait": 25, "worker": "gone"}), headers
    )
    assert client.claim("q") == []
    with ThreadPoolExecutor() as pool, Client(site.url, token) as second:
        claims = pool.submit(second.claim, "q", wait=15)
        assert client.claim("q") == []
        gone.close()
        job = put(client, "a")
        (held,) = claims.result(25)
    assert held.id == job.id
    assert row(job).worker != "gone"


@pytest.mark.skipif(not connection.features.has_select_for_update_skip_locked, reason="this database has no row locks")
def test_a_job_that_somebody_has_locked_is_finished_a_little_later(
    client: Client, site: HttpSite, token: str, queue: Queue
) -> None:
    job = put(client, "a")
    (held,) = client.claim("q")
    lock = locked(db.JOB, "id", row(job).id, "FOR UPDATE")
    with Client(site.url, token, retry_delays=[0.01] * 100) as other:
        lock.__enter__()
        slept, refused = other.wire._sleep, []

        def let_go(seconds: float) -> None:
            slept(seconds)
            if not refused:
                lock.__exit__(None, None, None)
            refused.append(seconds)

        other.wire._sleep = let_go
        other.finish(held, "done")
    assert refused, "it was told to come again"
    assert row(job).result == "done"


def test_the_server_is_killed_and_comes_back(client: Client, site: HttpSite, program: Program, tmp_path: Path) -> None:
    """While a job runs and while an idle worker waits in a long poll."""
    job = put(client, "a", until=tmp_path / "go", heartbeat_timeout=60)
    program.start(options=json.dumps({"heartbeat_every": 0.2, "wait": 30, "concurrency": 2}))
    until(lambda: program.notes("a", "start"), "its start")
    site.kill()
    until(lambda: "No jobs can be claimed" in program.log(), "a claim that fails")
    (tmp_path / "go").touch()
    until(lambda: "how it ended can't be told yet" in program.log(), "an end that can't be told")
    site.start()
    assert status(job, "succeeded").starts == 1
    status(put(client, "b"), "succeeded")


def test_a_token_that_is_revoked_ends_the_worker(client: Client, program: Program, token: str) -> None:
    from django_jobs.models import ApiToken

    worker = program.start()
    status(put(client, "a"), "succeeded")
    ApiToken.objects.all().delete()
    assert worker.wait(30) == 1
    assert "Unauthorized" in program.log()


def test_two_workers_share_a_queue_and_run_each_job_once(client: Client, program: Program) -> None:
    workers: list[subprocess.Popen[bytes]] = [program.start(options=json.dumps({"concurrency": 3})) for _ in range(2)]
    jobs = client.enqueue_many([{"queue": "q", "input": {"name": f"n{number}"}} for number in range(60)])
    until(lambda: Row.objects.filter(status="succeeded").count() == len(jobs), "all jobs")
    assert set(Row.objects.values_list("starts", flat=True)) == {1}
    for worker in workers:
        os.kill(worker.pid, signal.SIGTERM)
    assert [worker.wait(20) for worker in workers] == [0, 0]


def test_a_queue_of_the_sites_own_workers_is_not_served_over_http(client: Client) -> None:
    Queue.objects.create(name="mail")
    with pytest.raises(Conflict, match="not for HTTP workers"):
        client.claim("mail")

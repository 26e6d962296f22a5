"""`/health/`: what is wrong is a 503 with the name of the check, and comes within seconds."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection, connections

from django_jobs import db
from django_jobs.api import health
from django_jobs.api.health import LATE_SECONDS, PROBE_SECONDS, Probe
from django_jobs.models import Leader
from tests.api.conftest import Api
from tests.api.test_service import make_worker
from tests.support.jobs import make_job

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "probe", Probe())


def swept(seconds: float = 0.0, **values: Any) -> None:
    """Let a service have been due since `seconds`."""
    Leader.objects.create(name="stager", next_at=db.server_now(connection) - timedelta(seconds=seconds), **values)


def checks(api: Api, status: int) -> dict[str, tuple[bool, str]]:
    response = api.get("health/")
    assert response.status_code == status, response.content
    assert response.headers["Cache-Control"] == "no-store"
    assert api.body["status"] == ("healthy" if status == 200 else "unhealthy")
    assert ("error" in api.body) == (status != 200)
    return {check["name"]: (check["ok"], check["message"]) for check in api.body["checks"]}


def test_all_is_well(token: Callable[..., Api]) -> None:
    swept()
    assert {name: ok for name, (ok, _message) in checks(token("view"), 200).items()} == {
        "database": True,
        "workers": True,
        "maintenance": True,
    }


@pytest.mark.parametrize(
    ("queues", "serves"),
    [
        ([], True),
        (["mail"], True),
        (["mail.*"], True),
        (["*"], True),
        (["post"], False),
        (["mail.x"], False),
        (["!mail"], False),
        (["!post"], True),
        (["*", "!mail.*"], False),
    ],
)
def test_work_that_nobody_does_is_told(token: Callable[..., Api], queues: list[str], serves: bool) -> None:
    swept()
    make_job(queue="mail")
    assert checks(token("view"), 503)["workers"] == (False, "Nobody works on mail: start a worker (manage.py runjobs).")
    make_worker(queues=queues)
    assert checks(token("view"), 200 if serves else 503)["workers"][0] is serves


def test_a_worker_that_stopped_or_is_silent_does_not_count(token: Callable[..., Api]) -> None:
    swept()
    make_job(queue="mail")
    now = db.server_now(connection)
    make_worker(stopped_at=now)
    make_worker(seen_at=now - timedelta(minutes=2))
    assert checks(token("view"), 503)["workers"][0] is False


def test_work_that_can_not_start_anyway_or_is_for_http_workers_needs_nobody(token: Callable[..., Api]) -> None:
    swept()
    make_job(queue="mail", parked="paused")
    make_job(queue="http", is_http=True)
    assert checks(token("view"), 200)["workers"] == (True, "No queue has work.")


def test_many_queues_are_named_in_part(token: Callable[..., Api]) -> None:
    swept()
    for number in range(8):
        make_job(queue=f"q{number}")
    assert "q0, q1, q2, q3, q4 and 3 more" in checks(token("view"), 503)["workers"][1]


def test_a_token_hears_of_its_queues_alone(token: Callable[..., Api]) -> None:
    swept()
    make_job(queue="post")
    assert checks(token("view", queues=["mail"]), 200)["workers"][0] is True


def test_sweeps_that_are_late_fail_or_never_came_are_told(token: Callable[..., Api]) -> None:
    api = token("view")
    assert "No worker has looked after jobs yet" in checks(api, 503)["maintenance"][1]
    swept(LATE_SECONDS + 5)
    assert "stager" in checks(api, 503)["maintenance"][1]
    Leader.objects.update(next_at=db.server_now(connection), error="ValueError: oops")
    assert "oops" in checks(api, 503)["maintenance"][1]


def test_it_is_closed_unless_the_setting_opens_it_and_then_names_no_queue(settings: Any, nobody: Api) -> None:
    swept()
    make_job(queue="secret")
    nobody.error("GET", "health/", 401)
    settings.DJANGO_JOBS = {"API_OPEN_HEALTH": True}
    assert nobody.get("health/").status_code == 503
    assert "secret" not in str(nobody.body)
    assert [check["ok"] for check in nobody.body["checks"]] == [True, False, True]
    nobody.error("GET", "info/", 401)


def test_an_opened_one_tells_more_to_whoever_may_see_jobs(settings: Any, token: Callable[..., Api]) -> None:
    settings.DJANGO_JOBS = {"API_OPEN_HEALTH": True}
    swept()
    make_job(queue="mail")
    assert "mail" in checks(token("view"), 503)["workers"][1]
    assert checks(token("pause"), 503)["workers"][1] == ""


def test_a_database_that_refuses_is_a_503_of_this_shape(token: Callable[..., Api], monkeypatch: pytest.MonkeyPatch) -> None:
    api = token("view")
    monkeypatch.setattr(health.probe, "ask", lambda alias: "OperationalError: connection refused")
    assert checks(api, 503) == {"database": (False, "It does not answer.")}


def test_a_database_that_goes_away_after_the_probe_is_a_503_of_this_shape(
    token: Callable[..., Api], monkeypatch: pytest.MonkeyPatch
) -> None:
    api = token("view")

    def away(*args: Any, **kwargs: Any) -> Any:
        raise OperationalError("gone")

    monkeypatch.setattr(health, "check_workers", away)
    assert checks(api, 503) == {"database": (False, "It does not answer.")}


def test_nobody_makes_it_ask_the_database(nobody: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(health.probe, "ask", lambda alias: asked.append(alias) or "")
    nobody.error("GET", "health/", 401)
    assert asked == []


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


needs_server = pytest.mark.skipif(connection.vendor == "sqlite", reason="a file is never away")


@needs_server
def test_a_silent_server_costs_seconds_and_one_thread(silent_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = dict(connection.settings_dict) | {"HOST": "127.0.0.1", "PORT": str(silent_port)}
    silent["OPTIONS"] = {
        key: value for key, value in silent["OPTIONS"].items() if key not in ("unix_socket", "read_default_file")
    }
    monkeypatch.setitem(connections.settings, "default", silent)
    probe = Probe()
    before = time.monotonic()
    assert "no answer within" in probe.ask("default")
    assert probe.ask("default") != ""
    assert time.monotonic() - before < 2 * PROBE_SECONDS + 2
    assert len([thread for thread in threading.enumerate() if thread.name == "django_jobs-probe"]) <= 1


@needs_server
def test_the_probe_says_why_and_sees_when_the_server_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    good = connections.settings["default"]
    refusing = dict(connection.settings_dict) | {"HOST": "127.0.0.1", "PORT": "1"}
    refusing["OPTIONS"] = {key: value for key, value in refusing["OPTIONS"].items() if key != "unix_socket"}
    monkeypatch.setitem(connections.settings, "default", refusing)
    probe = Probe()
    assert "OperationalError" in probe.ask("default")
    monkeypatch.setitem(connections.settings, "default", good)
    assert probe.ask("default") == ""
    monkeypatch.setattr(probe, "_run", lambda alias: pytest.fail("asked again within a second"))
    assert probe.ask("default") == ""

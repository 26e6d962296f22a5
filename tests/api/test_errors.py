"""Every error has one shape, and bad input is never a 500."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.core.signals import got_request_exception
from django.db import connections
from django.test import Client

from tests.api.conftest import Api

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.api.echo")]


@pytest.mark.parametrize(
    ("failure", "status", "expected"),
    [
        ("move", 409, {"code": "conflict", "from": "running", "to": "ready"}),
        ("gone", 404, {"code": "not_found", "message": "There is no job 7."}),
        ("lease", 409, {"code": "lease_lost", "status": "timed_out", "reason": "This attempt has ended."}),
        ("arguments", 400, {"code": "invalid", "index": 3, "fields": {"args[0]": ["item 3: not JSON"]}}),
        ("task", 400, {"code": "invalid", "fields": {"task": ["no task 'x'"]}}),
        ("operational", 503, {"code": "unavailable"}),
        ("interface", 503, {"code": "unavailable"}),
    ],
)
def test_errors_of_the_verbs(token: Callable[..., Api], failure: str, status: int, expected: dict[str, Any]) -> None:
    error = token("view").error("GET", f"broken/{failure}/", status)
    assert error.items() >= expected.items()


def test_what_is_unavailable_says_when_to_try_again(token: Callable[..., Api]) -> None:
    assert token("view").get("broken/operational/").headers["Retry-After"] == "5"


def test_what_nobody_expected_is_logged_and_told_to_listeners_and_says_nothing(
    token: Callable[..., Api], caplog: pytest.LogCaptureFixture
) -> None:
    api = token("view")
    api.client = Client(raise_request_exception=False)
    told: list[Any] = []

    def listen(sender: Any, request: Any, **kwargs: Any) -> None:
        told.append(request.path)

    got_request_exception.connect(listen)
    try:
        error = api.error("GET", "broken/unexpected/", 500)
    finally:
        got_request_exception.disconnect(listen)
    assert error["code"] == "internal"
    assert "a fault" not in str(error)
    assert told == ["/api/jobs/broken/unexpected/"]
    assert "RuntimeError: a fault" in caplog.text


def test_an_address_that_is_none(token: Callable[..., Api]) -> None:
    api = token("view")
    for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
        assert api.error(method, "jobs/not-an-id/nothing", 404)["code"] == "not_found"
    assert api.error("GET", "broken/a%00b/", 404)["code"] == "not_found"
    assert api.error("PATCH", "jobs/a%0Ab/", 404)["code"] == "not_found"
    assert api.send("HEAD", "nowhere").status_code == 404


def test_a_method_that_is_none(token: Callable[..., Api]) -> None:
    api = token("view")
    response = api.send("DELETE", "version/")
    assert (response.status_code, api.body["error"]["code"]) == (405, "method_not_allowed")
    assert response.headers["Allow"] == "GET, HEAD, OPTIONS"
    assert api.error("TRACE", "version/", 405)["code"] == "method_not_allowed"


def test_what_can_not_be_accepted(token: Callable[..., Api]) -> None:
    api = token("view")
    assert api.error("GET", "version/", 406, Accept="image/png")["code"] == "not_acceptable"
    assert api.error("GET", "version/?format=xml", 406)["code"] == "not_acceptable"
    assert api.get("version/?format=json").status_code == 200
    assert api.get("version/", Accept="*/*").status_code == 200


def test_query_parameters_that_are_none(token: Callable[..., Api]) -> None:
    api = token("view")
    error = api.error("GET", "echo/?statsu=x", 400)
    assert error["fields"] == {"statsu": ["there is no such parameter: did you mean 'status'?"]}
    assert "status" in api.error("GET", "echo/?status=%00", 400)["fields"]
    assert api.get("echo/?status=%FF%FE").status_code == 200  # the view looks at values


def test_head_and_options(token: Callable[..., Api]) -> None:
    api = token("view")
    response = api.send("HEAD", "version/")
    assert (response.status_code, response.content) == (200, b"")
    assert api.send("OPTIONS", "echo/").status_code == 200
    assert api.body["query"] == ["queue", "status"]
    assert api.body["methods"] == ["GET", "POST", "PUT", "PATCH", "HEAD", "OPTIONS"]
    assert token("pause").error("OPTIONS", "echo/", 403)["verbs"]


def test_a_slash_at_the_end_may_be_left_out(token: Callable[..., Api]) -> None:
    api = token("view")
    for path in ("version", "info", "info/version", "health", "metrics", "workers", "schema"):
        assert api.get(path).status_code == api.get(path + "/").status_code != 404, path


@pytest.mark.django_db(transaction=True)
def test_without_the_database_every_endpoint_says_so(token: Callable[..., Api], monkeypatch: pytest.MonkeyPatch) -> None:
    from django.db import OperationalError

    api = token("view")

    def away(*args: Any, **kwargs: Any) -> Any:
        raise OperationalError("connection refused")

    monkeypatch.setattr(type(connections["default"]), "cursor", away)
    for path in ("", "version/", "info/", "workers/", "nowhere/"):
        error = api.error("GET", path, 503)
        assert error["code"] == "unavailable"
    monkeypatch.undo()
    assert api.get("version/").status_code == 200


def test_for_browsers_errors_are_json_where_the_pages_are_not_installed(token: Callable[..., Api]) -> None:
    api = token("view")
    assert api.get("version/", Accept="text/html,*/*;q=0.8").headers["Content-Type"] == "application/json"
    assert api.error("GET", "nowhere/", 404, Accept="text/html,*/*;q=0.8")["code"] == "not_found"
    assert api.error("GET", "version/", 406, Accept="text/html")["code"] == "not_acceptable"


@pytest.fixture
def pages(settings: Any) -> None:
    """REST framework among the installed apps: its pages are there."""
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "rest_framework"]


@pytest.mark.usefixtures("pages")
def test_browsers_get_pages_with_the_same_statuses(user: Callable[..., Api], nobody: Api) -> None:
    ann = user("view_job", "enqueue_job")
    for path, status in {
        "": 200,
        "version/": 200,
        "info/": 200,
        "workers/": 200,
        "echo/": 200,
        "nowhere/": 404,
        "echo/?x=1": 400,
    }.items():
        response = ann.get(path, Accept="text/html")
        assert (response.status_code, response.headers["Content-Type"]) == (status, "text/html; charset=utf-8"), path
    assert b"Django REST framework" in ann.get("echo/", Accept="text/html").content
    assert nobody.get("version/", Accept="text/html").status_code == 401
    assert nobody.get("nowhere/", Accept="text/html").status_code == 401
    assert ann.get("version/").headers["Content-Type"] == "application/json"


@pytest.mark.usefixtures("pages")
def test_pages_offer_what_the_user_may_do(user: Callable[..., Api]) -> None:
    form = b'name="_content"'
    assert form not in user("view_job").get("version/", Accept="text/html").content
    assert form not in user("view_job", name="bob").get("echo/", Accept="text/html").content
    assert form in user("view_job", "enqueue_job", name="eve").get("echo/", Accept="text/html").content


@pytest.mark.usefixtures("pages")
@pytest.mark.django_db(transaction=True)
def test_without_the_database_browsers_get_json(user: Callable[..., Api], monkeypatch: pytest.MonkeyPatch) -> None:
    from django.db import OperationalError

    ann = user("view_job")

    def away(*args: Any, **kwargs: Any) -> Any:
        raise OperationalError("connection refused")

    monkeypatch.setattr(type(connections["default"]), "cursor", away)
    for path in ("version/", "nowhere/", "info/"):
        assert ann.error("GET", path, 503, Accept="text/html")["code"] == "unavailable"

"""Who is let in: tokens, sessions, classes of the project's own."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from rest_framework.authentication import BaseAuthentication
from rest_framework.throttling import BaseThrottle

from django_jobs import db
from django_jobs.api.authentication import LAST_USE_EVERY
from django_jobs.models import ApiToken
from tests.api.conftest import PREFIX, Api

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.api.echo")]


def test_nobody_is_let_in_anywhere(nobody: Api) -> None:
    for path in ("", "info/", "health/", "metrics/", "version/", "schema/", "workers/", "echo/", "nowhere/"):
        response = nobody.get(path)
        assert response.status_code == 401, path
        assert response.headers["WWW-Authenticate"] == 'Bearer realm="django_jobs"'
        assert nobody.error("OPTIONS", path, 401)["code"] == "unauthenticated"
        assert nobody.error("DELETE", path, 401)["code"] == "unauthenticated"


@pytest.mark.parametrize("keyword", ["Bearer", "bearer", "Token"])
def test_a_token_is_shown_in_the_header(token: Callable[..., Api], keyword: str) -> None:
    api = token("view")
    secret = api.headers["Authorization"].split()[1]
    assert Api({"Authorization": f"{keyword} {secret}"}).get("echo/").status_code == 200


@pytest.mark.parametrize(
    "header",
    ["Bearer", "Bearer a b", "Bearer dj_", "Bearer x", "Bearer dj_" + "x" * 43, "Bearer dj_\xe9", "Bearer dj_" + "x" * 5000],
)
def test_a_header_without_a_good_token_is_a_401(nobody: Api, header: str) -> None:
    nobody.headers = {"Authorization": header}
    assert nobody.error("GET", "echo/", 401)["code"] == "unauthenticated"


def test_another_scheme_is_nobody(nobody: Api) -> None:
    nobody.headers = {"Authorization": "Basic YTpi"}
    assert nobody.error("GET", "echo/", 401)["code"] == "unauthenticated"


def test_a_token_ends_when_it_is_revoked_expires_or_its_user_goes(token: Callable[..., Api]) -> None:
    person = User.objects.create_user("ann")
    api = token("view", user_id=person.pk)
    now = db.server_now(connection)

    def said(**changes: Any) -> str:
        ApiToken.objects.filter(pk=api.token.pk).update(**changes)  # type: ignore[attr-defined]
        return str(api.error("GET", "echo/", 401)["message"])

    assert api.get("echo/").status_code == 200
    assert "revoked" in said(revoked_at=now)
    assert "expired" in said(revoked_at=None, expires_at=now)
    ApiToken.objects.update(expires_at=now + timedelta(minutes=5))
    assert api.get("echo/").status_code == 200
    User.objects.update(is_active=False)
    assert "user" in said()
    User.objects.update(is_active=True)
    assert api.get("echo/").status_code == 200
    User.objects.all().delete()
    assert "user" in said()
    assert "user" in said(user_id="of another kind")


def test_the_last_use_is_written_once_a_minute_at_most(token: Callable[..., Api]) -> None:
    api = token("view")
    api.get("echo/")
    first = ApiToken.objects.get().last_used_at
    assert first is not None
    api.get("echo/")
    assert ApiToken.objects.get().last_used_at == first
    ApiToken.objects.update(last_used_at=first - LAST_USE_EVERY)
    api.get("echo/")
    later = ApiToken.objects.get().last_used_at
    assert later is not None
    assert later >= first


def test_a_token_that_is_refused_is_not_used(token: Callable[..., Api]) -> None:
    api = token("view")
    ApiToken.objects.update(revoked_at=db.server_now(connection))
    api.error("GET", "echo/", 401)
    assert ApiToken.objects.get().last_used_at is None


def test_who_asks_is_called_by_name(token: Callable[..., Api], user: Callable[..., Api]) -> None:
    assert token("view").get("echo/").json()["by"] == "token test"
    ann = user("view_job")
    person = User.objects.get(username="ann")
    assert ann.get("echo/").json() == {"by": "ann", "scope": f"user:{person.pk}"}
    both = token("view", user_id=person.pk)
    assert both.get("echo/").json() == {"by": "ann (token test)", "scope": f"token:{both.token.pk}"}  # type: ignore[attr-defined]


def test_a_session_needs_the_token_against_forged_requests_where_something_changes() -> None:
    person = User.objects.create_user("ann")
    person.user_permissions.add(Permission.objects.get(codename="enqueue_job"), Permission.objects.get(codename="view_job"))
    client = Client(enforce_csrf_checks=True)
    client.force_login(person)
    api = Api(client=client)
    assert api.get("echo/").status_code == 200
    assert "CSRF" in api.error("POST", "echo/", 403, {})["message"]
    client.cookies["csrftoken"] = "a" * 32
    assert api.send("POST", "echo/", {}, X_CSRFToken="a" * 32).status_code == 200


class ByHeader(BaseAuthentication):
    """What a project of its own might have."""

    def authenticate(self, request: Any) -> Any:
        name = request.headers.get("X-Name")
        return (User.objects.get(username=name), None) if name else None


def test_classes_of_the_project_take_the_place_of_ours(settings: Any, token: Callable[..., Api], nobody: Api) -> None:
    settings.DJANGO_JOBS = {"API_AUTHENTICATION": [f"{__name__}.ByHeader"]}
    User.objects.create_superuser("root")
    assert nobody.get("echo/", X_Name="root").json()["by"] == "root"
    response = nobody.get("echo/")
    assert response.status_code == 401  # REST framework would say 403: the class has no challenge
    assert response.headers["WWW-Authenticate"] == "Bearer"
    assert token("view").get("echo/").status_code == 401
    settings.DJANGO_JOBS = {"API_AUTHENTICATION": ["django_jobs.api.authentication.TokenAuthentication", f"{__name__}.ByHeader"]}
    assert token("view").get("echo/").status_code == 200


def test_the_framework_settings_of_the_project_open_nothing(settings: Any, nobody: Api) -> None:
    settings.REST_FRAMEWORK = {
        "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.AllowAny"],
        "DEFAULT_AUTHENTICATION_CLASSES": [f"{__name__}.ByHeader"],
    }
    User.objects.create_superuser("root")
    assert nobody.get("echo/", X_Name="root").status_code == 401


class OnceOnly(BaseThrottle):
    """Lets one request of each caller pass."""

    seen: set[Any] = set()

    def allow_request(self, request: Any, view: Any) -> bool:
        is_new = request.user.pk not in self.seen
        self.seen.add(request.user.pk)
        return is_new

    def wait(self) -> float:
        return 6.5


def test_throttles_of_the_project_are_asked(settings: Any, token: Callable[..., Api]) -> None:
    OnceOnly.seen.clear()
    settings.DJANGO_JOBS = {"API_THROTTLES": [f"{__name__}.OnceOnly"]}
    first, second = token("view"), token("view")
    assert first.get("echo/").status_code == second.get("echo/").status_code == 200
    response = first.send("GET", "echo/")
    assert (response.status_code, first.body["error"]["code"]) == (429, "throttled")
    assert response.headers["Retry-After"] == "7"


def test_tokens_need_no_cookie_and_set_none(token: Callable[..., Api]) -> None:
    response = token("view").get("echo/")
    assert not response.cookies
    assert response.request["PATH_INFO"] == PREFIX + "echo/"

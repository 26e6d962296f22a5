"""Callers of the API: tokens and users, and what they send."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from django_jobs.lifecycle.tokens import VERBS, make_token

PREFIX = "/api/jobs/"


class Api:
    """A test client that speaks JSON below the prefix. `body` is what the last answer held."""

    def __init__(self, headers: dict[str, str] | None = None, client: Client | None = None) -> None:
        self.headers, self.client = headers or {}, client or Client()
        self.body: Any = None

    def send(self, method: str, path: str, data: Any = None, *, raw: Any = None, **headers: str) -> Any:
        """Send `data` as JSON, or `raw` as it is; return the response."""
        content = {"data": raw if raw is not None else json.dumps(data), "content_type": "application/json"}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if "Content-Type" in named:
            content["content_type"] = named.pop("Content-Type")
        response = self.client.generic(
            method,
            PREFIX + path,
            **(content if data is not None or raw is not None else {}),
            headers={**self.headers, **named},
        )
        is_json = response.headers.get("Content-Type", "").startswith("application/json") and response.content
        self.body = json.loads(response.content) if is_json else None
        return response

    def get(self, path: str, **headers: str) -> Any:
        """Send a GET."""
        return self.send("GET", path, **headers)

    def error(self, method: str, path: str, status: int, data: Any = None, **kwargs: Any) -> dict[str, Any]:
        """Send what has to fail with `status`; return the error, whose shape is looked at."""
        response = self.send(method, path, data, **kwargs)
        assert response.status_code == status, response.content
        assert response.headers["Content-Type"] == "application/json"
        error: dict[str, Any] = self.body["error"]
        assert isinstance(error["code"], str)
        assert isinstance(error["message"], str)
        assert error["message"]
        assert all(isinstance(texts, list) for texts in error.get("fields", {}).values())
        return error


@pytest.fixture
def nobody(db: None) -> Api:
    """Somebody who shows nothing."""
    return Api()


@pytest.fixture
def token(db: None) -> Callable[..., Api]:
    """Return a function that makes a token with these verbs, and its caller. All verbs without any."""

    def make(*verbs: str, queues: Any = (), **values: Any) -> Api:
        made, secret = make_token("test", verbs=verbs or list(VERBS), queues=queues, using="default", **values)
        api = Api({"Authorization": f"Bearer {secret}"})
        api.token = made  # type: ignore[attr-defined]
        return api

    return make


@pytest.fixture
def user(db: None) -> Callable[..., Api]:
    """Return a function that logs a user with just these permissions in."""

    def make(*permissions: str, name: str = "ann", **values: Any) -> Api:
        person = User.objects.create_user(name, **values)
        for permission in permissions:
            person.user_permissions.add(Permission.objects.get(codename=permission, content_type__app_label="django_jobs"))
        client = Client()
        client.force_login(person)
        return Api(client=client)

    return make

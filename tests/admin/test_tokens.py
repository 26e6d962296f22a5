"""Tokens of the HTTP API in the admin: made, shown once, revoked; nobody gives more than they have."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import ADDITION, CHANGE, LogEntry
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from django_jobs.lifecycle.tokens import PERMISSIONS, VERBS, find_token, make_token
from django_jobs.models import ApiToken

LIST = reverse("admin:django_jobs_apitoken_changelist")
ADD = reverse("admin:django_jobs_apitoken_add")
PAYLOAD = {"name": "CI", "verbs": ["view", "enqueue"], "queues": "mail.*, post", "duration": "30d", "user_id": "root"}


def change(token: ApiToken) -> str:
    return reverse("admin:django_jobs_apitoken_change", args=[token.pk])


def revoke(token: ApiToken) -> str:
    return reverse("admin:django_jobs_apitoken_revoke", args=[token.pk])


def make(**values: Any) -> ApiToken:
    return make_token("CI", **({"verbs": ["view"], "using": "default"} | values))[0]


def test_every_verb_has_permissions_of_a_user() -> None:
    assert set(PERMISSIONS) == set(VERBS)


def test_a_token_is_made_and_its_secret_shown_once(root: Client) -> None:
    response = root.post(ADD, PAYLOAD)
    secret = re.search(r"dj_[\w-]{40,}", response.content.decode())
    assert secret
    token = find_token(secret[0], using="default")
    assert token is not None
    assert (token.name, token.verbs, token.queues, token.created_by) == ("CI", ["view", "enqueue"], ["mail.*", "post"], "root")
    assert token.user_id == str(User.objects.get().pk)
    assert token.expires_at is not None
    assert timedelta(days=29) < token.expires_at - timezone.now() < timedelta(days=31)
    assert "no-store" in response.headers["Cache-Control"]
    for page in (LIST, change(token), revoke(token), reverse("admin:django_jobs_apitoken_history", args=[token.pk])):
        text = root.get(page).content.decode()
        assert secret[0] not in text
        assert token.digest not in text
    entry = LogEntry.objects.get()
    assert (entry.action_flag, entry.object_id) == (ADDITION, str(token.pk))
    assert secret[0] not in entry.change_message + entry.object_repr


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("name", "", "required"),
        ("verbs", [], "required"),
        ("verbs", ["fly"], "Select a valid choice"),
        ("queues", "no good", "can&#x27;t name a queue"),
        ("queues", "*", "can&#x27;t name a queue"),
        ("duration", "soon", "can&#x27;t read"),
        ("duration", "0", "longer than nothing"),
        ("duration", "9" * 19, ""),
        ("user_id", "nobody", "no such user"),
        ("name", "a\x00b", "Null characters"),
    ],
)
def test_what_can_not_be_meant_is_told_and_makes_nothing(root: Client, field: str, value: Any, says: str) -> None:
    response = root.post(ADD, PAYLOAD | {field: value})
    assert response.status_code == 200
    assert "errorlist" in response.content.decode()
    assert says in response.content.decode()
    assert not ApiToken.objects.exists()


def test_nobody_gives_what_they_have_not(login: Callable[..., Client]) -> None:
    client = login("add_apitoken", "view_job", "add_queue")
    User.objects.create_superuser("root")
    text = client.get(ADD).content.decode()
    assert 'value="view"' in text
    assert 'value="enqueue"' not in text
    assert 'value="queues"' not in text  # it takes all three permissions
    client.post(ADD, PAYLOAD | {"verbs": ["view", "enqueue"]})
    assert not ApiToken.objects.exists()
    client.post(ADD, PAYLOAD | {"verbs": ["view"], "user_id": "root"})
    assert ApiToken.objects.get().user_id == str(User.objects.get(username="ann").pk)


def test_a_token_is_revoked_once_and_for_all(login: Callable[..., Client]) -> None:
    token = make()
    client = login("view_apitoken", "change_apitoken")
    assert "Revoke…" in client.get(change(token)).content.decode()
    assert client.get(revoke(token)).status_code == 200
    token.refresh_from_db()
    assert token.revoked_at is None
    client.post(revoke(token))
    token.refresh_from_db()
    first = token.revoked_at
    assert first is not None
    client.post(revoke(token))
    token.refresh_from_db()
    assert token.revoked_at == first
    assert LogEntry.objects.filter(action_flag=CHANGE, object_id=str(token.pk)).count() == 1
    assert "Revoke…" not in client.get(change(token)).content.decode()
    assert client.get(revoke(ApiToken(pk=10**6)), follow=True).status_code == 200


@pytest.mark.parametrize(
    ("permissions", "may"),
    [([], set()), (["view_apitoken"], {"look"}), (["add_apitoken"], {"add"}), (["change_apitoken"], {"look", "revoke"})],
)
def test_permissions(login: Callable[..., Client], permissions: list[str], may: set[str]) -> None:
    token = make()
    client = login(*permissions)
    found = {
        "look": client.get(LIST).status_code == client.get(change(token)).status_code == 200,
        "add": client.get(ADD).status_code == 200,
        "revoke": client.post(revoke(token)).status_code == 302,
    }
    assert {name for name, allowed in found.items() if allowed} == may
    token.refresh_from_db()
    assert (token.revoked_at is not None) == ("revoke" in may)


def test_a_token_can_not_be_changed(root: Client) -> None:
    token = make()
    assert root.post(change(token), {"name": "other", "verbs": "[]"}).status_code == 403
    token.refresh_from_db()
    assert (token.name, token.verbs) == ("CI", ["view"])


def test_only_what_works_no_more_is_deleted(root: Client) -> None:
    token = make()
    delete = reverse("admin:django_jobs_apitoken_delete", args=[token.pk])
    assert root.post(delete, {"post": "yes"}).status_code == 403
    root.post(revoke(token))
    root.post(delete, {"post": "yes"})
    assert not ApiToken.objects.exists()


def test_the_list_says_how_each_is_in_a_bounded_number_of_statements(root: Client) -> None:
    key = User.objects.get().pk
    make(user_id=key)
    ApiToken.objects.update(last_used_at=timezone.now())
    root.get(LIST)
    with CaptureQueriesContext(connection) as few:
        text = root.get(LIST).content.decode()
    assert all(word in text for word in ("works", "root", "all"))
    for _each in range(5):
        make(user_id=key)
    make(user_id=10**6)
    ApiToken.objects.filter(user_id=str(10**6)).update(expires_at=timezone.now())
    with CaptureQueriesContext(connection) as many:
        text = root.get(LIST).content.decode()
    assert all(word in text for word in ("expired", "gone", "never"))
    assert len(many) == len(few)

"""Every endpoint and method, asked by everybody: the exact status. An endpoint that is not in the matrix fails it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from django.apps import apps
from django.contrib.auth.models import Permission, User
from django.db import connection, transaction
from django.test import Client
from django.utils import timezone

from django_jobs.api import urls
from django_jobs.api.base import NotFoundView
from django_jobs.api.permissions import VERBS
from django_jobs.lifecycle.inherit import forget_queues
from django_jobs.lifecycle.tokens import VERBS as TOKEN_VERBS
from django_jobs.lifecycle.tokens import make_token
from django_jobs.models import ApiToken, Job, Queue

pytestmark = pytest.mark.once

PREFIX = "/api/jobs/"
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
#: What a token says that is for another queue: the list without the rows, or that there is no such thing, or no.
EMPTY, HIDDEN, NO = 200, 404, 403


class Row(NamedTuple):
    """A request: the verbs that it needs, all of them; its status then; its status for a token of another queue."""

    name: str
    method: str
    path: str
    needs: tuple[str, ...]
    status: int
    elsewhere: int
    body: Any = None
    headers: dict[str, str] = {}


ROWS = [
    Row("root", "GET", "", ("view",), 200, 200),
    Row("info", "GET", "info/", ("view",), 200, EMPTY),
    Row("version", "GET", "version/", ("view",), 200, 200),
    Row("info-version", "GET", "info/version/", ("view",), 200, 200),
    Row("health", "GET", "health/", ("view",), 503, 503),  # nobody works here
    Row("metrics", "GET", "metrics/", ("view",), 200, EMPTY),
    Row("schema", "GET", "schema/", ("view",), 200, 200),
    Row("workers", "GET", "workers/", ("view",), 200, NO),
    Row("jobs", "GET", "jobs/", ("view",), 200, EMPTY),
    Row("jobs", "GET", "jobs/?fields=id,input", ("view", "payload"), 200, EMPTY),
    Row("jobs", "POST", "jobs/", ("enqueue",), 201, NO, {"queue": "web", "input": 1}),
    Row("jobs-timed-out", "GET", "jobs/timed-out/", ("view",), 200, EMPTY),
    Row("jobs-requeue", "POST", "jobs/requeue/", ("requeue",), 200, EMPTY, {"ids": ["{failed}"]}),
    Row("jobs-cancel", "POST", "jobs/cancel/", ("cancel",), 200, EMPTY, {"ids": ["{ready}"]}),
    Row("jobs-done", "POST", "jobs/done/", ("done",), 200, EMPTY, {"ids": ["{ready}"]}),
    Row("jobs-run-now", "POST", "jobs/run-now/", ("run",), 200, EMPTY, {"ids": ["{scheduled}"]}),
    Row("jobs-delete", "POST", "jobs/delete/", ("delete",), 200, EMPTY, {"ids": ["{failed}"]}),
    Row("job", "GET", "jobs/{ready}/", ("view",), 200, HIDDEN),
    Row("job", "GET", "jobs/{ready}/?fields=output", ("view", "payload"), 200, HIDDEN),
    Row("job", "PATCH", "jobs/{ready}/", ("change",), 204, HIDDEN, {"priority": 5}),
    Row("job", "PATCH", "jobs/{ready}/", ("cancel",), 204, HIDDEN, {"status": "cancelled"}),
    Row("job", "PATCH", "jobs/{failed}/", ("requeue",), 204, HIDDEN, {"status": "ready"}),
    Row("job", "PATCH", "jobs/{failed}/", ("requeue", "change"), 204, HIDDEN, {"status": "queued", "priority": 5}),
    Row("job", "PATCH", "jobs/{running}/", ("claim",), 204, HIDDEN, {"status": "succeeded", "token": "{token}"}),
    Row("job", "DELETE", "jobs/{failed}/", ("delete",), 204, HIDDEN),
    Row("job-status", "GET", "jobs/{ready}/status/", ("view",), 200, HIDDEN),
    Row("job-output", "GET", "jobs/{ready}/output/", ("payload",), 200, HIDDEN),
    Row("job-output", "PUT", "jobs/{running}/output/", ("claim",), 204, HIDDEN, [1], {"X-Job-Token": "{token}"}),
    Row("job-heartbeat", "PUT", "jobs/{running}/heartbeat/", ("claim",), 204, HIDDEN, {"token": "{token}"}),
    Row("job-heartbeat", "POST", "jobs/{running}/heartbeat/", ("claim",), 204, HIDDEN, {"token": "{token}"}),
    Row("job-attempts", "GET", "jobs/{failed}/attempts/", ("view",), 200, HIDDEN),
    Row("job-requeue", "POST", "jobs/{failed}/requeue/", ("requeue",), 200, HIDDEN),
    Row("job-requeue", "POST", "jobs/{failed}/requeue/", ("requeue", "claim"), 200, HIDDEN, {"claim": True}),
    Row("job-cancel", "POST", "jobs/{ready}/cancel/", ("cancel",), 200, HIDDEN),
    Row("job-done", "POST", "jobs/{ready}/done/", ("done",), 200, HIDDEN),
    Row("job-run-now", "POST", "jobs/{scheduled}/run-now/", ("run",), 200, HIDDEN),
    Row("queues", "GET", "queues/", ("view",), 200, EMPTY),
    Row("queues", "POST", "queues/", ("add_queue",), 201, NO, {"name": "web.new"}),
    Row("queue", "GET", "queues/web/", ("view",), 200, HIDDEN),
    Row("queue", "PUT", "queues/web/", ("change_queue",), 204, NO, {"is_http": True}),
    Row("queue", "PUT", "queues/web.new/", ("add_queue",), 201, NO, {"is_http": True}),
    Row("queue", "PATCH", "queues/web/", ("change_queue",), 204, HIDDEN, {"timeout": "1m"}),
    Row("queue", "DELETE", "queues/web.empty/", ("delete_queue",), 204, HIDDEN),
    Row("queue-size", "GET", "queues/web/size/", ("view",), 200, HIDDEN),
    Row("queue-job-ids", "GET", "queues/web/job-ids/", ("view",), 200, HIDDEN),
    Row("queue-claim", "POST", "queues/web/claim/", ("claim",), 200, NO),
    Row("queue-pause", "POST", "queues/web/pause/", ("pause",), 200, HIDDEN),
    Row("queue-resume", "POST", "queues/web.empty/resume/", ("pause",), 200, HIDDEN),
    Row("batches", "GET", "batches/", ("view",), 200, NO),
    Row("batches", "POST", "batches/", ("enqueue",), 201, NO, {"jobs": [{"queue": "web", "input": 1}]}),
    Row("batch", "GET", "batches/{batch}/", ("view",), 200, NO),
    Row("batch", "PATCH", "batches/{batch}/", ("change",), 200, NO, {"read": True}),
    Row("batch", "PATCH", "batches/{batch}/", ("enqueue",), 200, NO, {"sealed": True}),
    Row("batch", "PATCH", "batches/{batch}/", ("enqueue", "change"), 200, NO, {"sealed": True, "read": False}),
    Row("batch-jobs", "POST", "batches/{batch}/jobs/", ("enqueue",), 201, NO, [{"queue": "web", "input": 1}]),
    Row("batch-cancel", "POST", "batches/{batch}/cancel/", ("cancel",), 200, NO),
    Row("batch-requeue-failed", "POST", "batches/{batch}/requeue-failed/", ("requeue",), 200, NO),
    Row("tag", "GET", "tags/red/", ("view",), 200, EMPTY),
]


@dataclass
class Caller:
    """Somebody who asks. `may`: the verbs that are granted; None: nobody knows who it is."""

    name: str
    client: Client
    may: frozenset[str] | None
    headers: dict[str, str]
    is_elsewhere: bool = False
    is_bounded: bool = False

    def expected(self, row: Row) -> int:
        """Return the status that this caller gets."""
        if self.may is None:
            return 401
        if not self.may.issuperset(row.needs):
            return 403
        if self.is_bounded and (row.name == "workers" or row.name.startswith("batch")):
            return NO  # they serve, or count, more queues than the token is for
        return row.elsewhere if self.is_elsewhere else row.status


class World(NamedTuple):
    """What there is to ask for, and who asks."""

    names: dict[str, str]
    callers: list[Caller]

    def send(self, row: Row, caller: Caller, method: str = "") -> Any:
        """Send the request as that caller."""
        headers = {name: self.filled(value) for name, value in row.headers.items()} | caller.headers
        body = "" if row.body is None else self.filled(json.dumps(row.body))
        url = PREFIX + self.filled(row.path)
        return caller.client.generic(method or row.method, url, body, content_type="application/json", headers=headers)

    def filled(self, text: str) -> str:
        """Return `text` with the ids in it."""
        for name, value in self.names.items():
            text = text.replace("{" + name + "}", value)
        return text


def _user(name: str, *permissions: str, **values: Any) -> Client:
    user = User.objects.create_user(name, **values)
    wanted = [permission.partition(".")[2] for permission in permissions]
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="django_jobs", codename__in=wanted))
    assert user.user_permissions.count() == len(wanted)
    client = Client()
    client.force_login(user)
    return client


def _token(name: str, may: frozenset[str] | None, *verbs: str, queues: tuple[str, ...] = (), **columns: Any) -> Caller:
    token, secret = make_token(name, verbs=verbs or list(TOKEN_VERBS), queues=queues, using="default")
    if columns:
        ApiToken.objects.filter(pk=token.pk).update(**columns)
    return Caller(name, Client(), may, {"Authorization": f"Bearer {secret}"}, is_bounded=bool(queues))


def _callers() -> Iterator[Caller]:
    past = timezone.now() - timedelta(seconds=1)
    everything = frozenset(VERBS)
    yield Caller("nobody", Client(), None, {})
    yield Caller("an unknown token", Client(), None, {"Authorization": "Bearer dj_unknown"})
    yield _token("an expired token", None, expires_at=past)
    yield _token("a revoked token", None, revoked_at=past)
    yield Caller("a user without permissions", _user("plain"), frozenset(), {})
    yield Caller("a member of the staff", _user("staff", is_staff=True), frozenset(), {})
    for verb, (_of_token, permission) in VERBS.items():
        yield Caller(f"a user who may {verb}", _user(verb, permission), frozenset({verb}), {})
    yield Caller("a superuser", _user("root", is_superuser=True), everything, {})
    for own in TOKEN_VERBS:
        yield _token(f"a token for {own}", frozenset(verb for verb, (needed, _) in VERBS.items() if needed == own), own)
    yield _token("a token for everything", everything)
    yield _token("a token for the queue", everything, queues=("web.*", "web"))
    elsewhere = _token("a token for another queue", everything, queues=("other", "webs.*"))
    elsewhere.is_elsewhere = True
    yield elsewhere


@pytest.fixture
def world(db: None) -> World:
    """Return jobs in several statuses and everybody who may ask for them."""
    Queue.objects.create(name="web", is_http=True, max_attempts=1)
    Queue.objects.create(name="web.empty", paused_at=timezone.now())
    forget_queues()
    root = _token("setup", frozenset(VERBS))

    def post(path: str, body: Any) -> Any:
        response = root.client.post(PREFIX + path, body, content_type="application/json", headers=root.headers)
        assert response.status_code in (200, 201, 204), response.content
        return response.json()

    def new(**values: Any) -> str:
        return str(post("jobs/", {"queue": "web", "input": "secret", "tags": ["red"], **values})["id"])

    names: dict[str, str] = {}
    for name in ("failed", "running"):
        names[name] = new()
        (claimed,) = post("queues/web/claim/", {})["jobs"]
        names["token"] = claimed["token"]
        if name == "failed":
            said = {"status": "failed", "token": claimed["token"]}
            path = f"{PREFIX}jobs/{names[name]}/"
            assert root.client.patch(path, said, content_type="application/json", headers=root.headers).status_code == 204
    names |= {"ready": new(), "scheduled": new(run_after="1d")}
    statuses = {name: Job.objects.get(pk=pk).status for name, pk in names.items() if name != "token"}
    names["batch"] = post("batches/", {"name": "b", "seal": False})["id"]
    assert statuses == {name: name for name in statuses}
    return World(names, list(_callers()))


def endpoints() -> dict[str, Callable[..., Any]]:
    """Return the views of the URL conf by their names, and see to it that the addresses without a slash lead to the same."""
    named, unnamed = {}, set()
    for pattern in urls.urlpatterns:
        view = pattern.callback.cls  # type: ignore[union-attr]
        if view is NotFoundView:
            continue
        if pattern.name is None:  # type: ignore[union-attr]
            unnamed.add(view)
        else:
            named[pattern.name] = view  # type: ignore[union-attr]
    assert unnamed <= set(named.values())
    return named


def test_the_matrix_has_every_endpoint_and_method():
    served = {(name, method) for name, view in endpoints().items() for method in METHODS if hasattr(view, method.lower())}
    allowed = {(name, method) for name, method in served if method.lower() in endpoints()[name].http_method_names}
    assert {(row.name, row.method) for row in ROWS} == allowed


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.method} {row.path} {'+'.join(row.needs)}")
def test_everybody_gets_the_exact_status(world, row):
    found = {}
    for caller in world.callers:
        with transaction.atomic():
            response = world.send(row, caller)
            transaction.set_rollback(True)
        found[caller.name] = response.status_code
        assert "secret" not in response.content.decode() or {"payload", "claim"} & (caller.may or set()), caller.name
        if response.status_code >= 400 and row.name != "health":
            assert set(response.json()) == {"error"}
    assert found == {caller.name: caller.expected(row) for caller in world.callers}


def everything() -> dict[str, list[tuple[Any, ...]]]:
    """Return all rows of the package's tables. (When a token was last used is kept with the token.)"""
    models = [model for model in apps.get_app_config("django_jobs").get_models() if model is not ApiToken]
    return {model.__name__: sorted(model._base_manager.values_list(), key=repr) for model in models}


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_reading_changes_nothing(world, method):
    callers = [caller for caller in world.callers if caller.name in ("a superuser", "a token for everything")]
    assert len(callers) == 2
    before = everything()
    assert len(before["Job"]) == 4
    for row in ROWS:
        if method == "OPTIONS" or row.method == "GET":
            for caller in callers:
                assert world.send(row, caller, method).status_code == (200 if method == "OPTIONS" else row.status)
    assert everything() == before


def test_a_method_that_an_endpoint_does_not_have_is_405_for_those_who_are_known(world):
    callers = {caller.name: caller for caller in world.callers}
    served = {(row.name, row.method) for row in ROWS}
    for row in {row.name: row for row in ROWS}.values():
        for method in (*METHODS, "TRACE"):
            if (row.name, method) in served:
                continue
            assert world.send(row, callers["nobody"], method).status_code == 401, (row.name, method)
            response = world.send(row, callers["a token for everything"], method)
            assert response.status_code == 405, (row.name, method)
            assert response.json()["error"]["code"] == "method_not_allowed"
            assert method not in response["Allow"]


def test_options_are_for_those_who_may_do_something_there(world):
    callers = {caller.name: caller for caller in world.callers}
    row = next(row for row in ROWS if (row.name, row.method) == ("queue-claim", "POST"))
    answers = {name: world.send(row, caller, "OPTIONS").status_code for name, caller in callers.items()}
    assert answers["nobody"] == 401
    assert answers["a user without permissions"] == answers["a user who may view"] == answers["a token for view"] == 403
    assert answers["a user who may claim"] == answers["a token for claim"] == 200


def test_an_address_that_does_not_exist_is_404_for_those_who_are_known(world):
    row = Row("none", "GET", "nothing/here/", (), 404, 404)
    found = {caller.name: world.send(row, caller).status_code for caller in world.callers}
    assert found == {caller.name: 401 if caller.may is None else 404 for caller in world.callers}
    assert connection.in_atomic_block

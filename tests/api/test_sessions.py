"""Users of the site with a session, from a browser: cookies, and the token against forged requests."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.middleware.csrf import _get_new_csrf_string
from django.test import Client

from django_jobs.models import Job
from django_jobs.statuses import Status
from tests.api.calls import PREFIX, http_queue
from tests.support.jobs import make_job

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]


@pytest.fixture
def browser() -> Client:
    client = Client(enforce_csrf_checks=True)
    client.force_login(User.objects.create_superuser("root"))
    client.cookies["csrftoken"] = _get_new_csrf_string()
    return client


def post(browser: Client, path: str, body: Any = None, *, token: bool = True) -> Any:
    headers = {"X-CSRFToken": browser.cookies["csrftoken"].value} if token else {}
    data = b"" if body is None else json.dumps(body).encode()
    return browser.post(f"{PREFIX}{path}", data=data, content_type="application/json", headers=headers)


@pytest.mark.parametrize("body", [None, {}, {"reason": "because"}])
def test_verbs_take_a_body_and_go_without(browser: Client, body: Any) -> None:
    http_queue()
    paths = {
        "cancel": make_job(),
        "done": make_job(),
        "requeue": make_job(Status.FAILED),
        "run-now": make_job(Status.SCHEDULED),
    }
    for verb, job in paths.items():
        assert post(browser, f"/jobs/{job.pk}/{verb}/", body).status_code == 200, verb
    assert post(browser, "/queues/web/pause/", body).status_code == 200
    assert post(browser, "/queues/web/resume/", body).status_code == 200
    assert browser.get(f"{PREFIX}/queues/web/").json()["paused"] is None


def test_a_claim_with_a_session(browser: Client) -> None:
    http_queue()
    job = make_job(queue="web", is_http=True)
    answer = post(browser, "/queues/web/claim/", {"limit": 1, "worker": "me"})
    assert answer.status_code == 200
    assert [each["id"] for each in answer.json()["jobs"]] == [str(job.pk)]
    assert post(browser, "/queues/web/claim/").status_code == 204
    assert post(browser, "/queues/web/claim/", {"limit": "x"}).json()["error"]["fields"].keys() == {"limit"}
    assert Job.objects.get().worker == "me"


def test_a_forged_request_is_refused(browser: Client) -> None:
    job = make_job()
    assert post(browser, f"/jobs/{job.pk}/cancel/", {}, token=False).status_code == 403
    job.refresh_from_db()
    assert job.status == Status.READY

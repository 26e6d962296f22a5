"""Requeue, cancel, done, delete, run now: confirmed, allowed, reported job by job, kept in Django's log."""

from __future__ import annotations

import html
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import DELETION, LogEntry
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from django_jobs.admin.verbs import VERBS
from django_jobs.models import CancelRequest, Job
from django_jobs.statuses import Status
from tests.support.jobs import make_job, running_job

LIST = reverse("admin:django_jobs_job_changelist")
PERMISSIONS = {"requeue": "requeue_job", "cancel": "cancel_job", "done": "done_job", "delete": "delete_job", "run": "run_job"}
STARTS = {
    "requeue": Status.FAILED,
    "cancel": Status.READY,
    "done": Status.FAILED,
    "delete": Status.SUCCEEDED,
    "run": Status.SCHEDULED,
}


def act(client: Client, verb: str, *jobs: Job, confirmed: bool = True, **data: str):
    fields = {"ids": ",".join(str(job.pk) for job in jobs), **({"confirmed": "yes"} if confirmed else {}), **data}
    return client.post(reverse("admin:django_jobs_job_act", args=[verb]), fields, follow=confirmed)


def said(response) -> str:
    return html.unescape(" ".join(str(message) for message in response.context["messages"]))


def state(job: Job) -> str:
    return Job.objects.filter(pk=job.pk).values_list("status", flat=True).first() or "gone"


@pytest.mark.parametrize(
    ("verb", "ends"), [("requeue", "ready"), ("cancel", "cancelled"), ("done", "succeeded"), ("delete", "gone"), ("run", "ready")]
)
def test_a_verb_needs_its_own_permission_and_no_other(login: Callable[..., Client], verb: str, ends: str) -> None:
    job = make_job(STARTS[verb])
    others = [name for name in PERMISSIONS.values() if name != PERMISSIONS[verb]]
    client = login("view_job", *others, name="others")
    assert act(client, verb, job).status_code == 403
    assert act(login("view_job", name="viewer"), verb, job).status_code == 403
    assert act(login(PERMISSIONS[verb], name="blind"), verb, job).status_code == 403, "one who may not see jobs changes none"
    assert state(job) == STARTS[verb]
    response = act(login("view_job", PERMISSIONS[verb], name="able"), verb, job, reason="because")
    assert "1 job" in said(response)
    assert state(job) == ends
    entry = LogEntry.objects.get()
    assert (entry.user.username, entry.object_id) == ("able", str(job.pk))
    assert "because" in entry.change_message
    assert entry.action_flag == DELETION if verb == "delete" else entry.is_change()


def test_the_menu_and_the_buttons_show_only_what_is_allowed(login: Callable[..., Client]) -> None:
    job = make_job(Status.FAILED)
    page = reverse("admin:django_jobs_job_change", args=[job.pk])
    viewer = login("view_job", name="viewer")
    for address in (LIST + "?status=all", page):
        content = viewer.get(address).content.decode()
        assert "requeue" not in content.lower()
        assert "_selected_action" not in content
        assert "/act/" not in content
    able = login("view_job", "requeue_job", name="able")
    assert 'value="requeue_jobs"' in able.get(LIST + "?status=all").content.decode()
    content = able.get(page).content.decode()
    assert "/act/requeue/" in content
    assert "/act/cancel/" not in content


def test_strangers_see_nothing(login: Callable[..., Client]) -> None:
    job = make_job()
    client = login()
    assert client.get(LIST).status_code == 403
    assert client.get(reverse("admin:django_jobs_job_change", args=[job.pk])).status_code == 403
    anonymous = Client()
    assert anonymous.get(LIST).status_code == 302
    assert act(anonymous, "cancel", job, confirmed=False).status_code == 302
    assert state(job) == "ready"


@pytest.mark.parametrize("verb", list(VERBS))
def test_nothing_changes_by_get_or_without_confirmation(root: Client, verb: str) -> None:
    job = make_job(STARTS[verb])
    address = reverse("admin:django_jobs_job_act", args=[verb])
    action = "delete_selected" if verb == "delete" else f"{verb}_jobs"
    assert root.get(address, {"ids": str(job.pk), "confirmed": "yes"}).status_code == 405
    root.get(LIST, {"action": action, ACTION_CHECKBOX_NAME: str(job.pk), "index": "0"})
    page = root.post(LIST + "?status=all", {"action": action, ACTION_CHECKBOX_NAME: str(job.pk), "index": "0"})
    assert str(job.pk) in page.content.decode()
    page = act(root, verb, job, confirmed=False)
    assert page.status_code == 200
    assert str(job.pk) in page.content.decode()
    assert root.post(reverse("admin:django_jobs_job_change", args=[job.pk]), {"status": "failed"}).status_code == 403
    assert root.post(reverse("admin:django_jobs_job_delete", args=[job.pk]), {"post": "yes"}).status_code == 403
    assert state(job) == STARTS[verb]
    assert not LogEntry.objects.exists()


def test_forms_are_guarded_against_forgery(db: None) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(User.objects.create_superuser("root"))
    job = make_job()
    assert act(client, "cancel", job, confirmed=False).status_code == 403


def test_b09_requeue_of_a_mixed_selection_changes_and_reports_exactly_what_it_may(root: Client) -> None:
    """A running job, a successful one, one timed out with all attempts used long ago, a cancelled one, one deleted meanwhile."""
    long_ago = timezone.now() - timedelta(days=2)
    running = running_job()
    succeeded = make_job(Status.SUCCEEDED, result=1)
    timed_out = make_job(
        Status.TIMED_OUT,
        queue="slow",
        priority=7,
        timeout=30.0,
        attempts_used=5,
        starts=5,
        started_at=long_ago,
        last_started_at=long_ago,
    )
    cancelled = make_job(Status.CANCELLED)
    gone = make_job(Status.FAILED)
    selection = [running, succeeded, timed_out, cancelled, gone]
    data = {"action": "requeue_jobs", ACTION_CHECKBOX_NAME: [str(job.pk) for job in selection], "index": "0"}
    Job.objects.filter(pk=gone.pk).delete()
    page = root.post(LIST + "?status=all", data)
    form = page.context["form"].initial
    assert page.context["accepted"] == 3
    assert page.context["gone"] == 1
    response = root.post(
        reverse("admin:django_jobs_job_act", args=["requeue"]), {**form, "confirmed": "yes", "reason": "again"}, follow=True
    )
    assert response.status_code == 200
    text = said(response)
    assert "Requeue: 3 jobs." in text
    assert "2 jobs were left as they are" in text
    assert str(running.pk) in text
    assert str(gone.pk) in text
    assert state(running) == "running"
    for job in (succeeded, timed_out, cancelled):
        assert state(job) == "ready"
    timed_out.refresh_from_db()
    assert (timed_out.attempts_used, timed_out.started_at, timed_out.starts) == (0, None, 5)
    assert (timed_out.queue, timed_out.priority, timed_out.timeout) == ("slow", 7, 30.0)
    assert set(LogEntry.objects.values_list("object_id", flat=True)) == {str(job.pk) for job in (succeeded, timed_out, cancelled)}


def test_cancel_of_a_running_job_asks_and_says_so(root: Client) -> None:
    job = running_job()
    response = act(root, "cancel", job, reason="too long", force="on")
    assert "1 running job was asked to stop" in said(response)
    request = CancelRequest.objects.get(job_id=job.pk)
    assert (request.requested_by, request.reason, request.force) == ("root", "too long", True)
    assert "by force" in LogEntry.objects.get().change_message


def test_delete_of_a_running_job_is_refused_unless_forced(root: Client) -> None:
    job = running_job()
    assert "left as" in said(act(root, "delete", job))
    assert not LogEntry.objects.exists()
    act(root, "delete", job, force="on")
    assert CancelRequest.objects.get(job_id=job.pk).delete_job


@pytest.mark.parametrize("ids", ["", "nonsense", "nonsense,more", "'; DROP TABLE django_jobs_job; --", "\x00"])
def test_ids_that_are_none_change_nothing_and_break_nothing(root: Client, ids: str) -> None:
    job = make_job()
    response = root.post(reverse("admin:django_jobs_job_act", args=["cancel"]), {"ids": ids, "confirmed": "yes"})
    assert response.status_code in (200, 302)
    data = {"action": "cancel_jobs", ACTION_CHECKBOX_NAME: ids, "index": "0"}
    assert root.post(LIST, data).status_code in (200, 302)
    assert state(job) == "ready"


def test_the_way_back_stays_on_the_site(root: Client) -> None:
    for target in ("https://elsewhere.example/", "//elsewhere.example", "javascript:alert(1)"):
        response = root.post(
            reverse("admin:django_jobs_job_act", args=["cancel"]), {"ids": str(make_job().pk), "confirmed": "yes", "next": target}
        )
        assert response["Location"] == LIST
    response = root.post(
        reverse("admin:django_jobs_job_act", args=["cancel"]),
        {"ids": str(make_job().pk), "confirmed": "yes", "next": LIST + "?p=2"},
    )
    assert response["Location"] == LIST + "?p=2"


def test_an_unknown_verb_is_not_found(root: Client) -> None:
    assert act(root, "explode", make_job(), confirmed=False).status_code == 404


def test_a_reason_that_is_too_long_is_asked_for_again(root: Client) -> None:
    job = make_job()
    response = act(root, "cancel", job, reason="x" * 501)
    assert response.status_code == 200
    assert state(job) == "ready"
    assert "500" in response.content.decode()


def test_a_big_selection_is_told_by_reason(root: Client) -> None:
    jobs = [make_job() for _ in range(30)]
    text = said(act(root, "requeue", *jobs))
    assert "30 jobs were left as they are" in text
    assert text.count("<code>") == 20

"""Batches in the admin: how far each is, who may do what, cancel and requeue, read and unread, the jobs of one."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext, override_settings
from django.urls import reverse

from django_jobs import Batch
from django_jobs.models import Batch as Row
from django_jobs.models import Job
from django_jobs.testing import run_jobs
from tests.project.tasks import told
from tests.support.tasks import add, fail

LIST = reverse("admin:django_jobs_batch_changelist")
JOBS = reverse("admin:django_jobs_job_changelist")


def page(batch: Batch, *more: Any) -> str:
    """Return the address of the batch's page, or of what is done there."""
    name = f"batch_{more[0]}" if more else "batch_change"
    return reverse(f"admin:django_jobs_{name}", args=[batch.id, *more[1:]])


def made(name: str = "import", *, run: bool = True, **said: Any) -> Batch:
    """Return a batch of three jobs, of which one fails."""
    with Batch(name, **said) as batch:
        batch.add_many(add, [(1,), (2,)])
        batch.add(fail)
    if run:
        run_jobs()
    return batch


def text(client: Client, url: str) -> str:
    response = client.get(url)
    assert response.status_code == 200
    return response.content.decode()


def test_the_list_shows_how_far_each_batch_is(root: Client) -> None:
    made("done <b>", metadata={"file": "a.csv"})
    made("fresh", run=False)
    with Batch():
        pass
    shown = text(root, LIST)
    assert "done &lt;b&gt;" in shown
    assert "33 % failed" in shown
    assert '<progress value="3" max="3"' in shown
    assert '<progress value="0" max="3"' in shown
    assert "no jobs" in shown
    assert shown.count('class="dj-unread"') == 2
    assert "done &lt;b&gt;" not in text(root, f"{LIST}?finished=no")
    assert "fresh" not in text(root, f"{LIST}?finished=yes&read=no")


def test_the_list_costs_the_same_however_many_there_are(root: Client) -> None:
    made(run=False)
    with CaptureQueriesContext(connection) as few:
        root.get(LIST)
    for number in range(5):
        made(str(number), run=False)
    with CaptureQueriesContext(connection) as many:
        root.get(LIST)
    assert len(many) == len(few)


def test_the_page_of_a_batch_leads_to_its_jobs_and_callbacks(root: Client) -> None:
    batch = made(on_finish=told.s("end"), metadata={"file": "<i>"})
    other = add.enqueue(1)
    shown = text(root, page(batch))
    assert "when all have ended" in shown
    assert "&lt;i&gt;" in shown
    failed = f"{JOBS}?status=failed&amp;batch={batch.id}"
    assert failed in shown
    listed = text(root, failed.replace("&amp;", "&"))
    (job,) = Job.objects.filter(batch=batch.id, status="failed")
    assert str(job.pk) in listed
    everything = text(root, f"{JOBS}?status=all&batch={batch.id}")
    assert all(str(pk) in everything for pk in Job.objects.filter(batch=batch.id).values_list("pk", flat=True))
    assert str(other.id) not in everything
    assert page(batch) in text(root, reverse("admin:django_jobs_job_change", args=[job.pk]))


def test_the_list_of_jobs_with_a_batch_that_is_none_is_empty(root: Client) -> None:
    add.enqueue(1)
    for wrong in (uuid.uuid4(), "nothing"):
        assert "No job matches" in text(root, f"{JOBS}?status=all&batch={wrong}")


def test_a_job_whose_batch_is_gone_has_a_page(root: Client) -> None:
    batch = made()
    Row.objects.all().delete()
    job = Job.objects.filter(batch=batch.id)[0]
    assert str(batch.id) in text(root, reverse("admin:django_jobs_job_change", args=[job.pk]))
    assert root.get(page(batch)).status_code == 302


def test_failed_jobs_are_requeued_with_who_and_why(login: Callable[..., Client]) -> None:
    batch = made()
    client = login("view_batch", "requeue_job")
    shown = text(client, page(batch))
    assert "Requeue failed jobs…" in shown
    assert "Cancel all jobs" not in shown
    url = page(batch, "act", "requeue-failed")
    assert "They run again" in text(client, url)
    assert Job.objects.filter(status="failed").count() == 1, "to look at the form does nothing"
    response = client.post(url, {"reason": "the file is there now"}, follow=True)
    assert "1 job was changed" in response.content.decode()
    job = Job.objects.get(batch=batch.id, status="ready")
    assert job.reason == "requeued by ann: the file is there now"
    (entry,) = LogEntry.objects.all()
    assert entry.change_message == "Requeue failed jobs: the file is there now"
    assert "Requeue" not in text(client, page(batch)).partition("dj-facts")[0]


def test_a_batch_is_cancelled(login: Callable[..., Client]) -> None:
    batch = made(run=False)
    client = login("view_batch", "cancel_job")
    assert "Cancel all jobs…" in text(client, page(batch))
    client.post(page(batch, "act", "cancel"), {"reason": "wrong file"})
    assert set(Job.objects.filter(batch=batch.id).values_list("status", "reason")) == {
        ("cancelled", "cancelled by ann: wrong file")
    }
    assert "Cancel all jobs" not in text(client, page(batch)).partition("dj-facts")[0]


@pytest.mark.parametrize("permissions", [["view_batch"], ["cancel_job", "requeue_job"], ["view_job", "cancel_job"], []])
@pytest.mark.parametrize("name", ["cancel", "requeue-failed"])
def test_verbs_need_their_permission_and_the_view(login: Callable[..., Client], permissions: list[str], name: str) -> None:
    batch = made(run=False)
    client = login(*permissions)
    assert client.post(page(batch, "act", name)).status_code == 403
    assert Job.objects.filter(status="ready").count() == 3


def test_nobody_does_what_is_no_verb_or_by_other_methods(root: Client) -> None:
    batch = made()
    assert root.post(page(batch, "act", "delete")).status_code == 403
    assert root.post(page(batch), {"name": "x"}).status_code == 403
    assert root.get(page(batch, "read")).status_code == 403
    assert root.post(reverse("admin:django_jobs_batch_delete", args=[batch.id])).status_code == 403
    assert root.get(reverse("admin:django_jobs_batch_add")).status_code == 403


def test_read_and_unread(login: Callable[..., Client]) -> None:
    batch = made()
    client = login("view_batch")
    assert "Mark as read" in text(client, page(batch))
    client.post(page(batch, "read"))
    assert Row.objects.get().read_at
    assert "Mark as unread" in text(client, page(batch))
    client.post(page(batch, "read"), {"unread": "1"})
    assert Row.objects.get().read_at is None
    client.post(LIST, {"action": "mark_read", "_selected_action": [str(batch.id)]})
    assert Row.objects.get().read_at
    assert "unread" not in text(client, LIST).partition("result_list")[2].partition("changelist-filter")[0]


def test_who_sees_a_part_of_the_jobs_sees_no_batch(login: Callable[..., Client], root: Client) -> None:
    batch = made()
    client = login("view_batch", "cancel_job")
    with override_settings(DJANGO_JOBS={"VISIBLE_TO": lambda user, jobs: jobs.filter(created_by=user.get_username())}):
        assert client.get(LIST).status_code == 403
        assert client.get(page(batch)).status_code == 403
        assert client.post(page(batch, "act", "cancel")).status_code == 403
        assert root.get(page(batch)).status_code == 200

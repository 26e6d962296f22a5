"""The project's VISIBLE_TO narrows what people see and touch in the admin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from django_jobs.models import Job
from django_jobs.statuses import Status
from tests.support.jobs import make_job, running_job

LIST = reverse("admin:django_jobs_job_changelist")


def own_jobs(user: Any, jobs: Any) -> Any:
    return jobs if user.is_superuser else jobs.filter(created_by=user.get_username())


@pytest.fixture(autouse=True)
def _narrow(settings: Any) -> None:
    settings.DJANGO_JOBS = {"VISIBLE_TO": own_jobs}


def page(job: Job) -> str:
    return reverse("admin:django_jobs_job_change", args=[job.pk])


def act(verb: str) -> str:
    return reverse("admin:django_jobs_job_act", args=[verb])


def test_lists_tabs_and_pages_show_the_users_own(login: Callable[..., Client]) -> None:
    hers, other = (make_job(Status.FAILED, created_by=name, task=f"app.of_{name}") for name in ("ann", "bob"))
    client = login("view_job")
    for query in ("?status=failed", "?status=all", "?q=app.of", f"?q={other.pk}", f"?status=failed&before={other.pk}"):
        response = client.get(LIST + query)
        assert response.status_code == 200
        assert "of_bob" not in response.content.decode(), query
    change_list = client.get(LIST + "?status=failed").context["cl"]
    assert [job.pk for job in change_list.result_list] == [hers.pk]
    assert {tab["name"]: tab["count"] for tab in change_list.tabs}["failed"] == "1"
    assert client.get(page(hers)).status_code == 200
    response = client.get(page(other))
    assert response.status_code == 302
    assert "of_bob" not in response.content.decode()
    assert client.get(reverse("admin:django_jobs_job_history", args=[other.pk])).status_code == 302


def test_a_superuser_may_see_them_all(root: Client) -> None:
    make_job(Status.FAILED, created_by="bob")
    assert root.get(LIST + "?status=failed").context["cl"].result_count == 1


def test_verbs_touch_the_users_own(login: Callable[..., Client]) -> None:
    hers, other = (make_job(Status.FAILED, created_by=name, task=f"app.of_{name}") for name in ("ann", "bob"))
    client = login("view_job", "requeue_job")
    ids = f"{hers.pk},{other.pk}"
    asked = client.post(act("requeue"), {"ids": ids, "next": LIST})
    assert "of_ann" in asked.content.decode()
    assert "of_bob" not in asked.content.decode()
    done = client.post(act("requeue"), {"ids": ids, "next": LIST, "confirmed": "1", "reason": ""}, follow=True)
    assert "no such job" in done.content.decode()
    assert [Job.objects.get(pk=job.pk).status for job in (hers, other)] == ["ready", "failed"]


def test_lock_rows_queues_and_workers_tell_nothing_of_others(login: Callable[..., Client]) -> None:
    running_job(created_by="ann", task="app.of_ann")
    running_job(created_by="bob", task="app.of_bob", queue="secret")
    client = login("view_joblock", "view_queue", "view_job")
    text = client.get(reverse("admin:django_jobs_joblock_changelist")).content.decode()
    assert "of_ann" in text
    assert "of_bob" not in text
    assert "secret" not in client.get(reverse("admin:django_jobs_queue_changelist")).content.decode()


def test_a_worker_shows_the_users_own(login: Callable[..., Client]) -> None:
    from tests.api.test_service import make_worker

    worker = make_worker()
    running_job(worker.pk, created_by="ann", task="app.of_ann")
    running_job(worker.pk, created_by="bob", task="app.of_bob")
    text = login("view_worker").get(reverse("admin:django_jobs_worker_change", args=[worker.pk])).content.decode()
    assert "of_ann" in text
    assert "of_bob" not in text
    assert User.objects.count() == 1

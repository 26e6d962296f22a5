"""Queues, lock rows, workers, maintenance services."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from django_jobs.lifecycle.rollup import recount
from django_jobs.models import JobLock, Leader, Queue, Worker
from tests.support.jobs import make_job, running_job

QUEUES = reverse("admin:django_jobs_queue_changelist")
READ_ONLY = ["worker", "joblock", "leader"]


def pause(queue: Queue) -> str:
    return reverse("admin:django_jobs_queue_pause", args=[queue.pk])


def test_a_queue_is_paused_and_resumed_with_who_why_and_until(login: Callable[..., Client]) -> None:
    queue = Queue.objects.create(name="mail")
    client = login("view_queue", "pause_queue")
    client.post(pause(queue), {"act": "pause", "reason": "the provider is down", "duration": "2h"})
    queue.refresh_from_db()
    assert (queue.paused_by, queue.pause_reason) == ("ann", "the provider is down")
    assert queue.paused_at
    assert timedelta(minutes=119) < queue.paused_until - timezone.now() < timedelta(minutes=121)
    text = client.get(QUEUES).content.decode()
    assert "the provider is down" in text
    assert "Resume" in text
    client.post(pause(queue), {"act": "resume", "reason": "it is back"})
    assert "Pause…" in client.get(QUEUES).content.decode()
    assert [entry.change_message.split(":")[-1].strip() for entry in LogEntry.objects.order_by("pk")] == [
        "the provider is down",
        "it is back",
    ]


def test_to_look_at_the_form_pauses_nothing(root: Client) -> None:
    queue = Queue.objects.create(name="mail")
    assert root.get(pause(queue), {"act": "pause"}).status_code == 200
    queue.refresh_from_db()
    assert queue.paused_at is None


@pytest.mark.parametrize("permissions", [["view_queue"], ["view_queue", "change_queue"], ["pause_queue"], []])
def test_pause_needs_its_own_permission(login: Callable[..., Client], permissions: list[str]) -> None:
    queue = Queue.objects.create(name="mail")
    client = login(*permissions)
    assert client.post(pause(queue), {"act": "pause"}).status_code == 403
    queue.refresh_from_db()
    assert queue.paused_at is None
    if permissions == ["view_queue"]:
        assert "Pause" not in client.get(QUEUES).content.decode()


@pytest.mark.parametrize("duration", ["soon", "-5m", "0s", "9" * 18])
def test_a_bad_duration_is_asked_for_again(root: Client, duration: str) -> None:
    queue = Queue.objects.create(name="mail")
    response = root.post(pause(queue), {"act": "pause", "duration": duration})
    assert response.status_code == 200
    assert response.context["form"].errors
    queue.refresh_from_db()
    assert queue.paused_at is None


def test_a_queue_below_a_paused_one_says_so(root: Client) -> None:
    Queue.objects.create(name="billing", paused_at=timezone.now())
    Queue.objects.create(name="billing.invoices")
    Queue.objects.create(name="mail", paused_at=timezone.now(), paused_until=timezone.now() - timedelta(seconds=1))
    text = root.get(QUEUES).content.decode().partition('id="dj-undeclared"')[0]
    assert text.count('dj-parked">paused') == 2
    assert text.count('dj-succeeded">open') == 1, "a pause whose time is over is none"


def test_queues_without_a_row_are_listed_with_their_depth_and_can_be_paused(root: Client) -> None:
    Queue.objects.create(name="declared")
    Queue.objects.create(name="closed", paused_at=timezone.now())
    running_job(queue="busy")
    for _ in range(3):
        make_job(queue="undeclared")
    make_job(queue="closed.below")
    recount(using="default")
    table = root.get(QUEUES).content.decode().partition('id="dj-undeclared"')[2]
    rows = {row.partition('field-name">')[2].partition("<")[0]: row for row in table.split("<tr>")[2:]}
    assert {"undeclared", "busy", "closed.below"} <= set(rows)
    assert "declared" not in rows
    assert 'queue=undeclared">3<' in rows["undeclared"]
    assert 'status=running&amp;queue=busy">1<' in rows["busy"]
    assert 'status=parked&amp;queue=closed.below">1<' in rows["closed.below"], "what waits for the end of a pause counts"
    assert "with closed" in rows["closed.below"]
    address = reverse("admin:django_jobs_queue_pause_name", args=["undeclared"])
    assert address in rows["undeclared"]
    assert root.get(address).status_code == 200
    assert not Queue.objects.filter(name="undeclared").exists(), "to look makes no row"
    assert root.post(address, {"act": "pause", "reason": "too much"}).status_code == 302
    queue = Queue.objects.get(name="undeclared")
    assert (queue.paused_by, queue.pause_reason) == ("root", "too much")
    assert LogEntry.objects.get().object_id == str(queue.pk)
    assert address not in root.get(QUEUES).content.decode()


@pytest.mark.parametrize("name", ["a..b", "a b", "x" * 101])
def test_what_can_not_name_a_queue_is_not_paused(root: Client, name: str) -> None:
    address = reverse("admin:django_jobs_queue_pause_name", args=[name])
    assert root.post(address, {"act": "pause"}).status_code == 302
    assert not Queue.objects.exists()


def test_to_pause_a_queue_without_a_row_needs_the_permission(login: Callable[..., Client]) -> None:
    address = reverse("admin:django_jobs_queue_pause_name", args=["mail"])
    assert login("view_queue").post(address, {"act": "pause"}).status_code == 403
    assert not Queue.objects.exists()


def test_the_form_of_a_queue_shows_nothing_where_nothing_is_said_and_explains(root: Client) -> None:
    queue = Queue.objects.create(name="mail", retention={"failed": None})
    for address in (reverse("admin:django_jobs_queue_add"), reverse("admin:django_jobs_queue_change", args=[queue.pk])):
        form = root.get(address).context["adminform"].form
        assert form["backoff"].value() == ""
        assert "null" not in str(form["backoff"])
        assert all(form[name].help_text for name in form.fields if name != "description")
    assert "&quot;failed&quot;: null" in str(form["retention"])


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("name", "x..y", "can't name a queue"),
        ("timeout", "-1", "can't be negative"),
        ("retention", '{"failed": "soon", "running": 1}', "'running' is not a final status"),
        ("retention", '{"failed": "soon", "running": 1}', "['failed']: can't read 'soon'"),
        ("backoff", '"soon"', "can't read 'soon'"),
    ],
)
def test_an_error_says_what_is_wrong_and_not_how_the_field_is_called_in_code(
    root: Client, field: str, value: str, told: str
) -> None:
    response = root.post(reverse("admin:django_jobs_queue_add"), {"name": "good", field: value})
    errors = response.context["adminform"].form.errors[field]
    assert any(told in error.lower() for error in errors), errors
    assert not any(error.startswith(("queue_name:", f"{field}:")) for error in errors)


@pytest.mark.parametrize(
    ("field", "value"),
    [("name", "a b"), ("name", "x..y"), ("backoff", '{"one": 2}'), ("retention", '{"running": 5}'), ("max_attempts", "0")],
)
def test_settings_are_checked(root: Client, field: str, value: str) -> None:
    response = root.post(reverse("admin:django_jobs_queue_add"), {"name": "good", field: value})
    assert response.status_code == 200
    assert not Queue.objects.exists()


def test_to_save_settings_leaves_a_pause_alone(root: Client) -> None:
    queue = Queue.objects.create(name="mail", paused_at=timezone.now(), paused_by="bea")
    address = reverse("admin:django_jobs_queue_change", args=[queue.pk])
    assert root.post(address, {"description": "letters", "timeout": "30", "backoff": "[10, 60]"}).status_code == 302
    queue.refresh_from_db()
    assert (queue.name, queue.description, queue.timeout, queue.backoff, queue.paused_by) == (
        "mail",
        "letters",
        30.0,
        [10, 60],
        "bea",
    )


def test_a_queue_can_be_given_to_http_workers(root: Client) -> None:
    queue = Queue.objects.create(name="web")
    url = reverse("admin:django_jobs_queue_change", args=[queue.pk])
    assert b'name="is_http"' in root.get(url).content
    assert root.post(url, {"description": "", "is_http": "true", "heartbeat_timeout": "30"}).status_code == 302
    queue.refresh_from_db()
    assert (queue.is_http, queue.heartbeat_timeout) == (True, 30.0)


def test_the_number_of_queries_for_queues_does_not_grow(root: Client) -> None:
    def cost() -> int:
        with CaptureQueriesContext(connection) as queries:
            assert root.get(QUEUES).status_code == 200
        return len(queries)

    Queue.objects.create(name="q")
    before = cost()
    for number in range(60):
        Queue.objects.create(name=f"q{number}")
        make_job(queue=f"q{number}")
    assert cost() == before <= 12


@pytest.mark.parametrize("model", READ_ONLY)
def test_what_workers_write_is_read_only(root: Client, model: str) -> None:
    assert root.get(reverse(f"admin:django_jobs_{model}_changelist")).status_code == 200
    assert root.get(reverse(f"admin:django_jobs_{model}_add")).status_code == 403
    assert root.get(reverse("admin:django_jobs_job_add")).status_code == 403
    job = running_job()
    assert root.post(reverse("admin:django_jobs_joblock_delete", args=[job.pk]), {"post": "yes"}).status_code == 403
    assert JobLock.objects.filter(pk=job.pk).exists()


@pytest.mark.parametrize("model", READ_ONLY)
def test_pages_need_the_permission_to_view(login: Callable[..., Client], model: str) -> None:
    address = reverse(f"admin:django_jobs_{model}_changelist")
    assert login(f"view_{model}", name="able").get(address).status_code == 200
    assert login("view_job", name="other").get(address).status_code == 403


def test_workers_are_shown_as_trees_and_silent_ones_marked(root: Client) -> None:
    now = timezone.now()
    heads = [
        Worker(id=uuid.uuid4(), kind="supervisor", name=f"head-{n}", host="h", pid=n, started_at=now - timedelta(hours=n))
        for n in (1, 2)
    ]
    children = [
        Worker(id=uuid.uuid4(), kind="process", parent=head.id, name=f"{head.name}-child", host="h", pid=9, slots=4)
        for head in heads
    ]
    Worker.objects.bulk_create([*children, *heads])
    Worker.objects.filter(pk=children[1].pk).update(seen_at=now - timedelta(hours=1))
    Worker.objects.create(id=uuid.uuid4(), kind="process", name="bygone", host="h", pid=3, stopped_at=now, stop_reason="asked to")
    text = root.get(reverse("admin:django_jobs_worker_changelist")).content.decode()
    places = [text.index(f"<b>{name}</b>") for name in ("head-1", "head-1-child", "head-2", "head-2-child")]
    assert places == sorted(places)
    assert text.count("dj-lost") == 1
    assert "bygone" not in text
    assert "asked to" in root.get(reverse("admin:django_jobs_worker_changelist") + "?life=stopped").content.decode()


def test_a_supervisor_has_the_numbers_of_its_processes(root: Client) -> None:
    """Its own row counts what its bygone processes did; the living count for themselves. Nothing is shown twice or left out."""
    head = Worker.objects.create(id=uuid.uuid4(), kind="supervisor", name="head", host="h", pid=1, jobs_done=8_523)
    for number, (done, running) in enumerate([(16_833, 2), (100, 0)]):
        values = {"jobs_done": done, "running": running, "slots": 4, "memory_mb": 100.0 * number}
        Worker.objects.create(id=uuid.uuid4(), kind="process", parent=head.pk, name=f"child-{number}", host="h", pid=2, **values)
    gone = {"stopped_at": timezone.now(), "jobs_done": 8_523, "slots": 4}
    Worker.objects.create(id=uuid.uuid4(), kind="process", parent=head.pk, name="gone", host="h", pid=3, **gone)
    Worker.objects.create(id=uuid.uuid4(), kind="supervisor", name="other", host="h", pid=4)
    text = root.get(reverse("admin:django_jobs_worker_changelist")).content.decode()
    row = text.partition("<b>head</b>")[2].partition("</tr>")[0]
    assert "25,456" in row
    assert "2 / 8" in row
    assert "busy" in row
    assert "16,833" in text.partition("<b>child-0</b>")[2].partition("</tr>")[0]
    assert "all queues" in row
    assert "· –" not in text
    assert "0 MB" not in text.replace("100 MB", "")
    assert root.get(reverse("admin:django_jobs_worker_change", args=[head.pk])).status_code == 200


def test_a_workers_page_shows_what_it_runs(root: Client) -> None:
    worker = Worker.objects.create(id=uuid.uuid4(), kind="process", name="w", host="h", pid=1)
    job = running_job(worker.pk)
    assert str(job.pk) in root.get(reverse("admin:django_jobs_worker_change", args=[worker.pk])).content.decode()


def test_the_number_of_queries_for_workers_and_locks_does_not_grow(root: Client) -> None:
    def cost(model: str) -> int:
        with CaptureQueriesContext(connection) as queries:
            assert root.get(reverse(f"admin:django_jobs_{model}_changelist")).status_code == 200
        return len(queries)

    def add() -> None:
        worker = Worker.objects.create(id=uuid.uuid4(), kind="process", name="w", host="h", pid=1, slots=1)
        Leader.objects.create(name=str(worker.pk)[:32], worker=worker.pk)
        running_job(worker.pk)

    add()
    before = {model: cost(model) for model in READ_ONLY}
    for _ in range(30):
        add()
    assert {model: cost(model) for model in READ_ONLY} == before
    assert max(before.values()) <= 10


def test_services_say_that_somebody_looks_though_no_sweep_is_recent(root: Client) -> None:
    address = reverse("admin:django_jobs_leader_changelist")
    Leader.objects.create(name="stager", ran_at=timezone.now() - timedelta(seconds=50), next_at=timezone.now())
    assert "start one with manage.py runjobs" in root.get(address).content.decode()
    Worker.objects.create(id=uuid.uuid4(), kind="supervisor", name="head", host="h", pid=1)
    Worker.objects.create(id=uuid.uuid4(), kind="supervisor", name="old", host="h", pid=2, stopped_at=timezone.now())
    text = root.get(address).content.decode()
    assert "1 worker looks every 1 s" in text
    assert "just now" in text.partition("Last seen")[2].partition("</p>")[0]


def test_services_show_errors_and_those_that_nobody_runs(root: Client) -> None:
    Leader.objects.create(name="good", next_at=timezone.now() + timedelta(seconds=5))
    Leader.objects.create(name="bad", error="it went wrong")
    Leader.objects.create(name="lonely", next_at=timezone.now() - timedelta(hours=1))
    text = root.get(reverse("admin:django_jobs_leader_changelist")).content.decode()
    assert "it went wrong" in text
    assert text.count("overdue") == 1
    assert root.get(reverse("admin:django_jobs_leader_change", args=["bad"])).status_code == 200

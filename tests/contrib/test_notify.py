"""Notifications: what is counted, who is told, how often, and what is not lost."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.core import mail
from django.core.mail.backends.base import BaseEmailBackend
from django.db import connection
from django.template import Context, Template
from django.test import Client, RequestFactory, override_settings
from django.urls import include, path
from django.utils import timezone

from django_jobs import as_user, db, job
from django_jobs.contrib.notify import collect, listeners, tasks
from django_jobs.contrib.notify.checks import check_settings
from django_jobs.contrib.notify.context_processors import notices
from django_jobs.contrib.notify.models import Failure, FailureGroup, Notice, Preference, Progress, Subscription
from django_jobs.lifecycle import control
from django_jobs.models import Job
from django_jobs.statuses import Status
from django_jobs.testing import run_jobs
from tests.contrib.mailers import mailer
from tests.support.jobs import in_threads, make_job
from tests.urls import urlpatterns as site_urls

pytestmark = pytest.mark.django_db
urlpatterns = [*site_urls, path("notices/", include("django_jobs.contrib.notify.urls"))]
with_pages = override_settings(ROOT_URLCONF="tests.contrib.test_notify")
TASK = "shop.tasks.bill"
in_commits = pytest.mark.django_db(transaction=True)


class Broken(BaseEmailBackend):
    """A mail server that is away."""

    def send_messages(self, email_messages: Any) -> int:
        raise ConnectionRefusedError("no mail server")


@job
def breaks() -> None:
    raise ValueError("no")


@pytest.fixture
def listening() -> Iterator[None]:
    listeners._asked_at = float("-inf")
    listeners.connect()
    yield
    listeners.disconnect()


@pytest.fixture
def ada() -> User:
    return User.objects.create_user("ada", "ada@example.com")


@pytest.fixture
def bob() -> User:
    return User.objects.create_user("bob", "bob@example.com")


def fail(user: User | None = None, *, count: int = 1, status: Status = Status.FAILED, **values: Any) -> list[Job]:
    values = {"task": TASK, "error_class": "builtins.ValueError", "error_message": "no money", "fingerprint": "f1"} | values
    context = {"user": str(user.pk)} if user else {}
    return [make_job(status, context=context, **values) for _ in range(count)]


def look() -> list[Any]:
    """Look, and send what is due; return the mails."""
    before = len(mail.outbox)
    tasks.look.call()
    run_jobs()
    return mail.outbox[before:]


def an_hour_later() -> None:
    Notice.objects.update(mailed_at=timezone.now() - timedelta(minutes=61))


@pytest.mark.parametrize("status", [Status.FAILED, Status.TIMED_OUT])
def test_who_enqueued_a_job_hears_of_its_failure(ada: User, status: Status) -> None:
    (failed,) = fail(ada, status=status)
    (message,) = look()
    assert message.to == ["ada@example.com"]
    assert message.subject == f"Failed: {TASK} (ValueError)"
    for part in (TASK, "builtins.ValueError: no money", str(failed.id), "default"):
        assert part in message.body
    notice = Notice.objects.get()
    assert (notice.user, notice.count, notice.mailed_count, notice.read_at) == (ada, 1, 1, None)
    assert look() == []


@pytest.mark.parametrize("status", [Status.SUCCEEDED, Status.CANCELLED, Status.SCHEDULED])
def test_other_ends_are_no_failures(ada: User, status: Status) -> None:
    fail(ada, status=status)
    assert look() == []
    assert not FailureGroup.objects.exists()


def test_one_mail_for_a_group_however_many_fail(ada: User) -> None:
    fail(ada, count=1200, fingerprint="storm")
    fail(ada, fingerprint="other")
    messages = look()
    assert sorted(message.subject for message in messages) == [
        f"Failed 1200 times: {TASK} (ValueError)",
        f"Failed: {TASK} (ValueError)",
    ]
    assert sorted(FailureGroup.objects.values_list("count", flat=True)) == [1, 1200]


def test_the_first_at_once_and_then_one_summary_a_period(ada: User) -> None:
    fail(ada)
    assert len(look()) == 1
    for _ in range(3):
        fail(ada, count=5)
        assert look() == []
    an_hour_later()
    (summary,) = look()
    assert summary.subject.startswith("Failed 15 times")
    assert "since the last mail" in summary.body
    assert "In all: 16" in summary.body
    an_hour_later()
    assert look() == []


def test_groups_without_a_fingerprint_are_told_apart_by_their_error(ada: User) -> None:
    fail(ada, fingerprint="", error_class="django_jobs.exceptions.AttemptLost", count=2)
    fail(ada, fingerprint="", error_class="", status=Status.TIMED_OUT)
    assert len(look()) == 2
    assert set(FailureGroup.objects.values_list("key", "count")) == {("django_jobs.exceptions.AttemptLost", 2), ("timed_out", 1)}


@pytest.mark.parametrize(
    ("wish", "is_told"),
    [
        ({}, True),
        ({"task": TASK}, True),
        ({"task": "shop.tasks.other"}, False),
        ({"queue": "billing"}, True),
        ({"queue": "billing.invoices"}, True),
        ({"queue": "bill"}, False),
        ({"queue": "billing.invoices.paid"}, False),
        ({"task": TASK, "queue": "billing"}, True),
        ({"task": TASK, "queue": "mail"}, False),
    ],
    ids=str,
)
def test_subscribers_hear_of_what_they_asked_for(ada: User, bob: User, wish: dict[str, str], is_told: bool) -> None:
    Subscription.objects.create(user=bob, **wish)
    fail(queue="billing.invoices")
    assert [message.to for message in look()] == ([["bob@example.com"]] if is_told else [])


def test_who_subscribes_and_enqueued_hears_of_it_once(ada: User) -> None:
    Subscription.objects.create(user=ada)
    Subscription.objects.create(user=ada, task=TASK)
    fail(ada)
    assert len(look()) == 1


def test_who_wants_no_mails_gets_none_and_still_a_notice(ada: User) -> None:
    Preference.objects.create(user=ada, by_mail=False)
    fail(ada)
    assert look() == []
    assert [notice.count for notice in Notice.objects.filter(user=ada).shown().unread()] == [1]
    Preference.objects.update(by_mail=True, on_site=False)
    assert len(look()) == 1
    assert not Notice.objects.shown().exists()


@pytest.mark.parametrize("values", [{"is_active": False}, {"email": ""}])
def test_who_can_not_be_reached_gets_no_mail(ada: User, values: dict[str, Any]) -> None:
    fail(ada)
    User.objects.update(**values)
    assert look() == []


def test_a_user_who_is_gone_or_never_was_stops_nobody(ada: User, bob: User) -> None:
    fail(ada)
    ada.delete()
    make_job(Status.FAILED, task=TASK, context={"user": "rubbish"})
    make_job(Status.FAILED, task=TASK, context={"user": "9" * 30})
    fail(bob)
    assert [message.to for message in look()] == [["bob@example.com"]]


def _only_billing(user: Any, jobs: Any) -> Any:
    return jobs.filter(queue="billing")


@override_settings(DJANGO_JOBS={"VISIBLE_TO": "tests.contrib.test_notify._only_billing"})
def test_nobody_is_told_of_jobs_that_they_may_not_see(ada: User) -> None:
    Subscription.objects.create(user=ada)
    fail(queue="secret", fingerprint="a")
    fail(queue="billing", fingerprint="b")
    fail(queue="secret", fingerprint="b")
    look()
    assert [(notice.group.key, notice.count) for notice in Notice.objects.all()] == [("b", 1)]


def test_a_job_that_fails_again_is_counted_again_and_makes_the_notice_unread(ada: User) -> None:
    with as_user(ada):
        result = breaks.enqueue()
    run_jobs()
    tasks.look.call()
    Notice.objects.update(read_at=timezone.now())
    tasks.look.call()
    assert Notice.objects.get().read_at is not None
    control.requeue([result.job_id])
    run_jobs()
    tasks.look.call()
    notice = Notice.objects.get()
    assert (notice.count, notice.read_at) == (2, None)


def test_what_was_committed_late_is_found_and_nothing_is_counted_twice(ada: User) -> None:
    fail(ada)
    look()
    late = db.server_now(connection) - timedelta(seconds=collect.OVERLAP - 30)
    fail(ada, finished_at=late)
    fail(ada, finished_at=late)
    for _ in range(3):
        look()
    assert FailureGroup.objects.get().count == 3


def test_old_failures_are_not_dug_out_when_the_app_is_installed(ada: User) -> None:
    fail(ada, finished_at=timezone.now() - timedelta(days=3))
    assert look() == []


def test_rows_that_no_look_needs_any_more_are_deleted(ada: User) -> None:
    fail(ada)
    look()
    Failure.objects.update(finished_at=timezone.now() - timedelta(days=1))
    FailureGroup.objects.update(last_at=timezone.now() - timedelta(days=91))
    Job.objects.all().delete()
    look()
    assert not Failure.objects.exists()
    assert not Notice.objects.exists()


@in_commits
def test_looks_at_once_count_once(ada: User) -> None:
    fail(ada, count=20)
    Progress.objects.create(database="default", looked_until=timezone.now())
    in_threads(*[lambda: collect.collect("default")] * 4)
    assert FailureGroup.objects.get().count == Notice.objects.get().count == 20


# -- what dies between


def test_a_look_that_dies_has_counted_nothing(ada: User, monkeypatch: pytest.MonkeyPatch) -> None:
    fail(ada, count=2)

    def dies(*args: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(collect, "_tell", dies)
        with pytest.raises(MemoryError):
            tasks.look.call()
    assert not FailureGroup.objects.exists()
    (message,) = look()
    assert message.subject.startswith("Failed 2 times")


@mailer("tests.contrib.test_notify.Broken")
def test_mail_trouble_is_retried_and_disturbs_nobody(ada: User) -> None:
    (failed,) = fail(ada)
    tasks.look.call()
    run_jobs()
    sending = Job.objects.get(task=tasks.send.module_path)
    assert (sending.status, sending.error_class) == (Status.SCHEDULED, "builtins.ConnectionRefusedError")
    notice = Notice.objects.get()
    assert (notice.count, notice.mailed_count) == (1, 0)
    tasks.look.call()
    assert Job.objects.filter(task=tasks.send.module_path).count() == 1
    with mailer("django.core.mail.backends.locmem.EmailBackend"):
        control.run_now([sending.id])
        run_jobs()
    assert [message.to for message in mail.outbox] == [["ada@example.com"]]
    failed.refresh_from_db()
    assert failed.status == Status.FAILED


@mailer("tests.contrib.test_notify.Broken")
def test_a_mail_that_was_given_up_is_tried_anew_by_a_later_look(ada: User) -> None:
    fail(ada)
    tasks.look.call()
    Job.objects.filter(task=tasks.send.module_path).update(max_attempts=1)
    run_jobs()
    assert Job.objects.get(task=tasks.send.module_path).status == Status.FAILED
    tasks.look.call()
    assert Job.objects.filter(task=tasks.send.module_path, status=Status.READY).count() == 1
    assert FailureGroup.objects.count() == 1, "the app notifies of its own failures"


def test_a_mail_whose_job_was_lost_is_enqueued_again(ada: User) -> None:
    fail(ada)
    tasks.look.call()
    Job.objects.filter(task=tasks.send.module_path).delete()
    assert look() == []
    Notice.objects.update(queued_at=timezone.now() - timedelta(days=2))
    assert len(look()) == 1


def test_each_look_sees_to_another_one_later(ada: User) -> None:
    tasks.look.call()
    tasks.look.call()
    waiting = Job.objects.filter(task=tasks.look.module_path)
    assert [row.status for row in waiting] == [Status.SCHEDULED]
    assert timedelta(seconds=290) < waiting[0].due_at - timezone.now() < timedelta(seconds=301)
    waiting.delete()  # somebody did
    Progress.objects.update(next_at=timezone.now() - timedelta(seconds=1))
    tasks.look.call()
    assert waiting.count() == 1


@pytest.mark.usefixtures("listening")
def test_a_failure_asks_for_a_look_soon_and_many_ask_for_one() -> None:
    breaks.enqueue_many([()] * 5)
    run_jobs()
    asked = Job.objects.get(task=tasks.look.module_path)
    assert asked.status == Status.SCHEDULED
    assert asked.due_at - timezone.now() < timedelta(seconds=1.5)
    assert listeners.DELAY > listeners.PAUSE
    for _ in range(3):
        listeners._asked_at = float("-inf")  # as other processes
        listeners.ask()
    assert Job.objects.filter(task=tasks.look.module_path).count() == 1
    control.run_now([asked.id])
    assert run_jobs() == 1
    listeners._asked_at = float("-inf")
    listeners.ask()
    waiting = Job.objects.filter(task=tasks.look.module_path, status=Status.SCHEDULED)
    assert sorted(row.unique_key is None for row in waiting) == [False, True]


@pytest.mark.usefixtures("listening")
def test_its_own_failures_ask_for_nothing() -> None:
    tasks.send.using(max_attempts=1).enqueue("no number")  # type: ignore[arg-type]
    run_jobs()
    assert not Job.objects.filter(task=tasks.look.module_path).exists()


# -- on the site


def box(user: Any) -> str:
    request = RequestFactory().get("/somewhere/?page=2")
    request.user = user
    return Template("{% load job_notices %}{% job_notices %}").render(Context({"request": request, "csrf_token": "x"})).strip()


@with_pages
def test_unread_notices_on_the_site(ada: User, client: Client) -> None:
    fail(ada, count=2, error_message="<script>alert(1)</script>")
    tasks.look.call()
    assert TASK in box(ada)
    assert "2 times" in box(ada)
    assert box(AnonymousUser()) == box(User.objects.create_user("eve")) == ""
    client.force_login(ada)
    page = client.get("/notices/").content.decode()
    assert "&lt;script&gt;" in page
    assert "<script>" not in page
    request = RequestFactory().get("/")
    request.user = ada
    assert str(notices(request)["job_notice_count"]) == "1"
    response = client.post("/notices/read/", {"notice": Notice.objects.get().pk, "next": "/somewhere/?page=2"})
    assert response["Location"] == "/somewhere/?page=2"
    assert box(ada) == ""
    assert str(notices(request)["job_notice_count"]) == "0"


@with_pages
def test_notices_are_their_users_own(ada: User, bob: User, client: Client) -> None:
    fail(ada)
    tasks.look.call()
    assert client.get("/notices/").status_code == 302
    client.force_login(bob)
    assert TASK not in client.get("/notices/").content.decode()
    client.post("/notices/read/", {"notice": Notice.objects.get().pk})
    client.post("/notices/read/")
    assert Notice.objects.get().read_at is None
    assert client.get("/notices/read/").status_code == 405
    assert client.post("/notices/read/", {"next": "https://evil.example"})["Location"] == "/notices/"


@with_pages
def test_who_does_not_want_mails_says_so(ada: User, client: Client) -> None:
    client.force_login(ada)
    assert client.get("/notices/preferences/").status_code == 200
    client.post("/notices/preferences/", {"on_site": "on"})
    assert [(row.by_mail, row.on_site) for row in Preference.objects.all()] == [(False, True)]
    fail(ada)
    assert look() == []


@with_pages
@override_settings(DJANGO_JOBS_NOTIFY={"BASE_URL": "https://example.com/"})
def test_links_in_mails(ada: User) -> None:
    (failed,) = fail(ada)
    (message,) = look()
    assert f"https://example.com/admin/django_jobs/job/{failed.id}/change/" in message.body
    assert "https://example.com/notices/preferences/" in message.body


def test_the_pages_of_the_admin(admin_client: Client, ada: User) -> None:
    Subscription.objects.create(user=ada, task=TASK)
    Preference.objects.create(user=ada)
    fail(ada)
    tasks.look.call()
    for name in ("failuregroup", "notice", "subscription", "preference"):
        page = admin_client.get(f"/admin/django_jobs_notify/{name}/")
        assert page.status_code == 200
        assert "ada" in page.content.decode() or TASK in page.content.decode()
    assert admin_client.get("/admin/django_jobs_notify/subscription/add/").status_code == 200
    assert admin_client.get("/admin/django_jobs_notify/notice/add/").status_code == 403


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"PERIOD": "soon"}, "PERIOD"),
        ({"PERIODS": 5}, "did you mean 'PERIOD'"),
        ({"QUEUE": "a..b"}, "QUEUE"),
        ({"BASE_URL": "example.com"}, "BASE_URL"),
        ({"ENABLED": 1}, "ENABLED"),
        ([], "a dict"),
    ],
)
def test_wrong_settings_are_told(given: Any, word: str) -> None:
    with override_settings(DJANGO_JOBS_NOTIFY=given):
        (message,) = check_settings()
        assert word in message.msg
        assert message.id == "django_jobs_notify.E001"


def test_times_and_ids_are_what_the_models_say() -> None:
    (failed,) = fail()
    tasks.look.call()
    group = FailureGroup.objects.get()
    assert isinstance(group.last_job, uuid.UUID)
    assert isinstance(group.last_at, datetime)
    assert (group.last_job, group.last_at) == (failed.id, failed.finished_at)

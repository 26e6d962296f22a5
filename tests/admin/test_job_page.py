"""The page of one job: everything about it, escaped, and nothing that the reader may not see."""

from __future__ import annotations

import html
import uuid
from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from django_jobs.admin import tracebacks
from django_jobs.models import CancelRequest, Job, JobAttempt, JobLock, Leader, Queue, Worker
from django_jobs.statuses import Status
from tests.project import jobs
from tests.support.jobs import make_job, running_job

EVIL = "<script>alert('x')</script><img src=x onerror=alert(1)>\"'&{{ 7 }}{% now %}"
BIG = 12345678901234567890123456789


def page(client: Client, job: Job) -> str:
    response = client.get(reverse("admin:django_jobs_job_change", args=[job.pk]))
    assert response.status_code == 200
    return response.content.decode()


def add_attempt(job: Job, number: int, **values) -> JobAttempt:
    values = {"ended_at": timezone.now(), "outcome": "failed"} | values
    return JobAttempt.objects.create(job=job, number=number, **values)


def evil_job(status: Status = Status.FAILED, **values) -> Job:
    names = ["task", "description", "queue", "reason", "error_class", "error_message", "worker", "created_by", "fingerprint"]
    limits = {field.name: field.max_length for field in Job._meta.fields if getattr(field, "max_length", None)}
    texts = {name: EVIL[: limits.get(name)] for name in names}
    structures = {
        "args": [EVIL],
        "kwargs": {EVIL: EVIL},
        "metadata": {EVIL: EVIL},
        "tags": [EVIL],
        "result": {EVIL: [EVIL]},
        "output": EVIL,
        "context": {"language": EVIL},
        "progress": {"message": EVIL, "done": 1, "total": 2},
        "backoff": [EVIL],
    }
    return make_job(status, **{**texts, **structures, "unique_key": EVIL, **values})


def test_every_text_that_a_user_can_put_in_is_escaped_on_every_page(root: Client) -> None:
    job = evil_job()
    evil_job(Status.READY, parked="paused", unique_key="2")
    evil_job(Status.SCHEDULED, last_outcome="failed", unique_key="3")
    worker = Worker.objects.create(
        id=uuid.uuid4(),
        kind="process",
        name=EVIL,
        host=EVIL,
        pid=1,
        queues=[EVIL],
        version=EVIL[:64],
        stop_reason=EVIL,
        stopped_at=timezone.now(),
    )
    token = uuid.uuid4()
    runs = evil_job(Status.RUNNING, last_token=token, last_started_at=timezone.now(), unique_key="4")
    now = timezone.now()
    JobLock.objects.create(
        job=runs, token=token, worker=worker.pk, queue=EVIL[:100], claimed_at=now, expires_at=now, limit_keys=[EVIL]
    )
    CancelRequest.objects.create(job_id=runs.pk, requested_by=EVIL[:64], reason=EVIL)
    queue = Queue.objects.create(
        name=EVIL[:100], description=EVIL, paused_at=now, paused_by=EVIL[:64], pause_reason=EVIL, backoff=[EVIL]
    )
    Leader.objects.create(name=EVIL[:32], error=EVIL, worker=worker.pk)
    add_attempt(job, 1, worker=EVIL[:64], cause=EVIL, error_class=EVIL, error_message=EVIL, logs=EVIL,
                traceback=f'Traceback:\n  File "{EVIL}", line 1, in {EVIL}\n    {EVIL}\n{EVIL}')  # fmt: skip
    pages = [
        reverse("admin:django_jobs_job_changelist") + "?status=all",
        reverse("admin:django_jobs_job_changelist") + "?q=%3Cscript%3Ealert&task=%3Cscript%3Ealert",
        reverse("admin:django_jobs_job_change", args=[job.pk]),
        reverse("admin:django_jobs_job_change", args=[runs.pk]),
        reverse("admin:django_jobs_queue_changelist"),
        reverse("admin:django_jobs_queue_change", args=[queue.pk]),
        reverse("admin:django_jobs_queue_pause", args=[queue.pk]),
        reverse("admin:django_jobs_worker_changelist") + "?life=any",
        reverse("admin:django_jobs_worker_change", args=[worker.pk]),
        reverse("admin:django_jobs_joblock_changelist"),
        reverse("admin:django_jobs_joblock_change", args=[runs.pk]),
        reverse("admin:django_jobs_leader_changelist"),
    ]
    contents = [root.get(address) for address in pages]
    act = reverse("admin:django_jobs_job_act", args=["requeue"])
    contents.append(root.post(act, {"ids": f"{job.pk},{runs.pk}", "next": EVIL}))
    contents.append(root.post(act, {"ids": f"{job.pk},{runs.pk}", "confirmed": "yes", "reason": EVIL}, follow=True))
    contents.append(root.get(reverse("admin:django_jobs_job_history", args=[job.pk])))
    for address, response in zip([*pages, "confirm", "done", "history"], contents, strict=True):
        text = response.content.decode()
        assert response.status_code == 200, address
        assert "<script>alert" not in text, address
        assert "<img src=x" not in text, address
        assert "alert" in text, f"{address} shows nothing of it"


def test_there_is_no_inline_script_or_style_so_a_strict_policy_holds(root: Client) -> None:
    job = evil_job()
    for address in (
        reverse("admin:django_jobs_job_changelist") + "?status=all",
        reverse("admin:django_jobs_job_change", args=[job.pk]),
    ):
        text = root.get(address).content.decode()
        tags = [part.split(">")[0] for part in text.split("<script")[1:]]
        assert all(" src=" in tag or "application/json" in tag for tag in tags), address
        assert "<style" not in text
        assert ' style="' not in text
        assert " onclick=" not in text


def test_big_numbers_are_shown_digit_by_digit(root: Client) -> None:
    job = make_job(Status.SUCCEEDED, args=[BIG], result={"sum": -BIG})
    text = page(root, job)
    assert str(BIG) in text
    assert str(-BIG) in text


def test_a_huge_value_is_cut(root: Client) -> None:
    job = make_job(args=["x" * 300_000])
    text = page(root, job)
    assert len(text) < 200_000
    assert "more characters" in text


def test_arguments_and_results_are_hidden_without_view_payload(login: Callable[..., Client]) -> None:
    secret = "very-secret-value"
    job = make_job(Status.SUCCEEDED, args=[secret], kwargs={"a": secret}, result=secret, output=secret, context={"user": secret})
    viewer = login("view_job", name="viewer")
    with CaptureQueriesContext(connection) as queries:
        text = page(viewer, job)
    assert secret not in text
    assert "Hidden" in text
    assert not any('"django_jobs_job"."args"' in query["sql"] for query in queries), "what is hidden is not even read"
    assert secret in page(login("view_job", "view_payload", name="trusted"), job)
    assert secret not in viewer.get(
        reverse("admin:django_jobs_job_changelist") + f"?status=all&q={secret}"
    ).content.decode().replace(f'value="{secret}"', "").replace(f"q={secret}", "")


def test_attempts_are_shown_newest_first_and_bounded(root: Client) -> None:
    job = make_job(Status.FAILED, starts=200)
    for number in range(1, 30):
        add_attempt(job, number, cause=f"cause-{number}.")
    text = page(root, job)
    assert text.index("cause-29.") < text.index("cause-28.")
    assert "cause-1." not in text
    assert "The newest 20" in text


def test_an_attempt_says_what_happened_once(root: Client) -> None:
    """A lost attempt's cause is its error's message, too; a cause of its own is shown beside the error."""
    job = make_job(Status.FAILED, starts=2)
    add_attempt(job, 1, cause="its process died", error_class="x.AttemptLost", error_message="its process died")
    add_attempt(job, 2, cause="no attempts left", error_class="x.Error", error_message="no such file")
    text = page(root, job)
    assert text.count("its process died") == 1
    assert text.count("no attempts left") == text.count("no such file") == 1


def test_short_arguments_take_one_line_and_keep_their_marks(root: Client) -> None:
    assert "[1914240, &quot;x&quot;]</pre>" in page(root, make_job(args=[1914240, "x"]))
    assert "[\n  &quot;" in page(root, make_job(args=["x" * 100]))


def test_the_number_of_queries_does_not_grow_with_the_attempts(root: Client) -> None:
    job = running_job()

    def cost() -> int:
        with CaptureQueriesContext(connection) as queries:
            page(root, job)
        return len(queries)

    before = cost()
    for number in range(1, 30):
        add_attempt(job, number, traceback='  File "x", line 1, in y\n    z')
        CancelRequest.objects.create(job_id=job.pk)
    assert cost() == before <= 12


@pytest.mark.parametrize("text", ["nonsense", "0", "%00", "ffffffff-ffff-7fff-bfff-ffffffffffff", "a/b"])
def test_a_job_that_is_not_there_leads_back(root: Client, text: str) -> None:
    response = root.get(reverse("admin:django_jobs_job_changelist") + f"{text}/change/")
    assert response.status_code in (302, 404)


def test_a_running_job_shows_its_lock_and_who_holds_it(root: Client) -> None:
    worker = Worker.objects.create(id=uuid.uuid4(), kind="process", name="host-1/worker", host="h", pid=77)
    job = running_job(worker.pk)
    text = page(root, job)
    assert "host-1/worker (77)" in text
    assert str(job.lock.token) in text


TRACEBACK = """Traceback (most recent call last):
  File "/venv/lib/python3.12/site-packages/lib/a.py", line 1, in outer
    inner()
    ~~~~~^^
  File "/venv/lib/python3.12/contextlib.py", line 2, in wrapper
    return f()
  File "/srv/site/tasks.py", line 3, in mine
    fail()
ValueError: no <b>
  + Exception Group Traceback (most recent call last):
  |   File "/srv/site/tasks.py", line 9, in other
  |     raise x
  | ExceptionGroup: several"""


def test_a_traceback_is_cut_into_library_and_site_frames() -> None:
    found = tracebacks.blocks(TRACEBACK)
    assert [(block.kind, block.frames) for block in found] == [
        ("text", 0), ("library", 2), ("site", 1), ("text", 0), ("site", 1), ("text", 0)
    ]  # fmt: skip
    assert "\n".join(block.text for block in found) == TRACEBACK


def test_a_traceback_shows_the_sites_frames_and_folds_the_others(root: Client) -> None:
    job = make_job(Status.FAILED)
    add_attempt(job, 1, traceback=TRACEBACK)
    text = html.unescape(page(root, job))
    assert '<pre class="dj-site">  File "/srv/site/tasks.py", line 3, in mine' in text
    assert "2 library frames" in text


@pytest.mark.parametrize("gone", [False, True])
def test_the_object_that_a_job_is_about_is_a_link(root: Client, login: Callable[..., Client], gone: bool) -> None:
    user = User.objects.create_user("subject")
    job = make_job(related={"model": "auth.user", "pk": user.pk, "using": "default"})
    if gone:
        user.delete()
    text = page(root, job)
    url = reverse("admin:auth_user_change", args=[job.related["pk"]])
    assert (url in text) is not gone
    assert ("not there (any more)" in text) is gone
    # Who may not see users sees the name of the object only.
    text = page(login("view_job"), job)
    assert url not in text
    assert f"auth.user {job.related['pk']}" in text


@pytest.mark.parametrize(
    "related",
    [{"model": "no.such", "pk": 1, "using": "default"}, {"model": "auth.user", "pk": "x", "using": "nowhere"}, {"a": 1}, []],
)
def test_a_related_object_that_nobody_finds_does_no_harm(root: Client, related: object) -> None:
    page(root, make_job(related=related))


def test_a_job_without_a_description_has_that_of_its_task(root: Client) -> None:
    assert "Add two numbers." in page(root, make_job(task=jobs.add.module_path))
    assert "Add two numbers." not in page(root, make_job(task=jobs.add.module_path, description="another"))

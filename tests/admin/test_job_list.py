"""The list of jobs: what each tab and filter shows, and that it never counts, sorts or reads more than it shows."""

from __future__ import annotations

import re
import uuid
from datetime import timedelta
from pathlib import Path

import pytest
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.staticfiles import finders
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from django_jobs import stats
from django_jobs.admin import display, job_list, sources
from django_jobs.models import Job, JobAttempt, Queue
from django_jobs.registry import registered
from django_jobs.statuses import Status
from tests.support.jobs import make_job, running_job

LIST = reverse("admin:django_jobs_job_changelist")


def shown(client: Client, query: str = "") -> list[str]:
    """Return the ids on the page, in order."""
    response = client.get(LIST + query)
    assert response.status_code == 200
    return re.findall(r'name="_selected_action" value="([^"]+)"', response.content.decode())


def ids(*jobs: Job) -> list[str]:
    return [str(job.pk) for job in jobs]


def test_open_jobs_are_shown_by_default_running_first_then_in_the_order_of_the_claim(root: Client) -> None:
    running = running_job()
    late, early = make_job(), make_job(priority=5)
    parked = make_job(parked="paused")
    planned = make_job(Status.SCHEDULED, due_at=timezone.now() + timedelta(hours=1))
    make_job(Status.SUCCEEDED)
    waiting = make_job(Status.WAITING)
    assert shown(root) == ids(running, early, late, parked, planned, waiting)


@pytest.mark.parametrize("status", [status for status in Status if status != Status.RUNNING])
def test_each_status_has_a_list_of_its_own(root: Client, status: Status) -> None:
    jobs = {each: make_job(each) for each in Status if each != Status.RUNNING}
    assert shown(root, f"?status={status}") == ids(jobs[status])


def test_all_jobs_newest_first(root: Client) -> None:
    jobs = [make_job(status) for status in (Status.FAILED, Status.READY, Status.SUCCEEDED)]
    assert shown(root, "?status=all") == ids(*reversed(jobs))


def test_tabs_take_a_second_line_instead_of_being_clipped() -> None:
    """There are more tabs than fit beside the filters: what can't be seen is not looked for."""
    css = Path(finders.find("django_jobs/admin.css")).read_text()
    rules = {name.strip(): body for name, body in re.findall(r"^([^{}@\n]+){([^{}]*)}", css, re.M)}
    assert "flex-wrap: wrap" in rules[".dj-tabs ul"]
    assert "overflow" not in rules[".dj-tabs"]


def test_an_unknown_status_shows_the_open_jobs(root: Client) -> None:
    job = make_job()
    make_job(Status.FAILED)
    assert shown(root, "?status=nonsense") == ids(job)


def test_filters_by_queue_subtree_task_and_time(root: Client) -> None:
    old = timezone.now() - timedelta(days=3)
    mail = make_job(queue="mail", task="a.b.send")
    bulk = make_job(queue="mail.bulk", task="a.b.send")
    mailing = make_job(queue="mailing", task="a.b.other")
    aged = make_job(Status.FAILED, finished_at=old)
    fresh = make_job(Status.FAILED)
    assert shown(root, "?queue=mail") == ids(mail)
    assert shown(root, "?queue=mail.*") == ids(mail, bulk)
    assert shown(root, "?task=a.b.other") == ids(mailing)
    assert shown(root, "?status=failed") == ids(fresh, aged)
    assert shown(root, "?status=failed&period=day") == ids(fresh)
    assert shown(root, "?status=failed&period=week") == ids(fresh, aged)


def test_search_finds_ids_their_beginnings_keys_and_tasks(root: Client) -> None:
    job = make_job(Status.SUCCEEDED, task="shop.tasks.send_receipt")
    other = make_job(id=uuid.UUID("ffffffff-ffff-7fff-bfff-ffffffffffff"), unique_key="order-17")
    assert shown(root, f"?q={job.pk}") == ids(job)
    assert shown(root, f"?q={job.pk.hex}") == ids(job)
    assert shown(root, "?q=ffffffff-ff") == ids(other)
    assert shown(root, "?q=order-17") == ids(other)
    assert shown(root, "?q=RECEIPT") == ids(job)


def test_what_is_no_filter_of_the_page_is_refused(root: Client) -> None:
    """Any field as a lookup would read the whole table, and would tell what `view_payload` hides, guess by guess."""
    assert root.get(LIST + "?args__contains=1").status_code == 400
    assert root.get(LIST + "?error_message__icontains=x").status_code == 400


@pytest.mark.parametrize("name", ["q", "status", "queue", "task", "attempt", "period", "before", "p"])
@pytest.mark.parametrize("value", ["%00", "a%00b", "%ff", "x" * 5000, "-1", "9" * 30, "%25%5F'\"", "deadbeef"])
def test_odd_values_break_nothing(root: Client, name: str, value: str) -> None:
    make_job()
    assert root.get(f"{LIST}?{name}={value}").status_code == 200


def test_pages_past_the_end_show_the_last(root: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [make_job() for _ in range(51)]
    assert shown(root, "?p=2") == ids(jobs[-1])
    assert shown(root, "?p=2000") == ids(jobs[-1])
    assert shown(root, "?p=x") == ids(*jobs[:50])


@pytest.mark.parametrize("status", ["all", "failed", "ready"])
def test_beyond_the_last_numbered_page_the_list_goes_on_from_a_job(
    root: Client, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    monkeypatch.setattr(stats, "COUNT_CAP", 50)
    for number in range(60):
        make_job(Status.READY if status == "ready" else Status.FAILED, priority=number % 3)
    page = root.get(f"{LIST}?status={status}").content.decode()
    first = shown(root, f"?status={status}")
    assert "There are more than 50" in page
    link = re.search(r'href="(\?before=[^"]+)"', page)
    assert link
    rest = shown(root, link[1].replace("&amp;", "&"))
    assert len(first) == 50
    assert len(rest) == 10
    assert {*first, *rest} == {str(pk) for pk in Job.objects.values_list("pk", flat=True)}


def test_a_filter_without_an_index_looks_at_a_bounded_number(root: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_list, "WINDOW", 10)
    rare = make_job(Status.FAILED, task="a.rare")
    for _ in range(12):
        make_job(Status.FAILED, task="a.common")
    recent = make_job(Status.FAILED, task="a.rare")
    assert shown(root, "?status=all&task=a.rare") == ids(recent)
    Job.objects.exclude(pk__in=[rare.pk, recent.pk]).delete()
    assert shown(root, "?status=all&task=a.rare") == ids(recent, rare)


def test_jobs_are_found_by_how_an_attempt_ended(root: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that succeeded at last, after its worker died: also far behind the part of the table that other filters look at."""
    monkeypatch.setattr(job_list, "WINDOW", 10)
    lost, failed = make_job(Status.SUCCEEDED), make_job(Status.FAILED)
    for job, number, outcome in [(lost, 1, "lost"), (lost, 2, "lost"), (failed, 1, "failed")]:
        JobAttempt.objects.create(job=job, number=number, outcome=outcome, ended_at=timezone.now())
    for _ in range(15):
        make_job(Status.SUCCEEDED)
    assert shown(root, "?status=all&attempt=lost") == ids(lost)
    assert shown(root, "?status=all&attempt=failed") == ids(failed)
    assert shown(root, "?status=all&attempt=handed_back") == []
    assert shown(root, "?status=failed&attempt=lost") == []
    assert shown(root, f"?status=all&attempt=lost&task={lost.task}") == ids(lost)
    assert shown(root, "?status=all&attempt=lost&task=a.other") == []
    assert len(shown(root, "?status=all&attempt=nonsense")) == 17
    assert "attempt=lost" in root.get(LIST + "?status=all").content.decode()


def test_only_the_newest_such_attempts_are_followed(root: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_list, "ATTEMPTS", 2)
    jobs = [make_job(Status.SUCCEEDED) for _ in range(3)]
    for job in jobs:
        JobAttempt.objects.create(job=job, number=1, outcome="lost", ended_at=timezone.now())
    assert shown(root, "?status=all&attempt=lost") == ids(*reversed(jobs[1:]))
    assert "newest 2 such attempts" in root.get(LIST + "?status=all&attempt=lost").content.decode()


def test_the_lists_of_filters_end_somewhere(root: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MAX_NAMES", 3)
    for number in range(5):
        Queue.objects.create(name=f"a{number}")
    page = root.get(LIST).content.decode()
    assert page.count('href="?task=') == 3
    assert page.count('href="?queue=') == 3


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "just now"), (0.4, "just now"), (-0.4, "now"), (5, "5 s ago"), (-5.5, "in 5 s"), (130, "2\xa0minutes ago")],
)
def test_ages(seconds: float, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = timezone.now()
    monkeypatch.setattr(display.timezone, "now", lambda: now)
    assert f">{text}<" in str(display.ago(now - timedelta(seconds=seconds)))


def test_filters_come_from_declarations_and_not_from_jobs(root: Client) -> None:
    Queue.objects.create(name="declared")
    make_job(queue="undeclared", task="undeclared.task")
    page = root.get(LIST).content.decode()
    assert "?queue=declared" in page
    assert "?queue=undeclared" not in page
    assert f"?task={min(registered())}" in page
    assert "?task=undeclared.task" not in page
    assert "?queue=undeclared" in root.get(LIST + "?queue=undeclared").content.decode()


@pytest.mark.parametrize(
    "query",
    [
        "",
        "?status=all",
        "?status=failed",
        "?status=ready&queue=mail",
        "?status=all&task=a.b",
        "?q=0190",
        "?q=text",
        "?period=day",
        "?p=2",
    ],
)
def test_the_number_of_queries_does_not_grow_with_the_rows(root: Client, query: str) -> None:
    """One page needs at most 20 queries, reads no column that can be big, and counts nothing whole."""

    def cost() -> CaptureQueriesContext:
        with CaptureQueriesContext(
            connection,
        ) as queries:
            assert root.get(LIST + query).status_code == 200
        return queries

    make_job()
    make_job(Status.FAILED)
    few = cost()
    for number in range(60):
        make_job(
            [Status.READY, Status.FAILED, Status.SCHEDULED][number % 3], args=["x" * 1000], queue=f"q{number}", task=f"t{number}"
        )
        Queue.objects.create(name=f"q{number}")
    many = cost()
    assert len(many) <= len(few) + len(job_list.segments("open")) <= 20
    jobs = [query["sql"] for query in many if "django_jobs_job" in query["sql"]]
    assert jobs
    for sql in jobs:
        for column in ("args", "kwargs", "result", "output", "context", "metadata", "traceback"):
            assert not re.search(rf'django_jobs_job["`]\.["`]{column}["`]', sql), sql
        assert "LIMIT" in sql
        assert "DISTINCT" not in sql


#: Eight of ten succeeded, one failed, one ready; ids rise as UUIDv7 does.
FILL = """
    INSERT INTO django_jobs_job (
        id, backend, task, description, args, kwargs, serializer, metadata, tags, context, queue, priority, status, parked,
        reason, due_at, starts, attempts_used, deaths, last_outcome, worker, error_class, error_message, fingerprint,
        enqueued_at, finished_at, is_http
    )
    SELECT
        CAST(lpad(to_hex(n), 8, '0') || '-0000-7000-8000-000000000000' AS uuid), 'default', 't', '', '[]', '{}', 'json', '{}',
        '[]', '{}', 'q' || mod(n, 5), 0, status, '', '', now(), 0, 0, 0, '', '', '', '', '', now(),
        CASE WHEN status <> 'ready' THEN now() - n * interval '1 s' END, false
    FROM (
        SELECT n, CASE WHEN mod(n, 10) < 8 THEN 'succeeded' WHEN mod(n, 10) = 8 THEN 'failed' ELSE 'ready' END AS status
        FROM generate_series(1, 200000) AS n
    ) AS made
"""


@pytest.mark.skipif(connection.vendor != "postgresql", reason="reads PostgreSQL's plans")
@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_pages_are_read_from_indexes_in_a_big_table(
    transactional_db: None, root: Client, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """200,000 jobs: no sort, no scan of the table, whatever the planner believes of a status that has no rows."""
    monkeypatch.setattr(job_list, "WINDOW", 5_000)  # as small a part of this table as the real one is of two million
    request.addfinalizer(connection.close)  # and with it what is set for this session
    with connection.cursor() as cursor:
        cursor.execute(FILL)
        cursor.execute("VACUUM ANALYZE django_jobs_job")
        # As on any disk of today. By the default, of spinning disks, either plan costs the same in a table as small as this.
        cursor.execute("SET random_page_cost = 1.1")
    statuses = ["open", "all", "succeeded", "failed", "timed_out", "ready", "scheduled", "parked"]
    queries = [
        f"?status={status}{more}" for status in statuses for more in ("", "&queue=q1", "&task=none", "&period=week", "&p=50")
    ]
    for query in ["", "?q=0000", "?q=00001234", *queries]:
        with CaptureQueriesContext(connection) as captured:
            root.get(LIST + query)
        for sql in [each["sql"] for each in captured if "django_jobs_job" in each["sql"]]:
            with connection.cursor() as cursor:
                cursor.execute("EXPLAIN " + sql.replace("%", "%%"), None)
                plan = "\n".join(row[0] for row in cursor.fetchall())
            assert "Seq Scan on django_jobs_job" not in plan, f"{query}: {sql}\n{plan}"
            # What a filter leaves of a bounded number of rows may be sorted, where no index has it in order.
            filtered = re.search("task=|period=|queue=", query) and query != "?status=ready&queue=q1"
            # Nor does it matter by which index next to nothing is found: two cost the same then, and one has to sort it.
            sorted_rows = [int(rows) for rows in re.findall(r" Sort  \(cost=\S+ rows=(\d+)", plan)]
            assert filtered or all(rows <= 1 for rows in sorted_rows), f"{query}: {sql}\n{plan}"


def test_select_all_takes_what_the_filter_shows(root: Client) -> None:
    jobs = [make_job(Status.FAILED, queue="mail") for _ in range(60)]
    make_job(Status.FAILED, queue="other")
    data = {"action": "requeue_jobs", "select_across": "1", "index": "0", ACTION_CHECKBOX_NAME: str(jobs[0].pk)}
    page = root.post(LIST + "?status=failed&queue=mail", data)
    sent = page.context["form"].initial["ids"].split(",")
    assert sorted(sent) == sorted(ids(*jobs))
    assert Job.objects.filter(status="failed").count() == 61, "asking changes nothing"

"""The picture of a graph on the page of a job."""

from __future__ import annotations

import html
import re
import uuid
from uuid import UUID

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_jobs.admin import drawing
from django_jobs.lifecycle import control, graph
from django_jobs.lifecycle.spec import JobSpec, NewJob
from django_jobs.models import Job
from django_jobs.statuses import Status
from tests.support.jobs import make_job

pytestmark = pytest.mark.django_db


def store(edges: list[tuple[str, str]]) -> dict[str, UUID]:
    names = list(dict.fromkeys(name for edge in edges for name in edge))
    jobs = {name: NewJob(JobSpec(task=f"shop.jobs.{name}"), [], {}) for name in names}
    graph.insert_graph(list(jobs.values()), [(jobs[a].id, jobs[b].id) for a, b in edges], using="default")
    return {name: job.id for name, job in jobs.items()}


def page(client: Client, job_id: UUID) -> str:
    response = client.get(reverse("admin:django_jobs_job_change", args=[job_id]))
    assert response.status_code == 200
    return html.unescape(response.content.decode())


def nodes(text: str) -> dict[str, tuple[str, int, int]]:
    """Return (classes, x, y) by the name of each job in the picture."""
    found = re.findall(
        r'<a href="[^"]*" class="dj-node ([^"]*)".*?<rect x="(\d+)" y="(\d+)".*?<text [^>]*class="dj-node-name">([^<]*)<',
        text,
        re.S,
    )
    return {name: (classes, int(x), int(y)) for classes, x, y, name in found}


def test_a_diamond_with_a_failed_job(root: Client) -> None:
    ids = store([("fetch", "resize"), ("fetch", "scan"), ("resize", "publish"), ("scan", "publish")])
    control.done([ids["fetch"]])
    now = Job.objects.get(id=ids["fetch"]).finished_at
    Job.objects.filter(id=ids["scan"]).update(status=Status.FAILED, finished_at=now, reason="a virus")
    text = page(root, ids["publish"])
    found = nodes(text)
    assert {name: classes.split()[0] for name, (classes, _, _) in found.items()} == {
        "fetch": "dj-node-succeeded",
        "resize": "dj-node-ready",
        "scan": "dj-node-failed",
        "publish": "dj-node-waiting",
    }
    assert "dj-here" in found["publish"][0]
    assert found["fetch"][1] < found["resize"][1] == found["scan"][1] < found["publish"][1]
    assert found["resize"][2] != found["scan"][2]
    assert found["fetch"][2] == found["publish"][2]
    assert text.count('class="dj-edge"') == 4
    assert reverse("admin:django_jobs_job_change", args=[ids["scan"]]) in text
    assert "a virus" in text


def test_a_job_of_no_graph_has_no_picture(root: Client) -> None:
    assert "dj-graph" not in page(root, make_job().id)


def test_a_big_graph_shows_the_neighbours_of_the_job_and_costs_no_more(root: Client) -> None:
    last = "publish"
    ids = store([(f"part{number}", last) for number in range(drawing.MAX_NODES + 20)] + [(last, "mail")])
    with CaptureQueriesContext(
        connection,
    ) as queries:
        text = page(root, ids[last])
    assert len(queries) < 25
    found = nodes(text)
    assert len(found) == drawing.MAX_NEIGHBOURS + 2
    assert "There are more parents." in text
    assert "There are more children." not in text
    assert {"publish", "mail"} <= set(found)


def test_names_are_escaped_and_cut(root: Client) -> None:
    spec = JobSpec(task="x.<script>alert(1)</script>" + "y" * 60)
    jobs = [NewJob(spec, [], {}), NewJob(spec, [], {})]
    graph.insert_graph(jobs, [(jobs[0].id, jobs[1].id)], using="default")
    response = root.get(reverse("admin:django_jobs_job_change", args=[jobs[0].id]))
    assert b"<script>alert(1)" not in response.content


def test_jobs_that_somebody_may_not_see_are_not_in_the_picture(root: Client, settings) -> None:
    ids = store([("open", "secret")])
    Job.objects.filter(id=ids["secret"]).update(queue="secret")
    settings.DJANGO_JOBS = {**getattr(settings, "DJANGO_JOBS", {}), "VISIBLE_TO": "tests.admin.test_drawing.only_open"}
    assert set(nodes(page(root, ids["open"]))) == {"open"}


def only_open(user, jobs):
    return jobs.exclude(queue="secret")


def test_ranks_are_the_longest_ways_and_circles_do_no_harm() -> None:
    a, b, c, d = (uuid.UUID(int=number) for number in range(4))
    assert drawing.ranks([a, b, c, d], [(a, b), (b, c), (a, c), (c, d)]) == {a: 0, b: 1, c: 2, d: 3}
    assert drawing.ranks([a, b], [(a, b), (b, a)]) == {a: 0, b: 0}

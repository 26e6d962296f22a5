"""`/metrics/`: Prometheus' text, readable by Prometheus' own parser."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_jobs import db
from django_jobs.api.metrics import Family
from django_jobs.models import Leader
from tests.api.conftest import Api
from tests.api.test_service import make_worker, nothing
from tests.support.jobs import running_job

pytestmark = pytest.mark.django_db

_SAMPLE = re.compile(r'^([a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)*)\})? (-?[0-9.e+-]+)$')
#: What a scraper of this day sends.
SCRAPER = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=1.0.0;q=0.5,"
    "text/plain;version=0.0.4;q=0.4,*/*;q=0.1"
)


def samples(text: str) -> dict[tuple[str, str], float]:
    """Read every line by the format's grammar."""
    assert text.endswith("\n")
    found: dict[tuple[str, str], float] = {}
    kinds: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _hash, _type, name, kind = line.split(" ")
            assert name not in kinds, "a family is there twice"
            kinds[name] = kind
        elif not line.startswith("# HELP "):
            match = _SAMPLE.fullmatch(line)
            assert match, line
            assert match[1] in kinds
            assert (kinds[match[1]] == "counter") == match[1].endswith("_total")
            assert (match[1], match[2] or "") not in found, "a sample is there twice"
            found[match[1], match[2] or ""] = float(match[3])
    return found


def test_numbers_of_jobs_workers_and_services(token: Callable[..., Api]) -> None:
    now = db.server_now(connection)
    worker = make_worker(slots=4, running=1)
    for queue in ("mail", "mail", "post"):
        nothing.using(queue_name=queue).enqueue()
    running_job(worker.pk, queue="direct")
    Leader.objects.create(name="stager", next_at=now - timedelta(seconds=90), touched=7, error="oops")
    response = token("view").get("metrics/", Accept=SCRAPER)
    assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    found = samples(response.content.decode())
    assert found["django_jobs_created_total", 'queue="mail"'] == 2
    assert found["django_jobs_attempts", 'queue="direct",kind="worker"'] == 1
    assert found["django_jobs_workers", 'kind="process"'] == 1
    assert found["django_jobs_worker_slots", 'kind="process"'] == 4
    assert found["django_jobs_maintenance_rows_total", 'service="stager"'] == 7
    assert found["django_jobs_maintenance_error", 'service="stager"'] == 1
    assert 89 < found["django_jobs_maintenance_late_seconds", 'service="stager"'] < 120


def test_prometheus_own_parser_reads_it(token: Callable[..., Api]) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    nothing.using(queue_name="mail").enqueue()
    families = list(parser.text_string_to_metric_families(token("view").get("metrics/").content.decode()))
    (jobs,) = [family for family in families if family.name == "django_jobs_jobs"]
    values = {tuple(sample.labels.values()): sample.value for sample in jobs.samples}
    assert values["mail", "ready"] == 1


def test_labels_are_escaped() -> None:
    lines = list(Family("x", "gauge", "text", [({"a": 'q"\\\n'}, 0.25), ({}, 3.0)]).lines())
    assert lines[2:] == ['x{a="q\\"\\\\\\n"} 0.25', "x 3"]


def test_a_bounded_token_gets_the_numbers_of_its_queues_alone(token: Callable[..., Api]) -> None:
    make_worker()
    for queue in ("mail", "post"):
        nothing.using(queue_name=queue).enqueue()
    text = token("view", queues=["mail"]).get("metrics/").content.decode()
    assert 'queue="mail"' in text
    assert "post" not in text
    assert "worker" not in text


@pytest.mark.parametrize("accept", ["text/plain", "*/*", "application/json", "text/html,*/*;q=0.8", SCRAPER])
def test_whatever_is_accepted_it_is_the_same_text(token: Callable[..., Api], accept: str) -> None:
    response = token("view").get("metrics/", Accept=accept)
    assert response.status_code == 200
    assert response.content.startswith(b"# HELP")


def test_errors_are_json_here_too(token: Callable[..., Api], nobody: Api) -> None:
    assert nobody.error("GET", "metrics/", 401, Accept="text/plain")["code"] == "unauthenticated"
    assert token("view").error("GET", "metrics/?x=1", 400, Accept="text/plain")["code"] == "invalid"


def test_no_job_is_read(token: Callable[..., Api]) -> None:
    api = token("view")
    with CaptureQueriesContext(connection) as queries:
        api.get("metrics/")
    texts: list[Any] = [query["sql"].replace("`", '"') for query in queries]
    assert not [text for text in texts if '"django_jobs_job"' in text]

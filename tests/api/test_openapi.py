"""The description in OpenAPI: made without a warning, true to the code, and tried on a live server by schemathesis."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connection
from drf_spectacular.management.commands.spectacular import Command
from drf_spectacular.settings import patched_settings
from drf_spectacular.validation import validate_schema

from django_jobs.api import create, filters, job_urls, one_job, queues, schema, serializers
from django_jobs.api.claims import ClaimView
from django_jobs.api.serializers import FIELDS
from django_jobs.lifecycle.tokens import VERBS, make_token

from .calls import Api, http_queue
from .test_matrix import METHODS, endpoints

CONFIG = Path(__file__).with_name("schemathesis.toml")


@pytest.fixture
def described() -> Any:
    """Return the description."""
    return schema.described("/api/jobs/")


def part(described: Any, name: str) -> Any:
    """Return a component."""
    return described["components"]["schemas"][f"DjangoJobs{name}"]


@pytest.mark.parametrize("version", ["3.0.3", "3.1.1"])
def test_drf_spectacular_describes_a_project_with_this_api_without_a_warning(version, tmp_path, capsys):
    with patched_settings({"OAS_VERSION": version}):
        call_command(Command(), validate=True, fail_on_warn=True, file=str(tmp_path / "api.yml"))
    text = (tmp_path / "api.yml").read_text()
    assert f"openapi: {version}" in text
    assert "/api/jobs/queues/{name}/claim/:" in text
    assert "Warning" not in capsys.readouterr().err
    assert ("nullable: true" in text) == (version == "3.0.3")


def test_an_operation_that_the_table_lacks_is_an_error(monkeypatch, tmp_path):
    table = schema.operations()
    del table[ClaimView, "POST"]
    monkeypatch.setattr(schema, "operations", lambda: table)
    with pytest.raises(Exception, match="warnings"):
        call_command(Command(), fail_on_warn=True, file=str(tmp_path / "api.yml"))


def test_the_description_has_every_endpoint_and_method(described):
    validate_schema(described)
    served = sum(
        hasattr(view, method.lower()) and method.lower() in view.http_method_names
        for view in endpoints().values()
        for method in METHODS
    )
    operations = [operation for path in described["paths"].values() for operation in path.values()]
    assert len(operations) == served
    assert len({operation["operationId"] for operation in operations}) == served
    assert all({"401", "403"} <= set(operation["responses"]) for operation in operations)
    assert described["servers"] == [{"url": "/api/jobs"}]


def test_queries_and_bodies_are_those_that_the_code_takes(described, rf):
    for (view, method), operation in schema.operations().items():
        instance = view()
        instance.request = rf.generic(method, "/")  # type: ignore[assignment]
        taken = set(instance.query)  # type: ignore[attr-defined]
        assert set(operation.query) == (taken if method != "POST" else set()), (view, method)
    assert set(part(described, "NewJob")["properties"]) == set(create.FIELDS)
    assert set(part(described, "JobChange")["properties"]) == {
        *one_job.EDITABLE,
        *one_job.REPORTED,
        "status",
        "reason",
        "token",
    }
    body = described["paths"]["/queues/"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert set(body["properties"]) == {"name", *queues.SETTINGS}
    bulk = described["paths"]["/jobs/cancel/"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert set(bulk["properties"]["filter"]["properties"]) == set(filters.FILTERS)
    assert set(part(described, "Job")["properties"]) == set(FIELDS)


@pytest.mark.django_db
def test_the_endpoint_gives_the_description_for_the_address_that_it_is_asked_at(described):
    api = Api("view")
    assert api.ok("GET", "/schema/") == described
    assert api.ok("GET", "/schema") == described


@pytest.mark.django_db
def test_null_that_was_asked_for_is_written():
    api = Api()
    http_queue("web")
    job = api.ok("POST", "/jobs/", {"queue": "web", "input": 1}, status=201)
    assert api.call("GET", f"/jobs/{job['id']}/output/").content == b"null"
    assert api.call("PATCH", f"/jobs/{job['id']}/", {"priority": 1}).content == b""


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.timeout(450)
def test_schemathesis_finds_nothing(transactional_db, live_server, settings, monkeypatch, tmp_path):
    monkeypatch.setitem(connection.settings_dict, "CONN_MAX_AGE", 60)  # thousands of requests, over one connection each way
    settings.DJANGO_JOBS = {"API_WAIT_MAX": "100ms", "API_BULK_MAX": 20}
    user = User.objects.create_superuser("root")
    _token, secret = make_token("schemathesis", verbs=list(VERBS), user_id=user.pk, using="default")
    http_queue("mail")  # the example in the description
    api = Api()
    api.ok("POST", "/jobs/", [{"queue": "mail", "input": number} for number in range(5)], status=201)
    run = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIG), "run"),
            *(f"{live_server.url}/api/jobs/schema/", "--header", f"Authorization: Bearer {secret}"),
        ],
        cwd=tmp_path,
        env={**os.environ, "NO_COLOR": "1", "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=380,
    )
    assert run.returncode == 0, run.stdout[-20_000:] + run.stderr[-2_000:]
    assert "No issues found" in run.stdout
    assert f"Tested: {len(schema.operations()) + 1}" in run.stdout


@pytest.mark.once
def test_the_page_names_every_endpoint_with_its_verbs_and_all_that_a_request_may_say() -> None:
    """docs/http-api.md, for those who have no description by machine."""
    text = (Path(__file__).parents[2] / "docs" / "http-api.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("|")]
    for pattern in job_urls.urlpatterns:
        route = str(pattern.pattern)
        if not route.endswith("/"):
            continue
        view = pattern.callback.view_class
        shown = "/" + route.replace("<uuid:pk>", "{id}").replace("<str:name>", "{name}").replace("<str:tag>", "{tag}")
        for method, verb in view.verbs.items():
            row = next((line for line in rows if f"`{method} {shown}`" in line.split("|")[1]), None)
            assert row is not None, f"{method} {shown} is not described"
            if "bulk" not in view.__module__:
                assert all(f"`{one}`" in row for one in verb.split("|")), (row, verb)
    for name in (*filters.FILTERS, *create.FIELDS, *serializers.PAYLOAD):
        assert f"`{name}`" in text, name

"""In a real worker a job finds language, time zone, user and the project's own context as they were where it was enqueued."""

from __future__ import annotations

import sys
from contextvars import ContextVar

import pytest
from django.contrib.auth.models import User
from django.test import override_settings
from django.utils import timezone, translation

from django_jobs import as_user
from tests.process.conftest import Site, Start
from tests.support.worker import ended

JOBS = """
from contextlib import contextmanager
from contextvars import ContextVar

from django.utils import timezone, translation
from django_jobs import acurrent_user, current_user, job

tenant = ContextVar("tenant", default="none")
left = []


def capture():
    return tenant.get()


@contextmanager
def bring_back(value):
    tenant.set(value)
    yield
    left.append(value)


def found(user):
    return [translation.get_language(), timezone.get_current_timezone_name(), tenant.get(), user and user.username]


@job
def in_thread():
    return found(current_user())


@job
async def in_coroutine():
    return found(await acurrent_user())


@job(isolate=True)
def apart():
    return found(current_user())


@job
def what_was_left():
    return left
"""


@pytest.mark.promise
def test_every_kind_of_job_finds_what_was_around_its_enqueue(start: Start, site: Site) -> None:
    pairs = [("carrier_app.jobs.capture", "carrier_app.jobs.bring_back")]
    env = site(name="carrier_app", jobs=JOBS, settings=f"DJANGO_JOBS = {{'CONTEXT': {pairs!r}}}", here=True)
    jobs = sys.modules["carrier_app.jobs"]
    start("--threads=1", "--async-jobs=2", env=env)
    tenant: ContextVar[str] = jobs.tenant
    ada = User.objects.create_user("ada")
    kinds = [jobs.in_thread, jobs.in_coroutine, jobs.apart]
    with override_settings(DJANGO_JOBS={"CONTEXT": pairs}):
        token = tenant.set("acme")
        with translation.override("de"), timezone.override("Asia/Kolkata"), as_user(ada):
            carried = [task.enqueue() for task in kinds]
        tenant.reset(token)
        plain = [task.enqueue() for task in kinds]
    assert [job.result for job in ended(*carried)] == [["de", "Asia/Kolkata", "acme", "ada"]] * 3
    assert [job.result for job in ended(*plain)] == [["en-us", "UTC", "none", None]] * 3
    (left,) = ended(jobs.what_was_left.enqueue())
    assert sorted(left.result) == ["acme", "acme", "none", "none"]

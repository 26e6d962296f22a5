"""Recording outcomes: one that can't be written costs itself, whatever the error, and no other."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import InterfaceError, connection, transaction

from django_jobs.lifecycle import record as module
from django_jobs.lifecycle.record import Recorded, record
from django_jobs.models import Job, JobLock
from django_jobs.outcomes import Attempt, ErrorInfo, Failed, Finished, Succeeded
from django_jobs.serializers import dumps
from django_jobs.statuses import Status
from tests.support.jobs import claim_jobs, make_job

pytestmark = pytest.mark.django_db


def written(finished: list[Finished]) -> Recorded:
    with transaction.atomic():
        return record(connection, finished, worker_name="host:1/1")


@pytest.mark.parametrize("error", [TypeError("can't be serialised"), RecursionError("too deep"), KeyError(2006)])
def test_an_error_of_one_outcome_fails_that_job_and_no_other(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Not only errors of the database: also whatever Python raises over what the outcome has in it."""
    for _ in range(5):
        make_job()
    attempts = claim_jobs()
    bad = attempts[2]

    def picky(value: Any) -> str:
        if value == "poison":
            raise error
        return dumps(value)

    monkeypatch.setattr(module, "dumps", picky)
    monkeypatch.setattr("django_jobs.lifecycle.successes.dumps", picky)
    result = written([Finished(each, Succeeded("poison" if each is bad else "fine")) for each in attempts])
    assert sorted(result.done) == sorted(each.token for each in attempts)
    assert not result.later
    assert Job.objects.filter(status=Status.SUCCEEDED).count() == 4
    failed = Job.objects.get(status=Status.FAILED)
    assert failed.pk == bad.job_id
    assert failed.error_class == "django_jobs.exceptions.InvalidResult"
    assert type(error).__name__ in failed.error_message
    assert not JobLock.objects.exists()


def test_a_lost_session_is_for_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    make_job()
    attempt = claim_jobs()[0]

    def closed(*args: Any) -> Any:
        raise InterfaceError("the connection is closed")

    monkeypatch.setattr(module, "_record_others", closed)
    with pytest.raises(InterfaceError):
        written([failure(attempt)])
    assert Job.objects.get().status == Status.RUNNING


def failure(attempt: Attempt) -> Finished:
    return Finished(attempt, Failed(ErrorInfo("builtins.ValueError", "no")))

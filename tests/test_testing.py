"""Jobs that are run inside a test, in its thread and in its transaction."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from django_jobs.compat import task_finished
from django_jobs.models import Job, JobAttempt, JobLock
from django_jobs.statuses import Status
from django_jobs.task import JobTask
from django_jobs.testing import arun_jobs, run_jobs
from tests.support.tasks import add, interrupt, interrupt_async, interrupt_atomic


def arun() -> int:
    return asyncio.run(arun_jobs())


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("drain", [run_jobs, arun])
@pytest.mark.parametrize("task", [interrupt, interrupt_async, interrupt_atomic])
def test_an_interrupt_passes_and_its_job_is_handed_back(
    task: JobTask[Any, None], drain: Callable[[], int], caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Any] = []

    def listen(**kwargs: Any) -> None:
        told.append(kwargs)

    result = task.enqueue()
    later = add.enqueue(1, b=2)
    task_finished.connect(listen)
    try:
        with caplog.at_level(logging.ERROR), pytest.raises(KeyboardInterrupt, match="Ctrl-C"):
            drain()
    finally:
        task_finished.disconnect(listen)
    job = Job.objects.get(pk=result.job_id)
    assert (job.status, job.attempts_used, job.starts) == (Status.READY, 0, 1)
    assert [(record.outcome, record.counted) for record in JobAttempt.objects.all()] == [("handed_back", False)]
    assert not JobLock.objects.exists()
    assert (told, caplog.text) == ([], "")
    assert Job.objects.get(pk=later.job_id).status == Status.READY
    assert Job.objects.count() == 2, "what an atomic task has written is rolled back"

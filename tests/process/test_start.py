"""How a worker begins where something is not as it should be, and how it takes an error of its own."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from django.db import connection

from django_jobs.models import JobAttempt
from django_jobs.statuses import Status
from tests.process.conftest import Site, Start
from tests.project import jobs
from tests.support.worker import Ledger, ended, never, row

#: A worker that runs nothing ends within this, whether it has a database or not. Seconds; a loaded machine has as much again.
END = 2.0

NOWHERE = {
    "postgresql": {"away": "postgres://root@/shop?host=/nowhere", "missing": "postgres://root@/{missing}?host={host}"},
    "mysql": {"away": "mysql://root@localhost/shop?unix_socket=/nowhere/mysqld.sock"},
    "sqlite": {"away": "sqlite:////nowhere/shop.sqlite3"},
}[connection.vendor]


@pytest.mark.promise
@pytest.mark.parametrize("which", NOWHERE)
def test_a_database_that_is_not_there_is_told_in_one_line_and_waited_for(start: Start, which: str) -> None:
    url = NOWHERE[which].format(missing="there_is_no_such_shop", host=connection.settings_dict["HOST"])
    runner = start("--processes=2", "--threads=1", env={"DATABASE_URL": url})
    runner.says(r"The database 'default' \(.*\) can't be reached: .*; trying again")
    never(lambda: re.search(r"at work|Traceback|lost", runner.text()), "it says more than is true", during=2)
    lines = [line for line in runner.text().splitlines() if "can't be reached" in line or "WARNING" in line]
    assert len(lines) == 1, runner.text()
    asked = time.monotonic()
    assert runner.stop() == 0
    assert time.monotonic() - asked < 2 * END


def test_the_longest_name_runs_jobs(start: Start, ledger: Ledger) -> None:
    name = "x" * 56
    start(f"--name={name}", "--threads=1")
    job = ended(jobs.boom.enqueue())[0]
    assert job.worker == JobAttempt.objects.get(job=job).worker == f"{name}/1"


BREAKING = """
import time
from django_jobs import job
from django_jobs.worker.control import Control
from tests.project.jobs import say

def broken(self):
    raise RuntimeError("the loop is broken")

@job(takes_context=True)
def break_the_loop(context):
    say(context, "START")
    if context.attempt == 1:
        Control._cycle = broken
        time.sleep(60)
    return "whole"
"""


def test_an_error_of_the_worker_s_own_costs_no_job_an_attempt(start: Start, ledger: Ledger, site: Site, tmp_path: Path) -> None:
    environment = site(jobs=BREAKING, here=True)
    from site_app.jobs import break_the_loop  # type: ignore[import-not-found]

    runner = start("--threads=2", env=environment)
    bystander = jobs.gate.enqueue(str(tmp_path / "gate"))
    ledger.started(bystander)
    breaking = break_the_loop.enqueue()
    ledger.started(bystander, 2)
    (tmp_path / "gate").touch()
    for job in ended(bystander, breaking):
        assert (job.status, job.starts, job.attempts_used, job.deaths) == (Status.SUCCEEDED, 2, 1, 0)
        attempt = JobAttempt.objects.get(job=job)
        assert (attempt.outcome, attempt.counted) == ("handed_back", False)
        assert "error of its own" in attempt.cause
    assert "the loop is broken" in runner.text()
    assert row(bystander).status == Status.SUCCEEDED

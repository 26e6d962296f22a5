"""What `runjobs` refuses before anything starts, each with a line that says what to do."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection

from django_jobs.worker.supervisor import Supervisor


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Return the options of the workers that would have started."""
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "tests.settings")
    found: list[Any] = []

    def run(self: Supervisor) -> int:
        found.append(self.options)
        if self.health is not None:
            self.health.close()
        return 0

    with mock.patch.object(Supervisor, "run", run), mock.patch("django_jobs.management.commands.runjobs.configure"):
        yield found


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--queue", "a..b"], r"^--queue: 'a\.\.b' can't name a queue"),
        (["--queue", "a.*.b"], r"^--queue: "),
        (["--exclude", "x" * 101], r"^--exclude: "),
        (["--exclude", "*"], r"^--exclude: '\*' leaves nothing"),
        (["--queue", "default", "--exclude", "default"], r"^--exclude: 'default' leaves nothing of 'default'"),
        (["--queue", "a.b", "--queue", "a.*", "--exclude", "a"], r"^--exclude: 'a' leaves nothing of 'a\.b', 'a\.\*'"),
        (["--threads", "99999"], "argument --threads: use a whole number from 1 to 1000, not '99999'"),
        (["--threads", "many"], "argument --threads: use a whole number from 1 to 1000, not 'many'"),
        (["--processes", "0"], "argument --processes: use a whole number from 1 to 500, not '0'"),
        (["--async-jobs", "-1"], "argument --async-jobs: use a whole number from 0"),
        (["--max-memory", "nan"], "argument --max-memory: use a number of megabytes above 0, not 'nan'"),
        (["--max-age", "0s"], "argument --max-age: use a time above 0"),
        (["--max-age", "soon"], "argument --max-age: can't read 'soon' as a duration"),
        (["--health-port", "99999"], "argument --health-port: use a whole number from 1 to 65535, not '99999'"),
        (["--name", "x" * 57], "argument --name: a worker's name has at most 56 characters, not 57"),
        (["--name", "a\nb"], "argument --name: 'a.nb' has characters that can't be shown"),
    ],
)
def test_nonsense_is_refused_in_a_line(started: list[Any], options: list[str], message: str) -> None:
    with pytest.raises(CommandError, match=message):
        call_command("runjobs", *options, skip_checks=True)
    assert started == []


@pytest.mark.django_db
@pytest.mark.parametrize(
    "options",
    [
        ["--queue", "*", "--exclude", "mail"],
        ["--queue", "a.*", "--exclude", "a.b"],
        ["--queue", "a.b", "--queue", "a", "--exclude", "a.b.*"],
        ["--exclude", "mail.*"],
        ["--name", "x" * 56, "--threads", "1000"],
    ],
)
def test_what_makes_sense_starts(started: list[Any], options: list[str]) -> None:
    call_command("runjobs", *options, skip_checks=True)
    assert len(started) == 1


@pytest.mark.django_db
def test_a_health_port_that_can_not_be_had_is_an_error_of_the_command(started: list[Any]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        with pytest.raises(CommandError, match=rf"^--health-port: can't listen on 127\.0\.0\.1:{port}: "):
            call_command("runjobs", "--health-port", port, skip_checks=True)
        with pytest.raises(CommandError, match=r"^--health-port: can't listen on 203\.0\.113\.1:"):
            call_command("runjobs", "--health-port", port, "--health-host", "203.0.113.1", skip_checks=True)
    assert started == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("change", ["RENAME TO elsewhere", "RENAME COLUMN parked TO elsewhere"])
def test_without_tables_commands_say_what_to_do(started: list[Any], change: str) -> None:
    back = "ALTER TABLE elsewhere RENAME TO django_jobs_job"
    if "COLUMN" in change:
        back = "ALTER TABLE django_jobs_job RENAME COLUMN elsewhere TO parked"
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE django_jobs_job {change}")
    try:
        with pytest.raises(CommandError, match=r"no tables of django_jobs, or old ones: run manage\.py migrate") as refused:
            call_command("runjobs", skip_checks=True)
        assert refused.value.returncode == 1
        with pytest.raises(CommandError, match=r"run manage\.py migrate") as refused:
            call_command("jobs", "list")
        assert refused.value.returncode == 1
    finally:
        with connection.cursor() as cursor:
            cursor.execute(back)
    assert started == []


@pytest.mark.django_db
def test_a_database_that_is_away_is_left_to_the_worker(started: list[Any]) -> None:
    with mock.patch("django_jobs.db.schema.has_tables", side_effect=DatabaseError("nobody answers")):
        call_command("runjobs", skip_checks=True)
    assert len(started) == 1

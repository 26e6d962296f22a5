"""`manage.py jobs`: the same verbs as the admin, with filters, dry runs and JSON."""

from __future__ import annotations

import json
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from django_jobs.models import CancelRequest, Job, JobAttempt
from django_jobs.statuses import Status
from tests.support.jobs import make_job, running_job

pytestmark = pytest.mark.django_db


def jobs(*args: str) -> str:
    out = StringIO()
    call_command("jobs", *args, stdout=out, stderr=StringIO())
    return out.getvalue()


def answer(*args: str) -> Any:
    return json.loads(jobs(*args, "--json"))


def fails(*args: str, returncode: int = 1) -> str:
    with pytest.raises(CommandError) as caught:
        jobs(*args)
    assert caught.value.returncode == returncode
    return str(caught.value)


def state(job: Job) -> str:
    return Job.objects.filter(pk=job.pk).values_list("status", flat=True).first() or "gone"


def found(*args: str) -> list[str]:
    return [row["id"] for row in answer("list", *args)]


def test_list_newest_first_in_columns() -> None:
    first, second = make_job(queue="mail"), make_job(Status.FAILED, error_class="builtins.ValueError")
    lines = jobs("list").splitlines()
    assert lines[0].split()[:3] == ["ID", "STATUS", "QUEUE"]
    assert [line.split()[0] for line in lines[1:]] == [str(second.pk), str(first.pk)]
    assert "ValueError" in lines[1]
    assert jobs("list", "--task", "none") == ""


def test_filters_narrow_together() -> None:
    old = make_job(Status.FAILED, queue="mail.bulk", error_class="x.Oops")
    parked = make_job(parked="paused", queue="mail")
    ready = make_job(queue="mailing", task="a.b")
    assert found("--status", "failed") == [str(old.pk)]
    assert found("--status", "parked") == [str(parked.pk)]
    assert found("--status", "open") == [str(ready.pk), str(parked.pk)]
    assert found("--queue", "mail.*") == [str(parked.pk), str(old.pk)]
    assert found("--queue", "mail.*", "--status", "failed", "--status", "cancelled") == [str(old.pk)]
    assert found("--task", "a.b") == [str(ready.pk)]
    assert found("--error-class", "x.Oops") == [str(old.pk)]
    assert found("--since", "1h") == [str(ready.pk), str(parked.pk), str(old.pk)]
    assert found("--before", "1h") == []
    assert found("--limit", "1") == [str(ready.pk)]
    assert found(str(old.pk)) == [str(old.pk)]


def test_list_reads_and_prints_no_arguments() -> None:
    make_job(args=["secret"])
    assert "args" not in answer("list")[0]


def test_show_tells_all_with_attempts_and_lock() -> None:
    job = running_job(args=[2**80], metadata={"order": 17})
    JobAttempt.objects.create(
        job=job, number=1, ended_at=timezone.now(), outcome="failed", traceback="Traceback:\n  File x", error_class="x.Oops"
    )
    text = jobs("show", str(job.pk))
    assert str(2**80) in text
    assert "  File x" in text
    shown = answer("show", str(job.pk))
    assert shown["args"] == [2**80]
    assert shown["attempts"][0]["error_class"] == "x.Oops"
    assert shown["lock"]["token"] == str(job.last_token)


def test_show_by_the_beginning_of_an_id() -> None:
    make_job(id="10000000-aaaa-7000-8000-000000000000")
    make_job(id="10000000-aabb-7000-8000-000000000000")
    assert answer("show", "10000000-aab")["id"] == "10000000-aabb-7000-8000-000000000000"
    assert "More than one" in fails("show", "10000000")
    assert "No job" in fails("show", "20000000")
    assert "no id" in fails("show", "1234", returncode=2)
    assert "no job" in fails("show", "20000000-aaaa-7000-8000-000000000000")


def test_texts_of_rows_do_not_steer_the_terminal() -> None:
    job = make_job(Status.FAILED, reason="\x1b[2J wiped\nID", task="x\x1b]0;title\x07", error_message="\x1b[31mred")
    assert "\x1b" not in jobs("list") + jobs("show", str(job.pk))
    assert len(jobs("list").splitlines()) == 2


def test_requeue_takes_failed_and_timed_out_jobs_unless_told_otherwise() -> None:
    failed, timed_out, succeeded = make_job(Status.FAILED), make_job(Status.TIMED_OUT), make_job(Status.SUCCEEDED)
    done = answer("requeue", "--all", "--reason", "deployed", "--by", "cron")
    assert sorted(done["changed"]) == sorted([str(failed.pk), str(timed_out.pk)])
    assert state(succeeded) == "succeeded"
    failed.refresh_from_db()
    assert "cron" in failed.reason
    assert "deployed" in failed.reason
    jobs("requeue", "--status", "succeeded", "--queue", "default")
    assert state(succeeded) == "ready"


def test_a_verb_without_a_choice_is_refused() -> None:
    job = make_job(Status.FAILED)
    assert "--all" in fails("requeue", returncode=2)
    assert "--status" in fails("delete", "--all", returncode=2)
    assert "--status" in fails("delete", "--queue", "default", returncode=2)
    assert state(job) == "failed"


def test_requeue_can_keep_the_attempts_used() -> None:
    job = make_job(Status.FAILED, attempts_used=3)
    jobs("requeue", str(job.pk), "--keep-attempts")
    job.refresh_from_db()
    assert job.attempts_used == 3


def test_a_dry_run_says_how_many_and_changes_nothing() -> None:
    kept = [make_job(Status.TIMED_OUT, queue="x") for _ in range(3)]
    make_job(Status.TIMED_OUT)
    assert "3 jobs" in jobs("requeue", "--status", "timed_out", "--queue", "x", "--dry-run")
    told = answer("requeue", "--status", "timed_out", "--queue", "x", "--dry-run")
    assert (told["matching"], told["by_status"], told["first"]) == (3, {"timed_out": 3}, [str(job.pk) for job in kept])
    assert {state(job) for job in kept} == {"timed_out"}


def test_a_mixed_selection_is_reported_job_by_job_and_by_exit_status() -> None:
    failed, ready = make_job(Status.FAILED), make_job()
    gone = "20000000-aaaa-7000-8000-000000000000"
    out = StringIO()
    with pytest.raises(CommandError, match="2 jobs were left") as caught:
        call_command("jobs", "requeue", str(failed.pk), str(ready.pk), gone, "--json", stdout=out)
    assert caught.value.returncode == 1
    told = json.loads(out.getvalue())
    assert told["changed"] == [str(failed.pk)]
    assert set(told["refused"]) == {str(ready.pk), gone}


def test_cancel_done_run_and_delete() -> None:
    ready, failed = make_job(queue="a"), make_job(Status.FAILED)
    planned = make_job(Status.SCHEDULED, due_at=timezone.now() + timedelta(hours=1))
    jobs("run", str(planned.pk))
    assert state(planned) == "ready"
    jobs("cancel", "--queue", "a")
    assert state(ready) == "cancelled"
    jobs("done", str(failed.pk), "--reason", "by hand")
    assert state(failed) == "succeeded"
    jobs("delete", "--status", "cancelled")
    assert state(ready) == "gone"


def test_a_running_job_is_asked_to_stop() -> None:
    job = running_job()
    told = answer("cancel", str(job.pk), "--force")
    assert (told["changed"], told["requested"]) == ([], [str(job.pk)])
    assert CancelRequest.objects.get(job_id=job.pk).force
    assert "left as" in fails("delete", str(job.pk))


def test_many_jobs_go_in_batches() -> None:
    now = timezone.now()
    Job.objects.bulk_create(
        Job(task="t", status="failed", due_at=now, enqueued_at=now, finished_at=now, starts=1, attempts_used=1)
        for _ in range(1203)
    )
    assert len(answer("requeue", "--all")["changed"]) == 1203
    assert not Job.objects.filter(status="failed").exists()


def test_prune_deletes_what_is_due() -> None:
    past = timezone.now() - timedelta(days=1)
    old, kept = make_job(Status.SUCCEEDED, prune_at=past), make_job(Status.FAILED)
    assert answer("prune", "--dry-run")["deleted"] == 1
    assert state(old) == "succeeded"
    assert answer("prune")["deleted"] == 1
    assert (state(old), state(kept)) == ("gone", "failed")


def test_bad_words_are_refused() -> None:
    assert "since" in fails("list", "--since", "soon", returncode=2)
    with pytest.raises(CommandError):
        jobs("list", "--status", "nonsense")
    assert "database" in fails("list", "--database", "nowhere", returncode=2)

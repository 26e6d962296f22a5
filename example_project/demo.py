"""The demo, `python -m example_project.demo [--exit]`: the atlas is imported by real workers, one of which is killed half-way.

Uses the database that `DATABASE_URL` names. `--exit` ends when all jobs are done, with status 0 only if each of them succeeded;
without it the site and the worker stay until Ctrl-C. Nothing stays behind either way, except the rows.
"""

from __future__ import annotations

import argparse
import email
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import django

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from django_jobs.models import JobAttempt, Worker

MANAGE = [sys.executable, str(Path(__file__).with_name("manage.py"))]
PROCESSES, THREADS = 2, 4
LOOK_SECONDS = 1.0  # between two looks at the jobs
STALLED_SECONDS = 60  # without any progress for so long, the demo gives up
SETTLE_SECONDS = 0.1  # for the database to finish what a stopped process has sent to it
RECOVERY_SECONDS = 3  # for the supervisor to notice that a process is dead, and to put back its jobs
STOP_SECONDS = 15  # for a process to end by itself before it is killed
CITIES = "example_project/atlas/cities.csv"
SHOWN = 6  # jobs that are listed by name


class DemoFailed(Exception):
    """The demo can't go on, for the reason given."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m example_project.demo", description="Import an atlas with background jobs.")
    parser.add_argument("--exit", action="store_true", help="end when all jobs are done; status 0 only if each of them succeeded")
    options = parser.parse_args(arguments)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)  # each means: clean up, then go
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")
    django.setup()
    with tempfile.TemporaryDirectory(prefix="atlas-demo-") as folder:
        try:
            return _run(Path(folder), stay=not options.exit)
        except DemoFailed as error:
            _say(f"\nThe demo failed: {error}")
            for log in sorted(Path(folder).glob("*.err")):
                _say(f"--- the end of {log.name}:\n" + "\n".join(log.read_text().splitlines()[-20:]))
            return 1
        except KeyboardInterrupt:
            _say("\nStopped.")
            return 130 if options.exit else 0


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _run(folder: Path, *, stay: bool) -> int:
    password = _prepare()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    with (
        _process(folder, "site", "runserver", "--noreload", address) as site,
        _process(folder, "worker", "runjobs", f"--processes={PROCESSES}", f"--threads={THREADS}") as worker,
    ):
        _wait_for_site(site, f"http://{address}/")
        _say(f"Site    http://{address}/")
        _say(f"Admin   http://{address}/admin/   user: admin   password: {password}\n")
        succeeded = _watch_import(worker, f"http://{address}/admin/django_jobs/job/" if stay else "")
        _show_mail(folder / "worker.out")
        if stay:
            _say(f"Send http://{address}/admin/django_jobs_transfer/import/add/ the file {CITIES}:")
            _say("a job imports its good rows, and gives the bad ones back. The list of cities has an export that is a job, too.")
            _say(f"\nThe site and its worker go on: http://{address}/   Ctrl-C ends them.")
            while site.poll() is None and worker.poll() is None:
                time.sleep(LOOK_SECONDS)
            raise DemoFailed("the site or the worker ended by itself")
    return 0 if succeeded else 1


def _prepare() -> str:
    """Make the tables and the admin's account; return its new password."""
    from django.contrib.auth import get_user_model
    from django.core.management import call_command
    from django.db import connection

    _say(f"Database: {connection.display_name}. Making tables ...")
    call_command("migrate", interactive=False, verbosity=0)
    password = secrets.token_urlsafe(9)
    admin, _ = get_user_model().objects.get_or_create(username="admin", defaults={"is_staff": True, "is_superuser": True})
    admin.set_password(password)
    admin.save()
    return password


# --- processes ------------------------------------------------------------------------------------------------------------
@contextmanager
def _process(folder: Path, name: str, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command of manage.py beside us, output in `folder`; end it, and all it started, on the way out."""
    environment = os.environ | {"DEBUG": "1" if name == "site" else "0", "PYTHONUNBUFFERED": "1"}
    with (folder / f"{name}.out").open("wb") as out, (folder / f"{name}.err").open("wb") as err:
        # A process group of its own: Ctrl-C reaches us alone, and we decide in what order things end.
        process = subprocess.Popen(
            [*MANAGE, *command], stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment, process_group=0
        )
        try:
            yield process
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C must not leave half of it running
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                pass
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # the usual case: nobody is left
            process.wait()


def _wait_for_site(site: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + STALLED_SECONDS
    while time.monotonic() < deadline and site.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=10):
                return
        except urllib.error.HTTPError as error:
            raise DemoFailed(f"the site answers {error.code}") from None
        except OSError:
            time.sleep(0.1)
    raise DemoFailed("the site does not answer")


# --- the import, and the murder -----------------------------------------------------------------------------------------------
class Tally(NamedTuple):
    """The jobs of this run at one moment."""

    jobs: int  # of all kinds, those planned for a later day left out
    done: int  # ended, in whatever way
    failed: int  # ended, and not well
    cities: int  # whose job has ended
    imported: int  # whose job has been enqueued


def _watch_import(worker: subprocess.Popen[bytes], list_of_jobs: str) -> bool:
    """Enqueue the import and follow it to the end; return whether every job succeeded.

    `list_of_jobs`: the address of that page, empty if the site does not stay.
    """
    from django_jobs.models import Job

    from .atlas import dataset, jobs

    total = sum(map(len, dataset.cities().values()))
    since = Job.objects.get(pk=jobs.import_atlas.enqueue().id).enqueued_at
    _say(f"Importing {total:,} cities: {PROCESSES} worker processes with {THREADS} threads each.")
    started = changed = time.monotonic()
    victim, tally = None, Tally(0, 0, 0, 0, 0)
    line = _ProgressLine(total)
    while not tally.jobs or tally.done < tally.jobs:
        time.sleep(LOOK_SECONDS)
        before, tally = tally, _tally(since)
        line.show(tally)
        changed = time.monotonic() if tally.done > before.done else changed
        if worker.poll() is not None:
            raise DemoFailed(f"the worker ended by itself, with status {worker.returncode}")
        if time.monotonic() - changed > STALLED_SECONDS:
            raise DemoFailed(f"no job has ended for {STALLED_SECONDS} seconds")
        if victim is None and tally.cities >= total / 2 and (victim := _kill_a_worker(worker.pid)):
            line.interrupt(f"kill -9 {victim.pid}: one of the two worker processes is gone in the middle of its work.")
    seconds = time.monotonic() - started
    line.end(f"{tally.done:,} jobs in {seconds:.0f} s, {tally.done / seconds:,.0f} a second; {tally.failed} failed.")
    if victim:
        _show_second_attempts(victim, list_of_jobs)
    if tally.failed:
        _show_failures(since)
    return not tally.failed


def _tally(since: datetime) -> Tally:
    from django.db.models import Count, Q
    from django.db.models.functions import Now

    from django_jobs.models import Job
    from django_jobs.statuses import FINAL, Status

    from .atlas.jobs import describe_city

    jobs = Job.objects.filter(enqueued_at__gte=since).exclude(status=Status.SCHEDULED, run_after__gt=Now())
    final = Q(status__in=FINAL)
    return Tally(
        **jobs.aggregate(
            jobs=Count("pk"),
            done=Count("pk", filter=final),
            failed=Count("pk", filter=final & ~Q(status=Status.SUCCEEDED)),
            cities=Count("pk", filter=final & Q(task=describe_city.module_path)),
            imported=Count("pk", filter=Q(task=describe_city.module_path)),
        )
    )


def _kill_a_worker(supervisor: int) -> Worker | None:
    """Kill one worker process in the middle of its work, and return its row; None if none was caught at it."""
    from django_jobs.models import JobLock, Worker, WorkerKind

    parents = Worker.objects.filter(kind=WorkerKind.SUPERVISOR, pid=supervisor, stopped_at=None).values("id")
    for process in Worker.objects.filter(kind=WorkerKind.PROCESS, parent__in=parents, stopped_at=None):
        os.kill(process.pid, signal.SIGSTOP)  # hold still, so that what we see is what it dies with
        time.sleep(SETTLE_SECONDS)
        if not JobLock.objects.filter(worker=process.pk, prefetched=False).exists():
            os.kill(process.pid, signal.SIGCONT)
            continue
        os.kill(process.pid, signal.SIGKILL)
        deadline = time.monotonic() + RECOVERY_SECONDS
        while time.monotonic() < deadline:
            if _lost_attempts(process).exists():
                return process
            time.sleep(SETTLE_SECONDS)
    return None


def _lost_attempts(victim: Worker) -> QuerySet[JobAttempt]:
    from django_jobs.models import AttemptOutcome, JobAttempt

    lost = JobAttempt.objects.filter(outcome=AttemptOutcome.LOST, worker=victim.name, ended_at__gte=victim.started_at)
    return lost.select_related("job").order_by("job_id")


# --- what is told -----------------------------------------------------------------------------------------------------------
def _show_second_attempts(victim: Worker, list_of_jobs: str) -> None:
    """Name the jobs that the killed process had in hand, from the records of their lost attempts."""
    from django_jobs.models import AttemptOutcome

    attempts = list(_lost_attempts(victim))
    number = f"{len(attempts)} job{'' if len(attempts) == 1 else 's'}"
    _say(f"\nProcess {victim.pid} died with {number} in hand: {attempts[0].cause if attempts else 'unknown'}. Each ran again:")
    for attempt in attempts[:SHOWN]:
        job = attempt.job
        _say(f"  {_name(job.task, job.args)}: attempt {attempt.number} lost, attempt {job.starts} {job.status}")
    if len(attempts) > SHOWN:
        _say(f"  ... and {len(attempts) - SHOWN} more.")
    if list_of_jobs:
        _say(f"In the admin: {list_of_jobs}?status=all&attempt={AttemptOutcome.LOST}")


def _show_failures(since: datetime) -> None:
    from django_jobs.models import Job
    from django_jobs.statuses import FINAL, Status

    failed = Job.objects.filter(enqueued_at__gte=since, status__in=FINAL - {Status.SUCCEEDED})
    _say("\nNot every job succeeded:")
    for job in failed.order_by("id")[:SHOWN]:
        _say(f"  {_name(job.task, job.args)}: {job.status}, {job.error_class} {job.error_message}".rstrip())


def _name(task: str, arguments: list[Any]) -> str:
    """Return a call as one would write it; a city's job says which city."""
    from .atlas.models import City

    name = task.rpartition(".")[2]
    city = City.objects.filter(pk=arguments[0]).first() if name == "describe_city" else None
    return f"{name}({', '.join(map(repr, arguments))})" + (f" {city}" if city else "")


def _show_mail(output: Path) -> None:
    """Print the mail that the console back end has written to the worker's output."""
    text = output.read_text()
    if "Subject:" in text:
        message = email.message_from_string(text[text.index("Content-Type:") :].partition("-" * 79)[0])
        body = message.get_payload(decode=True)
        assert isinstance(body, bytes)
        _say(f"\nA job has sent a mail to {message['To']}: {message['Subject']}")
        _say("\n".join(f"  {line}" for line in body.decode().strip().splitlines()))


class _ProgressLine:
    """One line that is written over again on a terminal, and now and then a new line elsewhere."""

    WIDTH = 30
    QUIET_SECONDS = 5  # between two lines where lines stay

    def __init__(self, total: int) -> None:
        self._total = total
        self._moving = sys.stdout.isatty()
        self._shown = 0.0
        self._last: tuple[float, int] | None = None

    def show(self, tally: Tally) -> None:
        """Tell how far it is."""
        now = time.monotonic()
        if not self._moving and now - self._shown < self.QUIET_SECONDS:
            return
        text = self._text(tally, now)
        self._shown, self._last = now, (now, tally.cities)
        print(f"\r{text:<78}" if self._moving else text, end="" if self._moving else "\n", flush=True)

    def _text(self, tally: Tally, now: float) -> str:
        """Say what is going on: cities are read in, then described, then maps are drawn of them."""
        filled = round(self.WIDTH * min(tally.cities / self._total, 1))
        bar = f"[{'#' * filled}{'.' * (self.WIDTH - filled)}]"
        if not tally.cities:
            return f"{bar} reading the data: {tally.imported:,} of {self._total:,} cities"
        if tally.cities < self._total:
            speed = f", {(tally.cities - self._last[1]) / (now - self._last[0]):,.0f} a second" if self._last else ""
            return f"{bar} {tally.cities:,} of {self._total:,} cities described{speed}"
        left = tally.jobs - tally.done
        return f"{bar} all cities described; maps and report: {left} job{'' if left == 1 else 's'} left"

    def interrupt(self, text: str) -> None:
        """Print a line that stays."""
        _say(f"\r{text:<78}" if self._moving else text)

    end = interrupt


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())

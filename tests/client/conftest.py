"""A real web server, real workers of the site for its sweeps, and a client with a token."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from django_jobs.client import Client
from django_jobs.lifecycle.tokens import VERBS, make_token
from django_jobs.models import Job, Queue
from tests.support.databases import to_url
from tests.support.http_site import HttpSite
from tests.support.worker import Runner

ROOT = Path(__file__).parents[2]
Launch = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture(scope="module")
def served(django_db_setup: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpSite]:
    """Return a web server for the tests of a module."""
    environment = {
        **os.environ,
        "DATABASE_URL": to_url(connection.settings_dict),
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
    }
    site = HttpSite(environment, tmp_path_factory.mktemp("site"))
    yield site
    site.close()


@pytest.fixture
def site(transactional_db: None, served: HttpSite, request: pytest.FixtureRequest) -> Iterator[HttpSite]:
    """Return the web server; what it said meanwhile is shown if the test fails."""
    if served.process.poll() is not None:
        served.start()
    before = len(served.text())
    yield served
    print(served.text()[before:][-4000:])
    if "launch" in request.fixturenames:
        served.kill()  # else the long poll of a worker that was killed takes a job of the next test
    for found in Job.objects.exclude(status="succeeded")[:5]:
        print(found.id, found.status, found.starts, found.last_outcome, found.reason, found.due_at, found.error_message)


@pytest.fixture
def token(transactional_db: None) -> str:
    """Return a token that may do everything."""
    return make_token("test", verbs=VERBS, using="default")[1]


@pytest.fixture
def client(site: HttpSite, token: str) -> Iterator[Client]:
    with Client(site.url, token) as client:
        yield client


@pytest.fixture
def queue(transactional_db: None) -> Queue:
    """Return a queue for HTTP workers. A retry comes at once."""
    return Queue.objects.create(name="q", is_http=True, max_attempts=3, backoff=0.05)


@pytest.fixture
def sweeps(process_environment: dict[str, str], tmp_path: Path) -> Iterator[Runner]:
    """Start a worker of the site, whose sweeps end leases and make retries ready."""
    runner = Runner(process_environment, tmp_path, GRACE=2, SWEEP_INTERVAL=0.2, POLL_INTERVAL=0.2)
    yield runner.works()
    runner.close()


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Return a function that starts a program; each is killed at the end. What it says goes to `<name>.log`."""
    started: list[subprocess.Popen[bytes]] = []

    def launch(*command: str | Path, name: str = "worker", **environment: Any) -> subprocess.Popen[bytes]:
        with (tmp_path / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(each) for each in command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=tmp_path,
                env={"PATH": os.environ["PATH"], **{key: str(value) for key, value in environment.items()}},
                start_new_session=True,
            )
        started.append(process)
        return process

    yield launch
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(20)
    for log in tmp_path.glob("*.log"):
        print(f"--- {log.name} ---\n{log.read_text()[-3000:]}")


#: A worker program without Django: what a job does stands in its input. It writes what happens to a file.
PROGRAM = """
import json, logging, os, sys, time
sys.path.insert(0, os.environ["ROOT"])
logging.basicConfig(level="INFO")
from django_jobs.client import Client, Worker
assert not any(name.split(".")[0] == "django" for name in sys.modules)

def note(job, word):
    with open(os.environ["NOTES"], "a") as notes:
        notes.write(f"{job.input['name']} {job.attempt} {os.getpid()} {word}\\n")

def handler(job, context):
    note(job, "start")
    path = job.input.get("until")
    while path and not os.path.exists(path):
        if job.input.get("checks"):
            try:
                context.check()
            except Exception as error:
                note(job, f"stopped {error.code}")
                raise
        time.sleep(0.01)
    note(job, "end")
    return {"name": job.input["name"]}

client = Client(os.environ["JOBS_URL"], os.environ["JOBS_TOKEN"], timeout=5)
options = json.loads(os.environ.get("OPTIONS", "{}"))
Worker(client, "q", handler, **{"wait": 1, "pauses": (0.05, 0.5), **options}).run()
print("ended in order")
"""


class Program:
    """Starts worker programs, and reads their notes."""

    def __init__(self, launch: Launch, folder: Path, url: str, token: str) -> None:
        self._launch, self._folder, self._url, self._token = launch, folder, url, token
        self._notes = folder / "notes"
        self._notes.touch()
        (folder / "program.py").write_text(PROGRAM)

    def start(self, *, url: str = "", options: str = "{}") -> subprocess.Popen[bytes]:
        """Start one. `options`: of the `Worker`, as JSON."""
        return self._launch(
            sys.executable,
            self._folder / "program.py",
            ROOT=ROOT,
            NOTES=self._notes,
            JOBS_URL=url or self._url,
            JOBS_TOKEN=self._token,
            OPTIONS=options,
        )

    def notes(self, name: str, word: str = "") -> list[tuple[int, int, str]]:
        """Return (attempt, pid, word) of a job, in the order in which they happened."""
        found = []
        for line in self._notes.read_text().splitlines():
            key, attempt, pid, said = line.split(" ", 3)
            if key == name and said.startswith(word):
                found.append((int(attempt), int(pid), said))
        return found

    def log(self) -> str:
        return (self._folder / "worker.log").read_text()


@pytest.fixture
def program(launch: Launch, tmp_path: Path, site: HttpSite, token: str) -> Program:
    return Program(launch, tmp_path, site.url, token)

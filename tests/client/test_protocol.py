"""What docs/http-workers.md and the README show of HTTP is run as it stands, against a real server."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from django_jobs.models import Queue
from tests.client.conftest import ROOT, Launch
from tests.support.http_site import HttpSite
from tests.support.worker import until

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here"),
]


def marked(page: str, kind: str) -> list[tuple[str, str]]:
    """Return (mark, text) of the blocks of a page that have a mark of this kind."""
    return re.findall(rf"^<!-- {kind}: ([^\n]+) -->\n```\w+\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


def test_the_protocol_step_by_step(site: HttpSite, token: str, tmp_path: Path) -> None:
    Queue.objects.create(name="resize", is_http=True, heartbeat_timeout=30)
    known = {"JOBS": site.url.rstrip("/"), "TOKEN": token, "PATH": os.environ["PATH"]}
    steps = marked("docs/http-workers.md", "protocol")
    assert len(steps) >= 7
    answers: list[Any] = []
    for wanted, command in steps:
        preamble = 'auth="Authorization: Bearer $TOKEN"\njson="Content-Type: application/json"\n'
        shown = command.replace("curl ", f"curl -sS -o {tmp_path}/answer -w '%{{http_code}}' ", 1)
        done = subprocess.run(["sh", "-c", preamble + shown], env=known, capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout == wanted, (command, (tmp_path / "answer").read_text())
        text = (tmp_path / "answer").read_text() if wanted != "204" else ""
        answers.append(json.loads(text) if text else None)
        if "claim" in command:
            (held,) = answers[-1]["jobs"]
            assert (held["id"], held["input"], held["attempt"]) == (answers[0]["id"], {"image": 7}, 1)
            known |= {"ID": held["id"], "JOB_TOKEN": held["token"]}
    assert answers[-2]["error"].items() >= {"code": "lease_lost", "status": "succeeded"}.items()
    assert answers[-1]["status"] == "succeeded"
    assert answers[-1]["output"] == {"small": "7-small.png", "large": "7-large.png"}


def test_the_preamble_is_that_of_the_page() -> None:
    page = (ROOT / "docs/http-workers.md").read_text()
    assert 'auth="Authorization: Bearer $TOKEN"\njson="Content-Type: application/json"\n' in page


@pytest.mark.skipif(connection.vendor != "sqlite", reason="the project of the README makes its own SQLite database")
def test_any_language_as_the_readme_has_it(launch: Launch, tmp_path: Path) -> None:
    """In a new project: the settings, the commands and both workers, on a free port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    steps = {what: text.replace(":8000", f":{port}") for what, text in marked("README.md", "http")}
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("DJANGO_", "PYTHON", "DATABASE_"))},
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }

    def run(*command: str) -> str:
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=90)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(sys.executable, "-m", "django", "startproject", "mysite", ".")
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    with (tmp_path / "mysite" / "settings.py").open("a") as settings:
        settings.write('INSTALLED_APPS += ["django_jobs"]\n')
        settings.write('TASKS = {"default": {"BACKEND": "django_jobs.backend.JobsBackend"}}\n' + steps["mysite/settings.py"])
    with (tmp_path / "mysite" / "urls.py").open("a") as urls:
        urls.write(steps["mysite/urls.py"])
    *commands, serve = steps["manage"].splitlines()
    for command in commands:
        run("sh", "-c", command)
    launch("sh", "-c", f"exec {serve} --noreload {port}", name="site", **environment)

    def is_served() -> bool:
        with socket.socket() as looking:
            return looking.connect_ex(("127.0.0.1", port)) == 0

    until(is_served, "the site")
    for worker in (["sh", "-c", steps["worker"]], [sys.executable, "-c", steps["python"]]):
        job = json.loads(run("sh", "-c", steps["enqueue"].replace("curl", "curl -sS", 1)))
        process = launch(*worker, **environment)
        look = f'curl -sS -H "Authorization: Bearer $(head -n 1 token)" http://127.0.0.1:{port}/api/jobs/jobs/{job["id"]}/'

        def ended(look: str = look) -> Any:
            found = json.loads(run("sh", "-c", look))
            return found if found["ended"] else None

        found = until(ended, "the job")
        assert (found["status"], found["output"]) == ("succeeded", {"large": "7-large.png"})
        process.terminate()
        assert process.wait(30) in (0, -15)  # a shell that has only started the worker is ended by the signal

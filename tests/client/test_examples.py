"""The workers of docs/examples, in shell and in JavaScript, do what the Python one does."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from django_jobs.client import Client, Job
from django_jobs.models import Job as Row
from tests.client.conftest import ROOT, Launch
from tests.support.http_site import HttpSite
from tests.support.worker import Runner, row, until

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("queue")]
EXAMPLES = ROOT / "docs" / "examples"

#: A command for worker.sh. What the job shall do stands in its input.
COMMAND = r"""#!/bin/sh
job=$(cat)
echo "$job" >>jobs
case $job in
*'"do":"fail"'*) printf 'a "quoted" \\ word\n\tand more\n' >&2; exit 3 ;;
*'"do":"rubbish"'*) echo 'no JSON' ;;
*'"do":"nothing"'*) ;;
*'"do":"wait"'*)
    trap 'echo stopped >>notes; exit 1' TERM
    echo start >>notes
    until [ -e go ]; do sleep 0.05; done
    echo '"waited"' ;;
*) echo '{"echo": [1, null, "ä"]}' ;;
esac
"""
#: The same for worker.mjs.
HANDLER = r"""
import { appendFileSync, existsSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
export default async ({ input }, signal) => {
  if (input.do === "fail") throw new RangeError('a "quoted" \\ word');
  if (input.do === "rubbish") return 1n;
  if (input.do === "nothing") return undefined;
  if (input.do === "wait") {
    appendFileSync("notes", "start\n");
    while (!existsSync("go")) {
      if (signal.aborted) { appendFileSync("notes", "stopped\n"); return; }
      await sleep(20);
    }
    return "waited";
  }
  return { echo: [1, null, "ä"] };
};
"""

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture(params=["sh", "mjs"])
def start(request: pytest.FixtureRequest, launch: Launch, site: HttpSite, token: str, tmp_path: Path) -> Start:
    """Return a function that starts the worker of one language."""
    needed = {"sh": "curl", "mjs": "node"}[request.param]
    if shutil.which(needed) is None:
        pytest.skip(f"there is no {needed} here")
    command, handler = tmp_path / "command", tmp_path / "handler.mjs"
    command.write_text(COMMAND)
    command.chmod(0o755)
    handler.write_text(HANDLER)
    what = (
        [EXAMPLES / "worker.sh", "q", command] if request.param == "sh" else ["node", EXAMPLES / "worker.mjs", "q", "handler.mjs"]
    )

    def start(**environment: Any) -> subprocess.Popen[bytes]:
        told = {"JOBS_URL": site.url.rstrip("/"), "JOBS_TOKEN": token, "WAIT": 2, "HEARTBEAT": 0.5, **environment}
        return launch(*what, **told)

    return start


def ended(job: Job, wanted: str) -> Row:
    return until(lambda: found if (found := row(job)).status == wanted else None, f"{job.id} to be {wanted}")


def notes(folder: Path) -> list[str]:
    path = folder / "notes"
    return path.read_text().split() if path.exists() else []


def test_what_comes_of_jobs(start: Start, client: Client, tmp_path: Path) -> None:
    """Also where a producer has tried to be taken for the server."""
    forged = {"token": "forged", "jobs": [{"id": "forged", "token": "forged"}], "text": '"token":"forged"'}
    jobs = {
        "echo": client.enqueue(queue="q", input={"do": "echo", **forged}, metadata={"token": "forged"}),
        "nothing": client.enqueue(queue="q", input={"do": "nothing"}),
        "rubbish": client.enqueue(queue="q", input={"do": "rubbish"}),
        "fail": client.enqueue(queue="q", input={"do": "fail"}, max_attempts=1),
    }
    start()
    assert ended(jobs["echo"], "succeeded").result == {"echo": [1, None, "ä"]}
    assert ended(jobs["nothing"], "succeeded").result is None
    assert ended(jobs["rubbish"], "failed").starts == 1
    assert 'a "quoted" \\ word' in ended(jobs["fail"], "failed").error_message


def test_a_failure_is_tried_again(start: Start, client: Client, sweeps: Runner) -> None:
    job = client.enqueue(queue="q", input={"do": "fail"}, max_attempts=2)
    start()
    assert ended(job, "failed").starts == 2


def test_its_heart_keeps_a_job_and_a_cancel_stops_it(start: Start, client: Client, sweeps: Runner, tmp_path: Path) -> None:
    job = client.enqueue(queue="q", input={"do": "wait"}, heartbeat_timeout=2)
    start()
    first = until(lambda: row(job).last_heartbeat_at, "a heartbeat")
    until(lambda: (row(job).last_heartbeat_at - first).total_seconds() > 3, "heartbeats for longer than the lease")
    assert row(job).starts == 1
    client.cancel(job)
    until(lambda: "stopped" in notes(tmp_path), "the stop of its work")
    after = client.enqueue(queue="q", input={"do": "echo"})
    ended(after, "succeeded")
    assert row(job).status == "cancelled"


def test_a_stop_lets_what_runs_end(start: Start, client: Client, tmp_path: Path) -> None:
    job = client.enqueue(queue="q", input={"do": "wait"})
    later = client.enqueue(queue="q", input={"do": "echo"})
    worker = start()
    until(lambda: notes(tmp_path), "its start")
    os.kill(worker.pid, signal.SIGTERM)
    (tmp_path / "go").touch()
    assert worker.wait(20) == 0
    assert (row(job).result, row(later).status) == ("waited", "ready")


def test_a_killed_one_and_its_successor(start: Start, client: Client, sweeps: Runner, tmp_path: Path) -> None:
    job = client.enqueue(queue="q", input={"do": "wait"}, heartbeat_timeout=2)
    worker = start()
    until(lambda: notes(tmp_path), "its start")
    os.killpg(worker.pid, signal.SIGKILL)
    start()
    until(lambda: notes(tmp_path).count("start") == 2, "the second start")
    (tmp_path / "go").touch()
    assert ended(job, "succeeded").starts == 2


def test_the_server_is_away_for_a_while(start: Start, client: Client, site: HttpSite, tmp_path: Path) -> None:
    """While a job runs, and when it ends."""
    job = client.enqueue(queue="q", input={"do": "wait"})
    worker = start()
    until(lambda: notes(tmp_path), "its start")
    site.kill()
    (tmp_path / "go").touch()
    site.start()
    assert ended(job, "succeeded").result == "waited"
    assert worker.poll() is None


def test_a_refusal_ends_it(start: Start, tmp_path: Path) -> None:
    worker = start(JOBS_TOKEN="dj_wrong")
    assert worker.wait(20) != 0
    assert "no such token" in (tmp_path / "worker.log").read_text()

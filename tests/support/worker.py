"""Real workers for tests: start them, watch them, signal them, and leave none behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from django.db import connections

from django_jobs.models import Job
from django_jobs.statuses import Status
from tests.support.databases import from_url

#: The environment variable by which the processes of a runner are found, wherever they have gone.
MARK = "TEST_RUNNER"
#: The environment variable that names the ledger.
LEDGER = "TEST_LEDGER"
#: What a wait is allowed by default. Generous: the cores may be shared. Seconds.
PATIENCE = 40.0
_POLL = 0.01

T = TypeVar("T")


def until(condition: Callable[[], T], what: str = "", *, within: float = PATIENCE) -> T:
    """Wait until `condition()` is true, and return what it returned. Fails after `within` seconds."""
    limit = time.monotonic() + within
    while not (value := condition()):
        if time.monotonic() > limit:
            raise AssertionError(f"waited {within:g} s in vain for {what or condition}")
        time.sleep(_POLL)
    return value


def never(condition: Callable[[], Any], what: str, *, during: float) -> None:
    """Watch for `during` seconds that `condition()` never becomes true."""
    limit = time.monotonic() + during
    while time.monotonic() < limit:
        assert not condition(), what
        time.sleep(_POLL)


class Line(NamedTuple):
    """One line of a ledger. `at` is `time.monotonic()`, which all processes of a machine share."""

    key: str
    attempt: int
    pid: int
    at: float
    word: str


class Ledger:
    """A plain file that jobs append to: it shows every real start, whatever became of the rows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def lines(self, word: str = "", key: object = None) -> list[Line]:
        """Return the lines so far; those of one word or one job."""
        found = []
        for text in self.path.read_text().splitlines():
            key_, attempt, pid, at, word_ = text.split(" ", 4)
            if (not word or word_ == word) and (key is None or key_ == str(getattr(key, "id", key))):
                found.append(Line(key_, int(attempt), int(pid), float(at), word_))
        return found

    def starts(self, key: object = None) -> list[Line]:
        """Return the START lines."""
        return self.lines("START", key)

    def ends(self, key: object = None) -> list[Line]:
        """Return the END lines."""
        return self.lines("END", key)

    def started(self, key: object, times: int = 1, *, within: float = PATIENCE) -> Line:
        """Wait until the job has started so many times; return that start."""
        until(lambda: len(self.starts(key)) >= times, f"start {times} of {key}", within=within)
        return self.starts(key)[times - 1]


def row(job: Any) -> Job:
    """Return the row of a job, which is given as a result, a row or an id."""
    return Job.objects.get(id=getattr(job, "id", job))


def ended(*jobs: Any, within: float = PATIENCE) -> list[Job]:
    """Wait until all the jobs have ended, and return their rows."""
    ids = [getattr(job, "id", job) for job in jobs]
    until(lambda: Job.objects.final().filter(id__in=ids).count() == len(ids), f"the end of {_states(ids)}", within=within)
    found = {str(found.id): found for found in Job.objects.filter(id__in=ids)}
    return [found[str(job_id)] for job_id in ids]


class _states:  # noqa: N801 - a text that is made when it is needed
    def __init__(self, ids: list[Any]) -> None:
        self.ids = ids

    def __str__(self) -> str:
        rows = Job.objects.filter(id__in=self.ids).values_list("task", "status", "starts", "reason")
        return str([row for row in rows if row[1] != Status.SUCCEEDED][:5])


@dataclass(frozen=True)
class Ps:
    """A process as /proc shows it."""

    pid: int
    parent: int
    group: int
    state: str
    started: int


def ps(pid: int) -> Ps | None:
    """Return a process; None if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()
    return Ps(pid, int(fields[1]), int(fields[2]), fields[0], int(fields[19]))


def is_alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    found = ps(pid)
    return found is not None and found.state not in "ZX"


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used."""
    text = Path(f"/proc/{pid}/stat").read_text()
    fields = text[text.rindex(")") + 2 :].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def open_files(pid: int) -> int:
    """Return how many descriptors a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def threads(pid: int) -> int:
    """Return how many threads a process has."""
    return len(os.listdir(f"/proc/{pid}/task"))


class Runner:
    """One `manage.py runjobs` with its children, in a session of its own."""

    def __init__(
        self,
        environment: Mapping[str, str],
        folder: Path,
        *options: str,
        prefix: tuple[str, ...] = (),
        **settings: Any,
    ) -> None:
        self.mark = uuid.uuid4().hex
        self.log = folder / f"runner-{self.mark[:6]}.log"
        named = {f"DJANGO_JOBS_{name}": str(value) for name, value in settings.items()}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*prefix, sys.executable, "-m", "django", "runjobs", *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
                env={**environment, **named, MARK: self.mark},
                start_new_session=True,
            )
        self.pid = self.process.pid

    # -- looking

    def text(self) -> str:
        """Return what it has logged."""
        return self.log.read_text(errors="replace")

    def says(self, pattern: str, times: int = 1, *, within: float = PATIENCE) -> None:
        """Wait until it has logged something."""
        until(lambda: len(re.findall(pattern, self.text())) >= times, f"{pattern!r} in the log", within=within)

    def children(self) -> list[int]:
        """Return the ids of its worker processes, zombies too."""
        return [pid for pid in _children(self.pid) if b"django_jobs.worker.start" in _command(pid) or not is_alive(pid)]

    def child(self) -> int:
        """Return the id of its only worker process, waiting until there is one."""
        return until(lambda: [pid for pid in self.children() if is_alive(pid)], "a worker process")[0]

    def works(self, count: int = 1, *, within: float = PATIENCE) -> Runner:
        """Wait until so many of its worker processes have come to work; return this runner."""
        self.says(r"is at work", count, within=within)
        return self

    @property
    def is_running(self) -> bool:
        """Whether the supervisor runs."""
        return self.process.poll() is None

    # -- doing

    def signal(self, number: int) -> None:
        """Send the supervisor a signal."""
        self.process.send_signal(number)

    def wait(self, within: float = PATIENCE) -> int:
        """Wait until it ends, and return its exit code."""
        try:
            return self.process.wait(within)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the worker did not end within {within:g} s") from None

    def stop(self, within: float = PATIENCE) -> int:
        """Stop it in order, and return its exit code."""
        self.signal(signal.SIGTERM)
        return self.wait(within)

    def kill_tree(self) -> None:
        """Kill the supervisor, its processes and all that they have started, as nearly at once as can be."""
        everybody = processes_with(self.mark)
        for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first: nobody gets to react to another's death
            for pid in everybody:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
        self.process.wait(PATIENCE)

    def close(self) -> None:
        """Leave nothing behind."""
        for _ in range(50):
            left = [pid for pid in processes_with(self.mark) if is_alive(pid)]
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not left:
                break
            time.sleep(_POLL)
        self.process.wait(PATIENCE)


def processes_with(mark: str) -> list[int]:
    """Return the ids of all processes that carry the mark of a runner in their environment."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):
                if wanted in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                    found.append(int(name))
    return found


def _children(pid: int) -> list[int]:
    found = []
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):
                found += [int(child) for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split()]
    return found


def _command(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


@contextmanager
def using_database(url: str) -> Iterator[None]:
    """Let this thread's `default` connection be one to the database `url`."""
    before, settings = connections["default"], connections.settings["default"]
    changed = {**settings, **from_url(url)}
    connections.settings["default"] = changed
    connections["default"] = connections.create_connection("default")
    try:
        yield
    finally:
        connections["default"].close()
        connections.settings["default"] = settings
        connections["default"] = before

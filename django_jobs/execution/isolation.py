"""Run an attempt in a process of its own, which can be killed without harm to others.

The process leads a session: it is killed as a group, whatever the job started in it too, when the job has ended, by a hard
limit or by `kill()`. A process that ends without a word is a death of the worker, for this one job.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from django.conf import settings

from .. import conf
from ..exceptions import JobCancelled, JobTimeout
from ..outcomes import Attempt, Cancelled, ErrorInfo, Finished, Lost, Outcome, TimedOut
from . import wire
from .context import Link
from .errors import class_path
from .plan import Plan
from .processes import ending
from .running import CANCELLED, Run, Stop
from .timeouts import reason

#: Seconds between two looks at the limits, and at a process without a descriptor to wait for.
_PAUSE: Final = 0.2
#: Seconds in which the process must end once it has said how its job ended.
_EXIT_TIME: Final = 1.0
_CHUNK: Final = 65_536

Reference = tuple[str, dict[str, Any]]


class ProcessRun(Run):
    """A run in a process of its own. This side of it: passes on requests, watches the hard limits, reads how it ends."""

    __slots__ = ("_began", "_commands", "_killed", "_process", "is_told")

    def __init__(self, attempt: Attempt, plan: Plan) -> None:
        super().__init__(attempt, plan)
        self._process: subprocess.Popen[bytes] | None = None
        self._commands = -1
        self._killed: Stop | None = None
        self._began: float | None = None
        self.is_told = False  # the process said itself how it ended, to listeners too

    def execute(self, link: Link, order: dict[str, Any]) -> Finished:
        """Start the process, see it through, and return how the attempt ended."""
        read, write = os.pipe()
        commands, self._commands = os.pipe()
        with open(read, "rb", buffering=0) as messages:
            try:
                try:
                    self._process = _start(commands, write)
                finally:
                    os.close(commands)
                    os.close(write)
                self._send({**order, "attempt": wire.attempt_to_json(self.attempt)})
                self.is_armed = True
                told = self._follow(messages, link)
            finally:
                self._finish()
        if told is not None:
            self.is_told = True
            return told
        seconds = None if self._began is None else time.monotonic() - self._began
        return Finished(self.attempt, self._died(), seconds)

    def kill(self, stop: Stop) -> bool:
        """Kill the process with all that it started. Return False if it has ended."""
        with self.lock:
            if not self.is_armed or self._process is None:
                return False
            self._killed = self._killed or stop
            _kill_group(self._process)
            return True

    def _deliver(self, stop: Stop) -> bool:
        self._send({"cancel": stop.reason})
        return True

    def _send(self, message: dict[str, Any]) -> None:
        text = wire.line(message)
        with contextlib.suppress(BrokenPipeError):  # it is ending: how it ended is found out elsewhere
            while text:
                text = text[os.write(self._commands, text) :]

    def _follow(self, messages: Any, link: Link) -> Finished | None:
        """Read what the process says until it says how it ended, or ends without."""
        assert self._process is not None
        buffer = bytearray()
        with _watched(self._process, messages) as ready:
            while True:
                heard = ready()
                if heard and (chunk := messages.read(_CHUNK)):
                    buffer += chunk
                    *lines, rest = bytes(buffer).split(b"\n")
                    buffer = bytearray(rest)
                    for text in lines:
                        if (finished := self._hear(json.loads(text), link)) is not None:
                            return finished
                elif heard or _has_ended(self._process):
                    return None
                self._check_limits()

    def _hear(self, message: dict[str, Any], link: Link) -> Finished | None:
        attempt = self.attempt
        match message:
            case {"finished": values}:
                return wire.finished_from_json(attempt, values)
            case {"begin": _}:
                self._began = self.last_beat = time.monotonic()
            case {"progress": [done, total, text]}:
                self.last_beat = time.monotonic()
                link.progress(attempt, done, total, text)
            case {"heartbeat": _}:
                self.last_beat = time.monotonic()
                link.heartbeat(attempt)
            case {"save": output}:
                link.save(attempt, output)
        return None

    def _check_limits(self) -> None:
        """Kill the process when it is past a limit and did not heed the soft stop, which it gives itself."""
        if self._began is None or self._killed is not None:
            return
        attempt, now = self.attempt, time.monotonic()
        grace = conf.jobs_settings().timeout_grace if attempt.timeout_grace is None else attempt.timeout_grace
        for limit, since in (("timeout", self._began), ("heartbeat_timeout", self.last_beat)):
            seconds = getattr(attempt, limit)
            if seconds and now > since + seconds + grace:
                self.kill(Stop(limit, f"{reason(limit, attempt)}, and did not stop within {grace:g} s: killed"))

    def _finish(self) -> None:
        """End whatever is left of the process and its group, and collect it."""
        process = self._process
        if process is not None:
            patience = time.monotonic() + _EXIT_TIME
            while not _has_ended(process) and time.monotonic() < patience and self._killed is None:
                time.sleep(_PAUSE / 20)
            _kill_group(process)  # before it is collected: until then nobody else can have its number
        with self.lock:
            self.is_armed = False
            os.close(self._commands)
        if process is not None:
            process.wait()

    def _died(self) -> Outcome:
        """Return the outcome of an attempt whose process ended without a word."""
        assert self._process is not None
        code = self._process.returncode
        stop = self._killed
        if stop is None and code == -signal.SIGXCPU and self.attempt.cpu_timeout:
            stop = Stop("cpu_timeout", f"{reason('cpu_timeout', self.attempt)}, and did not stop: killed")
        if stop is None:
            return Lost(f"the job's own process {ending(code)}")
        if stop.limit == CANCELLED:
            return Cancelled(stop.reason, ErrorInfo(class_path(JobCancelled), stop.reason))
        return TimedOut(ErrorInfo(class_path(JobTimeout), stop.reason, fingerprint=stop.limit[:16]), stop.limit)


def reference_to(function: Callable[..., Any] | None) -> Reference | None:
    """Return how another process finds `function`, a function of a module or a `functools.partial` of one; None if it can't."""
    options: dict[str, Any] = {}
    named: Any = function
    if isinstance(function, functools.partial) and not function.args:
        named, options = function.func, function.keywords
    name, module = getattr(named, "__qualname__", "<"), getattr(named, "__module__", None)
    return None if "<" in name or not module else (f"{module}.{name}", options)


def _start(commands: int, messages: int) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    if name := getattr(settings, "SETTINGS_MODULE", None):
        environment["DJANGO_SETTINGS_MODULE"] = name
    return subprocess.Popen(
        [sys.executable, "-m", "django_jobs.execution.isolated", str(commands), str(messages), str(os.getpid())],
        stdin=subprocess.DEVNULL,
        pass_fds=(commands, messages),
        start_new_session=True,
        env=environment,
    )


@contextlib.contextmanager
def _watched(process: subprocess.Popen[bytes], messages: Any) -> Iterator[Callable[[], bool]]:
    """Give a function that waits a moment and says whether there is something to read (or the end of it)."""
    poll = select.poll()
    poll.register(messages, select.POLLIN | select.POLLHUP)
    ending = os.pidfd_open(process.pid) if hasattr(os, "pidfd_open") else None
    if ending is not None:
        poll.register(ending, select.POLLIN)

    def ready() -> bool:
        events = poll.poll(_PAUSE * 1000)
        return any(number == messages.fileno() for number, _ in events)

    try:
        yield ready
    finally:
        if ending is not None:
            os.close(ending)


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether the process has ended, without collecting it."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)

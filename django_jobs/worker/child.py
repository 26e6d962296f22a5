"""A child process as its supervisor sees it: start, words to it, its board, its end, and why it ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from uuid import UUID

from django_jobs.execution.processes import descendants, ending
from django_jobs.outcomes import Cancelled, ErrorInfo, HandedBack, Outcome, TimedOut
from django_jobs.worker.board import ENDED_SLOTS, STARTING, Board, Slot
from django_jobs.worker.options import VARIABLE, ProcessOptions, WorkerOptions

#: CPU seconds beyond the limit at which the process is killed: the soft stop inside had its chance.
CPU_GRACE_SECONDS = 0.5


@dataclass
class Child:
    """One incarnation of a worker process."""

    options: WorkerOptions
    supervisor: UUID
    name: str
    grace: float
    max_jobs: int | None = None
    id: UUID = field(default_factory=uuid.uuid4)

    def __post_init__(self) -> None:
        slots = self.options.threads + self.options.async_jobs + ENDED_SLOTS
        self.board = Board(slots, grace=self.grace)
        self.started = time.monotonic()
        self.has_worked = False  # it was seen at work
        self.stopping = False  # told to stop by the supervisor
        self.replaced = False  # its successor is running already
        self.kill_reason = ""  # why the supervisor killed it
        self.guilty: dict[UUID, Outcome] = {}  # the attempts for whose sake
        self._overdue: dict[UUID, Slot] = {}
        self._ticks = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
        self.process = self._start()

    @property
    def session_name(self) -> str:
        """The name that the control session shows to the server."""
        return f"django_jobs {self.id}"

    def _start(self) -> subprocess.Popen[str]:
        told = ProcessOptions(
            worker=str(self.id),
            supervisor=str(self.supervisor),
            name=self.name,
            board=self.board.fileno,
            slots=self.board.slots,
            max_jobs=self.max_jobs,
            options=self.options,
        )
        environment = {
            **os.environ,
            VARIABLE: told.dump(),
            # Every session of this process, those of its jobs too, can be told from others by this (libpq's default name).
            "PGAPPNAME": self.session_name,
            "PYTHONPATH": os.pathsep.join(path for path in [os.getcwd(), *sys.path] if path),
        }
        process = subprocess.Popen(
            [sys.executable, *_interpreter_options(), "-m", "django_jobs.worker.start"],
            stdin=subprocess.PIPE,
            env=environment,
            pass_fds=(self.board.fileno,),
            # A group of its own: it can be killed with the programs that its jobs have started, and Ctrl-C does not reach it.
            process_group=0,
            text=True,
            bufsize=1,
        )
        assert process.stdin is not None
        os.set_blocking(process.stdin.fileno(), False)
        return process

    # -- words

    def say(self, line: str) -> None:
        """Write a line to its standard input. A process that is gone hears nothing, nor does one that reads nothing.

        Never waits: one that is stopped, or whose jobs keep the interpreter, would hold up the supervisor and so the others.
        """
        with suppress(OSError, ValueError):
            assert self.process.stdin is not None
            os.write(self.process.stdin.fileno(), f"{line}\n".encode())

    def stop(self) -> None:
        """Ask it to drain."""
        if not self.stopping:
            self.stopping = True
            self.say("stop")
            if self.board.read_header().state != STARTING:  # it would die of it
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(self.process.pid, signal.SIGTERM)  # the same, for one whose standard input is full

    def kill(self, reason: str, guilty: dict[UUID, Outcome] | None = None) -> None:
        """Kill it and everything its jobs have started."""
        if not self.kill_reason:
            self.kill_reason = reason
        self.guilty.update(guilty or {})
        below = descendants(self.process.pid)  # also what has left the group; once their parents are dead, nobody could tell
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for descendant in below:
            descendant.send(signal.SIGKILL)

    # -- looking

    def overdue(self, now: float) -> list[Slot]:
        """Return the attempts that are past their hard limit: those that were so at the last look already."""
        found = {slot.token: slot for slot in self.board.running() if self._is_overdue(slot, now)}
        again = [slot for token, slot in found.items() if token in self._overdue]
        self._overdue = found
        return again

    def _is_overdue(self, slot: Slot, now: float) -> bool:
        if slot.deadline and now > slot.deadline:
            return True
        if slot.cpu_limit:
            used = self.cpu_seconds(slot.thread_id)
            return used is not None and used > slot.cpu_limit + CPU_GRACE_SECONDS
        return False

    def cpu_seconds(self, thread_id: int) -> float | None:
        """Return the CPU seconds that a thread of the process has used; None where the system does not tell."""
        try:
            with open(f"/proc/{self.process.pid}/task/{thread_id}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            return None
        return (int(fields[11]) + int(fields[12])) / self._ticks

    def expire(self, slots: Iterable[Slot], now: float) -> None:
        """Kill it because these attempts are past their limits."""
        guilty: dict[UUID, Outcome] = {}
        for slot in slots:
            if slot.limit == "cancelled":
                guilty[slot.token] = Cancelled("cancelled by force: its process was killed")
                continue
            limit = slot.limit if slot.deadline and now > slot.deadline else "cpu_timeout"
            text = f"{limit}: the task did not stop by itself, so its process was killed after {now - slot.started:.1f} s"
            guilty[slot.token] = TimedOut(ErrorInfo("django_jobs.exceptions.JobTimeout", text, fingerprint=limit), limit=limit)
        self.kill("its worker's process was killed to end another job, out of time or cancelled by force", guilty)

    # -- the end

    def started_tokens(self) -> dict[UUID, float] | None:
        """Return what had begun and was not recorded at its end, with the seconds since; None: that can't be told."""
        now = time.monotonic()
        begun = self.board.begun()
        return None if begun is None else {token: now - started for token, started in begun.items()}

    def owes(self) -> bool:
        """Whether rows of jobs may be left of it: not of one that has never come to work."""
        return self.board.read_header().state != STARTING or self.started_tokens() != {}

    def cause(self) -> str:
        """Return why it ended, for people and records. Only once it has been reaped."""
        if self.kill_reason:
            return self.kill_reason
        code = self.process.returncode
        if code is None:
            return "still running"
        if self.board.is_broken:
            return f"its worker's process ended by an error of its own (exit code {code}): see its log"
        count = len(self.board.begun() or ())
        return f"its worker's process {ending(code)}{f', with {count} jobs in it' if count > 1 else ''}"

    def outcomes(self, *, is_stop: bool) -> dict[UUID, Outcome]:
        """Return how the attempts that were running end where more is known than that their process died."""
        started = {slot.token for slot in self.board.running()}
        if self.process.returncode == -signal.SIGXCPU:
            text = "cpu_timeout: the operating system killed the process at its limit of CPU time (SIGXCPU)"
            error = ErrorInfo("django_jobs.exceptions.JobTimeout", text, fingerprint="cpu_timeout")
            limited = {slot.token for slot in self.board.running() if slot.cpu_limit} or started
            return {token: TimedOut(error, limit="cpu_timeout") for token in limited}
        if is_stop and not self.guilty:
            return {token: HandedBack("its worker was stopped", started=True) for token in started}
        if self.board.is_broken:
            # None of the jobs did that: no attempt is spent.
            return {token: HandedBack(self.cause(), started=True) for token in self.board.begun() or started}
        return self.guilty

    def sweep_group(self) -> None:
        """Kill what is left of its process group: programs that its jobs started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Let go of its pipe and board."""
        with suppress(OSError):
            if self.process.stdin is not None:
                self.process.stdin.close()
        self.board.close()


def _interpreter_options() -> list[str]:
    return [f"-W{option}" for option in sys.warnoptions] + (["-X", "dev"] if sys.flags.dev_mode else [])

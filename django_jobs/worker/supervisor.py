"""The supervisor: starts worker processes, watches them, kills what is out of time, replaces what died, passes wakes on, and
stops in order.

It runs no job and never touches a job's row in its main thread: that thread only waits, looks at boards, and kills. Beside it:
`recovery` (rows of dead children, registry), `maintenance` (sweeps), `listener` (notifications), `health` (HTTP), each a thread
with its own connection.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
import threading
import time
import uuid
from contextlib import suppress
from typing import Any

from django.db import DatabaseError, InterfaceError, connections

from django_jobs import signals, wakeup
from django_jobs.conf import jobs_settings
from django_jobs.db.reach import Reach
from django_jobs.models import WorkerKind
from django_jobs.worker import board
from django_jobs.worker.child import Child
from django_jobs.worker.health import HealthServer
from django_jobs.worker.names import default_name
from django_jobs.worker.options import WorkerOptions
from django_jobs.worker.recovery import Death, Entry, Recovery
from django_jobs.worker.systemd import notify
from django_jobs.worker.teller import Teller

logger = logging.getLogger("django_jobs.worker")

TICK_SECONDS = 0.05
#: A process that ends before it has worked is started again after this, doubled each time up to the second.
RESTART_SECONDS = (0.2, 10.0)
#: With `drain`, every process must be idle for this long.
DRAINED_SECONDS = 0.5
#: A process has this long to end after it said that it has stopped.
EXIT_SECONDS = 15.0


class Supervisor:
    """One worker tree. `run()` returns the exit code."""

    def __init__(self, options: WorkerOptions) -> None:
        self.options = options
        self.id = uuid.uuid4()
        self.name = options.name or default_name()
        self.children: list[Child] = []
        self.started = time.monotonic()
        self.ticked = time.monotonic()
        self.jobs_done = 0
        self._number = 0
        self._turn = 0
        self._restart_at: list[float] = []
        self._restart_pause = RESTART_SECONDS[0]
        self._stop_requests = 0
        self._stop_at: float | None = None
        self._idle_since: float | None = None
        self._stop = threading.Event()
        self._signalled = threading.Event()
        self.teller = Teller()
        self.reach = Reach()
        self.recovery = Recovery(
            alias=options.database,
            direct_alias=options.direct_database,
            supervisor=self.id,
            queues=[*options.queues, *(f"!{name}" for name in options.exclude)],
            teller=self.teller,
            entries=self._entries,
            recovered=lambda: self._tell_all("wake *"),
            reach=self.reach,
        )
        self.maintenance: Any = None
        # Here, so that a port that can't be had is an error of the command.
        self.health = None if options.health_port is None else HealthServer(self, options.health_host, options.health_port)

    # -- running

    def run(self) -> int:
        """Work until told to stop, or, with `drain`, until there is nothing left; return the exit code."""
        before = self._take_signals()
        try:
            self._start_threads()
            for _ in range(self.options.processes):
                self._start_child()
            logger.info(
                "Worker %s: %s with %s and %s each, queues: %s.",
                self.name,
                count_of(self.options.processes, "process"),
                count_of(self.options.threads, "thread"),
                count_of(self.options.async_jobs, "coroutine"),
                ", ".join(self.options.queues) or "all",
            )
            notify("READY=1", f"STATUS={count_of(self.options.processes, 'process')}")
            signals.send("worker_started", worker=self.id, name=self.name)
            while not self._is_done():
                self._tick()
                self._signalled.wait(TICK_SECONDS)
                self._signalled.clear()
            return 0
        finally:
            self._end()
            for number, handler in before.items():
                signal.signal(number, handler)

    def request_stop(self, *_: Any) -> None:
        """First: drain. Second: stop now. Safe in a signal handler."""
        self._stop_requests += 1
        self._signalled.set()

    def _take_signals(self) -> dict[int, Any]:
        if threading.current_thread() is not threading.main_thread():
            return {}
        numbers = [signal.SIGTERM, signal.SIGINT]
        before: dict[int, Any] = {number: signal.signal(number, self.request_stop) for number in numbers}
        with suppress(AttributeError, ValueError):
            before[signal.SIGUSR1] = signal.signal(signal.SIGUSR1, self._show_stacks)
        return before

    def _show_stacks(self, *_: Any) -> None:
        faulthandler.dump_traceback(file=sys.__stderr__ or 2)
        for child in self.children:
            with suppress(ProcessLookupError):
                os.kill(child.process.pid, signal.SIGUSR1)

    def _start_threads(self) -> None:
        self.teller.start()
        self.recovery.start()
        if self.options.listen and wakeup.can_listen_alias(self.options.direct_database):
            threading.Thread(target=self._listen, name="listener", daemon=True).start()
        if self.options.maintenance:
            from django_jobs.maintenance.service import Maintenance

            self.maintenance = Maintenance(
                using=self.options.direct_database, worker=self.id, stop=self._stop, tell=self.teller, reach=self.reach
            )
            threading.Thread(target=self._maintain, name="maintenance", daemon=True).start()
        if self.health is not None:
            self.health.start()

    def _maintain(self) -> None:
        while not self._stop.is_set():
            try:
                self.maintenance.run()
            except Exception:
                logger.exception("Maintenance failed; it goes on in a moment")
                for connection in connections.all(initialized_only=True):
                    connection.close()
                self._stop.wait(2.0)
        connections.close_all()

    def _listen(self) -> None:
        pause = 0.1
        listener = wakeup.Listener(self.options.direct_database)
        is_open = False
        while not self._stop.is_set():
            try:
                if not is_open:
                    listener.open()
                    is_open = True
                    self._tell_all("wake *")  # what was notified while nobody listened
                for queue_name in listener.wait(1.0):
                    self._wake(queue_name)
                pause = 0.1
            except Exception as error:
                if not isinstance(error, DatabaseError | InterfaceError):
                    logger.debug("The listener's connection failed", exc_info=True)
                is_open = False
                self._stop.wait(pause)
                pause = min(2 * pause, 2.0)
        with suppress(Exception):
            listener.close()

    def _wake(self, queue_name: str) -> None:
        """Wake the process that has least in hand, and the others a little later: they must not race for one job."""
        self._turn += 1
        children = list(self.children)
        children = children[self._turn % max(1, len(children)) :] + children[: self._turn % max(1, len(children))]
        with suppress(ValueError):  # the board of one that has just ended is closed
            children.sort(key=lambda child: child.board.read_header().in_hand)
        for place, child in enumerate(children):
            child.say(f"{'later' if place else 'wake'} {queue_name}")

    def _tell_all(self, line: str) -> None:
        for child in list(self.children):
            child.say(line)

    # -- children

    def _start_child(self) -> Child:
        self._number += 1
        child = Child(
            self.options,
            self.id,
            f"{self.name}/{self._number}",
            grace=jobs_settings().timeout_grace,
            max_jobs=self.options.max_jobs,
        )
        self.children.append(child)
        return child

    def _tick(self) -> None:
        now = self.ticked = time.monotonic()
        for child in list(self.children):
            self._look_at(child, now)
        while self._restart_at and self._restart_at[0] <= now and not self._is_stopping:
            self._restart_at.pop(0)
            self._start_child()
        if self._stop_requests and self._stop_at is None:
            self._begin_stop(now)
        if self._stop_at is not None and (self._stop_requests > 1 or now >= self._stop_at):
            for child in self.children:
                if not child.kill_reason:
                    child.kill("its worker was stopped before it ended")
        if self.options.drain and not self._is_stopping:
            self._stop_if_drained(now)
        notify("WATCHDOG=1", every=1.0)

    def _look_at(self, child: Child, now: float) -> None:
        if has_exited(child.process.pid):
            self._bury(child)
            return
        slots = child.overdue(now)
        if slots:
            for slot in slots:
                logger.warning("Job %s does not end: process %s is killed.", slot.job_id, child.name)
            child.expire(slots, now)
        header = child.board.read_header()
        if header.state == board.WORKING:
            self._restart_pause = RESTART_SECONDS[0]
            if not child.has_worked:
                child.has_worked = True
                logger.info("Process %s is at work, with the process id %d.", child.name, child.process.pid)
        if header.state == board.DRAINING and not child.replaced and not child.stopping and not self._is_stopping:
            child.replaced = True  # it recycles itself
            self._start_child()
        if header.state == board.STOPPED and now - header.beat > EXIT_SECONDS:
            child.kill("it had stopped, but its process did not end")

    def _bury(self, child: Child) -> None:
        """A child has exited: kill what it left, reap it, hand its rows to recovery, replace it."""
        child.sweep_group()  # before it is reaped: its number can't have gone to another process yet
        child.process.wait()
        self.children.remove(child)
        header = child.board.read_header()
        self.jobs_done += header.done
        is_orderly = header.state == board.STOPPED and child.process.returncode == 0 and not child.kill_reason
        is_stop = bool(self._stop_requests) and bool(child.kill_reason) and not child.guilty
        cause = child.cause()
        self.recovery.add(
            Death(
                worker=child.id,
                session_name=child.session_name,
                cause="stopped" if is_orderly else cause,
                counts=not child.kill_reason and not child.board.is_broken,
                started=child.started_tokens(),
                guilty=child.outcomes(is_stop=is_stop),
                is_orderly=is_orderly,
                is_stop=is_stop,
                owes=not is_orderly and child.owes(),
            )
        )
        if not is_orderly and not is_stop:
            logger.error("Process %s ended: %s.", child.name, cause)
        child.close()
        if child.replaced or self._is_stopping:
            return
        if header.state == board.STARTING:
            # It never came to work: do not spin.
            self._restart_at.append(time.monotonic() + self._restart_pause)
            self._restart_pause = min(self._restart_pause * 2, RESTART_SECONDS[1])
        else:
            self._start_child()

    # -- stopping

    @property
    def _is_stopping(self) -> bool:
        return self._stop_requests > 0

    def _begin_stop(self, now: float) -> None:
        running = sum(1 for child in self.children for _ in child.board.running())
        if running:
            logger.info("Worker %s stops: running jobs have %.0f s to end.", self.name, self.options.stop_timeout)
        else:
            logger.info("Worker %s stops: nothing runs.", self.name)
        notify("STOPPING=1")
        self._stop_at = now + self.options.stop_timeout
        self._restart_at.clear()
        for child in self.children:
            child.stop()

    def _stop_if_drained(self, now: float) -> None:
        headers = [child.board.read_header() for child in self.children]
        if not (headers and all(header.is_idle for header in headers) and self.recovery.is_settled):
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
            self._tell_all("wake *")
        elif now - self._idle_since > DRAINED_SECONDS:
            self.request_stop()

    def _is_done(self) -> bool:
        return self._is_stopping and not self.children

    def _end(self) -> None:
        for child in self.children:  # only after an error of our own
            child.kill("its supervisor ended")
            child.process.wait()
        self.recovery.close(10.0)
        self._stop.set()
        if self.health is not None:
            self.health.stop()
        signals.send("worker_stopped", worker=self.id, name=self.name, reason="stopped")
        self.teller.close(5.0)
        logger.info("Worker %s has stopped; %s done.", self.name, count_of(self.jobs_done, "job"))

    # -- for the registry and for health

    def _entries(self) -> list[Entry]:
        slots = self.options.threads + self.options.async_jobs
        entries = [Entry(self.id, WorkerKind.SUPERVISOR, self.name, os.getpid(), 0, done=self.jobs_done)]
        for child in list(self.children):
            with suppress(ValueError):  # closed meanwhile
                header = child.board.read_header()
                entries.append(
                    Entry(
                        child.id,
                        WorkerKind.PROCESS,
                        child.name,
                        child.process.pid,
                        slots,
                        running=header.running,
                        memory_mb=round(header.memory_mb, 1),
                        done=header.done,
                    )
                )
        return entries


def has_exited(pid: int) -> bool:
    """Whether this child process has ended; it stays a zombie, so that its number is nobody else's."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def count_of(number: int, noun: str) -> str:
    """Return "1 job", "2 jobs", "3 processes"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}{'es' if noun.endswith('s') else 's'}"

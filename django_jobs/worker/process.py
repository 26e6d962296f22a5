"""One worker process, started by the supervisor by way of `start`.

Its threads: the control loop with its own connection; the pool; the watchdog; one that tells listeners; one that reads the
supervisor's words from standard input (`wake QUEUE`, `stop`; its end means that the supervisor is gone, and is an order to stop
in order). The main thread guards: it writes the board's header, looks at memory and age, and ends the process when the database
has given no answer for so long that others may soon take its jobs over.
"""

from __future__ import annotations

import inspect
import logging
import os
import resource
import signal
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from typing import Any
from uuid import UUID

from django_jobs import conf, signals, wakeup
from django_jobs.exceptions import UnknownTask
from django_jobs.execution.executor import Executor
from django_jobs.execution.timeouts import Watchdog
from django_jobs.lifecycle.fence import fence_success
from django_jobs.lifecycle.graph import parent_results
from django_jobs.registry import find_task, registered
from django_jobs.worker import board
from django_jobs.worker.board import Board
from django_jobs.worker.control import Control
from django_jobs.worker.options import ControlOptions, ProcessOptions
from django_jobs.worker.pool import Pool
from django_jobs.worker.queues import QueueWatch
from django_jobs.worker.teller import Teller

logger = logging.getLogger("django_jobs.worker")

#: The exit code of a process that stopped its copies because nobody confirmed that their rows are held.
EXIT_UNCONFIRMED = 75
#: How often the main thread looks. Seconds.
LOOK_SECONDS = 0.2
#: Between two looks at memory.
MEMORY_SECONDS = 1.0
#: Seconds after which a thread that computes lets another have the interpreter: the control loop must not wait long for it.
SWITCH_INTERVAL = 0.001


class Link:
    """How the contexts of running jobs reach the control loop."""

    def __init__(self) -> None:
        self.control: Any = None

    def progress(self, attempt: Any, done: float | None, total: float | None, message: str) -> None:
        """Keep the newest progress for the next cycle."""
        self.control.note(attempt, progress={"done": done, "total": total, "message": message})

    def heartbeat(self, attempt: Any) -> None:
        """Keep that the attempt lives."""
        self.control.note(attempt)

    def save(self, attempt: Any, output: Any) -> None:
        """Keep the newest partial output."""
        self.control.note(attempt, output=output)


class Process:
    """Everything that one process is made of."""

    def __init__(self, options: ProcessOptions) -> None:
        settings = conf.jobs_settings()
        self.options, self.worker_options = options, options.options
        self.worker = UUID(options.worker)
        self.board = Board(options.slots, options.board, grace=settings.timeout_grace)
        self.started = time.monotonic()
        self.memory_mb = 0.0
        self.exit_code = 0
        self._was_late = False
        self._memory_at = 0.0
        self._is_recycling = ""
        self._forced: dict[UUID, float] = {}  # attempts in processes of their own, cancelled by force since then
        self.link = Link()
        self.watchdog = Watchdog()
        self.teller = Teller()
        self.executor = Executor(
            self.link,
            find_task=find_task,
            watchdog=self.watchdog,
            database=self.worker_options.database,
            fence=partial(fence_success, using=self.worker_options.database),
            parents=partial(parent_results, using=self.worker_options.database),
            board=self.board,
        )
        self.async_tasks = coroutine_tasks() if self.worker_options.async_jobs else frozenset()
        self.pool = Pool(
            self.executor,
            threads=self.worker_options.threads,
            async_jobs=self.worker_options.async_jobs if self.async_tasks else 0,
            on_finished=lambda: self.control.wake.set(),
        )
        self.control = self.link.control = self._make_control(settings)

    def _make_control(self, settings: conf.JobsSettings) -> Control:
        options = self.worker_options
        return Control(
            options=ControlOptions(
                alias=options.direct_database,
                grace=settings.grace,
                slice=settings.slice,
                poll=settings.poll_interval,
                max_jobs=self.options.max_jobs,
            ),
            worker=self.worker,
            name=self.options.name,
            pool=self.pool,
            executor=self.executor,
            queues=QueueWatch(options.queues, options.exclude),
            dispatch=self.teller,
            settled=self.board.settled,
            force_stop=self._force_stop,
            async_tasks=self.async_tasks,
            known=is_known,
            listens=options.listen and wakeup.can_listen_alias(options.direct_database),
        )

    # -- running

    def run(self) -> int:
        """Work until drained; return the exit code."""
        self._keep_forks_out()
        signal.signal(signal.SIGTERM, lambda *_: self.control.drain())
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the supervisor's
        with suppress(AttributeError, ValueError):
            signal.signal(signal.SIGUSR1, lambda *_: self._show_stacks())
        sys.setswitchinterval(SWITCH_INTERVAL)
        self.watchdog.start()
        self.pool.start()
        self.teller.start()
        threading.Thread(target=self._listen, name="supervisor", daemon=True).start()
        control = threading.Thread(target=self._run_control, name="control", daemon=True)
        control.start()
        signals.send("worker_started", worker=self.worker, name=self.options.name)
        while not self.control.stopped.wait(LOOK_SECONDS):
            self._look()
            if self.control.draining and self.control.is_bare:
                break  # it may be waiting for a database that does not answer
        self._write_header(stopped=True)
        signals.send("worker_stopped", worker=self.worker, name=self.options.name, reason=self._is_recycling or "stopped")
        self.pool.close()
        self.teller.close(5.0)
        self.watchdog.stop()
        return self.exit_code

    def _run_control(self) -> None:
        try:
            self.control.run()
        except BaseException:
            logger.critical("The control loop of worker %s ended by an error of its own", self.options.name, exc_info=True)
            # Nobody holds our rows any more: end at once, the supervisor takes it from here.
            self.board.broken()
            kill_group()

    def _look(self) -> None:
        settings = conf.jobs_settings()
        limit = settings.grace - settings.slice
        age = self.control.hands.confirmation.age()
        if age > limit and self._was_late:
            # Twice in a row, so that a process that was stopped meanwhile has had the time to read the answer that waits for it.
            logger.critical(
                "The database has not answered worker %s for %.1f s: it stops its jobs before others take them over.",
                self.options.name,
                age,
            )
            logging.shutdown()
            kill_group(EXIT_UNCONFIRMED)
        self._was_late = age > limit
        now = time.monotonic()
        if now - self._memory_at > MEMORY_SECONDS:
            self._memory_at = now
            self.memory_mb = memory_mb()
        self._recycle_if_due(now)
        self._write_header()

    def _recycle_if_due(self, now: float) -> None:
        options = self.worker_options
        reason = ""
        # What runs counts: with it the number is full, and nothing more is claimed while it lasts. The successor need not wait.
        begun = self.control.counters.done + self.pool.running
        if options.max_memory_mb and self.memory_mb > options.max_memory_mb:
            reason = f"memory: {self.memory_mb:.0f} MB is above {options.max_memory_mb:.0f} MB"
        elif options.max_age and now - self.started > options.max_age:
            reason = f"age: above {options.max_age:.0f} s"
        elif self.options.max_jobs and begun >= self.options.max_jobs:
            reason = f"jobs: {begun} done or begun"
        if reason and not self.control.draining:
            self._is_recycling = reason
            logger.info("Worker %s recycles itself (%s).", self.options.name, reason)
            self.control.drain()

    def _write_header(self, *, stopped: bool = False) -> None:
        control = self.control
        state = board.STOPPED if stopped else board.DRAINING if control.draining else board.WORKING
        if state == board.WORKING and not control.outage.has_worked:
            state = board.STARTING
        busy = len(control.hands.items)
        self.board.header(state, self.pool.running, busy, control.counters.done, self.memory_mb, idle=control.is_idle)

    def _listen(self) -> None:
        for line in sys.stdin:
            word, _, rest = line.strip().partition(" ")
            if word in {"wake", "later"}:
                if rest == "*" or self.control.queues.is_wanted(rest):
                    self.control.woken(rest, first=word == "wake")
            elif word == "stop":
                self.control.drain()
        # The supervisor is gone: finish what runs, then end. Others take its place.
        self.control.drain()

    def _force_stop(self, attempt: Any, reason: str) -> None:
        """Have an attempt killed when its grace is over: by the supervisor, with this process, or its own process alone."""
        grace = conf.jobs_settings().timeout_grace if attempt.timeout_grace is None else attempt.timeout_grace
        if not self.executor.is_alone(attempt.token):
            self.board.doom(attempt.token, grace)
            return
        self._forced = {token: since for token, since in self._forced.items() if self.executor.is_alone(token)}
        if time.monotonic() - self._forced.setdefault(attempt.token, time.monotonic()) >= grace:
            self.executor.kill(attempt.token, reason)

    def _show_stacks(self) -> None:
        sys.stderr.write(f"Worker {self.options.name}:\n{self.executor.stacks()}\n")
        sys.stderr.flush()

    def _keep_forks_out(self) -> None:
        """Put /dev/null over the control socket in what a job forks: it must not share the session that holds our rows."""

        def after_fork() -> None:
            raw = self.control.connection.connection
            fileno = getattr(raw, "fileno", None)
            with suppress(Exception):
                number = fileno() if fileno is not None else raw._sock.fileno()
                null = os.open(os.devnull, os.O_RDWR)
                os.dup2(null, number)
                os.close(null)

        os.register_at_fork(after_in_child=after_fork)


def coroutine_tasks() -> frozenset[str]:
    """Return the names of the tasks that run on the event loop."""
    return frozenset(
        name
        for name, task in registered().items()
        if inspect.iscoroutinefunction(task.func) and not getattr(task, "isolate", False)
    )


def is_known(name: str) -> bool:
    """Whether this process has a task of this name."""
    try:
        find_task(name)
    except UnknownTask:
        return False
    return True


def memory_mb() -> float:
    """Return the resident memory of this process in MB."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize() / 1e6
    except (OSError, ValueError):
        # The peak, where the present is not told; kilobytes on Linux, bytes on macOS.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / (1e6 if sys.platform == "darwin" else 1e3)


def kill_group(code: int = 70) -> None:
    """End this process and the programs that its jobs have started, at once."""
    try:
        if os.getpgrp() == os.getpid():
            # A handler can be set in the main thread alone; elsewhere SIGTERM asks to drain, and the exit comes first.
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.killpg(os.getpgrp(), signal.SIGTERM)
    finally:
        os._exit(code)

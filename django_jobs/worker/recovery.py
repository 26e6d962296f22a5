"""What the supervisor does in the database: recovers the rows of its dead children, and keeps the registry of its processes.

A thread of its own, so that an unreachable database never keeps the supervisor from watching and killing processes. **A job is
never handed back while its function may still run**: a death arrives here after the process was reaped and its group killed; its
database sessions are then ended, and only when the server says that they are gone are its rows recovered.
"""

from __future__ import annotations

import logging
import platform
import queue
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from django.db import DatabaseError, InterfaceError, close_old_connections, connections

from django_jobs import __version__, db
from django_jobs.conf import jobs_settings
from django_jobs.db import DatabaseNow
from django_jobs.db.reach import Reach
from django_jobs.lifecycle.recover import recover_worker
from django_jobs.models import JobLock, Worker, WorkerKind
from django_jobs.outcomes import Outcome
from django_jobs.worker.teller import Teller

logger = logging.getLogger("django_jobs.worker")

#: Between two entries in the registry.
REGISTRY_SECONDS = 5.0
#: A session that does not end on request within this time is left to the requeuer's rules.
SESSION_SECONDS = 5.0
#: For how long an orderly end waits to be written down while the database is away.
UNREACHED_SECONDS = 0.3


@dataclass
class Death:
    """A child that was reaped."""

    worker: UUID
    session_name: str
    cause: str
    counts: bool
    started: dict[UUID, float] | None  # tokens of what had begun; None: can't be told
    guilty: Mapping[UUID, Outcome]
    is_orderly: bool  # it had nothing in hand, as far as it knew
    is_stop: bool = False  # killed because its worker is stopping: no crash
    owes: bool = False  # rows of its jobs may be left
    tries: int = 0


@dataclass
class Entry:
    """One process in the registry."""

    id: UUID
    kind: WorkerKind
    name: str
    pid: int
    slots: int
    running: int = 0
    memory_mb: float | None = None
    done: int = 0
    stop_reason: str = ""
    is_new: bool = True


@dataclass
class Recovery:
    """The thread. `entries` is asked for the living processes; `recovered` is called when jobs went back."""

    alias: str
    direct_alias: str
    supervisor: UUID
    queues: list[str]
    teller: Teller
    entries: Callable[[], list[Entry]]
    recovered: Callable[[], None]
    reach: Reach = field(default_factory=Reach)
    deaths: queue.SimpleQueue[Death] = field(default_factory=queue.SimpleQueue)
    is_connected: bool = False
    last_error: str = ""

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._pending = self._owed = 0
        self._registered: set[UUID] = set()
        self._next_entry = self._next_lease = 0.0
        self._thread = threading.Thread(target=self._run, name="recovery", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def add(self, death: Death) -> None:
        """Take a child that was reaped."""
        self._pending += 1
        self._owed += death.owes
        self.deaths.put(death)

    @property
    def is_settled(self) -> bool:
        """Whether every death so far has been dealt with."""
        return self._pending == 0

    def close(self, timeout: float) -> None:
        """Deal with what is left for at most `timeout` seconds; sign the registry off.

        Without a database and with nothing to recover, nobody waits for it.
        """
        timeout = timeout if self.is_connected or self._owed else min(timeout, UNREACHED_SECONDS)
        limit = time.monotonic() + timeout
        while not self.is_settled and time.monotonic() < limit:
            time.sleep(0.02)
        self._stop.set()
        self._thread.join(max(0.1, limit - time.monotonic()) + (1.0 if self.is_connected else 0.0))

    # -- the thread

    def _run(self) -> None:
        pause = 0.1
        while not self._stop.is_set():
            death = None
            try:
                with suppress(queue.Empty):
                    death = self.deaths.get(timeout=0.2)
                if death is not None:
                    self._recover(death)
                    self._pending -= 1
                    self._owed -= death.owes
                    death = None  # dealt with, whatever fails behind it
                self._keep_leases()
                self._keep_registry()
                self.is_connected, self.last_error, pause = True, "", 0.1
                self.reach.works(self.alias)
            except (DatabaseError, InterfaceError) as error:
                self.is_connected, self.last_error = False, f"{type(error).__name__}: {error}"[:300]
                self.reach.failed(self.alias, error)
                self._next_entry = self._next_lease = 0.0  # so that "connected" is true when it is said again
                self._put_back(death)
                for connection in connections.all(initialized_only=True):
                    connection.close()
                self._stop.wait(pause)
                pause = min(pause * 2, 2.0)
            except Exception:
                logger.exception("Recovering the jobs of a dead process failed")
                self._put_back(death)
                self._stop.wait(1.0)
        with suppress(Exception):
            self._sign_off()
            connections.close_all()

    def _put_back(self, death: Death | None) -> None:
        if death is None:
            return
        death.tries += 1
        self.deaths.put(death)

    def _recover(self, death: Death) -> None:
        close_old_connections()
        if not death.is_orderly:
            self._end_sessions(death)
        count = 0
        limit = time.monotonic() + SESSION_SECONDS
        while True:
            events = recover_worker(
                self.alias,
                death.worker,
                cause=death.cause,
                counts=death.counts,
                started=death.started,
                guilty=death.guilty or None,
            )
            count += len(events)
            self.teller(events)
            if not events.left or time.monotonic() > limit:
                break
            time.sleep(0.05)
        if events.left:
            logger.warning("%d jobs of a dead process are locked by somebody else: the requeuer takes them later.", events.left)
        Worker.objects.using(self.alias).filter(id=death.worker).update(
            stopped_at=DatabaseNow(), stop_reason=death.cause[:255], running=0
        )
        if death.is_stop:
            logger.info("What outlasted the stop runs again elsewhere, uncounted: %d started.", len(death.guilty))
        elif not death.is_orderly:
            logger.warning("A process died: %s. Jobs that it had: %d, all dealt with.", death.cause, count)
        self.recovered()

    def _end_sessions(self, death: Death) -> None:
        """End what the dead process has left on the server, and wait until it is gone. By the name of that incarnation alone."""
        connection = connections[self.direct_alias]
        if connection.vendor != "postgresql":
            return
        limit = time.monotonic() + SESSION_SECONDS
        with connection.cursor() as cursor:
            while time.monotonic() < limit:
                cursor.execute(
                    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                    " WHERE application_name = %s AND pid <> pg_backend_pid() AND usename = current_user",
                    [death.session_name[:63]],
                )
                if not cursor.fetchone()[0]:
                    return
                time.sleep(0.01)

    def _keep_leases(self) -> None:
        """Where no row lock tells that a child lives, the supervisor, who knows, moves `expires_at` on beside it."""
        now = time.monotonic()
        if db.dialect(connections[self.alias]).row_locks or now < self._next_lease:
            return
        settings = jobs_settings()
        self._next_lease = now + settings.slice
        living = [entry.id for entry in self.entries() if entry.kind == WorkerKind.PROCESS]
        connection = connections[self.alias]
        dialect = db.dialect(connection)
        if living and JobLock.objects.using(self.alias).filter(worker__in=living).exists():
            marks, params = dialect.marks(living)
            with connection.cursor() as cursor:
                cursor.execute(
                    f"UPDATE {db.LOCK} SET expires_at = {dialect.now_plus()} WHERE worker IN ({marks})", [settings.grace, *params]
                )

    def _keep_registry(self) -> None:
        now = time.monotonic()
        entries = self.entries()
        if now < self._next_entry and all(entry.id in self._registered for entry in entries):
            return
        self._next_entry = now + REGISTRY_SECONDS
        close_old_connections()
        workers = Worker.objects.using(self.alias)
        for entry in entries:
            changing: dict[str, Any] = {"running": entry.running, "memory_mb": entry.memory_mb, "jobs_done": entry.done}
            if entry.id not in self._registered:
                workers.update_or_create(
                    id=entry.id,
                    defaults={
                        "parent": None if entry.kind == WorkerKind.SUPERVISOR else self.supervisor,
                        "kind": entry.kind,
                        "name": entry.name[:128],
                        "host": platform.node()[:255],
                        "pid": entry.pid,
                        "queues": self.queues,
                        "slots": entry.slots,
                        "version": __version__,
                        **changing,
                    },
                )
                self._registered.add(entry.id)
            elif not workers.filter(id=entry.id, stopped_at=None).update(seen_at=DatabaseNow(), **changing):
                # Maintenance elsewhere took a long silence for an end; here is the proof of the contrary.
                workers.filter(id=entry.id).update(seen_at=DatabaseNow(), stopped_at=None, stop_reason="", **changing)

    def _sign_off(self) -> None:
        Worker.objects.using(self.alias).filter(id__in=self._registered, stopped_at=None).update(
            stopped_at=DatabaseNow(), stop_reason="stopped", running=0
        )

"""The maintenance loop of one worker tree: look, then take the turns that are due, until told to stop.

One query a second says what there is to do (`looks.Pulse`); an idle cluster does nothing else. Every tree keeps its looks
current, whether it ever gets a turn or not, so that the death of one that does costs no second grace. Every piece of work is
bounded, and safe to run twice at once; a service that fails is logged, noted in its row and comes again, the others go on. A
lost connection is made again with a pause that grows to a quarter of the grace.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from uuid import UUID

from django.db import DatabaseError, InterfaceError, connections

from .. import db, signals, wakeup
from ..conf import JobsSettings, jobs_settings
from ..db.reach import Reach
from ..db.schema import one_line
from ..exceptions import UnknownTask
from ..lifecycle import graph, lease, pause, rollup, sweep
from ..lifecycle.batch_keep import Keeper, Walk
from ..lifecycle.batch_look import look
from ..lifecycle.follow import Followed, follow_ended
from ..lifecycle.recover import writing
from ..lifecycle.sweep import Swept
from ..outcomes import Event
from ..retry import is_database_conflict
from ..statuses import Status
from . import registry, requeuer
from .looks import Looks, Pulse
from .turns import Service, due_names, ensure_rows, take_turn

logger = logging.getLogger("django_jobs.maintenance")

#: How often a service comes that has other ways to learn of its work, or work that can wait. Seconds.
IDLE_SECONDS: Final = 60.0
#: The same for the pruner, and its breath between full sweeps: deleting must not crowd out the jobs.
PRUNE_SECONDS: Final = 10.0
PRUNE_REST_SECONDS: Final = 0.1
#: How often a process parks what has come to paused queues meanwhile.
PARK_SECONDS: Final = 5.0
#: How often a process looks whether it knows a task that another did not.
UNKNOWN_SECONDS: Final = 5.0
#: How often a process folds the deltas of counts, if there are any: a reader adds up what has not been folded.
FOLD_SECONDS: Final = 5.0
#: The same while there are batches that have not finished: whoever folds looks at those that have changed.
BATCH_FOLD_SECONDS: Final = 0.9
#: How often a process looks at some of the jobs that wait for others, whether it was told of them or not.
FORGOTTEN_SECONDS: Final = 30.0
#: Deltas in one fold.
FOLD_BATCH: Final = 5000
#: Every status is recounted once in this time, one after the other.
RECOUNT_SECONDS: Final = 86_400.0
#: A look comes this much after what it waits for: databases round times, and one that comes too early waits for another interval.
AFTER_SECONDS: Final = 0.02
#: The pause of the loop, at least: due work is taken in one go.
MIN_WAIT_SECONDS: Final = 0.01
#: The pause, at most, whatever SWEEP_INTERVAL says: MariaDB ends a session that is silent for 15 s, and a new one judges nothing.
MAX_WAIT_SECONDS: Final = 5.0
FIRST_RETRY_SECONDS: Final = 0.25


def knows_task(name: str) -> bool:
    """Whether a task of this name is registered in this process. Imports nothing."""
    from ..task import find_task

    try:
        find_task(name)
    except UnknownTask:
        return False
    return True


def _late(using: str, limit: int) -> Swept:
    requests = sweep.apply_requests(using=using, limit=limit)
    swept = sweep.cancel_late(using=using, limit=limit)
    return Swept(max(swept.touched, requests.touched), requests.events + swept.events)


def _roll_up(using: str, limit: int) -> Swept:
    folded = rollup.fold(using=using, limit=limit)
    return Swept(folded.touched, queues=look(connections[using], folded.batches).queues)


def make_services(looks: Looks, settings: JobsSettings) -> dict[str, Service]:
    """Return the services by name, in the order in which their turns are taken."""
    batch = settings.sweep_batch

    def queues(using: str, limit: int) -> Swept:
        back = pause.release_resumed(using=using, limit=limit)
        parked = pause.park_paused(using=using, limit=limit)
        return Swept(max(back.touched, parked.touched), queues=back.queues)

    forgotten = Forgotten()

    def graphs(using: str, limit: int) -> Swept:
        followed = follow_ended(connections[using], limit=limit)
        old = forgotten.sweep(using, limit)
        return Swept(followed.touched, followed.events + old.events, followed.queues | old.queues)

    def unknown(using: str, limit: int) -> Swept:
        return sweep.give_up_unknown(using=using, grace=settings.unknown_task_grace, limit=limit)

    keeper = Keeper()

    def prune(using: str, limit: int) -> Swept:
        keys = rollup.prune_keys(using=using, seconds=settings.idempotency_retention, limit=limit)
        return Swept(max(sweep.prune(using=using, limit=limit, keeper=keeper).touched, keys))

    walk = Walk()

    def recount(using: str, limit: int) -> Swept:
        rollup.recount_next(using=using)
        return Swept(1)

    status_seconds = RECOUNT_SECONDS / len(Status)
    services = (
        Service("requeuer", partial(requeuer.sweep, looks), batch, IDLE_SECONDS),
        Service("leases", lambda using, limit: lease.lapse(using=using, limit=limit), batch, IDLE_SECONDS),
        Service("stager", lambda using, limit: sweep.stage_due(using=using, limit=limit), batch, IDLE_SECONDS),
        Service("timeouts", _late, batch, IDLE_SECONDS),
        Service("graphs", graphs, batch, IDLE_SECONDS),
        Service("queues", queues, batch, IDLE_SECONDS),
        Service("unknown", unknown, batch, min(IDLE_SECONDS, max(settings.unknown_task_grace, settings.sweep_interval))),
        Service("pruner", prune, settings.prune_batch, PRUNE_SECONDS, PRUNE_REST_SECONDS),
        Service("rollup", _roll_up, FOLD_BATCH, IDLE_SECONDS),
        Service("batches", lambda using, limit: Swept(queues=walk.step(using=using, limit=limit)), batch, IDLE_SECONDS),
        Service(rollup.RECOUNT, recount, 1, status_seconds, status_seconds),
        Service("registry", registry.sweep, batch, IDLE_SECONDS / 2),
    )
    return {service.name: service for service in services}


class Forgotten:
    """Walks through all waiting jobs of graphs, a piece at a time, once in a while."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._next = clock, 0.0
        self._after: UUID | None = None

    def sweep(self, using: str, limit: int) -> Followed:
        """Look at the next piece, if its time has come."""
        if self._clock() < self._next:
            return Followed()
        self._next = self._clock() + FORGOTTEN_SECONDS
        followed, self._after = graph.release_forgotten(using=using, limit=limit, after=self._after)
        return followed


@dataclass(slots=True)
class _Ran:
    at: float
    touched: int
    error: str = ""


class Maintenance:
    """Maintenance in one thread of a worker tree, over that thread's own connection `using` (direct, never through a pooler)."""

    def __init__(
        self,
        *,
        using: str,
        worker: UUID,
        stop: threading.Event,
        knows: Callable[[str], bool] = knows_task,
        tell: Callable[[Sequence[Event]], None] = signals.dispatch,
        clock: Callable[[], float] = time.monotonic,
        reach: Reach | None = None,
    ) -> None:
        self.using, self.worker, self.stop, self.knows, self.clock = using, worker, stop, knows, clock
        self.tell = tell
        self.reach = reach or Reach()
        self.settings = jobs_settings()
        self.looks = Looks(using=using, grace=self.settings.grace, interval=self.settings.sweep_interval, clock=clock)
        self.services = make_services(self.looks, self.settings)
        self._session: Any = None
        self._failures = 0
        self._looked_at: float | None = None
        self._next_unknown = self._next_park = 0.0
        self._folded_at = -FOLD_SECONDS
        self._ran: dict[str, _Ran] = {}

    def run(self) -> None:
        """Work until `stop` is set. Never raises an `Exception`; closes the thread's connection at the end."""
        try:
            while not self.stop.is_set():
                self.stop.wait(self._one_round())
        finally:
            connections[self.using].close()

    def _one_round(self) -> float:
        try:
            pause_seconds = self.cycle()
            self._failures = 0
            self.reach.works(self.using)
        except Exception as error:
            self._failures += 1
            pause_seconds = self._lose(error)
        return pause_seconds

    def cycle(self) -> float:
        """Look, take the turns that there are, and return the seconds until the next look. Raises a database error."""
        began = self.clock()
        pulse = self._look()
        full = False
        for name in self._wanted(pulse):
            full |= self._turn(self.services[name], force=True)
        if pulse.turn is None or pulse.turn <= 0:
            ensure_rows(self.services.values(), using=self.using)
            for name in [name for name in self.services if name in due_names(using=self.using)]:
                full |= self._turn(self.services[name], force=False)
        self._unpark(pulse)
        if full:
            return MIN_WAIT_SECONDS
        # Not later than the first thing that is known to become due: a scheduled job, a lock row's expiry, a judgement.
        times = [self.settings.sweep_interval, MAX_WAIT_SECONDS, self.looks.wait() + self.clock() - began]
        ends = (pulse.due, pulse.expiry, pulse.lease)
        times += [seconds + AFTER_SECONDS for seconds in ends if seconds is not None and seconds > -AFTER_SECONDS]
        return max(MIN_WAIT_SECONDS, min(times) - (self.clock() - began))

    def look(self) -> None:
        """Keep this process's looks current. Raises a database error."""
        self._look()

    def health(self) -> dict[str, Any]:
        """Return the loop's state: seconds since its last look, since its session began, and what its own turns did."""
        now = self.clock()
        up = self.looks.up_since
        return {
            "last_look_seconds": None if self._looked_at is None else now - self._looked_at,
            "session_seconds": None if up is None else now - up,
            "failures": self._failures,
            "services": {
                name: {"ran_seconds": now - ran.at, "touched": ran.touched, "error": ran.error} for name, ran in self._ran.items()
            },
        }

    def _look(self) -> Pulse:
        connection = connections[self.using]
        connection.ensure_connection()
        if connection.connection is not self._session:
            db.dialect(connection).prepare_session(connection, name=f"django_jobs maintenance {self.worker}")
            self._session = connection.connection
            self.looks.connected()
        pulse = self.looks.look()
        self._looked_at = self.clock()
        return pulse

    def _wanted(self, pulse: Pulse) -> list[str]:
        """Return the services for which there is work now, whether their turn is due or not."""
        wanted = {
            "requeuer": bool(self.looks.dead() or self.looks.missing()),
            "leases": pulse.lease is not None and pulse.lease <= 0,
            "stager": pulse.due is not None and pulse.due <= 0,
            "timeouts": pulse.requests or (pulse.late is not None and pulse.late <= 0),
            "graphs": pulse.ended,
            "rollup": pulse.deltas and self.clock() - self._folded_at >= (BATCH_FOLD_SECONDS if pulse.batches else FOLD_SECONDS),
            "queues": pulse.resumed or (pulse.paused and self.clock() >= self._next_park),
        }
        if wanted["rollup"]:
            self._folded_at = self.clock()
        if wanted["queues"]:
            self._next_park = self.clock() + PARK_SECONDS
        return [name for name, is_wanted in wanted.items() if is_wanted]

    def _turn(self, service: Service, *, force: bool) -> bool:
        """Take a turn of `service`; return whether there is more to do at once. A failure costs this turn only."""
        if self.stop.is_set():
            return False
        try:
            swept = take_turn(service, using=self.using, worker=self.worker, force=force, tell=self.tell)
        except Exception as error:
            if self._is_lost(error):
                raise
            if is_database_conflict(error):
                logger.info("The maintenance service %s lost a race in the database, and comes again", service.name)
                return False
            logger.exception("The maintenance service %s failed", service.name)
            self._ran[service.name] = _Ran(self.clock(), 0, f"{type(error).__name__}: {error}")
            return False
        if swept is None:
            return False
        self._ran[service.name] = _Ran(self.clock(), swept.touched)
        return swept.touched >= service.limit and service.rest == 0

    def _unpark(self, pulse: Pulse) -> None:
        """Bring back jobs whose task this process knows. Every process does: a turn could always fall to one that does not."""
        if not pulse.unknown or self.clock() < self._next_unknown:
            return
        self._next_unknown = self.clock() + UNKNOWN_SECONDS
        with writing(self.using):
            swept = sweep.unpark_known(self.knows, using=self.using, limit=self.settings.sweep_batch)
            wakeup.wake(self.using, swept.queues)

    def _is_lost(self, error: BaseException) -> bool:
        if isinstance(error, InterfaceError):
            return True
        return isinstance(error, DatabaseError) and db.dialect(connections[self.using]).is_connection_loss(error)

    def _lose(self, error: Exception) -> float:
        """Drop the session, whatever went wrong in it, and return the pause before the next try."""
        if not isinstance(error, DatabaseError | InterfaceError):
            logger.error("Maintenance failed, and begins again", exc_info=error)
        elif self._failures == 1 and self._session is not None and self._is_lost(error):
            logger.warning("Maintenance lost its database session, and connects again: %s", one_line(error))
        else:
            self.reach.failed(self.using, error)
        self.looks.disconnected()
        self._session = None
        try:
            connections[self.using].close()
        except Exception:
            connections[self.using].connection = None
        most = max(self.settings.grace / 4, FIRST_RETRY_SECONDS)
        return min(most, FIRST_RETRY_SECONDS * 2.0 ** min(self._failures - 1, 10))

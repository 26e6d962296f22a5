"""The control loop: records what finished, claims what is next and holds what is in hand, over a connection of its own.

One cycle is one transaction: outcomes, reports, hand-backs and claims together; its commit and the lock on every row in hand
travel as one message (`Dialect.hold`), and no function starts before the answer lists its token. The transaction that this opens
is the next cycle's. While nothing happens it is cut into slices: `expires_at` moves on, the rows are locked again.

What happens on each failure:

* A statement fails: back to the savepoint, the outcomes wait for the next cycle, the rows are held again before anything else.
* The connection is lost: nothing starts any more; what has not begun is taken back. Running functions go on, for their
  `expires_at` is fresh. After the reconnect, in this order: hold what is in hand, find out which outcomes landed in the commit
  whose answer was lost, give back what was claimed in it. A token that is gone was taken over: its copy is stopped and its
  outcome dropped.
* No answer at all: `Confirmation` says how long, and the process stops its copies before the grace is over (see `process`).
* A refusal (the database says that it is down): no sweeper can judge either, so the count starts again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from django.db import DatabaseError, InterfaceError

from django_jobs import db
from django_jobs.lifecycle.fence import Note, promote, tokens_recorded, write_notes
from django_jobs.lifecycle.record import record
from django_jobs.lifecycle.recover import unclaim
from django_jobs.outcomes import Attempt, Event, Finished, HandedBack
from django_jobs.registry import unknown_note
from django_jobs.worker.cancels import Stops, heed_cancels
from django_jobs.worker.claims import Claims
from django_jobs.worker.followers import Followers
from django_jobs.worker.hold import Hands, InHand, boottime
from django_jobs.worker.options import ControlOptions, Counters
from django_jobs.worker.outage import Outage
from django_jobs.worker.pool import Pool
from django_jobs.worker.queues import QueueWatch

logger = logging.getLogger("django_jobs.worker")

#: Give back what was claimed ahead and has not begun after this.
HAND_BACK_SECONDS = 0.5
#: How often somebody's wish to cancel is looked for.
CANCEL_SECONDS = 1.0
#: Somebody's open transaction has a job locked: its outcome is tried again after this.
LATER_SECONDS = 2.0


@dataclass
class Control:
    """The loop of one worker process."""

    options: ControlOptions
    worker: UUID
    name: str
    pool: Pool
    executor: Stops
    queues: QueueWatch
    dispatch: Callable[[list[Event]], None]
    settled: Callable[[Iterable[UUID]], None]  # these outcomes are recorded
    force_stop: Callable[[Attempt, str], None]  # ends an attempt that does not end by itself; asked again and again
    async_tasks: frozenset[str] = frozenset()
    known: Callable[[str], bool] = lambda name: True
    listens: bool = False
    wake: threading.Event = field(default_factory=threading.Event)
    counters: Counters = field(default_factory=Counters)

    def __post_init__(self) -> None:
        self.connection = db.control_connection(self.options.alias)
        self.dialect = db.dialect(self.connection)
        self.hands = Hands(self.connection, grace=self.options.grace, slice_seconds=self.options.slice, on_taken=self._taken)
        self.claims = Claims(
            self.hands,
            self.pool,
            self.queues,
            worker=self.worker,
            name=self.name,
            poll=self.options.poll,
            async_tasks=self.async_tasks,
        )
        self.followers = Followers(self.hands)
        self.draining = False
        self.stopped = threading.Event()
        self._ahead: list[tuple[float, Attempt]] = []  # held, prefetched, not yet promoted
        self._to_record: list[Finished] = []
        self._later: list[tuple[float, Finished]] = []
        self._uncertain = False  # a commit was sent and its answer never came
        self._unsaid: list[Event] = []  # what it would have told listeners
        self._notes: dict[UUID, Note] = {}
        self._notes_lock = threading.Lock()
        self._connected = False
        self.outage = Outage(self.name, self.dialect)
        self._next_cancel = 0.0

    # -- from other threads

    def note(self, attempt: Attempt, **changes: Any) -> None:
        """Take a report of a running attempt; it is written within a second."""
        with self._notes_lock:
            note = self._notes.setdefault(attempt.token, Note(attempt))
            note.heartbeat = True
            for name, value in changes.items():
                setattr(note, name, value)

    def drain(self) -> None:
        """Claim nothing more; give back what has not begun; end when all that runs is recorded."""
        self.draining = True
        self.wake.set()

    @property
    def is_bare(self) -> bool:
        """Whether it has never worked, and so owes nobody anything."""
        return not (self.outage.has_worked or self.hands.items or self._to_record)

    @property
    def is_idle(self) -> bool:
        """Whether there was nothing to claim at the last look, and nothing is in hand."""
        busy = self.hands.items or self._to_record or self._later or self.followers.is_due
        return self._connected and self.claims.is_empty and not busy

    def woken(self, queue: str, *, first: bool = True) -> None:
        """There is work in `queue`; not `first`: another process of this worker looks first."""
        self.claims.woken(queue, first=first)
        self.wake.set()

    # -- the loop

    def run(self) -> None:
        """Loop until drained. Survives every loss of the connection."""
        pause = 0.05
        while not self._is_over():
            self.wake.clear()
            try:
                if not self._connected:
                    self._connect()
                self._cycle()
                pause = 0.05
                self.outage.over()
            except (DatabaseError, InterfaceError) as error:
                if not self._is_lost(error) and self._rescue(error):
                    continue
                self._disconnect(error)
                # Bounded by a quarter of the grace, so that after a restart of the database the rows are held in time.
                self.wake.wait(pause)
                pause = min(pause * 2, self.options.grace / 4)
                continue
            self.wake.wait(self._timeout())
        self._disconnect(None)
        self.stopped.set()

    def _is_over(self) -> bool:
        return self.draining and not (
            self.hands.items or self._to_record or self._later or self.pool.has_finished or self.pool.running
        )

    def _timeout(self) -> float:
        """Return how long there is nothing to do, in seconds."""
        now = time.monotonic()
        until = now + self.options.poll
        if self.pool.has_finished and self.pool.waiting <= self.pool.threads:
            return 0.0
        if self.claims.is_hungry(self._wanted()):
            return 0.0
        if not self.draining:
            until = min(until, max(self.claims.next_poll, now))
            if self.claims.look_again_at > now:
                until = min(until, self.claims.look_again_at)
        if self.hands.items:
            until = min(until, self.hands.last_hold + self.options.slice, self._next_cancel)
        if self._ahead or self.pool.waiting:
            until = min(until, now + HAND_BACK_SECONDS / 4)
        if self._later:
            until = min(until, self._later[0][0])
        until = min(until, self.followers.due)
        return max(0.0, until - now)

    # -- the connection

    def _connect(self) -> None:
        sent_at = boottime()
        self.connection.close()
        self.connection.ensure_connection()  # and not `connect()`, which raises the driver's own errors
        self.dialect.prepare_session(self.connection, name=f"django_jobs {self.worker}", by_key=True)
        self.hands.lost()
        rows = bool(self.hands.items)
        if rows:
            self.hands.hold(everything=True)
        self._resolve_uncertain()
        self._connected = True
        if not rows:
            self.hands.confirmation.confirm(sent_at, has_rows=False)
        if self.outage.has_worked:
            logger.info("Worker %s has its database connection again; %d jobs in hand.", self.name, len(self.hands.items))

    def _resolve_uncertain(self) -> None:
        """Find out what became of the commit whose answer was lost."""
        if not self._uncertain:
            return
        pending = {item.attempt.job_id: item.attempt.token for item in self._to_record}
        self.hands.drop(self._take_landed(pending))
        self._unsaid = []  # the others are recorded again
        self.hands.begin()
        given = unclaim(self.connection, self.worker, keep=set(self.hands.items) | set(pending.values()))
        self.hands.hold()
        self.counters.handed_back += given
        self._uncertain = False

    def _take_landed(self, pending: dict[UUID, UUID]) -> set[UUID]:
        """Settle those outcomes (job id -> token) that were recorded by the commit whose answer was lost; return their tokens."""
        landed = tokens_recorded(self.connection, pending) if pending else set()
        self._settle(landed)
        self._to_record = [item for item in self._to_record if item.attempt.token not in landed]
        jobs = {job for job, token in pending.items() if token in landed}
        if events := [event for event in self._unsaid if event.job_id in jobs]:
            self._unsaid = [event for event in self._unsaid if event.job_id not in jobs]
            self.dispatch(events)
        return landed

    def _settle(self, tokens: set[UUID]) -> None:
        """These outcomes are recorded."""
        self.settled(tokens)
        outcomes = [item.outcome for item in self._to_record if item.attempt.token in tokens]
        self.counters.done += sum(not isinstance(outcome, HandedBack) for outcome in outcomes)

    def _disconnect(self, error: BaseException | None) -> None:
        """Start nothing more; what has not begun will be given back after the reconnect."""
        if error is not None and self.outage.away(error):
            self.hands.confirmation.confirm(boottime(), has_rows=bool(self.hands.items))
        self._connected = False
        self.hands.lost()
        with suppress(Exception):
            self.connection.close()
        self._hand_back(self.pool.take_back() + [a for _, a in self._ahead], "its worker lost the database connection")
        self._ahead = []

    def _is_lost(self, error: BaseException) -> bool:
        return not self._connected or self.dialect.is_connection_loss(error) or not self.connection.is_usable()

    def _rescue(self, error: BaseException) -> bool:
        """A statement failed, the session lives: undo the cycle and hold again before anything else. False: reconnect."""
        self.outage.failed(error)
        try:
            self._uncertain = True  # the failure may have come after the commit, from the statement behind it
            self.hands.undo()
            self.hands.hold(everything=True)
            self._resolve_uncertain()
            self.claims.mend(self.dispatch)
        except (DatabaseError, InterfaceError):
            return False
        self.wake.wait(0.1)
        return True

    # -- one cycle

    def _cycle(self) -> None:
        self.counters.cycles += 1
        now = time.monotonic()
        self._collect(now)
        self.connection.queries_log.clear()
        events, done, later = self.followers.follow(now), list[UUID](), list[tuple[float, Finished]]()
        if self.followers.released or (self._to_record and not self.listens):
            self.claims.next_poll = 0.0  # no notification tells of children, or of a follow-up that these jobs have enqueued
        if self._to_record:
            self.hands.begin()
            result = record(self.connection, self._to_record, worker_name=self.name)
            events, done = events + result.events, result.done + result.fenced
            self.followers.told(result.has_ended, self._to_record)
            self._taken([self.hands.items[token] for token in result.fenced if token in self.hands.items])
            later = [(now + LATER_SECONDS, item) for item in result.later]
        self._write_notes()
        promoted = self._promote()
        claimed = self.claims.claim(now, self._wanted())
        self._commit(done, later, promoted, claimed, events)
        if self.hands.items and now >= self._next_cancel:
            self._next_cancel = now + CANCEL_SECONDS
            heed_cancels(self.connection, self.hands, self.executor, self.force_stop)

    def _collect(self, now: float) -> None:
        """Gather what is to be recorded: finished attempts, hand-backs, what waited for somebody's lock."""
        self._to_record += self.pool.take_finished()
        self._to_record += [item for due, item in self._later if due <= now]
        self._later = [(due, item) for due, item in self._later if due > now]
        limit = -1.0 if self.draining else HAND_BACK_SECONDS
        stale = self.pool.take_back(max(limit, 0.0))
        stale += [attempt for since, attempt in self._ahead if now - since > limit]
        self._ahead = [(since, attempt) for since, attempt in self._ahead if now - since <= limit]
        self._hand_back(stale, "its worker is stopping" if self.draining else "claimed ahead and not begun in time")

    def _hand_back(self, attempts: Iterable[Attempt], reason: str, parked: str = "") -> None:
        for attempt in attempts:
            self.counters.handed_back += 1
            self._to_record.append(Finished(attempt, HandedBack(reason, parked=parked)))

    def _write_notes(self) -> None:
        with self._notes_lock:
            notes, self._notes = self._notes, {}
        live = [note for token, note in notes.items() if token in self.hands.items]
        if not live:
            return
        self.hands.begin()
        try:
            write_notes(self.connection, live)
        except (DatabaseError, InterfaceError):
            with self._notes_lock:
                self._notes = {**notes, **self._notes}
            raise

    def _promote(self) -> list[Attempt]:
        """Choose what may begin next among what was claimed ahead, and count it as started."""
        if not self._ahead or self.draining:
            return []
        chosen = [attempt for _, attempt in self._ahead[: max(self.claims.room(), 0)] if self.hands.may_start(attempt)]
        if chosen:
            self.hands.begin()
            promote(self.connection, chosen)
        return chosen

    def _wanted(self) -> dict[str, int]:
        if self.draining or not self._connected:
            return {}
        limit = self.options.max_jobs
        left = None if limit is None else limit - self.counters.done - len(self.hands.items)
        return self.claims.wanted(len(self._ahead), left)

    def _commit(
        self,
        done: list[UUID],
        later: list[tuple[float, Finished]],
        promoted: list[Attempt],
        claimed: list[Attempt],
        events: list[Event],
    ) -> None:
        """Commit the cycle and hold what is in hand; then, and only then, start functions and tell listeners."""
        hands = self.hands
        ours = [hands.items[token] for token in done if token in hands.items]
        hands.drop(done)
        hands.take(claimed)
        if not (hands.is_open or claimed or (hands.items and hands.is_due)):
            return
        if hands.is_open and hands.items and self.dialect.row_locks and not (hands.wrote or claimed or hands.is_due):
            return  # only looked: the open transaction goes on holding
        if done or claimed:
            self._uncertain = True
        try:
            hands.hold()
        except (DatabaseError, InterfaceError):
            # Not in hand until a hold has listed it: what was claimed is looked for after the reconnect.
            hands.drop(attempt.token for attempt in claimed)
            hands.take(item.attempt for item in ours)
            self._unsaid = events
            raise
        self._uncertain = False
        self._settle(set(done))
        self._to_record = []
        self._later += later
        self._start(promoted, claimed)
        if events:
            self.dispatch(events)

    def _taken(self, items: Iterable[InHand]) -> None:
        """These attempts were taken over: stop their copies here, and drop their outcomes."""
        lost = {item.attempt.token: item.attempt for item in items}
        if self._uncertain:
            ended = {item.attempt.token for item in self._to_record}
            for token in self._take_landed({one.job_id: token for token, one in lost.items() if token in ended}):
                del lost[token]
        for attempt in lost.values():
            logger.warning("Job %s was taken over from worker %s: its copy here is stopped.", attempt.job_id, self.name)
            self.counters.fenced += 1
            self.executor.cancel(attempt.token, "the attempt was taken over")
        self.settled(lost)
        self._to_record = [item for item in self._to_record if item.attempt.token not in lost]

    def _start(self, promoted: list[Attempt], claimed: list[Attempt]) -> None:
        """Hand attempts to the pool: only those whose token the last hold has listed."""
        now = time.monotonic()
        begun = {attempt.token for attempt in promoted}
        self._ahead = [(since, attempt) for since, attempt in self._ahead if attempt.token not in begun]
        start = []
        for attempt in [*promoted, *claimed]:
            if attempt.token not in self.hands.items:
                continue  # taken over between the claim and the hold
            if not self.known(attempt.task):
                self.queues.unknown(attempt.task)
                self._hand_back([attempt], unknown_note(), parked="unknown_task")
            elif self.hands.may_start(attempt) and (attempt.token in begun or not attempt.prefetched):
                start.append(attempt)
            else:
                self._ahead.append((now, attempt))
        if start:
            self.pool.put(start)
        if any(isinstance(item.outcome, HandedBack) for item in self._to_record):
            self.wake.set()

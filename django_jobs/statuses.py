"""What a job can be, and which moves between those statuses are legal."""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import Final

from django.utils.translation import gettext_lazy as _

from .exceptions import InvalidTransition


class Status(StrEnum):
    """The status of a job: one column holds it, and nothing else says it."""

    WAITING = "waiting"
    SCHEDULED = "scheduled"
    READY = "ready"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"


class Parked(StrEnum):
    """Why a ready job is left out by the claim: the values of `Job.parked` other than the empty one."""

    PAUSED = "paused"  # its queue, or one above it
    UNKNOWN_TASK = "unknown_task"  # the worker that claimed it does not know its task


LABELS: Final = MappingProxyType(
    {
        Status.WAITING: _("waiting"),
        Status.SCHEDULED: _("scheduled"),
        Status.READY: _("ready"),
        Status.RUNNING: _("running"),
        Status.SUCCEEDED: _("succeeded"),
        Status.FAILED: _("failed"),
        Status.TIMED_OUT: _("timed out"),
        Status.CANCELLED: _("cancelled"),
    }
)

#: Nothing automatic leaves these, except retention.
FINAL: Final = frozenset({Status.SUCCEEDED, Status.FAILED, Status.TIMED_OUT, Status.CANCELLED})
#: Not started yet.
PENDING: Final = frozenset({Status.WAITING, Status.SCHEDULED, Status.READY})
#: A job in one of these holds its unique key.
LIVE: Final = PENDING | {Status.RUNNING}


class Move(StrEnum):
    """Who moves a job: the reason for which a status may change."""

    CLAIM = "claim"  # a worker takes it
    STAGE = "stage"  # the clock, or "run now"
    RELEASE = "release"  # the last parent's outcome
    HOLD_BACK = "hold_back"  # a requeued parent takes its unstarted children back
    RECORD = "record"  # the outcome of an attempt: by worker, requeuer or token holder
    CANCEL = "cancel"  # a person, a policy or `start_by`; also the acknowledgement of a failure
    REQUEUE = "requeue"  # a person or an API call
    DONE = "done"  # a person marks it done by hand
    GIVE_UP = "give_up"  # maintenance: no worker knows the task


#: (move) -> (from) -> (to, ...): the one table of legal moves.
MOVES: Final = MappingProxyType(
    {
        Move.CLAIM: {Status.READY: {Status.RUNNING}},
        Move.STAGE: {Status.SCHEDULED: {Status.READY}, Status.READY: {Status.SCHEDULED}},
        Move.RELEASE: {Status.WAITING: {Status.READY, Status.SCHEDULED}},
        Move.HOLD_BACK: {Status.READY: {Status.WAITING}, Status.SCHEDULED: {Status.WAITING}},
        Move.RECORD: {
            Status.RUNNING: {
                Status.SUCCEEDED,
                Status.FAILED,
                Status.TIMED_OUT,
                Status.CANCELLED,
                Status.SCHEDULED,
                Status.READY,
            }
        },
        Move.CANCEL: {
            Status.WAITING: {Status.CANCELLED},
            Status.SCHEDULED: {Status.CANCELLED},
            Status.READY: {Status.CANCELLED},
            Status.FAILED: {Status.CANCELLED},
            Status.TIMED_OUT: {Status.CANCELLED},
        },
        Move.REQUEUE: {status: {Status.READY, Status.SCHEDULED, Status.WAITING} for status in FINAL},
        Move.DONE: {
            status: {Status.SUCCEEDED}
            for status in (Status.WAITING, Status.SCHEDULED, Status.READY, Status.FAILED, Status.TIMED_OUT)
        },
        Move.GIVE_UP: {Status.READY: {Status.FAILED}},
    }
)


def sources(move: Move, target: Status) -> frozenset[Status]:
    """Return the statuses from which `move` may lead to `target`: the WHERE of the conditional UPDATE."""
    return frozenset(source for source, targets in MOVES[move].items() if target in targets)


def check(move: Move, source: Status | str, target: Status | str) -> None:
    """Raise `InvalidTransition` unless `move` may take a job from `source` to `target`."""
    if Status(target) not in MOVES[move].get(Status(source), ()):
        raise InvalidTransition(str(source), str(target), move=str(move))

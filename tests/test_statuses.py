"""The table of moves is the contract's, line by line; any other move is refused and names both statuses."""

from __future__ import annotations

import itertools

import pytest

from django_jobs import statuses
from django_jobs.exceptions import InvalidTransition
from django_jobs.statuses import FINAL, LABELS, LIVE, MOVES, PENDING, Move, Status

#: What the contract allows: (from, to) by who moves.
CONTRACT = {
    Move.CLAIM: {("ready", "running")},
    Move.STAGE: {("scheduled", "ready"), ("ready", "scheduled")},
    Move.RELEASE: {("waiting", "ready"), ("waiting", "scheduled")},
    Move.HOLD_BACK: {("ready", "waiting"), ("scheduled", "waiting")},
    Move.RECORD: {
        ("running", "succeeded"),
        ("running", "failed"),
        ("running", "timed_out"),
        ("running", "cancelled"),
        ("running", "scheduled"),
        ("running", "ready"),
    },
    Move.CANCEL: {
        ("waiting", "cancelled"),
        ("scheduled", "cancelled"),
        ("ready", "cancelled"),
        ("failed", "cancelled"),
        ("timed_out", "cancelled"),
    },
    Move.REQUEUE: {
        (final, to) for final in ("failed", "timed_out", "cancelled", "succeeded") for to in ("ready", "scheduled", "waiting")
    },
    Move.DONE: {(status, "succeeded") for status in ("waiting", "scheduled", "ready", "failed", "timed_out")},
    Move.GIVE_UP: {("ready", "failed")},
}

#: The contract's table by row: from -> all that it may become.
ROWS = {
    "waiting": {"ready", "scheduled", "cancelled", "succeeded"},
    "scheduled": {"ready", "cancelled", "succeeded", "waiting"},
    "ready": {"running", "scheduled", "waiting", "cancelled", "failed", "succeeded"},
    "running": {"succeeded", "failed", "timed_out", "cancelled", "scheduled", "ready"},
    "succeeded": {"ready", "scheduled", "waiting"},
    "failed": {"ready", "scheduled", "waiting", "cancelled", "succeeded"},
    "timed_out": {"ready", "scheduled", "waiting", "cancelled", "succeeded"},
    "cancelled": {"ready", "scheduled", "waiting"},
}

EVERY_MOVE = [(move, source, target) for move in Move for source, target in itertools.product(Status, Status)]


def test_there_are_eight_statuses_and_each_has_a_label() -> None:
    assert {status.value for status in Status} == set(ROWS)
    assert set(LABELS) == set(Status)
    assert len({str(label) for label in LABELS.values()}) == len(Status)


def test_the_groups_of_statuses() -> None:
    assert {status.value for status in FINAL} == {"succeeded", "failed", "timed_out", "cancelled"}
    assert {status.value for status in PENDING} == {"waiting", "scheduled", "ready"}
    assert {*PENDING, Status.RUNNING} == LIVE
    assert {*LIVE, *FINAL} == set(Status)
    assert LIVE.isdisjoint(FINAL)


def test_every_move_is_in_the_table() -> None:
    assert set(MOVES) == set(Move) == set(CONTRACT)


@pytest.mark.parametrize(("move", "source", "target"), EVERY_MOVE)
def test_a_move_is_legal_if_and_only_if_the_contract_has_it(move: Move, source: Status, target: Status) -> None:
    if (source.value, target.value) in CONTRACT[move]:
        statuses.check(move, source, target)
        statuses.check(move, source.value, target.value)
        assert source in statuses.sources(move, target)
    else:
        with pytest.raises(InvalidTransition) as refusal:
            statuses.check(move, source, target)
        assert (refusal.value.source, refusal.value.target, refusal.value.move) == (source, target, move)
        assert source.value in str(refusal.value)
        assert target.value in str(refusal.value)
        assert source not in statuses.sources(move, target)


@pytest.mark.parametrize("source", Status)
def test_what_a_status_may_become_at_all(source: Status) -> None:
    reachable = {target.value for move in Move for target in MOVES[move].get(source, ())}
    assert reachable == ROWS[source.value]


@pytest.mark.parametrize("status", Status)
def test_no_move_leads_to_the_status_itself(status: Status) -> None:
    assert not any(status in MOVES[move].get(status, ()) for move in Move)


def test_only_people_leave_a_final_status() -> None:
    by_hand = {Move.REQUEUE, Move.CANCEL, Move.DONE}
    assert {move for move in Move for source in MOVES[move] if source in FINAL} <= by_hand


def test_only_a_claim_starts_a_job_and_only_an_outcome_ends_one_that_runs() -> None:
    assert {move for move in Move if statuses.sources(move, Status.RUNNING)} == {Move.CLAIM}
    assert {move for move in Move if Status.RUNNING in MOVES[move]} == {Move.RECORD}


def test_the_table_can_not_be_changed() -> None:
    with pytest.raises(TypeError):
        MOVES[Move.CLAIM] = {}  # type: ignore[index]


def test_an_unknown_status_is_an_error() -> None:
    with pytest.raises(ValueError, match="exploded"):
        statuses.check(Move.CLAIM, "exploded", Status.RUNNING)


def test_a_refusal_names_the_job() -> None:
    assert "Job 42 is failed" in str(InvalidTransition("failed", "running", job_id=42))

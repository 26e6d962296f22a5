"""What becomes of a job after an attempt, and how long it pauses: examples of the contract, and properties for the rest."""

from __future__ import annotations

import itertools
import json
import math
import sqlite3
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import DatabaseError, IntegrityError, OperationalError, transaction
from hypothesis import given
from hypothesis import strategies as st

from django_jobs import retry
from django_jobs.durations import MAX_SECONDS
from django_jobs.exceptions import InvalidOption
from django_jobs.models import AttemptOutcome
from django_jobs.outcomes import (
    Attempt,
    Cancelled,
    ErrorInfo,
    Failed,
    HandedBack,
    Lost,
    Outcome,
    RetryAsked,
    Succeeded,
    TimedOut,
)
from django_jobs.retry import CALLABLE, EXPONENTIAL, End, decide, exceeded, is_database_conflict, normalise_backoff, pause
from django_jobs.statuses import FINAL, Move, Status, check

ERROR = ErrorInfo("builtins.ValueError", "no")
MIN_PAUSE, MAX_PAUSE = EXPONENTIAL["base"] * (1 - EXPONENTIAL["jitter"]), EXPONENTIAL["max"]


def attempt(**changes: Any) -> Attempt:
    given_: dict[str, Any] = {"number": 1, "attempts_used": 1, "max_attempts": 5, "backoff": 10.0} | changes
    return Attempt(job_id=UUID(int=1), token=UUID(int=2), task="shop.tasks.pay", args=[], kwargs={}, **given_)


def first(used: int = 1, **changes: Any) -> Attempt:
    return attempt(number=used, attempts_used=used, **changes)


# --- decide: examples ---


def test_a_success_is_the_end() -> None:
    assert decide(Succeeded(result=1), attempt(deaths=2)) == End(True, Status.SUCCEEDED, 0.0, True, "succeeded", "", 0)


def test_the_note_of_a_skip_is_the_reason() -> None:
    assert decide(Succeeded(note="nothing to do"), attempt()).reason == "nothing to do"


def test_a_final_failure_is_the_end_with_attempts_left() -> None:
    assert decide(Failed(ERROR), attempt()) == End(True, Status.FAILED, 0.0, True, "failed", "", 0)


@pytest.mark.parametrize(
    ("outcome", "ended_as", "name"),
    [
        (Failed(ERROR, final=False), Status.FAILED, "failed"),
        (RetryAsked(ERROR), Status.FAILED, "retry"),
        (TimedOut(ERROR), Status.TIMED_OUT, "timed_out"),
        (Lost("killed by signal 9"), Status.FAILED, "lost"),
    ],
)
def test_b31_every_cause_counts_alike(outcome: Outcome, ended_as: Status, name: str) -> None:
    """`max_attempts=5` means at most five starts, whatever ends them."""
    ends = [decide(outcome, first(used, deaths=used - 1)) for used in range(1, 6)]
    assert [end.is_end for end in ends] == [False, False, False, False, True]
    assert all(end.counted and end.outcome == name for end in ends)
    assert ends[-1].status is ended_as
    assert ends[-1].delay == 0.0
    assert "5 of 5" in ends[-1].reason


def test_b31_without_a_bound_nothing_ends_a_job_but_its_own_outcome() -> None:
    endless = first(10_000, max_attempts=None)
    for outcome in (Failed(ERROR, final=False), RetryAsked(ERROR), TimedOut(ERROR), Lost("killed by signal 9")):
        assert not decide(outcome, endless).is_end
    assert decide(Succeeded(), endless).status is Status.SUCCEEDED


def test_a_pause_is_scheduled_and_no_pause_is_ready() -> None:
    assert decide(Failed(ERROR, final=False), attempt(backoff=10.0))[1:3] == (Status.SCHEDULED, 10.0)
    assert decide(Failed(ERROR, final=False), attempt(backoff=0.0))[1:3] == (Status.READY, 0.0)


@pytest.mark.parametrize(
    "make", [lambda delay: Failed(ERROR, final=False, delay=delay), lambda delay: RetryAsked(ERROR, delay=delay)]
)
@pytest.mark.parametrize(
    ("asked", "granted"),
    [(3.5, 3.5), (0.0, 0.0), (-5.0, 0.0), (math.inf, MAX_SECONDS), (1e12, MAX_SECONDS), (math.nan, 10.0), (None, 10.0)],
)
def test_a_delay_that_the_outcome_asks_for_wins_within_reason(
    make: Callable[[float | None], Outcome], asked: float | None, granted: float
) -> None:
    assert decide(make(asked), attempt(backoff=10.0)).delay == granted


def test_b31_a_retry_that_does_not_count_gives_the_attempt_back_and_does_not_grow_the_pause() -> None:
    """Twenty postponements, each with the counter where it was before, pause alike; then the job has all its attempts."""
    pauses = set()
    for number in range(1, 21):
        end = decide(RetryAsked(ERROR, count=False), attempt(number=number, attempts_used=1, backoff=[10.0, 60.0]))
        assert (end.is_end, end.counted, end.outcome) == (False, False, "retry")
        pauses.add(end.delay)
    assert pauses == {10.0}


def test_a_retry_that_does_not_count_is_granted_at_the_last_attempt_too() -> None:
    assert not decide(RetryAsked(ERROR, count=False), first(5)).is_end


def test_the_first_death_runs_again_at_once_and_further_ones_pause() -> None:
    ends = [decide(Lost("killed by signal 9"), first(used, deaths=used - 1, backoff=[1.0, 2.0, 3.0])) for used in (1, 2, 3)]
    assert [(end.status, end.delay, end.deaths) for end in ends] == [
        (Status.READY, 0.0, 1),
        (Status.SCHEDULED, 2.0, 2),
        (Status.SCHEDULED, 3.0, 3),
    ]


def test_b18_the_reason_names_how_the_worker_died() -> None:
    assert "killed by signal 9 (SIGKILL)" in decide(Lost("killed by signal 9 (SIGKILL)"), first(1)).reason
    assert "exit status 0" in decide(Lost("exit status 0"), first(5, deaths=4)).reason


def test_max_deaths_ends_a_job_that_kills_its_workers() -> None:
    poison = {"max_attempts": None, "max_deaths": 3}
    assert not decide(Lost("segfault"), first(2, deaths=1, **poison)).is_end
    end = decide(Lost("segfault"), first(3, deaths=2, **poison))
    assert (end.is_end, end.status, end.delay, end.deaths) == (True, Status.FAILED, 0.0, 3)
    assert "3 times" in end.reason
    assert "segfault" in end.reason


@pytest.mark.parametrize(
    "outcome", [Failed(ERROR, final=False), RetryAsked(ERROR), TimedOut(ERROR), RetryAsked(ERROR, count=False)]
)
def test_deaths_are_counted_in_a_row(outcome: Outcome) -> None:
    assert decide(outcome, first(2, deaths=1)).deaths == 0


def test_a_bystander_of_a_kill_loses_nothing() -> None:
    end = decide(Lost("killed because of another job", counts=False), first(5, deaths=2))
    assert end == End(False, Status.READY, 0.0, False, "lost", "killed because of another job", 2)


def test_b07_an_attempt_that_is_handed_back_is_available_at_once_and_not_counted() -> None:
    end = decide(HandedBack("the worker stops", started=True), first(5, deaths=1))
    assert end == End(False, Status.READY, 0.0, False, "handed_back", "the worker stops", 1)


def test_a_cancelled_attempt_is_the_end() -> None:
    end = decide(Cancelled("no longer needed"), first(1))
    assert end[:6] == (True, Status.CANCELLED, 0.0, True, "cancelled", "no longer needed")


@pytest.mark.parametrize(
    ("outcome", "name"),
    [
        (Failed(ERROR, final=False), "failed"),
        (Failed(ERROR), "failed"),
        (TimedOut(ERROR), "timed_out"),
        (Lost("killed by signal 9"), "lost"),
        (Lost("bystander", counts=False), "lost"),
        (RetryAsked(ERROR), "retry"),
        (RetryAsked(ERROR, count=False), "retry"),
        (HandedBack("the worker stops"), "handed_back"),
        (Cancelled("asked"), "cancelled"),
    ],
)
@pytest.mark.parametrize("used", [1, 5])
def test_b45_a_requested_cancel_wins_over_every_retry(outcome: Outcome, name: str, used: int) -> None:
    end = decide(outcome, first(used), cancel_requested=True)
    assert (end.is_end, end.status, end.delay) == (True, Status.CANCELLED, 0.0)
    assert end.outcome == name  # the record says what happened to the attempt
    assert end.reason


def test_b45_work_that_was_done_before_the_cancel_arrived_stays_done() -> None:
    assert decide(Succeeded(), first(1), cancel_requested=True).status is Status.SUCCEEDED


@pytest.mark.parametrize(
    "outcome", [Lost("x" * 9_999), Cancelled("x" * 9_999), HandedBack("x" * 9_999), Succeeded(note="x" * 9_999)]
)
@pytest.mark.parametrize("cancel", [True, False])
def test_reasons_fit_into_their_column(outcome: Outcome, cancel: bool) -> None:
    for used, max_deaths in ((1, None), (5, None), (1, 1)):
        assert len(decide(outcome, first(used, max_deaths=max_deaths), cancel_requested=cancel).reason) <= 500


# --- decide: properties ---

delays = st.none() | st.floats(allow_nan=True, allow_infinity=True)
durations = st.floats(min_value=0, max_value=MAX_SECONDS)
steps = durations | st.tuples(durations, durations).map(sorted)
patterns = st.one_of(
    st.none(),
    st.just(CALLABLE),
    durations,
    st.lists(steps, min_size=1, max_size=6),
    st.dictionaries(st.integers(1, 40).map(str), steps, min_size=1, max_size=6),
    st.builds(
        lambda base, more, factor, jitter: {"base": base, "max": base + more, "factor": factor, "jitter": jitter},
        st.floats(min_value=0.01, max_value=1e6),
        st.floats(min_value=0, max_value=1e6),
        st.floats(min_value=1, max_value=1_000),
        st.floats(min_value=0, max_value=1),
    ),
)
outcomes = st.one_of(
    st.builds(Succeeded, note=st.text(max_size=5)),
    st.builds(Failed, st.just(ERROR), final=st.booleans(), delay=delays),
    st.builds(RetryAsked, st.just(ERROR), delay=delays, count=st.booleans()),
    st.builds(TimedOut, st.just(ERROR), delay=delays),
    st.builds(Cancelled, reason=st.text(max_size=5)),
    st.builds(Lost, cause=st.text(max_size=5), counts=st.booleans()),
    st.builds(HandedBack, reason=st.text(max_size=5), started=st.booleans()),
)
attempts = st.builds(
    lambda used, bound, deaths, max_deaths, backoff: first(
        used, max_attempts=bound, deaths=deaths, max_deaths=max_deaths, backoff=backoff
    ),
    st.integers(1, 2_000),
    st.none() | st.integers(1, 100),
    st.integers(0, 50),
    st.none() | st.integers(1, 50),
    patterns,
)


@given(outcomes, attempts, st.booleans(), patterns)
def test_every_decision_is_sound(outcome: Outcome, of: Attempt, cancel: bool, default: Any) -> None:
    end = decide(outcome, of, cancel_requested=cancel, default_backoff=default)
    check(Move.RECORD, Status.RUNNING, end.status)
    assert end.is_end == (end.status in FINAL)
    assert 0 <= end.delay <= MAX_SECONDS
    assert (end.delay > 0) == (end.status is Status.SCHEDULED)
    assert end.outcome in AttemptOutcome.values
    assert end.deaths >= 0
    assert len(end.reason) <= 500
    if cancel:
        assert end.status in (Status.CANCELLED, Status.SUCCEEDED)
    if isinstance(outcome, Succeeded):
        assert end.status is Status.SUCCEEDED
    if end.status is Status.SUCCEEDED:
        assert isinstance(outcome, Succeeded)
    if end.status is Status.TIMED_OUT:
        assert isinstance(outcome, TimedOut)


@given(st.lists(outcomes, max_size=60), st.integers(1, 8), st.none() | st.integers(1, 8), st.data())
def test_never_more_counted_starts_than_max_attempts(
    sequence: list[Outcome], bound: int, max_deaths: int | None, data: Any
) -> None:
    """Whatever the attempts of a job end with: its counted starts stay within the bound, and cancelled it never runs again."""
    used = deaths = counted = 0
    for number, outcome in enumerate(sequence, 1):
        used += 1  # the claim counts
        running = attempt(number=number, attempts_used=used, max_attempts=bound, deaths=deaths, max_deaths=max_deaths)
        assert not exceeded(running)
        cancel = data.draw(st.booleans(), label="cancel requested")
        end = decide(outcome, running, cancel_requested=cancel)
        counted += end.counted
        used -= not end.counted
        deaths = end.deaths
        assert 0 <= used == counted <= bound
        assert not max_deaths or deaths < max_deaths or end.is_end
        if cancel or isinstance(outcome, Cancelled):
            assert end.is_end
        if end.is_end:
            return


@given(
    st.lists(st.sampled_from([Failed(ERROR, final=False), TimedOut(ERROR), RetryAsked(ERROR), Lost("x")]), min_size=9, max_size=9)
)
@pytest.mark.parametrize("bound", [1, 3, 8])
def test_a_job_that_always_fails_has_all_its_attempts(bound: int, sequence: list[Outcome]) -> None:
    deaths = 0
    for used, outcome in enumerate(sequence, 1):
        end = decide(outcome, first(used, max_attempts=bound, deaths=deaths))
        deaths = end.deaths
        assert end.is_end == (used == bound)
        if end.is_end:
            return


# --- asked again before running ---


@pytest.mark.parametrize(
    ("changes", "is_exceeded"),
    [
        ({"attempts_used": 5, "max_attempts": 5}, False),
        ({"attempts_used": 6, "max_attempts": 5}, True),
        ({"attempts_used": 2, "max_attempts": 1}, True),
        ({"attempts_used": 10_000, "max_attempts": None}, False),
        ({"deaths": 3, "max_deaths": 3}, True),
        ({"deaths": 2, "max_deaths": 3}, False),
        ({"deaths": 99, "max_deaths": None}, False),
    ],
)
def test_a_bound_that_was_lowered_meanwhile_holds(changes: dict[str, Any], is_exceeded: bool) -> None:
    assert exceeded(attempt(**changes)) is is_exceeded


# --- the pause ---


def low() -> float:
    return 0.0


def high() -> float:
    return 1.0


def test_seconds_are_the_same_each_time() -> None:
    assert [pause(7.0, number) for number in (1, 2, 50)] == [7.0, 7.0, 7.0]


def test_the_last_of_a_list_repeats() -> None:
    assert [pause([10.0, 60.0, 300.0], number) for number in (1, 2, 3, 4, 99)] == [10.0, 60.0, 300.0, 300.0, 300.0]


def test_the_highest_key_not_above_the_attempt_counts_whatever_the_order_of_keys() -> None:
    pattern = {"10": 600.0, "2": 60.0, "1": 10.0}
    assert [pause(pattern, number) for number in (1, 2, 3, 9, 10, 11)] == [10.0, 60.0, 60.0, 60.0, 600.0, 600.0]


def test_attempts_below_the_first_key_take_the_default() -> None:
    assert pause({"3": 60.0}, 2, default=5.0) == 5.0
    assert pause({"3": 60.0}, 2, random=low) == 20.0
    assert pause({"3": 60.0}, 2, default={"4": 1.0}, random=low) == 20.0
    assert pause({"3": 60.0}, 3, default=5.0) == 60.0


def test_a_range_is_drawn_from() -> None:
    assert pause([[10.0, 20.0]], 1, random=low) == 10.0
    assert pause({"1": [10.0, 20.0]}, 1, random=lambda: 0.5) == 15.0
    assert pause({"1": [10.0, 20.0]}, 1, random=high) == 20.0


@pytest.mark.parametrize("spec", [None, CALLABLE])
def test_what_says_nothing_takes_the_default(spec: Any) -> None:
    assert pause(spec, 1, default=5.0) == 5.0
    assert [pause(spec, number, random=low) for number in (1, 2, 3)] == [10.0, 20.0, 40.0]


def test_b31_the_default_grows_to_a_ceiling_and_never_reaches_zero() -> None:
    ranges = [(pause(None, number, random=high), pause(None, number, random=low)) for number in range(1, 100)]
    assert all(0 < shortest < longest <= MAX_PAUSE for shortest, longest in ranges)
    # However chance falls, a pause is at least as long as the one before it, until the ceiling.
    growing = [each for each in ranges if each[1] < MAX_PAUSE]
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(growing))
    assert MIN_PAUSE <= pause(None, 1) <= EXPONENTIAL["base"]
    assert pause(None, 10**6, random=low) == MAX_PAUSE


@given(patterns, st.integers(-5, 10**9), patterns, st.floats(min_value=0, max_value=1))
def test_a_pause_is_never_negative_nor_endless(spec: Any, number: int, default: Any, drawn: float) -> None:
    seconds = pause(spec, number, default=default, random=lambda: drawn)
    assert 0 <= seconds <= MAX_SECONDS


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=8,
    ),
    st.integers(1, 100),
)
def test_a_pattern_that_somebody_broke_by_hand_costs_only_the_pattern(spec: Any, number: int) -> None:
    assert 0 <= pause(spec, number) <= MAX_SECONDS


# --- the normal form ---


@pytest.mark.parametrize(
    ("spec", "normal"),
    [
        (None, None),
        (10, 10.0),
        (0, 0.0),
        ("10m", 600.0),
        (timedelta(minutes=1), 60.0),
        ([10, "1m", timedelta(hours=1)], [10.0, 60.0, 3600.0]),
        ((10, 60), [10.0, 60.0]),
        ([10, (60, 90)], [10.0, [60.0, 90.0]]),
        ({1: 10, 5: (60, "2m")}, {"1": 10.0, "5": [60.0, 120.0]}),
        ({"10": 3, "9": 2}, {"9": 2.0, "10": 3.0}),
        ({"base": "5s"}, {"base": 5.0, "factor": 2.0, "max": 3600.0, "jitter": 0.25}),
        ({"base": 1, "factor": 3, "max": "1d", "jitter": 0}, {"base": 1.0, "factor": 3.0, "max": 86400.0, "jitter": 0.0}),
        (lambda attempt: attempt * 10, CALLABLE),
        (CALLABLE, CALLABLE),
    ],
)
def test_the_normal_form(spec: Any, normal: Any) -> None:
    assert normalise_backoff(spec) == normal
    assert normalise_backoff(normal) == normal
    assert json.loads(json.dumps(normal)) == normal


def test_keys_are_in_the_order_of_attempts() -> None:
    assert list(normalise_backoff({10: 1, 9: 1, 2: 1})) == ["2", "9", "10"]


@pytest.mark.parametrize(
    ("spec", "place"),
    [
        (-1, "backoff"),
        (math.nan, "backoff"),
        (1e12, "backoff"),
        (True, "backoff"),
        (b"10m", "backoff"),
        (object(), "backoff"),
        ("soon", "backoff"),
        ([], "backoff"),
        ({}, "backoff"),
        ([1] * 1_001, "backoff"),
        ([10, -1], "backoff[1]"),
        ([10, (1, 2, 3)], "backoff[1]"),
        ([10, (5, 1)], "backoff[1]"),
        ([None], "backoff[0]"),
        ({0: 10}, "backoff[0]"),
        ({-1: 10}, "backoff[-1]"),
        ({True: 10}, "backoff[True]"),
        ({1.5: 10}, "backoff[1.5]"),
        ({"one": 10}, "backoff['one']"),
        ({1: 10, "1": 20}, "backoff['1']"),
        ({1: "soon"}, "backoff[1]"),
        ({"base": 0}, "backoff['base']"),
        ({"base": 20, "max": 10}, "backoff['base']"),
        ({"base": 10, "factor": 0.5}, "backoff['factor']"),
        ({"base": 10, "jitter": 2}, "backoff['jitter']"),
        ({"base": 10, "jitter": True}, "backoff['jitter']"),
        ({"base": 10, "factor": math.nan}, "backoff['factor']"),
        ({"base": 10, "ceiling": 5}, "backoff"),
    ],
)
def test_what_is_no_backoff_is_refused_with_its_place(spec: Any, place: str) -> None:
    with pytest.raises(InvalidOption) as refusal:
        normalise_backoff(spec)
    assert refusal.value.field == place


def test_b27_a_pattern_is_copied_and_never_changed() -> None:
    """Two tasks may be declared with the same list; neither its normal form nor its use alters it."""
    shared: dict[Any, Any] = {1: [10, 20], 3: 60}
    before = repr(shared)
    mine, yours = normalise_backoff(shared), normalise_backoff(shared)
    mine["1"][0] = 999.0
    for number in range(1, 6):
        decide(Failed(ERROR, final=False), first(number, backoff=yours))
    assert repr(shared) == before
    assert yours == {"1": [10.0, 20.0], "3": 60.0}


@given(patterns.filter(lambda pattern: pattern not in (None, CALLABLE)), st.integers(1, 60))
def test_a_normal_form_means_the_same_after_the_database(pattern: Any, number: int) -> None:
    normal = normalise_backoff(pattern)
    assert normalise_backoff(normal) == normal
    stored = json.loads(json.dumps(normal, sort_keys=True))
    assert pause(stored, number, random=low) == pause(normal, number, random=low) == pause(pattern, number, random=low)


# --- lost races in the database ---


def driver_error(module: str, base: type[Exception] = Exception, *args: Any, **attributes: Any) -> Exception:
    """Return an error as a driver raises it."""
    return type("OperationalError", (base,), {"__module__": module, **attributes})(*args)


def wrapped(cause: BaseException, kind: type[Exception] = OperationalError) -> Exception:
    """Return Django's error around the driver's."""
    error = kind(*cause.args)
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("state", ["40001", "40P01", "55P03"])
@pytest.mark.parametrize(("module", "name"), [("psycopg.errors", "sqlstate"), ("psycopg2.errors", "pgcode")])
def test_postgresql_conflicts(state: str, module: str, name: str) -> None:
    error = driver_error(module, Exception, "deadlock detected", **{name: state})
    assert is_database_conflict(error)
    assert is_database_conflict(wrapped(error))


@pytest.mark.parametrize("number", [1213, 1205])
@pytest.mark.parametrize("module", ["pymysql.err", "MySQLdb"])
def test_mariadb_conflicts(number: int, module: str) -> None:
    error = driver_error(module, Exception, number, "Deadlock found when trying to get lock")
    assert is_database_conflict(error)
    assert is_database_conflict(wrapped(error))


def test_sqlite_conflicts_are_real_ones(tmp_path: Any) -> None:
    path = tmp_path / "busy.sqlite3"
    holder, other = sqlite3.connect(path, isolation_level=None), sqlite3.connect(path, isolation_level=None, timeout=0)
    try:
        holder.execute("BEGIN EXCLUSIVE")
        with pytest.raises(sqlite3.OperationalError) as busy:
            other.execute("BEGIN IMMEDIATE")
    finally:
        holder.close()
        other.close()
    assert is_database_conflict(busy.value)
    assert is_database_conflict(wrapped(busy.value))


def test_a_transaction_that_a_conflict_broke_is_one() -> None:
    conflict = wrapped(driver_error("psycopg.errors", Exception, "deadlock detected", sqlstate="40P01"))
    assert is_database_conflict(wrapped(conflict, transaction.TransactionManagementError))


@pytest.mark.parametrize(
    "error",
    [
        ValueError(1213),
        OperationalError("server closed the connection unexpectedly"),
        OperationalError(),
        OperationalError("1213"),
        DatabaseError(True),
        IntegrityError(1062, "Duplicate entry"),
        wrapped(driver_error("psycopg.errors", Exception, "gone", sqlstate="57P01")),
        wrapped(driver_error("pymysql.err", Exception, 2006, "gone away")),
        sqlite3.OperationalError("no such table: job"),
        driver_error("shop.errors", Exception, "mine", sqlstate="40001"),
        KeyboardInterrupt(),
    ],
)
def test_what_is_no_conflict(error: BaseException) -> None:
    assert not is_database_conflict(error)


def test_an_error_of_the_tasks_own_that_a_conflict_caused_is_the_tasks_own() -> None:
    error = ValueError("could not pay")
    error.__cause__ = wrapped(driver_error("psycopg.errors", Exception, "deadlock detected", sqlstate="40P01"))
    assert not is_database_conflict(error)


def test_b19_causes_that_name_each_other_end() -> None:
    first_, second = OperationalError("a"), OperationalError("b")
    first_.__cause__, second.__cause__ = second, first_
    assert not is_database_conflict(first_)


def test_a_conflict_waits_five_seconds() -> None:
    assert retry.DATABASE_CONFLICT_DELAY == 5.0
    outcome = Failed(ERROR, final=False, delay=retry.DATABASE_CONFLICT_DELAY)
    assert decide(outcome, first(1, backoff=600.0)).delay == 5.0
    assert decide(outcome, first(5)).is_end

"""When a failed job runs again: the forms of a back-off, and the one function that says what becomes of a job.

`decide` is asked for every cause (error, request, time-out, death, cancel, hand-back), so that "is that the end?" has one
answer. It compares after counting: `max_attempts=5` means at most five starts, whatever kills them.
"""

from __future__ import annotations

import math
import random as _random
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple, assert_never

from .durations import MAX_SECONDS, parse_duration
from .exceptions import InvalidOption
from .outcomes import Attempt, Cancelled, Failed, HandedBack, Lost, Outcome, RetryAsked, Succeeded, TimedOut
from .statuses import Status

#: The normal form of a callable: it stays with the task, the row only says that there is one. Where the task can't be asked
#: (its worker died), the default pattern stands in.
CALLABLE: Final = "callable"
#: 10, 20, 40, ... seconds, at most an hour; up to a quarter less by chance, so that jobs that failed together spread out.
EXPONENTIAL: Final[Mapping[str, float]] = {"base": 10.0, "factor": 2.0, "max": 3_600.0, "jitter": 0.25}
#: A lost race in the database: pause this long, whatever the job's back-off says. Seconds.
DATABASE_CONFLICT_DELAY: Final = 5.0

_MAX_PATTERN_LENGTH: Final = 1_000
_MAX_REASON: Final = 500


class End(NamedTuple):
    """What becomes of a job after an attempt."""

    is_end: bool  # `status` is final
    status: Status  # a final one, or ready (at once), or scheduled (after `delay`)
    delay: float  # seconds before the next attempt; 0.0 at the end
    counted: bool  # False: the attempt is given back, attempts_used goes down by one
    outcome: str  # of the attempt, a value of AttemptOutcome
    reason: str  # why, for people; empty where the error says it all
    deaths: int  # the job's new count of deaths in a row


def decide(outcome: Outcome, attempt: Attempt, *, cancel_requested: bool = False, default_backoff: Any = None) -> End:
    """Say what becomes of the job whose `attempt` ended with `outcome`.

    `attempt.attempts_used` already counts this attempt. A requested cancel wins over every retry and every failure; only a
    success is kept, because the work is done: an attempt that was *told* to stop and returned anyway is reported by the
    executor as `Cancelled`. `default_backoff` is the settings' pattern in normal form, for jobs that say nothing.
    """
    end = _decide(outcome, attempt, default_backoff)
    if not cancel_requested or end.status in (Status.SUCCEEDED, Status.CANCELLED):
        return end
    reason = f"cancelled on request; {end.reason}" if end.reason else "cancelled on request"
    return end._replace(is_end=True, status=Status.CANCELLED, delay=0.0, reason=reason[:_MAX_REASON])


def exceeded(attempt: Attempt) -> bool:
    """Whether `attempt` may not run any more because a bound was lowered after it was claimed. Asked right before running."""
    if attempt.max_attempts is not None and attempt.attempts_used > attempt.max_attempts:
        return True
    return bool(attempt.max_deaths) and attempt.deaths >= (attempt.max_deaths or 0)


def _decide(outcome: Outcome, attempt: Attempt, default: Any) -> End:
    match outcome:
        case Succeeded():
            return End(True, Status.SUCCEEDED, 0.0, True, "succeeded", outcome.note[:_MAX_REASON], 0)
        case Failed(final=True):
            return End(True, Status.FAILED, 0.0, True, "failed", "", 0)
        case Failed():
            return _again_or_end(attempt, Status.FAILED, "failed", outcome.delay, default)
        case RetryAsked(count=True):
            return _again_or_end(attempt, Status.FAILED, "retry", outcome.delay, default)
        case RetryAsked():
            return _again(attempt, "retry", outcome.delay, default)._replace(counted=False)
        case TimedOut():
            return _again_or_end(attempt, Status.TIMED_OUT, "timed_out", outcome.delay, default)
        case Cancelled():
            return End(True, Status.CANCELLED, 0.0, True, "cancelled", outcome.reason[:_MAX_REASON], 0)
        case Lost(counts=True):
            return _after_death(outcome, attempt, default)
        case Lost():
            return End(False, Status.READY, 0.0, False, "lost", outcome.cause[:_MAX_REASON], attempt.deaths)
        case HandedBack():
            return End(False, Status.READY, 0.0, False, "handed_back", outcome.reason[:_MAX_REASON], attempt.deaths)
        case _:
            assert_never(outcome)


def _after_death(outcome: Lost, attempt: Attempt, default: Any) -> End:
    """The first death in a row runs again at once, later ones pause; `max_deaths` ends a job that kills its workers."""
    deaths = attempt.deaths + 1
    delay = 0.0 if deaths == 1 else None
    end = _again_or_end(attempt, Status.FAILED, "lost", delay, default)
    reason = f"its worker died: {outcome.cause}"
    if attempt.max_deaths and deaths >= attempt.max_deaths:
        end = end._replace(is_end=True, status=Status.FAILED, delay=0.0)
        reason = f"killed its worker {deaths} times in a row (max_deaths={attempt.max_deaths}), at last: {outcome.cause}"
    elif end.is_end:
        reason = f"{reason}; {end.reason}"
    return end._replace(reason=reason[:_MAX_REASON], deaths=deaths)


def _again_or_end(attempt: Attempt, status: Status, outcome: str, delay: float | None, default: Any) -> End:
    if attempt.max_attempts is not None and attempt.attempts_used >= attempt.max_attempts:
        reason = f"no attempts left: {attempt.attempts_used} of {attempt.max_attempts} used"
        return End(True, status, 0.0, True, outcome, reason, 0)
    return _again(attempt, outcome, delay, default)


def _again(attempt: Attempt, outcome: str, delay: float | None, default: Any) -> End:
    if delay is None or math.isnan(delay):
        delay = pause(attempt.backoff, attempt.attempts_used, default=default)
    delay = _bounded(delay)
    return End(False, Status.SCHEDULED if delay > 0 else Status.READY, delay, True, outcome, "", 0)


def pause(spec: Any, attempt: int, *, default: Any = None, random: Callable[[], float] = _random.random) -> float:
    """Return the seconds to wait after `attempt` (1, 2, ...) before the next one; from 0 to a century.

    `spec` and `default` are normal forms, see `normalise_backoff`. Whatever the pattern leaves open (None, a callable, an
    attempt below its first key) is taken from `default`, and what that leaves open from `EXPONENTIAL`.
    """
    attempt = max(attempt, 1)
    for pattern in (spec, default):
        try:
            step = _step(pattern, attempt, random)
        except (ArithmeticError, LookupError, TypeError, ValueError):
            continue  # a row that somebody edited by hand: it costs its pattern, not the worker
        if step is not None and not math.isnan(step):
            return _bounded(step)
    return _bounded(_exponential(EXPONENTIAL, attempt, random))


def _step(pattern: Any, attempt: int, random: Callable[[], float]) -> float | None:
    if isinstance(pattern, (int, float)):
        return float(pattern)
    if isinstance(pattern, (list, tuple)) and pattern:
        return _drawn(pattern[min(attempt, len(pattern)) - 1], random)
    if isinstance(pattern, Mapping):
        if "base" in pattern:
            return _exponential(pattern, attempt, random)
        # JSON has no order of keys that could be relied on, and keeps them as text.
        key = max((int(key) for key in pattern if int(key) <= attempt), default=None)
        return None if key is None else _drawn(pattern.get(str(key), pattern.get(key)), random)
    return None


def _drawn(step: Any, random: Callable[[], float]) -> float:
    if isinstance(step, (list, tuple)):
        low, high = step
        return float(low + (high - low) * random())
    return float(step)


def _exponential(pattern: Mapping[str, float], attempt: int, random: Callable[[], float]) -> float:
    full = {**EXPONENTIAL, **pattern}
    try:
        grown = full["base"] * full["factor"] ** (attempt - 1)
    except OverflowError:
        grown = math.inf
    return float(min(grown, full["max"]) * (1 - full["jitter"] * random()))


def _bounded(seconds: float) -> float:
    return min(max(float(seconds), 0.0), MAX_SECONDS)


def normalise_backoff(spec: Any, *, field: str = "backoff") -> Any:
    """Return the form of `spec` that a row keeps: JSON, the same however it was written; None where it says nothing.

    | `spec` | normal form |
    |---|---|
    | None | None: the default decides |
    | seconds (any duration) | a number |
    | `[10, "1m", (60, 90)]`, the last one repeats | `[10.0, 60.0, [60.0, 90.0]]` |
    | `{1: 10, 5: (60, 90)}`, the highest key not above the attempt counts | `{"1": 10.0, "5": [60.0, 90.0]}` |
    | `{"base": 10, "factor": 2, "max": "1h", "jitter": 0.25}`, growing; only `base` is a must | the same in numbers |
    | a callable | `CALLABLE` |

    Raises `InvalidOption`, naming `field` and the place within.
    """
    if spec is None or spec == CALLABLE:
        return spec
    if callable(spec):
        return CALLABLE
    if isinstance(spec, Mapping):
        return _normal_growth(spec, field) if "base" in spec else _normal_steps(spec, field)
    if isinstance(spec, Sequence) and not isinstance(spec, (str, bytes)):
        _check_length(spec, field)
        return [_normal_step(step, f"{field}[{index}]") for index, step in enumerate(spec)]
    if isinstance(spec, (int, float, str, timedelta)):
        return parse_duration(spec, field=field)
    raise InvalidOption(field, f"a back-off can't be of type {type(spec).__name__}: use seconds, a list, a dict or a callable.")


def _check_length(spec: Any, field: str) -> None:
    if not spec:
        raise InvalidOption(field, "an empty pattern says nothing: leave it out, or use None for the default.")
    if len(spec) > _MAX_PATTERN_LENGTH:
        raise InvalidOption(field, f"a pattern has at most {_MAX_PATTERN_LENGTH} steps, not {len(spec)}.")


def _normal_steps(spec: Mapping[Any, Any], field: str) -> dict[str, Any]:
    _check_length(spec, field)
    steps: dict[int, Any] = {}
    for key, step in spec.items():
        place = f"{field}[{key!r}]"
        try:
            number = int(key) if isinstance(key, (int, str)) and not isinstance(key, bool) else 0
        except ValueError:
            number = 0
        if number < 1:
            raise InvalidOption(place, "a key is the number of an attempt: 1, 2, ... (or 'base', for a growing pause).")
        if number in steps:
            raise InvalidOption(place, "this attempt is named twice.")
        steps[number] = _normal_step(step, place)
    return {str(number): steps[number] for number in sorted(steps)}


def _normal_step(step: Any, place: str) -> Any:
    if not isinstance(step, (list, tuple)):
        return parse_duration(step, field=place)
    if len(step) != 2:
        raise InvalidOption(place, "a range is a pair: (low, high).")
    low, high = (parse_duration(edge, field=place) for edge in step)
    if low > high:
        raise InvalidOption(place, "the low end of a range can't be above its high end.")
    return [low, high]


def _normal_growth(spec: Mapping[Any, Any], field: str) -> dict[str, float]:
    if unknown := [key for key in spec if key not in EXPONENTIAL]:
        raise InvalidOption(field, f"a growing pause has no {unknown[0]!r}: it has {', '.join(map(repr, EXPONENTIAL))}.")
    growth = {key: spec.get(key, EXPONENTIAL[key]) for key in EXPONENTIAL}
    for key in ("base", "max"):
        growth[key] = parse_duration(growth[key], field=f"{field}['{key}']")
    for key, low, high in (("factor", 1, 1_000), ("jitter", 0, 1)):
        value = growth[key]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise InvalidOption(f"{field}['{key}']", f"a number from {low} to {high}.")
        growth[key] = float(value)
    if not 0 < growth["base"] <= growth["max"]:
        raise InvalidOption(f"{field}['base']", "more than 0 seconds and at most 'max', else every attempt is spent at once.")
    return growth


_CONFLICT_STATES: Final = frozenset({"40001", "40P01", "55P03"})  # serialization failure, deadlock, lock not available
_CONFLICT_NUMBERS: Final = frozenset({1213, 1205})  # deadlock, lock wait time-out (MariaDB and MySQL)
_SQLITE_BUSY: Final = frozenset({5, 6})  # SQLITE_BUSY, SQLITE_LOCKED: the low byte of the error code
_DRIVERS: Final = frozenset({"psycopg", "psycopg2", "pymysql", "MySQLdb", "sqlite3"})


def is_database_conflict(error: BaseException) -> bool:
    """Whether `error` is a lost race in the database (deadlock, serialization failure, lock time-out): worth another attempt.

    Follows `__cause__` from Django's error to the driver's, and no further: an error of the task's own that merely was
    *caused* by a conflict is the task's own.
    """
    current: BaseException | None = error
    for _ in range(10):  # causes may form a loop
        if current is None or not _is_database_error(current):
            return False
        if _is_conflict(current):
            return True
        current = current.__cause__
    return False


def _is_database_error(error: BaseException) -> bool:
    modules = {kind.__module__ for kind in type(error).__mro__}
    return "django.db.utils" in modules or not _DRIVERS.isdisjoint(module.partition(".")[0] for module in modules)


def _is_conflict(error: BaseException) -> bool:
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if state is not None:
        return state in _CONFLICT_STATES
    code = getattr(error, "sqlite_errorcode", None)
    if isinstance(code, int):
        return code & 0xFF in _SQLITE_BUSY
    return bool(error.args) and type(error.args[0]) is int and error.args[0] in _CONFLICT_NUMBERS

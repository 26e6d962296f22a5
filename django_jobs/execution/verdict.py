"""Say with which outcome a run ended, from what its function returned or raised and from what stopped it."""

from __future__ import annotations

import logging
from typing import Final

from .. import conf, retry, serializers
from ..durations import parse_duration
from ..exceptions import (
    AttemptLost,
    Fail,
    InvalidResult,
    JobCancelled,
    JobTimeout,
    RelatedObjectGone,
    Retry,
    Skip,
)
from ..outcomes import Cancelled, ErrorInfo, Failed, HandedBack, Outcome, RetryAsked, Succeeded, TimedOut
from .errors import class_path, describe
from .running import CANCELLED, STOPPED, Run, Stop

logger = logging.getLogger("django_jobs.execution")

#: Characters of a note or a reason that a task gives.
_MAX_TEXT: Final = 500
_SWALLOWED: Final = "The task caught this and returned nevertheless."


def judge(run: Run) -> Outcome:
    """Return the outcome of `run`, whose function has come back. Never raises."""
    stop = run.stop
    if stop is not None and not (stop.limit == STOPPED and run.error is None):
        return _stopped(run, stop)
    if run.error is None:
        return Succeeded(run.result)
    return _raised(run, run.error)


def convert_result(run: Run) -> None:
    """Turn `value` into `result`, as JSON. What JSON can't hold becomes the run's error."""
    value, run.value = run.value, None
    if value is None or run.error is not None:
        return
    try:
        run.result = serializers.result_to_json(value, run.attempt.serializer)
    except BaseException as error:  # what a task returns may do anything when it is looked at
        run.error = error


def _stopped(run: Run, stop: Stop) -> Outcome:
    name = class_path(JobCancelled if stop.limit == CANCELLED else JobTimeout)
    if run.error is None:
        error = ErrorInfo(name, stop.reason, _SWALLOWED, fingerprint=f"{stop.limit}, caught"[:16])
    else:
        told = describe(run.error)
        error = ErrorInfo(name, stop.reason, told.traceback, told.fingerprint)
    if stop.limit == CANCELLED:
        return Cancelled(stop.reason, error)
    if stop.limit == STOPPED:
        return HandedBack(stop.reason, started=True)
    return TimedOut(error, stop.limit, _delay(run, run.error or JobTimeout(stop.reason)))


def _raised(run: Run, error: BaseException) -> Outcome:
    match error:
        case Skip():
            return Succeeded(note=_text(error.note))
        case Retry():
            delay = error.after if error.after is not None else _delay(run, error)
            return RetryAsked(describe(error), _seconds(delay), bool(error.count))
        case JobCancelled():  # raised by the task itself, say after a look at `is_cancelled`
            return Cancelled(_text(error), describe(error))
        case AttemptLost() if run.is_refused:
            return HandedBack(_text(error), started=True)
        case Fail() | InvalidResult() | RelatedObjectGone():
            return Failed(describe(error))
    if retry.is_database_conflict(error):
        return Failed(describe(error), final=False, delay=retry.DATABASE_CONFLICT_DELAY)
    if _is_listed(error, run):
        return Failed(describe(error), final=False, delay=_delay(run, error))
    return Failed(describe(error))


def _text(value: object) -> str:
    """Return what the task said, as every database takes it: its outcome must not fail over a file's name."""
    try:
        return serializers.clean_text(value, _MAX_TEXT)
    except Exception as problem:
        return f"<this {type(value).__name__} can't be shown: its __str__ raised {type(problem).__name__}>"


def _is_listed(error: BaseException, run: Run) -> bool:
    try:
        return isinstance(error, run.plan.retry_for or conf.queue_retry_for(run.attempt.queue))
    except Exception:
        logger.exception("retry_for of the task %s, or of its queue, can't be used.", run.attempt.task)
        return False


def _delay(run: Run, error: BaseException | None) -> float | None:
    """Ask a back-off that the task computes from the exception and its result object; None leaves it to the job's pattern."""
    if run.plan.backoff is None or run.attempt.backoff != retry.CALLABLE:
        return None  # none is declared, or this job was given another pattern
    try:
        return _seconds(run.plan.backoff(error, run.task_result()))
    except Exception:
        logger.exception("The back-off of the task %s raised: the default decides.", run.attempt.task)
        return None


def _seconds(delay: object) -> float | None:
    """Return a pause in seconds; anything that is none leaves it to the default, as a retry must not fail over its pause."""
    if delay is None:
        return None
    try:
        return parse_duration(delay)
    except Exception:
        logger.warning("%r is no pause before a retry: the default decides.", delay, exc_info=True)
        return None

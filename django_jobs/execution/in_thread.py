"""Run an ordinary function in the current thread, in a database transaction of its own if the task wants that."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from django.db import transaction

from ..exceptions import AttemptLost, Skip
from ..outcomes import Attempt, Finished
from . import cleanup
from .running import ThreadRun
from .stage import Stage
from .verdict import convert_result

logger = logging.getLogger("django_jobs.execution")


class _RolledBack(Exception):
    """Leaves the transaction of an `atomic=True` job whose error is known already."""


def run_in_thread(stage: Stage, run: ThreadRun) -> Finished:
    """Run here and now; leave the thread as it was found. To be called in a context of its own."""
    place = stage.place
    kept = cleanup.open_transactions()
    cleanup.prepare(time.monotonic() - place.last_used)
    run.native_id = place.native_id
    is_confirmed = False
    try:
        arguments = stage.begin(run)
        if arguments is not None and run.plan.is_atomic:
            is_confirmed = _call_atomic(stage, run, *arguments)
        elif arguments is not None:
            _call(stage, run, *arguments)
            convert_result(run)
        return stage.end(run, is_confirmed)
    finally:
        run.close()
        cleanup.tidy(kept, discard=bool(run.stops))
        place.last_used = time.monotonic()


def _call(stage: Stage, run: ThreadRun, args: Any, kwargs: Any) -> None:
    """Call the task's function, in everybody's sight."""
    stage.enter(run)
    run.call(run.plan.function, args, kwargs)
    if run.stops:
        cleanup.free_logging()
    stage.leave(run)


def _call_atomic(stage: Stage, run: ThreadRun, args: Any, kwargs: Any) -> bool:
    """Call it in a transaction that also records its success. Return whether that was committed."""
    is_committed: list[bool] = []
    try:
        with transaction.atomic(using=stage.alias):
            transaction.on_commit(lambda: is_committed.append(True), using=stage.alias, robust=True)
            _call(stage, run, args, kwargs)
            convert_result(run)
            if run.stop is not None or not (run.error is None or isinstance(run.error, Skip)):
                raise _RolledBack
            if stage.fence is not None:
                _fence(stage.fence, run)
    except _RolledBack:
        return False
    except BaseException as error:
        if not is_committed:
            run.error, run.result = error, None
            return False
        logger.exception("What job %s left to do on commit failed; the job itself is done.", run.attempt.job_id)
    return stage.fence is not None


def _fence(fence: Callable[[Attempt, Any], None], run: ThreadRun) -> None:
    """Record the success in the job's own transaction; note when that is refused, as a task may raise `AttemptLost` as well."""
    try:
        fence(run.attempt, run.result)
    except AttemptLost:
        run.is_refused = True
        raise

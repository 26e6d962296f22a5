"""What is done before and after a task's function, wherever that runs."""

from __future__ import annotations

import contextvars
import time
from collections.abc import Callable
from typing import Any, Protocol
from uuid import UUID

from .. import conf, retry, serializers
from ..exceptions import Fail
from ..outcomes import Attempt, Finished, HandedBack, Outcome, Succeeded
from ..statuses import Status
from . import announce, surroundings
from .context import JobContext, Link, ParentReader
from .running import Run, current_run
from .timeouts import Watchdog
from .verdict import judge


class BoardLike(Protocol):
    """Where a process shows its supervisor what it runs."""

    def begin(self, attempt: Attempt, thread_id: int) -> None: ...

    def beat(self, attempt: Attempt) -> None: ...

    def end(self, attempt: Attempt) -> None: ...


class Stage:
    """Where the runs of one process are prepared, seen, and brought to their outcome."""

    def __init__(
        self,
        link: Link,
        *,
        watchdog: Watchdog,
        board: BoardLike | None,
        database: str | None,
        fence: Callable[[Attempt, Any], None] | None,
        parents: ParentReader | None,
    ) -> None:
        self.link = link
        self.watchdog = watchdog
        self.board = board
        self.fence = fence
        self.parents = parents
        self.place = surroundings.Place(surroundings.base_context())
        #: What runs now, by token.
        self.runs: dict[UUID, Run] = {}
        self._database = database
        #: Whether a KeyboardInterrupt is the caller's: for jobs that are run where somebody sits. A worker outlives it.
        self.passes_interrupts = False
        #: The last one, for the caller to raise.
        self.interrupt: KeyboardInterrupt | None = None
        #: What the last function raised, where somebody sits.
        self.error: BaseException | None = None
        #: When the thread that coroutines share for their database work was last cleaned up.
        self.shared_tidied = 0.0

    @property
    def alias(self) -> str:
        """The database that holds the jobs."""
        return self._database or conf.jobs_database()

    def fresh_context(self) -> contextvars.Context:
        """Return a context for one job."""
        return self.place.base.copy()

    def begin(self, run: Run) -> tuple[Any, Any] | None:
        """Get ready to call: return (args, kwargs), or None with `run.error` set."""
        attempt = run.attempt
        current_run.set(run)
        context = run.context = JobContext(run, self.link, self.parents)
        try:
            if retry.exceeded(attempt):
                raise Fail(_exceeded(attempt))
            args = serializers.from_json(attempt.args, serializer=attempt.serializer)
            kwargs = serializers.from_json(attempt.kwargs, serializer=attempt.serializer)
            if run.plan.takes_context:
                args = [context, *args]
            if attempt.context or attempt.created_by:
                run.restored = surroundings.restore(attempt.context, attempt.created_by)
            if announce.is_started_heard():
                announce.started(run)
        except BaseException as error:
            run.error = error
            return None
        return args, kwargs

    def enter(self, run: Run) -> None:
        """Show that the function begins now, and have its limits watched."""
        attempt = run.attempt
        if self.board is not None:
            run.on_beat = self.board.beat
            self.board.begin(attempt, run.native_id)
        run.started = run.last_beat = time.monotonic()
        self.runs[attempt.token] = run
        self.watchdog.watch(run)

    def leave(self, run: Run) -> None:
        """Take `run` down again: its function has come back."""
        run.seconds = time.monotonic() - run.started
        attempt = run.attempt
        self.runs.pop(attempt.token, None)
        self.watchdog.forget(run)
        if self.board is not None:
            self.board.end(attempt)

    def end(self, run: Run, is_confirmed: bool = False) -> Finished:
        """Find the outcome, and tell those who listen for it in this process."""
        outcome = judge(run)
        self.error = run.error if self.passes_interrupts else None
        if self.passes_interrupts and isinstance(run.error, KeyboardInterrupt):
            self.interrupt = run.error
            outcome = HandedBack("interrupted", started=True)
        status = self.final_status(run, outcome)
        if status is not None:
            announce.finished(run, outcome, status)
        logs = "" if run.logs is None else serializers.clean_text(run.logs.text(), conf.jobs_settings().max_log_chars)
        return Finished(run.attempt, outcome, run.seconds, logs, is_confirmed, told=status)

    def final_status(self, run: Run, outcome: Outcome) -> Status | None:
        """Return the job's final status; None if it will run again."""
        if type(outcome) is Succeeded:
            return Status.SUCCEEDED
        end = retry.decide(outcome, run.attempt, cancel_requested=run.cancellation is not None)
        return end.status if end.is_end else None


def _exceeded(attempt: Attempt) -> str:
    return (
        f"not started: attempt {attempt.attempts_used} of at most {attempt.max_attempts}, "
        f"{attempt.deaths} deaths of at most {attempt.max_deaths} (a bound was lowered meanwhile)"
    )

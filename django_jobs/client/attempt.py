"""One attempt of a worker: its handler in a thread, its heart in another, and the delivery of how it ended."""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from .api import Client
from .context import Context
from .errors import ApiError, Conflict, Fail, Invalid, LeaseLost, Throttled, Unavailable
from .jobs import ClaimedJob
from .wire import MISSING, Pauses

logger = logging.getLogger("django_jobs.client")

Handler = Callable[[ClaimedJob, Context], Any]
#: Progress is sent at most so often. Seconds.
_PROGRESS_SECONDS: Final = 1.0
#: How often an answer that may be the fault of this very request is tried again.
_FAULTS: Final = 10
#: The code of the `LeaseLost` by which a handler is asked to end because its worker does.
STOPPED: Final = "stopped"


class Attempt:
    """Runs `handler` for one claimed job. `ended` is called, with this, when all is done and said."""

    def __init__(
        self,
        client: Client,
        job: ClaimedJob,
        handler: Handler,
        *,
        claimed_at: float,
        heartbeat_every: float,
        ended: Callable[[Attempt], None],
    ) -> None:
        self.job = job
        self.context = Context(client, job, claimed_at=claimed_at)
        self._client, self._handler, self._ended = client, handler, ended
        limits = [limit / 3 for limit in (job.timeout, job.heartbeat_timeout) if limit]
        self._interval = min([heartbeat_every, *limits])
        self._give_up = threading.Event()

    def start(self) -> None:
        """Start the threads. They are daemons: a handler that never ends does not keep the program from ending."""
        for name, target in (("job", self._run), ("heart", self._beat)):
            threading.Thread(target=target, name=f"{name}-{self.job.id}", daemon=True).start()

    def abandon(self) -> None:
        """Ask the handler to end now, to hand its job back; and give up delivering what could not be delivered so far."""
        self.context.lose(LeaseLost("The worker was stopped.", code=STOPPED))
        self._give_up.set()

    # --- the heart ---

    def _beat(self) -> None:
        pauses = Pauses(min(self._interval / 4, 1.0), self._interval)
        earliest = time.monotonic() + min(_PROGRESS_SECONDS, self._interval)
        due = time.monotonic() + self._interval
        while True:
            end = self.context.lease_ends_at
            until = due if end is None else min(due, end)
            if self.context.wait(min(earliest, until)) or self.context.wait(until, or_progress=True):
                return
            if end is not None and time.monotonic() >= end:
                # Whoever else has the job may run it now. Should the server have been away itself, the result still counts.
                self.context.lose(LeaseLost("The lease is over: it took too long, or no heartbeat was answered.", code="over"))
                return
            error = self._sign()
            now = time.monotonic()
            if error is None:
                pauses.reset()
                earliest, due = now + min(_PROGRESS_SECONDS, self._interval), now + self._interval
            else:
                earliest = due = now + pauses.next(error.retry_after)

    def _sign(self) -> ApiError | None:
        progress, sent = self.context.take_progress(), time.monotonic()
        try:
            self._client.heartbeat(
                self.job, progress=MISSING if progress is None else progress, timeout=max(1.0, self._interval), retry=False
            )
        except LeaseLost as error:
            self.context.lose(error)
            return error
        except ApiError as error:
            logger.warning("Job %s: the heartbeat was not taken: %s", self.job.id, error)
            if progress is not None and not isinstance(error, Invalid):
                self.context.put_back(progress)
            return error
        self.context.confirm(sent)
        return None

    # --- the handler ---

    def _run(self) -> None:
        try:
            self._say(self._call())
        except Exception:
            logger.exception("Job %s: how it ended could not be told; it runs again when its lease lapses.", self.job.id)
        finally:
            self._ended(self)

    def _call(self) -> Callable[..., None] | None:
        """Run the handler, and return the call that tells the server how it ended; None if there is nothing to tell."""
        try:
            output = self._handler(self.job, self.context)
            how = partial(self._client.finish, output=MISSING if output is None else output, logs=self.context.logs)
        except BaseException as error:  # a handler's SystemExit ends its job and nothing else
            how = self._failure(error, final=isinstance(error, Fail))
        finally:
            self.context.end()
        lost = self.context.lost
        if lost is None or not self.context.told:
            return how  # what a handler did that never heard of a loss is whole: let the server decide
        logger.info("Job %s: stopped. %s", self.job.id, lost)
        return self._client.hand_back if lost.code == STOPPED else None

    def _failure(self, error: BaseException, *, final: bool = False) -> partial[None]:
        kind = type(error)
        below = error.__traceback__.tb_next if error.__traceback__ else None  # without this module's own line
        return partial(
            self._client.fail,
            message=str(error),
            error_class=kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}",
            traceback="".join(traceback.format_exception(kind, error, below)),
            final=final,
            logs=self.context.logs,
        )

    # --- the delivery ---

    def _say(self, how: Callable[..., None] | None) -> None:
        """Tell the server, for as long as it takes; a result that can't be stored is a failure for good."""
        if how is None:
            return
        try:
            self._deliver(how)
        except (Invalid, TypeError, ValueError) as error:
            logger.error("Job %s: what it returned can't be stored: %s", self.job.id, error)
            self._deliver(self._failure(error, final=True))

    def _deliver(self, how: Callable[..., None]) -> None:
        pauses, repeated, faults = Pauses(0.5, 15.0), False, 0
        while True:
            try:
                how(self.job, repeated=repeated)
                return
            except LeaseLost as error:
                self.context.lose(error)
                logger.warning("Job %s: what it did is not recorded. %s", self.job.id, error)
                return
            except (Conflict, Unavailable, Throttled) as error:  # a conflict of a moment: two transactions met
                repeated = repeated or error.repeated or (isinstance(error, Unavailable) and error.sent)
                faults += error.status in (409, 500)
                if faults >= _FAULTS or self._give_up.is_set():
                    raise
                logger.warning("Job %s: how it ended can't be told yet: %s", self.job.id, error)
                self._give_up.wait(pauses.next(error.retry_after))

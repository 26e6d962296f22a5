"""Run jobs inside a test: no worker, no other process, and within the transaction of a `TestCase`, too."""

from __future__ import annotations

import uuid
from functools import partial
from typing import Any, Final

from asgiref.sync import sync_to_async
from django.db import connections, transaction

from . import conf, signals
from .execution.executor import Executor
from .lifecycle.batch import close_finished
from .lifecycle.claim import QueueFilter, claim
from .lifecycle.fence import Note, fence_success, write_notes
from .lifecycle.graph import follow_rest, parent_results
from .lifecycle.record import record
from .outcomes import Attempt, Finished
from .registry import find_task

WORKER_NAME: Final = "run_jobs"


def run_jobs(*, using: str | None = None, limit: int | None = None) -> int:
    """Run the jobs that are ready, one after the other in this thread, until none is left; return how many attempts there were.

    In the order of a worker, and by the same code: claimed, executed, recorded. Jobs that those enqueue are run, too. What is due
    later, as a retry after a pause, stays. `using`: the database, by default that of the first back end in TASKS; `limit`:
    attempts at most. On an event loop use `arun_jobs`. A KeyboardInterrupt, a task's own too, ends this; its job is handed back.
    """
    drain = _Drain(using)
    done = 0
    while (limit is None or done < limit) and (attempt := drain.claim()) is not None:
        drain.record(drain.executor.run(attempt))
        drain.raise_interrupt()
        done += 1
    return done


async def arun_jobs(*, using: str | None = None, limit: int | None = None) -> int:
    """Do what `run_jobs` does on the running event loop; ordinary functions run in the thread of synchronous code."""
    drain = _Drain(using)
    done = 0
    while (limit is None or done < limit) and (attempt := await sync_to_async(drain.claim)()) is not None:
        executor = drain.executor
        finished = await executor.arun(attempt) if executor.is_async(attempt) else await sync_to_async(executor.run)(attempt)
        await sync_to_async(drain.record)(finished)
        drain.raise_interrupt()
        done += 1
    return done


class _Drain:
    """A worker without processes, threads and time limits of its own."""

    def __init__(self, using: str | None) -> None:
        self.using = conf.jobs_database() if using is None else using
        self.worker = uuid.uuid4()
        self.executor = _Executor(
            _Link(self.using),
            find_task=find_task,
            database=self.using,
            fence=partial(fence_success, using=self.using),
            parents=partial(parent_results, using=self.using),
        )

    def claim(self) -> Attempt | None:
        """Claim the next job."""
        with transaction.atomic(using=self.using):
            attempts = claim(
                connections[self.using],
                worker=self.worker,
                worker_name=WORKER_NAME,
                tokens=[uuid.uuid4()],
                free=1,
                grace=conf.jobs_settings().grace,
                queues=QueueFilter(),
            )
        return attempts[0] if attempts else None

    def record(self, finished: Finished) -> None:
        """Record an outcome and tell the listeners."""
        with transaction.atomic(using=self.using):
            recorded = record(connections[self.using], [finished], worker_name=WORKER_NAME)
        signals.dispatch(recorded.events)
        if recorded.has_ended:
            follow_rest(using=self.using)
        if finished.attempt.batch is not None:
            close_finished([finished.attempt.batch], using=self.using)

    def raise_interrupt(self) -> None:
        """Raise the KeyboardInterrupt that ended the last job, if one did."""
        if (interrupt := self.executor.interrupt) is not None:
            raise interrupt


class _Executor(Executor):
    """One that does not keep a KeyboardInterrupt to itself: here it means the test run, or the person in front of it."""

    def __init__(self, link: _Link, **options: Any) -> None:
        super().__init__(link, **options)
        self._stage.passes_interrupts = True

    @property
    def interrupt(self) -> KeyboardInterrupt | None:
        return self._stage.interrupt


class _Link:
    """Writes what a running task reports at once."""

    def __init__(self, using: str) -> None:
        self._using = using

    def _write(self, note: Note) -> None:
        with transaction.atomic(using=self._using):
            write_notes(connections[self._using], [note])

    def progress(self, attempt: Attempt, done: float | None, total: float | None, message: str) -> None:
        self._write(Note(attempt, progress={"done": done, "total": total, "message": message}))

    def heartbeat(self, attempt: Attempt) -> None:
        self._write(Note(attempt, heartbeat=True))

    def save(self, attempt: Attempt, output: Any) -> None:
        self._write(Note(attempt, output=output))

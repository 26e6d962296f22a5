"""Run jobs inside a test: no worker, no other process, and within the transaction of a `TestCase`, too."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection
from functools import partial
from typing import Any, Final
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import connections, transaction

from .. import conf, signals
from ..execution.executor import Executor
from ..lifecycle import control
from ..lifecycle.batch import close_finished
from ..lifecycle.claim import QueueFilter, claim, claim_one
from ..lifecycle.fence import Note, fence_success, write_notes
from ..lifecycle.graph import follow_rest, parent_results
from ..lifecycle.record import record
from ..models import Job
from ..outcomes import Attempt, Finished
from ..registry import find_task
from ..statuses import FINAL, Status

logger = logging.getLogger("django_jobs.testing")

WORKER_NAME: Final = "run_jobs"


class JobFailed(AssertionError):
    """A job that was to succeed did not, and there is no exception of its own to be raised. `job` is its row."""

    def __init__(self, job: Job) -> None:
        self.job = job
        super().__init__(f"The job {job.id} of {job.task} has {job.status}: {job.error_class} {job.error_message or job.reason}")


def run_jobs(
    *,
    using: str | None = None,
    limit: int | None = None,
    queue: str | None = None,
    scheduled: bool = False,
    raise_errors: bool = False,
    commit: bool = True,
) -> int:
    """Run the jobs that are ready, one after the other in this thread, until none is left; return how many attempts there were.

    In the order of a worker, and by the same code: claimed, executed, recorded. Jobs that those enqueue are run, too, and those
    that come after them. `using`: the database, by default that of the first back end in TASKS; `limit`: attempts at most;
    `queue`: those of this queue only. `scheduled`: also what is due later, as a retry after a pause: the earliest is made ready
    when nothing else is. `raise_errors`: raise the exception of the first job that ends otherwise than succeeded, once that is
    recorded (`JobFailed` if it has none). `commit`: functions that wait for the commit of the test's transaction are called,
    those that the test has registered first and those of each job after it, as after the commits that there would be.

    On an event loop use `arun_jobs`. A KeyboardInterrupt, a task's own too, ends this; its job is handed back.
    """
    drain = Drain(using, queue=queue, scheduled=scheduled, raise_errors=raise_errors, commits=commit)
    done = 0
    drain.commit()
    while (limit is None or done < limit) and (attempt := drain.claim()) is not None:
        drain.record(drain.executor.run(attempt))
        drain.raise_interrupt()
        done += 1
        drain.raise_error(attempt)
    return done


async def arun_jobs(
    *,
    using: str | None = None,
    limit: int | None = None,
    queue: str | None = None,
    scheduled: bool = False,
    raise_errors: bool = False,
    commit: bool = True,
) -> int:
    """Do what `run_jobs` does on the running event loop; ordinary functions run in the thread of synchronous code."""
    drain = Drain(using, queue=queue, scheduled=scheduled, raise_errors=raise_errors, commits=commit)
    done = 0
    await sync_to_async(drain.commit)()
    while (limit is None or done < limit) and (attempt := await sync_to_async(drain.claim)()) is not None:
        executor = drain.executor
        finished = await executor.arun(attempt) if executor.is_async(attempt) else await sync_to_async(executor.run)(attempt)
        await sync_to_async(drain.record)(finished)
        drain.raise_interrupt()
        done += 1
        await sync_to_async(drain.raise_error)(attempt)
    return done


class Drain:
    """A worker without processes, threads and time limits of its own."""

    def __init__(
        self,
        using: str | None,
        *,
        queue: str | None = None,
        scheduled: bool = False,
        raise_errors: bool = False,
        commits: bool = True,
    ) -> None:
        self.using = conf.jobs_database() if using is None else using
        self.worker = uuid.uuid4()
        self.queue, self.scheduled, self.raises, self.commits = queue, scheduled, raise_errors, commits
        self.executor = _Executor(
            _Link(self.using),
            find_task=find_task,
            database=self.using,
            fence=partial(fence_success, using=self.using),
            parents=partial(parent_results, using=self.using),
        )

    def claim(self) -> Attempt | None:
        """Claim the next job; with `scheduled` the earliest that is due later, if there is no other."""
        attempt = self._claim()
        if attempt is None and self.scheduled:
            rows = Job.objects.using(self.using).filter(status=Status.SCHEDULED, is_http=False)
            if self.queue is not None:
                rows = rows.filter(queue=self.queue)
            first = rows.order_by("due_at", "id").values_list("id", flat=True).first()
            if first is not None and control.run_now([first], using=self.using).changed:
                attempt = self._claim()
        return attempt

    def _claim(self) -> Attempt | None:
        with transaction.atomic(using=self.using):
            attempts = claim(
                connections[self.using],
                worker=self.worker,
                worker_name=WORKER_NAME,
                tokens=[uuid.uuid4()],
                free=1,
                grace=conf.jobs_settings().grace,
                queues=QueueFilter(names=None if self.queue is None else (self.queue,)),
            )
        return attempts[0] if attempts else None

    def claim_of(self, ids: Collection[UUID]) -> Attempt | None:
        """Claim the next of these jobs, in the order of a worker; None if none of them is ready."""
        ready = Job.objects.using(self.using).claimable().filter(id__in=ids)
        with transaction.atomic(using=self.using):
            if (job_id := ready.values_list("id", flat=True).first()) is None:
                return None
            return claim_one(connections[self.using], job_id, token=uuid.uuid4(), worker_name=WORKER_NAME)

    def perform(self, attempt: Attempt) -> None:
        """Run an attempt and record it. Raises what `raise_errors` asks for, and a KeyboardInterrupt."""
        self.record(self.executor.run(attempt))
        self.raise_interrupt()
        self.raise_error(attempt)

    def record(self, finished: Finished) -> None:
        """Record an outcome and tell the listeners; look at what comes after the job, and at its batch."""
        with transaction.atomic(using=self.using):
            recorded = record(connections[self.using], [finished], worker_name=WORKER_NAME)
        signals.dispatch(recorded.events)
        if recorded.has_ended:
            follow_rest(using=self.using)
        if finished.attempt.batch is not None:
            close_finished([finished.attempt.batch], using=self.using)
        self.commit()

    def commit(self) -> None:
        """Call what waits for the commit of a transaction that the test will not commit."""
        if not self.commits:
            return
        for connection in connections.all(initialized_only=True):
            # As Django's captureOnCommitCallbacks(execute=True) does: what a robust one raises is logged.
            while connection.in_atomic_block and connection.run_on_commit:
                callback: Any = connection.run_on_commit.pop(0)
                try:
                    callback[1]()
                except Exception:
                    if not callback[2]:
                        raise
                    logger.exception("A function that waited for a commit failed")

    def raise_interrupt(self) -> None:
        """Raise the KeyboardInterrupt that ended the last job, if one did."""
        if (interrupt := self.executor.interrupt) is not None:
            raise interrupt

    def raise_error(self, attempt: Attempt) -> None:
        """With `raise_errors`, raise why this job has ended otherwise than succeeded."""
        if not self.raises:
            return
        job = Job.objects.using(self.using).filter(id=attempt.job_id).first()
        if job is None or job.status not in FINAL - {Status.SUCCEEDED}:
            return
        if (error := self.executor.error) is not None:
            raise error
        raise JobFailed(job)


class _Executor(Executor):
    """One that does not keep a KeyboardInterrupt to itself: here it means the test run, or the person in front of it."""

    def __init__(self, link: _Link, **options: Any) -> None:
        super().__init__(link, **options)
        self._stage.passes_interrupts = True

    @property
    def interrupt(self) -> KeyboardInterrupt | None:
        return self._stage.interrupt

    @property
    def error(self) -> BaseException | None:
        """What the last function raised."""
        return self._stage.error


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

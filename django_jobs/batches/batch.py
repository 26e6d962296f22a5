"""`Batch`: any number of jobs that are counted together, with callbacks at their end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import connections

from .. import options
from ..compat import DEFAULT_TASK_BACKEND_ALIAS
from ..exceptions import BatchDoesNotExist, InvalidGraph, InvalidOption, WaitTimeout
from ..execution.context import current_job
from ..graphs.nodes import Node, Signature, settle
from ..graphs.storing import store
from ..ids import uuid7
from ..options import shown
from ..results import JobResult, check_texts, deadline_of, pauses
from ..statuses import Status
from ..task import JobTask
from ..users import current_name
from .callbacks import STRANGER, Callback, as_signature, backend_of, new_callback, using_of
from .state import BatchStatus, Progress, State, state_of

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from ..graphs import GraphResult
    from ..lifecycle.batch import NewBatch
    from ..lifecycle.report import Report

MAX_NAME: Final = 255


class Batch:
    """Jobs that are counted together: `with Batch("import", on_finish=tell.s()) as batch: batch.add(load, 1)`.

    The `with` block is one transaction: at its end the batch is sealed, and if it raises nothing is stored. Without `with`, the
    first `add` stores the batch, in the caller's transaction, and it ends only after `seal()`. Jobs may be added until it has
    finished, also from within its own jobs (`current_batch()`).

    Callbacks are tasks, or tasks with arguments (`task.s(...)`); one that takes an argument `batch_id` gets the id. Each runs
    at most once: `on_finish` when all jobs have ended, `on_success` when all have succeeded, be it after some were requeued,
    `on_failure` when the first one has failed, timed out or was cancelled. They are no jobs of the batch.

    `backend`: the back end whose database holds it, and so its jobs. As with `JobResult`, the state is what was known when it
    was first asked for or last refreshed.
    """

    def __init__(
        self,
        name: str = "",
        *,
        on_success: Callback | None = None,
        on_failure: Callback | None = None,
        on_finish: Callback | None = None,
        metadata: Mapping[str, Any] | None = None,
        backend: str = DEFAULT_TASK_BACKEND_ALIAS,
    ) -> None:
        check_texts(name=name)
        if len(name) > MAX_NAME or "\x00" in name:
            raise InvalidOption("name", f"at most {MAX_NAME} characters, and no NUL.")
        self._bind(uuid7(), using_of(backend))
        self.name = name
        self.metadata = dict(options.CHECKS["metadata"](metadata or {}, "metadata"))
        given = {"on_success": on_success, "on_failure": on_failure, "on_finish": on_finish}
        self._callbacks = {name: as_signature(value, name) for name, value in given.items() if value is not None}
        for callback in self._callbacks.values():
            new_callback(self.id, callback, self.using)  # what can't be stored is said here
        self._is_stored = False

    def _bind(self, batch: UUID, using: str) -> None:
        self.id, self.using = batch, using
        self.name, self.metadata = "", dict[str, Any]()
        self._callbacks = dict[str, Signature]()
        self._is_stored = True
        self._block: AbstractContextManager[Any] | None = None
        self._is_new = False  # made by the open `with` block: nobody else can see it, let alone end it
        self._state: State | None = None

    @classmethod
    def get(cls, batch: UUID | str, *, backend: str = DEFAULT_TASK_BACKEND_ALIAS) -> Batch:
        """Return the batch with this id. Raises `BatchDoesNotExist`."""
        found = cls._of(batch, using_of(backend))
        found.refresh()
        return found

    @classmethod
    def _of(cls, batch: UUID | str, using: str) -> Batch:
        found = cls.__new__(cls)
        try:
            found._bind(batch if isinstance(batch, UUID) else UUID(str(batch)), using)
        except ValueError:
            raise BatchDoesNotExist(f"There is no batch {batch}.") from None
        return found

    def __repr__(self) -> str:
        return f"<Batch {self.id}{f' {self.name!r}' if self.name else ''}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Batch) and (self.id, self.using) == (other.id, other.using)

    def __hash__(self) -> int:
        return hash(self.id)

    # -- filling it

    def __enter__(self) -> Batch:
        from ..lifecycle.recover import writing

        if self._block is not None:
            raise InvalidGraph(f"{self!r} is open in a with block already.")
        self._block = writing(self.using)
        self._block.__enter__()
        try:
            self._is_new = not self._is_stored
            self._create()
        except BaseException as error:
            self._leave(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        try:
            if error is None:
                self.seal()
        except BaseException as own:
            self._leave(type(own), own, own.__traceback__)
            raise
        self._leave(kind, error, where)

    def _leave(self, kind: Any, error: BaseException | None, where: Any) -> None:
        block, self._block = self._block, None
        if error is not None and self._is_new:
            self._is_stored = False
        self._is_new = False
        assert block is not None
        block.__exit__(kind, error, where)

    def _create(self) -> None:
        if self._is_stored:
            return
        from ..lifecycle import batch

        batch.create(self._row(), using=self.using)
        self._is_stored = True

    def _row(self) -> NewBatch:
        from ..lifecycle.batch import NewBatch

        callbacks = {name: new_callback(self.id, callback, self.using) for name, callback in self._callbacks.items()}
        return NewBatch(id=self.id, name=self.name, metadata=self.metadata, created_by=current_name(), callbacks=callbacks)

    def add(self, what: JobTask[..., Any] | Node, /, *args: Any, **kwargs: Any) -> Any:
        """Add a job, `add(task, 1)` or `add(task.s(1))`, or a whole graph; return its `JobResult` or `GraphResult`.

        In the caller's transaction. Raises `BatchIsFinished` (an `InvalidTransition`) and `BatchDoesNotExist`, and what `enqueue`
        of a task raises; nothing is stored then. A unique job that is there already stays what it is, and is not counted here.
        """
        if isinstance(what, Node) and (args or kwargs):
            raise TypeError(f"add: {what!r} has its arguments already.")
        if isinstance(what, Signature) and not (what.note or what.policies):
            what.check_is_free()
            result = self.add(what.task, *what.args, **what.kwargs)
            what._is_stored = True
            return result
        if isinstance(what, Node):
            return self._add_graph(what)
        if not isinstance(what, JobTask):
            raise TypeError(f"add: {shown(what)} is no task of django_jobs, and no node of a graph.")
        backend = backend_of(what, self.using)
        with self._joined():
            return backend.enqueue(what, args, kwargs, batch=self.id)

    def _add_graph(self, node: Node) -> GraphResult:
        try:
            with self._joined():
                result = store(node, batch=self.id)
                if result.using != self.using:
                    raise InvalidGraph(STRANGER.format(what=node, theirs=result.using, ours=self.using))
                return result
        except Exception:
            settle([node])
            raise

    def add_many(self, task: JobTask[..., Any], calls: Iterable[Any]) -> list[JobResult[..., Any]]:
        """Add a job of `task` for each of `calls`, all or none; see `JobTask.enqueue_many` and `add`."""
        if not isinstance(task, JobTask):
            raise TypeError(f"add_many: {shown(task)} is no task of django_jobs.")
        backend = backend_of(task, self.using)
        with self._joined():
            results: list[JobResult[..., Any]] = backend.enqueue_many(task, calls, batch=self.id)
            return results

    @contextmanager
    def _joined(self) -> Iterator[None]:
        """A transaction in which jobs may be added: the batch is stored in it if it is not yet, else kept from finishing."""
        from ..lifecycle import batch
        from ..lifecycle.recover import writing

        was_stored, self._state = self._is_stored, None
        try:
            with writing(self.using):
                if was_stored and not self._is_new:
                    batch.join(self.id, using=self.using)
                self._create()
                yield
        except BaseException:
            self._is_stored = was_stored
            raise

    def seal(self) -> bool:
        """Say that the batch has all its jobs but those that its own jobs will add. Return whether it was open until now.

        It finishes with the last of them; an empty one at once.
        """
        from ..lifecycle import batch
        from ..lifecycle.recover import writing

        was_stored, self._state = self._is_stored, None
        try:
            with writing(self.using):
                self._create()
                return batch.seal(self.id, using=self.using)
        except BaseException:
            self._is_stored = was_stored
            raise

    # -- what is known of it

    def refresh(self) -> None:
        """Read the state again. Raises `BatchDoesNotExist`."""
        from ..lifecycle.batch_look import numbers_of
        from ..models import Batch as Row

        row = Row.objects.using(self.using).filter(id=self.id).first()
        if row is None:
            raise BatchDoesNotExist(f"There is no batch {self.id} (any more).")
        self.name, self.metadata = row.name, row.metadata
        self._state = state_of(row, numbers_of(connections[self.using], [self.id])[self.id])

    @property
    def state(self) -> State:
        """All that was known when it was last read."""
        if self._state is None:
            self.refresh()
        assert self._state is not None
        return self._state

    @property
    def counts(self) -> Mapping[Status, int]:
        """How many of its jobs there are in each status."""
        return self.state.counts

    @property
    def progress(self) -> Progress:
        """How far it is."""
        return self.state.progress

    @property
    def status(self) -> BatchStatus:
        """ "pending", "enqueued", "progress" or "finished"."""
        return self.state.status

    def wait(self, timeout: float | None = None) -> Batch:
        """Wait until the batch has finished, and return it, refreshed. Raises `WaitTimeout` after `timeout` seconds.

        None waits for ever; so does a batch that nobody seals. Callbacks may still run.
        """
        deadline = deadline_of(timeout)
        for pause in pauses():
            self.refresh()
            if self.status == "finished":
                break
            time.sleep(self._pause(deadline, pause))
        return self

    async def await_result(self, timeout: float | None = None) -> Batch:  # noqa: ASYNC109 - mirrors wait()
        """Do what `wait` does, without blocking the event loop."""
        deadline = deadline_of(timeout)
        for pause in pauses():
            await sync_to_async(self.refresh)()
            if self.status == "finished":
                break
            await asyncio.sleep(self._pause(deadline, pause))
        return self

    def _pause(self, deadline: float, pause: float) -> float:
        left = deadline - time.monotonic()
        if left <= 0:
            raise WaitTimeout(f"Batch {self.id} had not finished in time.")
        return min(pause, left)

    # -- verbs

    def cancel(self, reason: str = "", *, by: str = "", force: bool = False) -> Report:
        """Seal it and cancel all jobs that have not ended; return what was done, job by job. See `JobResult.cancel`."""
        from ..lifecycle import batch

        check_texts(reason=reason, by=by)
        self._state = None
        return batch.cancel(self.id, by=by, reason=reason, force=force, using=self.using)

    def requeue_failed(self, reason: str = "", *, by: str = "", with_cancelled: bool = False) -> Report:
        """Run the jobs that have failed or timed out again; return what was done, job by job. See `JobResult.requeue`.

        `with_cancelled`: and those that were cancelled. The batch is open again; callbacks that ran do not run again.
        """
        from ..lifecycle import batch

        check_texts(reason=reason, by=by)
        self._state = None
        return batch.requeue_failed(self.id, by=by, reason=reason, with_cancelled=with_cancelled, using=self.using)

    @property
    def is_read(self) -> bool:
        """Whether somebody has marked it as read since it has last finished."""
        return self.state.read_at is not None

    def mark_read(self, read: bool = True) -> None:
        """Note that somebody has seen how it ended, or take that back."""
        from ..lifecycle import batch

        self._state = None
        batch.mark_read([self.id], read=read, using=self.using)

    async def aadd(self, what: JobTask[..., Any] | Node, /, *args: Any, **kwargs: Any) -> Any:
        """See `add`."""
        return await sync_to_async(self.add, thread_sensitive=True)(what, *args, **kwargs)

    async def aadd_many(self, task: JobTask[..., Any], calls: Iterable[Any]) -> list[JobResult[..., Any]]:
        """See `add_many`."""
        return await sync_to_async(self.add_many, thread_sensitive=True)(task, calls)

    async def aseal(self) -> bool:
        """See `seal`."""
        return await sync_to_async(self.seal, thread_sensitive=True)()

    async def arefresh(self) -> None:
        """See `refresh`."""
        await sync_to_async(self.refresh)()

    async def acancel(self, reason: str = "", *, by: str = "", force: bool = False) -> Report:
        """See `cancel`."""
        return await sync_to_async(self.cancel)(reason, by=by, force=force)

    async def arequeue_failed(self, reason: str = "", *, by: str = "", with_cancelled: bool = False) -> Report:
        """See `requeue_failed`."""
        return await sync_to_async(self.requeue_failed)(reason, by=by, with_cancelled=with_cancelled)


def current_batch() -> Batch | None:
    """Return the batch of the job that this code runs in; None outside of one, and for a job of no batch. No query."""
    context = current_job()
    if context is None or context.batch_id is None:
        return None
    return Batch._of(context.batch_id, using_of(context.task_result.backend))

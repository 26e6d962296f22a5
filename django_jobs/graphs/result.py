"""What is known of a graph that was stored: the results of its jobs, how far it is, and verbs for all of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from asgiref.sync import sync_to_async

from ..exceptions import WaitTimeout
from ..results import JobResult, check_texts, deadline_of, from_row, pauses
from ..statuses import FINAL, Status

if TYPE_CHECKING:
    from ..lifecycle.report import Report
    from ..lifecycle.spec import JobSpec
    from .nodes import Node

#: Jobs in one query.
_CHUNK: Final = 500
_FAILED: Final = frozenset({Status.FAILED, Status.TIMED_OUT})


class GraphResult:
    """The jobs of a graph that was enqueued: `graph_result[node]` has the result of a node, iterating has all in order.

    As with `JobResult`, it is what was known when they were enqueued or last refreshed.
    """

    __slots__ = ("_root", "_spans", "_spec", "ends", "results", "using")

    def __init__(
        self,
        spec: JobSpec,
        results: Sequence[JobResult[..., Any]],
        spans: Mapping[int, tuple[int, int]],
        ends: Iterable[int],
        root: Node,
    ) -> None:
        #: The results of all jobs, in the order in which they were written.
        self.results = tuple(results)
        #: Those of the jobs that come last: what comes after this graph comes after them.
        self.ends = tuple(self.results[index] for index in ends)
        self.using = self.results[0].using
        # The nodes are kept with it: their id() is what they are found by.
        self._root, self._spans, self._spec = root, spans, spec

    def __repr__(self) -> str:
        return f"<GraphResult {self.id}: {len(self.results)} jobs>"

    @property
    def id(self) -> str:
        """The id of the graph; empty as long as its jobs are not stored, where they wait for a commit (`enqueue_on_commit`)."""
        return str(self._spec.graph or "")

    def __len__(self) -> int:
        return len(self.results)

    def __iter__(self) -> Iterator[JobResult[..., Any]]:
        return iter(self.results)

    def __getitem__(self, node: Node) -> Any:
        """Return the `JobResult` of a job, or the list of those of a chain, group or graph. Raises KeyError for a stranger."""
        from .nodes import Signature

        if id(node) not in self._spans:
            raise KeyError(f"{node!r} is not part of this graph.")
        start, end = self._spans[id(node)]
        return self.results[start] if isinstance(node, Signature) else list(self.results[start:end])

    def statuses(self) -> dict[UUID, Status]:
        """Return the status that each job has now, by id; one that was deleted is missing."""
        from ..models import Job

        found: dict[UUID, Status] = {}
        for part in self._parts():
            rows = Job.objects.using(self.using).filter(pk__in=part).values_list("pk", "status")
            found.update((job, Status(status)) for job, status in rows)
        return {result.job_id: found[result.job_id] for result in self.results if result.job_id in found}

    def refresh(self) -> None:
        """Read the state of all jobs again. One that was deleted stays as it was last known."""
        from ..models import Job, JobAttempt

        results: dict[UUID, list[JobResult[..., Any]]] = {}
        for result in self.results:
            results.setdefault(result.job_id, []).append(result)
        for part in self._parts():
            attempts: dict[UUID, list[Any]] = {}
            for record in JobAttempt.objects.using(self.using).filter(job__in=part).order_by("job", "number"):
                attempts.setdefault(record.job_id, []).append(record)
            for job in Job.objects.using(self.using).filter(pk__in=part):
                for result in results[job.pk]:
                    result.take(from_row(job, attempts.get(job.pk, ())))

    def wait(self, timeout: float | None = None) -> GraphResult:
        """Wait until the graph has settled, and return this result, refreshed.

        It has settled when every job has ended, or waits for one that has failed or was cancelled and so for a person. Raises
        `WaitTimeout` after `timeout` seconds; None waits for ever. See `JobResult.wait`.
        """
        deadline = deadline_of(timeout)
        for pause in pauses():
            if self._has_settled():
                break
            time.sleep(self._pause(deadline, pause))
        self.refresh()
        return self

    async def await_result(self, timeout: float | None = None) -> GraphResult:  # noqa: ASYNC109 - mirrors wait()
        """Do what `wait` does, without blocking the event loop."""
        deadline = deadline_of(timeout)
        for pause in pauses():
            if await sync_to_async(self._has_settled)():
                break
            await asyncio.sleep(self._pause(deadline, pause))
        await self.arefresh()
        return self

    def cancel(self, reason: str = "", *, by: str = "", force: bool = False) -> Report:
        """Cancel all jobs that have not ended, and return what was done, job by job. See `JobResult.cancel`."""
        from ..lifecycle import control

        check_texts(reason=reason, by=by)
        ids = [job for job, status in self.statuses().items() if status not in FINAL]
        return control.cancel(ids, by=by, reason=reason, force=force, using=self.using)

    def requeue_failed(self, reason: str = "", *, by: str = "", with_cancelled: bool = False) -> Report:
        """Run all jobs that have failed or timed out again, and return what was done, job by job. See `JobResult.requeue`.

        `with_cancelled`: and those that were cancelled, as children of such jobs are by the policy "cancel".
        """
        from ..lifecycle import control

        check_texts(reason=reason, by=by)
        chosen = _FAILED | {Status.CANCELLED} if with_cancelled else _FAILED
        ids = [job for job, status in self.statuses().items() if status in chosen]
        return control.requeue(ids, by=by, reason=reason, using=self.using)

    async def arefresh(self) -> None:
        """See `refresh`."""
        await sync_to_async(self.refresh)()

    async def astatuses(self) -> dict[UUID, Status]:
        """See `statuses`."""
        return await sync_to_async(self.statuses)()

    async def acancel(self, reason: str = "", *, by: str = "", force: bool = False) -> Report:
        """See `cancel`."""
        return await sync_to_async(self.cancel)(reason, by=by, force=force)

    async def arequeue_failed(self, reason: str = "", *, by: str = "", with_cancelled: bool = False) -> Report:
        """See `requeue_failed`."""
        return await sync_to_async(self.requeue_failed)(reason, by=by, with_cancelled=with_cancelled)

    def _parts(self) -> Iterator[list[UUID]]:
        for start in range(0, len(self.results), _CHUNK):
            yield [result.job_id for result in self.results[start : start + _CHUNK]]

    def _has_settled(self) -> bool:
        """Whether nothing more happens by itself."""
        if not self.id:
            return False
        statuses = self.statuses()
        waiting = [job for job, status in statuses.items() if status == Status.WAITING]
        if any(status not in FINAL and status != Status.WAITING for status in statuses.values()):
            return False
        return all(self._are_held(waiting[start : start + _CHUNK]) for start in range(0, len(waiting), _CHUNK))

    def _are_held(self, waiting: Sequence[UUID]) -> bool:
        """Whether each of these waiting jobs waits for a person: for a parent that has ended, or one that waits itself."""
        from ..models import Edge

        edges = Edge.objects.using(self.using).filter(child__in=waiting, parent__status__isnull=False)
        rows = edges.values_list("child_id", "parent__status", "child__on_parent_failure", "child__on_parent_cancel")
        held: set[UUID] = set()
        for child, status, on_failure, on_cancel in rows:
            policy = (on_cancel or "cancel") if status == Status.CANCELLED else (on_failure or "wait")
            if status not in FINAL and status != Status.WAITING:
                return False  # a parent from elsewhere, which may still end
            if status == Status.WAITING or (status != Status.SUCCEEDED and policy == "wait"):
                held.add(child)
            elif status != Status.SUCCEEDED and policy == "cancel":
                return False  # it is about to be cancelled
        return held >= set(waiting)

    def _pause(self, deadline: float, pause: float) -> float:
        left = deadline - time.monotonic()
        if left <= 0:
            raise WaitTimeout(f"Graph {self.id} had not settled in time.")
        return min(pause, left)

"""Catch what a piece of code enqueues: ask about it, then run just that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final
from uuid import UUID

from ..calls import call_of
from ..compat import Task
from ..conf import jobs_database
from ..exceptions import InvalidArguments
from ..models import Job
from ..outcomes import Event
from ..registry import registered
from ..signals import EVENTS
from ..unique import arguments_of
from .draining import Drain

#: What `assert_enqueued` can ask for besides the arguments: columns of the job.
PROPERTIES: Final = (
    "queue",
    "priority",
    "status",
    "description",
    "tags",
    "metadata",
    "unique_key",
    "max_attempts",
    "timeout",
    "created_by",
    "graph",
    "batch_id",
    "related",
)
_SHOWN: Final = 20


class Trap:
    """The jobs that were enqueued while a `trap_jobs` block ran, in their order. They are stored as always.

    Iterating, `jobs` and `len` give the rows as they are now: what was rolled back, or deleted, is not among them.
    """

    def __init__(self, using: str) -> None:
        self.using = using
        self._ids: list[UUID] = []

    @property
    def jobs(self) -> list[Job]:
        """The rows of the jobs."""
        found = Job.objects.using(self.using).in_bulk(self._ids)
        return [found[job_id] for job_id in self._ids if job_id in found]

    def __iter__(self) -> Iterator[Job]:
        return iter(self.jobs)

    def __len__(self) -> int:
        return len(self.jobs)

    def __bool__(self) -> bool:
        return True

    def of(self, task: Task[..., Any] | str) -> list[Job]:
        """Return the jobs of a task, given as itself or by its dotted name."""
        name = task if isinstance(task, str) else task.module_path
        return [job for job in self.jobs if job.task == name]

    # -- asked by tests

    def assert_count(self, count: int, task: Task[..., Any] | str | None = None) -> None:
        """Fail unless so many jobs were enqueued, of this task if one is given."""
        found = self.jobs if task is None else self.of(task)
        if len(found) != count:
            raise AssertionError(f"{count} jobs{_of(task)} should have been enqueued, {len(found)} were.\n{self}")

    def assert_enqueued(
        self,
        task: Task[..., Any] | str,
        *,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        times: int | None = None,
        **properties: Any,
    ) -> Job:
        """Fail unless a job of this task was enqueued (or exactly `times`); return the first that fits.

        `args` and `kwargs`, if either is given, are the whole call, compared however it was written, defaults filled in. Any
        of `PROPERTIES` may be asked for, such as `queue="mail"`.
        """
        for name in properties:
            if name not in PROPERTIES:
                raise TypeError(f"assert_enqueued() can't ask for {name!r}: it knows {', '.join(PROPERTIES)}.")
        wanted = None if args is None and kwargs is None else _call(task, list(args or ()), dict(kwargs or {}))
        found = [
            job
            for job in self.of(task)
            if (wanted is None or _call(task, job.args, job.kwargs) == wanted)
            and all(getattr(job, name) == value for name, value in properties.items())
        ]
        if (times is None and not found) or (times is not None and len(found) != times):
            asked = [f"args={args!r}"] * (args is not None) + [f"kwargs={kwargs!r}"] * (kwargs is not None)
            asked += [f"{name}={value!r}" for name, value in properties.items()]
            what = f"A job{_of(task)}" if times is None else f"{times} jobs{_of(task)}"
            with_what = f" with {', '.join(asked)}" if asked else ""
            raise AssertionError(f"{what}{with_what} should have been enqueued; {len(found)} fit.\n{self}")
        return found[0] if found else Job()

    def assert_not_enqueued(self, task: Task[..., Any] | str | None = None) -> None:
        """Fail if a job was enqueued, of this task if one is given."""
        if self.jobs if task is None else self.of(task):
            raise AssertionError(f"No job{_of(task)} should have been enqueued.\n{self}")

    # -- then

    def perform(self, *, raise_errors: bool = True, limit: int | None = None) -> int:
        """Run the jobs that were caught, and those which they enqueue, until none of them is ready; return how many attempts.

        Only those: what else is ready stays. As `run_jobs` does otherwise. `raise_errors`: raise the exception of the first job
        that does not succeed.
        """
        drain = Drain(self.using, raise_errors=raise_errors)
        done = 0
        with self.open():
            drain.commit()
            while (limit is None or done < limit) and (attempt := drain.claim_of(self._ids)) is not None:
                done += 1
                drain.perform(attempt)
        return done

    @contextmanager
    def open(self) -> Iterator[None]:
        """Catch what is enqueued in the block."""

        def listen(sender: Any, event: Event, **kwargs: Any) -> None:
            if event.job_id not in known:
                known.add(event.job_id)
                self._ids.append(event.job_id)

        known = set(self._ids)
        EVENTS["job_enqueued"].connect(listen, weak=False)
        try:
            yield
        finally:
            EVENTS["job_enqueued"].disconnect(listen)

    def __str__(self) -> str:
        jobs = self.jobs
        if not jobs:
            return "Nothing was enqueued."
        lines = [f"  {_shown(job)}" for job in jobs[:_SHOWN]]
        if len(jobs) > _SHOWN:
            lines.append(f"  and {len(jobs) - _SHOWN} more")
        return "\n".join(["Enqueued:", *lines])

    __repr__ = __str__


@contextmanager
def trap_jobs(*, using: str | None = None) -> Iterator[Trap]:
    """Catch the jobs that are enqueued in the block, by whatever way and in whatever thread; yields a `Trap`.

    `using`: the database, by default that of the first back end in TASKS. Traps in one another all catch what the innermost does.
    """
    trap = Trap(jobs_database() if using is None else using)
    with trap.open():
        yield trap


def _of(task: Task[..., Any] | str | None) -> str:
    return "" if task is None else f" of {task if isinstance(task, str) else task.module_path}"


def _call(task: Task[..., Any] | str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Return a call by the names of its arguments, if the task is known; else as it is."""
    known = registered().get(task) if isinstance(task, str) else task
    if known is None:
        return args, kwargs
    try:
        return arguments_of(call_of(known).signature, args, kwargs, getattr(known, "serializer", "json"))
    except (TypeError, InvalidArguments):
        return args, kwargs


def _shown(job: Job) -> str:
    parts = [repr(value) for value in job.args] + [f"{name}={value!r}" for name, value in job.kwargs.items()]
    text = f"{job.task}({', '.join(parts)})"
    text = text if len(text) <= 200 else f"{text[:199]}…"
    details = [f"queue={job.queue}"] * (job.queue != "default") + [f"priority={job.priority}"] * bool(job.priority)
    return " ".join([text, f"[{job.status}]", *details])

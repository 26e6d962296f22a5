"""Store jobs for the back end: now, or when another database's transaction commits; then tell who listens."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from django.db import DatabaseError, connections, transaction

from . import signals
from .compat import Task, task_enqueued
from .db.schema import is_without_tables, without_tables
from .exceptions import InvalidGraph
from .results import DJANGO_STATUS, JobResult, from_row

if TYPE_CHECKING:
    from .lifecycle.enqueue import NewJob

#: For tests: called with the results of jobs that were stored just now, by whatever way of the back end.
after_store: list[Callable[[Sequence[JobResult[..., Any]]], None]] = []
#: Stores jobs. Returns, for those whose unique key another job has, the id of that one by theirs, if there are such.
Insert = Callable[[], Mapping[UUID, UUID] | None]


class Template(Protocol):
    """What the jobs of one call have in common."""

    commit_alias: str

    def result(self, job: NewJob) -> JobResult[..., Any]:
        """Return the result of a job just stored."""


def store(sender: type[Any], jobs: Sequence[tuple[Template, NewJob]], insert: Insert, using: str) -> list[JobResult[..., Any]]:
    """Have `insert` store `jobs` on the database `using`, now or when the other database's transaction commits. Return results.

    Jobs of one call that wait for the commit on different databases are refused (`InvalidGraph`). Where the tables are missing,
    the error says what to do.
    """
    if alias := _commit_alias(jobs):
        results = [template.result(job) for template, job in jobs]

        def insert_late() -> None:
            twins = _insert(insert, using)
            existing = _existing(twins.values(), using)
            for (_, job), result in zip(jobs, results, strict=True):
                if (twin := twins.get(job.id)) is not None:
                    object.__setattr__(result, "id", str(twin))
                    result.take(existing[twin])
                    continue
                for name, value in (
                    ("enqueued_at", job.enqueued_at),
                    ("status", DJANGO_STATUS[job.status]),
                    ("job_status", job.status),
                ):
                    object.__setattr__(result, name, value)
            tell_new(sender, [result for (_, job), result in zip(jobs, results, strict=True) if job.id not in twins])

        transaction.on_commit(insert_late, using=alias)
        return results
    if len(connections.settings) > 1:
        _warn_of_other_transaction(using)
    twins = _insert(insert, using)
    if not twins:
        results = [template.result(job) for template, job in jobs]
        tell_new(sender, results)
        return results
    existing = _existing(twins.values(), using)
    results = [existing[twins[job.id]] if job.id in twins else template.result(job) for template, job in jobs]
    tell_new(sender, [result for (_, job), result in zip(jobs, results, strict=True) if job.id not in twins])
    return results


def tell_new(sender: type[Any], results: Sequence[JobResult[..., Any]]) -> None:
    """Tell who listens of jobs that were stored just now, tests that run them at once, too."""
    tell(sender, results)
    for function in tuple(after_store):
        function(results)


def _commit_alias(jobs: Sequence[tuple[Template, NewJob]]) -> str:
    """Return the database for whose commit the jobs wait; empty if there is none or nothing is open on it."""
    named = {template.commit_alias for template, _ in jobs} - {""}
    waits_for = sorted(alias for alias in named if connections[alias].in_atomic_block)
    if len(waits_for) > 1:
        raise InvalidGraph(f"The jobs of a graph wait for the commit on several databases: {', '.join(waits_for)}.")
    return waits_for[0] if waits_for else ""


def _insert(insert: Insert, using: str) -> Mapping[UUID, UUID]:
    try:
        return insert() or {}
    except DatabaseError as error:
        if not is_without_tables(error):
            raise
        raise type(error)(f"{without_tables(using)} {error}") from error


def _existing(ids: Iterable[UUID], using: str) -> dict[UUID, JobResult[..., Any]]:
    """Return the results of jobs that were stored before."""
    from .models import Job

    found = {}
    for job_id in set(ids):
        job = Job.objects.using(using).get(pk=job_id)
        found[job_id] = from_row(job, job.attempts.using(using).order_by("number") if job.starts else ())
    return found


def tell(sender: type[Any], results: Sequence[JobResult[..., Any]]) -> None:
    """Send Django's signal for each. A listener's error is logged, and what it broke in the transaction is rolled back."""
    if len(task_enqueued.receivers) <= 1:
        # Only Django's own, which logs: no savepoint around that, and nothing at all where it would log nothing.
        if _django_logger.isEnabledFor(logging.DEBUG):
            for result in results:
                task_enqueued.send_robust(sender, task_result=result)
        return
    for result in results:
        signals.call_listeners(task_enqueued, sender, "task_enqueued", task_result=result, job_id=result.id)


#: Where Django's own listener logs: "django.tasks" or, from the back-port, "django_tasks".
_django_logger = logging.getLogger(Task.__module__.rpartition(".")[0])


def _warn_of_other_transaction(using: str) -> None:
    """Warn where a transaction is open on another database, but not on the one of the jobs: its rollback would leave the job."""
    if connections[using].in_atomic_block:
        return
    for connection in connections.all(initialized_only=True):
        if connection.alias != using and connection.in_atomic_block:
            warnings.warn(
                f"A job was enqueued on the database {using!r} while a transaction is open on {connection.alias!r}: a rollback"
                " there does not take the job back, and it may start before the commit. Declare the task with"
                f" enqueue_on_commit=True, or open a transaction on {using!r}, too.",
                RuntimeWarning,
                stacklevel=6,
            )
            return

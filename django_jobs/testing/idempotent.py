"""Try a task twice, as it runs when its worker dies after its work and before its end is recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from django.apps import apps
from django.db.models import Model

from ..models import Job
from ..outcomes import Finished, Lost
from ..results import JobResult
from ..statuses import Status
from ..task import JobTask
from .draining import Drain, JobFailed

#: Apps whose tables change by themselves.
_LEFT_OUT: Final = frozenset({"django_jobs", "sessions", "contenttypes", "admin"})
_SHOWN: Final = 10

State = Callable[[], Any]


def assert_idempotent(task: JobTask[..., Any], *args: Any, state: State | None = None, **kwargs: Any) -> JobResult[..., Any]:
    """Run a job of `task` with these arguments, and run it again as after a death; fail unless the second run changed nothing.

    If a worker dies after the task's work, and before the outcome is recorded, the job runs again: at least once is the promise,
    so what a task does twice must come to the same. Compared are the rows of all models of the site (not those of django_jobs,
    sessions and the like) in the jobs' database, or what `state()` returns: files, mails, calls. Returns the result of the job.
    Raises the task's own exception if it fails.
    """
    result = task.enqueue(*args, **kwargs)
    drain = Drain(result.using, raise_errors=True)
    attempt = drain.claim_of([result.job_id])
    if attempt is None:
        raise AssertionError(f"The job can't run now: it is {result.job_status}.")
    finished = drain.executor.run(attempt)
    drain.raise_interrupt()
    if drain.executor.error is not None:
        raise drain.executor.error
    read = state or (lambda: _rows(result.using))
    first = read()
    # Its worker has died: what the function did stays, what became of it is not known. (A transactional job's success is
    # committed with its work, so it does not run again.)
    if not finished.confirmed_by_task:
        drain.record(Finished(attempt, Lost("its worker died, as far as the test is concerned", counts=False)))
        again = drain.claim_of([result.job_id])
        if again is None:
            raise JobFailed(Job.objects.using(result.using).get(id=result.job_id))
        drain.perform(again)
    else:
        drain.record(finished)
    second = read()
    if first != second:
        raise AssertionError(f"{task.module_path} is not idempotent: run again, it changed\n{_difference(first, second)}")
    result.refresh()
    assert result.job_status == Status.SUCCEEDED
    return result


def _rows(using: str) -> dict[str, dict[Any, dict[str, Any]]]:
    """Return all rows of the site's models: table -> key -> columns."""
    models = [model for model in apps.get_models() if model._meta.app_label not in _LEFT_OUT and model._meta.managed]
    return {model._meta.label: _table(model, using) for model in models}


def _table(model: type[Model], using: str) -> dict[Any, dict[str, Any]]:
    return {
        row["pk"]: row for row in model._base_manager.using(using).values("pk", *(f.attname for f in model._meta.concrete_fields))
    }


def _difference(first: Any, second: Any) -> str:
    if not (isinstance(first, dict) and isinstance(second, dict)):
        return f"  from {first!r}\n  to {second!r}"
    lines: list[str] = []
    for name in sorted({*first, *second}, key=str):
        before, after = first.get(name), second.get(name)
        if before == after:
            continue
        if not (isinstance(before, dict) and isinstance(after, dict)):
            lines.append(f"  {name}: from {before!r} to {after!r}")
            continue
        for key in sorted({*before, *after}, key=str):
            if before.get(key) != after.get(key):
                lines.append(f"  {name} {key}: {_change(before.get(key), after.get(key))}")
    more = [f"  and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    return "\n".join(lines[:_SHOWN] + more)


def _change(before: Any, after: Any) -> str:
    if before is None:
        return f"added {after!r}"
    if after is None:
        return f"deleted {before!r}"
    if isinstance(before, dict) and isinstance(after, dict):
        return ", ".join(
            f"{name} from {before.get(name)!r} to {after.get(name)!r}" for name in after if before.get(name) != after[name]
        )
    return f"from {before!r} to {after!r}"

"""The callbacks of a batch as jobs that wait for it; which back ends a batch can have jobs of."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from ..compat import task_backends
from ..exceptions import InvalidGraph, InvalidOption
from ..graphs.nodes import Signature
from ..options import shown
from ..task import JobTask

if TYPE_CHECKING:
    from ..lifecycle.spec import NewJob

#: A callback: a task, or a task with arguments, `task.s(...)`.
Callback = JobTask[..., Any] | Signature

#: An error's text.
STRANGER: Final = "{what} is for the database {theirs!r}, but the batch is in {ours!r}: its jobs are in one."


def using_of(backend: str) -> str:
    """Return the database of the jobs of this back end. Raises `InvalidGraph` if it can't store batches."""
    found: Any = task_backends[backend]
    if not hasattr(found, "store_graph"):
        raise InvalidGraph(f"The back end {backend!r} can't store batches, as that of django_jobs can.")
    using: str = found.using
    return using


def backend_of(task: JobTask[..., Any], using: str) -> Any:
    """Return the back end of a task whose jobs are to be in a batch on the database `using`. Raises `InvalidGraph`."""
    backend: Any = task.get_backend()
    if not hasattr(backend, "store_graph"):
        raise InvalidGraph(f"{task.module_path}: the back end {task.backend!r} can't store batches, as django_jobs' can.")
    if backend.using != using:
        raise InvalidGraph(STRANGER.format(what=task.module_path, theirs=backend.using, ours=using))
    return backend


def as_signature(callback: Any, name: str) -> Signature:
    """Return a callback as a task with its arguments. Raises `InvalidOption`, and `InvalidGraph` for one that is used already."""
    if isinstance(callback, JobTask):
        return callback.s()
    if not isinstance(callback, Signature):
        raise InvalidOption(name, f"{shown(callback)} is no task, and no task.s(...).")
    callback.check_is_free()
    return callback


def new_callback(batch: UUID, callback: Signature, using: str) -> NewJob:
    """Return the job that a callback is, with the batch's id where its function takes it. Raises as `enqueue` does."""
    from ..lifecycle.spec import NewJob

    backend = backend_of(callback.task, using)
    template = backend.template(callback.task)
    kwargs = dict(callback.kwargs)
    if "batch_id" not in kwargs and "batch_id" in (template.call.names or ()):
        kwargs["batch_id"] = str(batch)
    args, kwargs = template.arguments(callback.args, kwargs)
    related = template.spec.related or {"model": "django_jobs.batch", "pk": str(batch), "using": using}
    return NewJob(replace(template.spec, related=related), args, kwargs)

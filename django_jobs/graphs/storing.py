"""Make rows of a graph: everything is checked first, then stored in one go."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

from ..exceptions import InvalidArguments, InvalidGraph
from ..ids import uuid7s
from ..options import MAX_DESCRIPTION
from .nodes import POLICIES, Node, Signature, label, settle
from .plan import Plan, plan
from .result import GraphResult


def store(root: Node, *, batch: UUID | None = None) -> GraphResult:
    """Store the jobs of `root`, all or none, as part of `batch` if there is one. See `Node.enqueue`."""
    root.check_is_free()
    try:
        made = plan(root)
        ids = uuid7s(len(made.signatures))
        backend, jobs = _jobs(made, ids, batch)
        edges = [(UUID(parent) if isinstance(parent, str) else ids[parent], ids[child]) for parent, child in made.edges]
        results = backend.store_graph(jobs, edges)
    except Exception:
        settle([root])
        raise
    for node in [*made.signatures, *made.holders]:
        node._is_stored = True
    return GraphResult(jobs[0][1].spec, results, made.spans, made.tails[id(root)], root)


def _jobs(made: Plan, ids: list[UUID], batch: UUID | None) -> tuple[Any, list[tuple[Any, Any]]]:
    """Return the back end, and for each job its template and what is to be stored. Raises as `enqueue` of a task does."""
    templates: dict[int, Any] = {}
    specs: dict[tuple[Any, ...], Any] = {}
    jobs = []
    children = {child for _, child in made.edges}
    first = made.signatures[0]
    backend = _backend_of(first)
    for index, node in enumerate(made.signatures):
        if (template := templates.get(id(node.task))) is None:
            own = _backend_of(node)
            if own.using != backend.using:
                raise InvalidGraph(
                    f"{label(node)} is a job of the database {own.using!r}, but {label(first)} is one of {backend.using!r}:"
                    " a graph is stored in one."
                )
            template = templates[id(node.task)] = own.template(node.task, batch=batch)
        chosen = _stored_policies(made, index) if index in children else {}
        key = (id(template), *chosen.items())
        if (spec := specs.get(key)) is None:
            spec = specs[key] = replace(template.spec, **chosen)
        try:
            args, kwargs = template.arguments(node.args, node.kwargs)
            description = _description(node, spec.description)
            job = template.new_job(ids[index], args, kwargs, spec, description)
            jobs.append((template, template.complete(job, node.args, node.kwargs)))
        except InvalidArguments as error:
            raise InvalidArguments(f"{label(node)}: {error}", path=error.path) from None
    _check_stored(made, backend.using)
    return backend, jobs


def _backend_of(node: Signature) -> Any:
    backend: Any = node.task.get_backend()
    if not hasattr(backend, "store_graph"):
        raise InvalidGraph(f"{label(node)}: the back end {node.task.backend!r} can't store graphs, as that of django_jobs can.")
    return backend


def _stored_policies(made: Plan, index: int) -> dict[str, str]:
    """Return the policies of a job as its columns have them: what everybody does goes without saying."""
    return {name: value for name, value in made.policies[index].items() if value != POLICIES[name]}


def _description(node: Signature, own: str) -> str:
    """Return the description where it differs from that of other jobs of the task."""
    if not node.note:
        return ""
    own = own or node.task.name
    return f"{own[: MAX_DESCRIPTION - len(node.note) - 1]} {node.note}"


def _check_stored(made: Plan, using: str) -> None:
    for result, node in made.stored.values():
        if result.using != using:
            raise InvalidGraph(
                f"{label(node)} comes after job {result.id} of the database {result.using!r}, but is one of {using!r}:"
                " a graph is stored in one."
            )

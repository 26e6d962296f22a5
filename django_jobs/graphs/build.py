"""The words that graphs are built with. See `nodes`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..exceptions import InvalidGraph
from ..options import shown
from ..task import JobTask
from .nodes import Chain, Graph, Group, Node, Policy, Signature


def chain(*nodes: Node, on_parent_failure: Policy | None = None, on_parent_cancel: Policy | None = None) -> Chain:
    """Return a chain: each node starts when all jobs at the end of the one before it have succeeded.

    The policies are for all in it that say nothing themselves. Raises `InvalidGraph` for none at all, and for a node that is
    used already.
    """
    return Chain(nodes, on_parent_failure=on_parent_failure, on_parent_cancel=on_parent_cancel)


def group(*nodes: Node, on_parent_failure: Policy | None = None, on_parent_cancel: Policy | None = None) -> Group:
    """Return a group: its nodes may run at once. What comes after it in a chain comes after all of them. See `chain`."""
    return Group(nodes, on_parent_failure=on_parent_failure, on_parent_cancel=on_parent_cancel)


def graph(*, on_parent_failure: Policy | None = None, on_parent_cancel: Policy | None = None) -> Graph:
    """Return an empty graph, to be filled by `add`: any order without a cycle. The policies are as those of `chain`."""
    return Graph(on_parent_failure=on_parent_failure, on_parent_cancel=on_parent_cancel)


def split(task: JobTask[..., Any], items: Iterable[Any], size: int, /, *, chain: bool = False, **kwargs: Any) -> Group | Chain:
    """Return a group of jobs of `task`, each for a list of `size` items, the last for the rest; with `chain`, a chain of them.

    The list is the first argument of the task; `kwargs` are further ones. The descriptions end in "(split 1/3)". Raises
    `InvalidGraph` if there are no items, and TypeError or ValueError for a `size` that is no whole number above 0.
    """
    if not isinstance(task, JobTask):
        raise TypeError(f"split: {shown(task)} is no task of django_jobs.")
    if isinstance(size, bool) or not isinstance(size, int):
        raise TypeError(f"split: size must be a whole number, not {shown(size)}.")
    if size < 1:
        raise ValueError(f"split: size must be at least 1, not {size}.")
    listed = list(items)
    if not listed:
        raise InvalidGraph(f"split: there are no items for {task.module_path}. Ask for an empty list before.")
    starts = range(0, len(listed), size)
    parts = [
        Signature(task, (listed[start : start + size],), kwargs, f"(split {number}/{len(starts)})")
        for number, start in enumerate(starts, 1)
    ]
    return Chain(parts) if chain else Group(parts)

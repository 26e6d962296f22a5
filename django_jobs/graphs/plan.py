"""A graph taken apart: its jobs in order, and which comes after which. Without recursion, however deep it is nested."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from ..exceptions import InvalidGraph
from ..results import JobResult
from .nodes import Chain, Graph, Node, Policy, Signature, holders, label

#: The most edges where a group follows a group: each job of the second comes after each of the first.
MAX_EDGES_BETWEEN: Final = 100_000


@dataclass(slots=True)
class Plan:
    """The jobs of a graph, by index: a node before what is next to it, so in the order in which they were written."""

    signatures: list[Signature] = field(default_factory=list)
    #: All that holds them.
    holders: list[Node] = field(default_factory=list)
    policies: list[dict[str, Policy]] = field(default_factory=list)
    #: (parent, child) by index; of each child in the order in which its parents were named. A job stored already goes by its id.
    edges: dict[tuple[int | str, int], None] = field(default_factory=dict)
    #: The results of those, by id, with the node that named them.
    stored: dict[str, tuple[JobResult[..., Any], Node]] = field(default_factory=dict)
    #: By id() of a node: the range of its jobs; those that come first; those that come last.
    spans: dict[int, tuple[int, int]] = field(default_factory=dict)
    heads: dict[int, Sequence[int]] = field(default_factory=dict)
    tails: dict[int, Sequence[int]] = field(default_factory=dict)

    def add(self, node: Signature, policies: dict[str, Policy]) -> None:
        """Take a job."""
        index = len(self.signatures)
        self.signatures.append(node)
        self.policies.append(policies)
        self.spans[id(node)] = (index, index + 1)
        self.heads[id(node)] = self.tails[id(node)] = (index,)

    def close(self, node: Node, start: int) -> None:
        """Join what is in `node`, now that all its parts have been taken; `start` is the first job of it."""
        self.holders.append(node)
        end = len(self.signatures)
        if start == end:
            raise InvalidGraph(f"{label(node)} is empty: there must be at least one job.")
        self.spans[id(node)] = (start, end)
        parts = node.parts
        if isinstance(node, Chain):
            for before, after in pairwise(parts):
                self._join(self.tails[id(before)], self.heads[id(after)], before, after)
            self.heads[id(node)], self.tails[id(node)] = self.heads[id(parts[0])], self.tails[id(parts[-1])]
            return
        parents, children = self._join_all(node, start, end) if isinstance(node, Graph) else (set(), set())
        self.heads[id(node)] = _joined((self.heads[id(part)] for part in parts), children)
        self.tails[id(node)] = _joined((self.tails[id(part)] for part in parts), parents)

    def _join_all(self, graph: Graph, start: int, end: int) -> tuple[set[int], set[int]]:
        """Join as `add` was told. Return the jobs that have a child by that, and those that have a parent."""
        parents: set[int] = set()
        children: set[int] = set()
        for node, after in graph.after:
            heads = self.heads[id(node)]
            for parent in after:
                if isinstance(parent, JobResult):
                    self.stored.setdefault(parent.id, (parent, node))
                    self.edges.update(((parent.id, child), None) for child in heads)
                    continue
                span = self.spans.get(id(parent))
                if span is None and parent in holders(graph):
                    raise InvalidGraph(f"{label(node)} comes after {label(parent)}, which it is part of: that is a cycle.")
                if span is None or not start <= span[0] < end:
                    raise InvalidGraph(f"{label(node)} comes after {label(parent)}, which is not part of this graph: add it.")
                self._join(self.tails[id(parent)], heads, parent, node)
                parents.update(self.tails[id(parent)])
                children.update(heads)
        return parents, children

    def _join(self, parents: Sequence[int], children: Sequence[int], before: Node, after: Node) -> None:
        if len(parents) > 1 and len(children) > 1 and len(parents) * len(children) > MAX_EDGES_BETWEEN:
            raise InvalidGraph(
                f"{len(children)} jobs that each come after {len(parents)}: {label(after)} after {label(before)} is more than"
                f" {MAX_EDGES_BETWEEN} edges. Put one job in between, chain(group(...), collect.s(), group(...))."
            )
        self.edges.update(((parent, child), None) for child in children for parent in parents)


def plan(root: Node) -> Plan:
    """Take `root` apart. Raises `InvalidGraph` for a cycle, for an empty graph, and for a node that is none of its own."""
    made = Plan()
    todo: list[tuple[Node, dict[str, Policy], int | None]] = [(root, root.policies, None)]
    while todo:
        node, policies, start = todo.pop()
        if start is not None:
            made.close(node, start)
        elif isinstance(node, Signature):
            made.add(node, policies)
        else:
            todo.append((node, policies, len(made.signatures)))
            todo.extend((part, policies | part.policies, None) for part in reversed(node.parts))
    _check_order(made)
    return made


def _check_order(made: Plan) -> None:
    """Raise `InvalidGraph` if some jobs come after themselves."""
    children: dict[int, list[int]] = {}
    missing = [0] * len(made.signatures)
    for parent, child in made.edges:
        if isinstance(parent, int):
            children.setdefault(parent, []).append(child)
            missing[child] += 1
    free = [index for index, count in enumerate(missing) if not count]
    for parent in free:
        for child in children.get(parent, ()):
            missing[child] -= 1
            if not missing[child]:
                free.append(child)
    if len(free) == len(missing):
        return
    # Each that is left has a parent that is left: going up, one is met again.
    left = {child: parent for parent, child in made.edges if isinstance(parent, int) and missing[parent] and missing[child]}
    here = next(iter(left))
    seen: dict[int, None] = {}
    while here not in seen:
        seen[here] = None
        here = left[here]
    cycle = [*list(seen)[list(seen).index(here) :], here]
    names = " -> ".join(label(made.signatures[index]) for index in reversed(cycle[-4:]))
    raise InvalidGraph(f"A cycle of {len(cycle) - 1}: {names}{' -> ...' if len(cycle) > 4 else ''}.")


def _joined(lists: Iterable[Sequence[int]], without: set[int]) -> Sequence[int]:
    """Return all of `lists` but `without`. A single list is not copied, or groups nested deep would make many."""
    found = list(lists)
    if len(found) == 1 and not without:
        return found[0]
    return [index for each in found for index in each if index not in without]

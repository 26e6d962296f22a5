"""What graphs are built of: a `Signature` is one job to be, `Chain`, `Group` and `Graph` hold others, to any depth.

State model: a node is free, then part of another node or stored, each once. A holder keeps its parts; a part knows its holder by
a weak reference, so that what nobody has kept is collected at once, and says so if it was never enqueued.
"""

from __future__ import annotations

import sys
import warnings
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, cast, get_args

from asgiref.sync import sync_to_async

from ..exceptions import InvalidGraph, InvalidOption
from ..options import shown
from ..results import JobResult

if TYPE_CHECKING:
    from ..task import JobTask
    from .result import GraphResult

#: What a job does when a parent of it fails, or is cancelled: wait until that is put right, be cancelled, or run all the same.
Policy = Literal["wait", "cancel", "run"]
#: The fields of policies, with what they are where nobody says anything.
POLICIES: Final[Mapping[str, Policy]] = {"on_parent_failure": "wait", "on_parent_cancel": "cancel"}


N = TypeVar("N", bound="Node")


class Node:
    """A part of a graph, or a whole one. Made by `task.s()`, `chain`, `group`, `graph` and `split`."""

    __slots__ = ("__weakref__", "_holder", "_is_stored", "policies")

    def __init__(self, **policies: str | None) -> None:
        #: The policies that were given, by field: for this job, or for all in this node that say nothing themselves.
        self.policies = checked_policies(policies)
        self._holder: weakref.ref[Node] | None = None
        self._is_stored = False

    @property
    def parts(self) -> Sequence[Node]:
        """The nodes right below this one, in order."""
        return ()

    def then(self, *nodes: Node, **policies: Policy | None) -> Chain:
        """Return a chain of this node and those that come after it, one after the other. See `chain`."""
        return Chain((self, *nodes), **policies)

    def enqueue(self) -> GraphResult:
        """Store the jobs in the caller's transaction, all or none, and return their `GraphResult`.

        Raises `InvalidGraph`, and what `enqueue` of a task raises, before anything is stored.
        """
        from .storing import store

        return store(self)

    async def aenqueue(self) -> GraphResult:
        """See `enqueue`."""
        return await sync_to_async(self.enqueue, thread_sensitive=True)()

    @property
    def holder(self) -> Node | None:
        """The node that this one is part of."""
        return None if self._holder is None else self._holder()

    def check_is_free(self) -> None:
        """Raise `InvalidGraph` if this node is part of another one, or stored."""
        if self._is_stored:
            raise InvalidGraph(f"{label(self)} is enqueued already: make a new one.")
        if self.holder is not None:
            raise InvalidGraph(f"{label(self)} is used already: each job has one place. Make another with .s().")

    def _take(self, nodes: Sequence[Node]) -> None:
        """Make this the holder of `nodes`."""
        reference: weakref.ref[Node] = weakref.ref(self)
        for node in nodes:
            node._holder = reference

    def __repr__(self) -> str:
        parts = self.parts
        return f"<{_name(self)} of {len(parts)}>"


class Signature(Node):
    """A job to be: a task with its arguments. Made by `task.s(...)`."""

    __slots__ = ("args", "kwargs", "note", "task")

    def __init__(self, task: JobTask[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], note: str = "") -> None:
        super().__init__()
        self.task, self.args, self.kwargs = task, args, kwargs
        #: Added to the description of the job.
        self.note = note

    def using(
        self, *, on_parent_failure: Policy | None = None, on_parent_cancel: Policy | None = None, **options: Any
    ) -> Signature:
        """Return another signature of the same call, with these policies and options; for these see `JobTask.using`."""
        new = Signature(self.task.using(**options) if options else self.task, self.args, self.kwargs, self.note)
        new.policies = self.policies | checked_policies(
            {"on_parent_failure": on_parent_failure, "on_parent_cancel": on_parent_cancel}
        )
        return new

    def __repr__(self) -> str:
        given = [*(shown(value) for value in self.args), *(f"{name}={shown(value)}" for name, value in self.kwargs.items())]
        return f"{self.task.module_path}({', '.join(given)})"


class Holder(Node):
    """A node that holds others. Warns if it is collected before it was enqueued or became part of another one."""

    __slots__ = ("_made_at", "is_settled")

    def __init__(self, **policies: str | None) -> None:
        self.is_settled = True  # until it is complete
        super().__init__(**policies)
        self._made_at = _place()

    def __del__(self) -> None:
        # Without the attribute its making has failed.
        if getattr(self, "is_settled", True) or self._is_stored or self._holder is not None or sys.is_finalizing():
            return
        warnings.warn_explicit(f"A {_name(self)} was built and never enqueued.", RuntimeWarning, *self._made_at)


class _Row(Holder):
    """Nodes in an order."""

    __slots__ = ("_parts",)

    def __init__(self, nodes: Iterable[Node], **policies: Policy | None) -> None:
        self._parts = tuple(nodes)
        try:
            super().__init__(**policies)
            check_parts(self, self._parts)
        except Exception:
            settle(self._parts)
            raise
        self._take(self._parts)
        self.is_settled = False

    @property
    def parts(self) -> Sequence[Node]:
        return self._parts


class Chain(_Row):
    """Each part starts when the one before it has succeeded. Made by `chain`."""

    __slots__ = ()


class Group(_Row):
    """All parts may run at once. Made by `group`."""

    __slots__ = ()


class Graph(Holder):
    """Any order without a cycle. Made by `graph`."""

    __slots__ = ("_parts", "after")

    def __init__(self, **policies: Policy | None) -> None:
        super().__init__(**policies)
        self._parts: list[Node] = []
        #: (part, what it comes after: nodes of this graph, and results of stored jobs), as `add` was told.
        self.after: list[tuple[Node, tuple[Node | JobResult[..., Any], ...]]] = []

    @property
    def parts(self) -> Sequence[Node]:
        return self._parts

    def add(
        self,
        node: N,
        after: Node | JobResult[..., Any] | GraphResult | Iterable[Node | JobResult[..., Any] | GraphResult] = (),
        *,
        on_parent_failure: Policy | None = None,
        on_parent_cancel: Policy | None = None,
    ) -> N:
        """Add a job, a chain or any other node, and return it, to be named in `after` of others.

        `after`: the nodes of this graph, or results of jobs that are stored already, which must succeed before it starts. They
        may be added later than this. Added once more, a node gets more of them. The policies are for the node where it says
        nothing itself. Raises `InvalidGraph`.
        """
        from .result import GraphResult

        try:
            named = [after] if isinstance(after, Node | JobResult | GraphResult) else list(after)
            parents: list[Node | JobResult[..., Any]] = []
            for item in named:
                if isinstance(item, GraphResult):
                    parents += item.ends
                elif isinstance(item, Node | JobResult):
                    parents.append(item)
                else:
                    raise InvalidGraph(f"after: {shown(item)} is no node and no result of a job.")
            policies = checked_policies({"on_parent_failure": on_parent_failure, "on_parent_cancel": on_parent_cancel})
            self._add(node, tuple(parents))
            node.policies = policies | node.policies
        except Exception:
            settle([self, node])
            raise
        return node

    def _add(self, node: Node, parents: tuple[Node | JobResult[..., Any], ...]) -> None:
        if self._is_stored:
            raise InvalidGraph(f"{label(self)} is enqueued already: make a new one, whose jobs come after its results.")
        if getattr(node, "holder", None) is not self:
            check_parts(self, [node])
            for holder in holders(self):
                if holder is node:
                    raise InvalidGraph(f"{label(node)} would hold itself: that is a cycle.")
            self._take([node])
            self._parts.append(node)
        self.after.append((node, parents))
        self.is_settled = False


def checked_policies(policies: Mapping[str, str | None]) -> dict[str, Policy]:
    """Return those of `policies` that say something. Raises `InvalidOption`, and TypeError for an unknown field."""
    found: dict[str, Policy] = {}
    for name, value in policies.items():
        if name not in POLICIES:
            raise TypeError(f"{name!r} is no policy: use {' or '.join(POLICIES)}.")
        if value is None:
            continue
        if value not in get_args(Policy):
            raise InvalidOption(name, f"{shown(value)} is unknown: use one of {', '.join(get_args(Policy))}.")
        found[name] = cast(Policy, value)
    return found


def check_parts(holder: Node, nodes: Sequence[Any]) -> None:
    """Raise `InvalidGraph` unless each of `nodes` is one that has no place yet."""
    kind = _name(holder)
    if not nodes:
        raise InvalidGraph(f"A {kind} of nothing: there must be at least one job. Ask for an empty list before.")
    seen: set[int] = set()
    for index, node in enumerate(nodes):
        if not isinstance(node, Node):
            raise InvalidGraph(f"{kind}[{index}]: {shown(node)} is no node: use task.s(...), or a chain, group or graph.")
        node.check_is_free()
        if id(node) in seen:
            raise InvalidGraph(f"{kind}[{index}]: {label(node)} is there twice: make another with .s().")
        seen.add(id(node))


def settle(nodes: Iterable[Any]) -> None:
    """Nobody needs to be told that `nodes` were never enqueued: an error tells more."""
    for node in nodes:
        if isinstance(node, Holder):
            node.is_settled = True


def holders(node: Node) -> Iterable[Node]:
    """Yield `node` and whatever it is part of, from the inside."""
    here: Node | None = node
    while here is not None:
        yield here
        here = here.holder


def label(node: Node) -> str:
    """Return how a message names a node: its place, from the outside, and what it is."""
    place = ""
    for inner in holders(node):
        if (holder := inner.holder) is not None:
            index = next(index for index, part in enumerate(holder.parts) if part is inner)
            place = f"{_name(holder)}[{index}]{'.' if place else ''}{place}"
    return f"{place}: {node!r}" if place else repr(node)


def _name(node: Node) -> str:
    return type(node).__name__.lower()


def _place() -> tuple[str, int]:
    """Return file and line of the first caller outside of this package."""
    frame: Any = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("django_jobs."):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno

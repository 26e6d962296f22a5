"""Check the arguments of a call against the signature of a task's function."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .compat import Task
from .exceptions import InvalidArguments
from .options import shown
from .registry import check_is_findable


class Call:
    """Checks arguments against the signature of a task's function; most calls without `Signature.bind`, which is slow."""

    __slots__ = ("name", "names", "required", "signature", "total")

    def __init__(self, task: Task[..., Any]) -> None:
        parameters = list(inspect.signature(task.func).parameters.values())[1 if task.takes_context else 0 :]
        self.signature = inspect.Signature(parameters)
        self.name = task.name
        #: What may be given by name; None: anything.
        self.names: list[str] | None = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        if any(p.kind == p.VAR_KEYWORD for p in parameters):
            self.names = None
        plain = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        is_simple = len(plain) == len(parameters)
        self.total = len(plain) if is_simple else -1
        self.required = sum(1 for p in plain if p.default is p.empty)

    def check(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raise `InvalidArguments` unless the function can be called so."""
        if not kwargs and self.required <= len(args) <= self.total:
            return
        try:
            self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidArguments(f"{self.name}(): {self._unknown(kwargs) or error}.") from None

    def _unknown(self, kwargs: Mapping[str, Any]) -> str:
        """Return what is wrong with the names, which explains more than what is then missing; empty if nothing is."""
        names = self.names
        wrong = [] if names is None else [str(name) for name in kwargs if name not in names]
        if not wrong or names is None:
            return ""
        if near := difflib.get_close_matches(wrong[0], names, 1):
            return f"got an unexpected keyword argument {shown(wrong[0])} (did you mean {near[0]!r}?)"
        return f"got an unexpected keyword argument {shown(wrong[0])}: it takes {', '.join(names) if names else 'none'}"


_calls: dict[Callable[..., Any], Call] = {}


def call_of(task: Task[..., Any]) -> Call:
    """Return the checker of a task's arguments, made at its first use, which also checks that workers can find the task."""
    if (call := _calls.get(task.func)) is None:
        check_is_findable(task)
        call = _calls[task.func] = Call(task)
    return call

"""Unique keys: what makes two jobs of a task the same."""

from __future__ import annotations

import hashlib
import inspect
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from .durations import parse_duration
from .exceptions import InvalidArguments, InvalidOption
from .serializers import to_json

MAX_KEY: Final = 128
#: Of the task's name, in front of the digest: for people.
_NAME_CHARS: Final = 60

#: How long a job holds its key: until it is claimed; until it has ended; or, if it succeeded, until it is pruned.
UNTIL: Final = ("started", "finished", "pruned")
ON_CONFLICT: Final = ("return", "raise", "replace")


@dataclass(frozen=True, slots=True)
class UniqueBy:
    """Jobs of a task are the same if they have the same arguments. Made by `unique_by`."""

    names: tuple[str, ...] = ()
    period: float | None = None

    def check(self, signature: inspect.Signature) -> None:
        """Raise `InvalidOption` for a name that is no argument of the function."""
        names = [p.name for p in signature.parameters.values()]
        if any(p.kind == p.VAR_KEYWORD for p in signature.parameters.values()):
            return
        for name in self.names:
            if name not in names:
                raise InvalidOption("unique", f"the function has no argument {name!r}: it takes {', '.join(names) or 'none'}.")

    def key(
        self, task: str, signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any], serializer: str
    ) -> str:
        """Return the key of a call, which fits the signature. Raises `InvalidArguments` for what JSON can't hold."""
        arguments = arguments_of(signature, args, kwargs, serializer)
        if self.names:
            arguments = {name: arguments.get(name) for name in self.names}
        said: list[Any] = [task, arguments]
        if self.period is not None:
            said.append([self.period, int(time.time() // self.period)])
        text = json.dumps(said, sort_keys=True, separators=(",", ":"))
        return f"{task[-_NAME_CHARS:]}:{hashlib.sha256(text.encode()).hexdigest()}"


def unique_by(*names: str, period: Any = None) -> UniqueBy:
    """Return a value for the option `unique`: jobs are the same if the arguments with these names are, all without names.

    `period`: a duration (seconds, timedelta, "1h"); jobs are the same only if they were enqueued in the same such piece of time,
    counted from 1970 UTC by the clock of the host that enqueues: with "1h" the full hours. With `unique_until="pruned"` a job
    succeeds once in each. Raises `InvalidOption`.
    """
    for name in names:
        if not str(name).isidentifier():
            raise InvalidOption("unique", f"names of arguments, not {name!r}.")
    seconds = None if period is None else parse_duration(period, field="period")
    if seconds is not None and seconds <= 0:
        raise InvalidOption("period", "must be longer than nothing.")
    return UniqueBy(names, seconds)


def arguments_of(signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any], serializer: str) -> dict[str, Any]:
    """Return the arguments by name as JSON, however they were given; what was left out has its default, if JSON can hold that."""
    bound = signature.bind(*args, **kwargs)
    said = set(bound.arguments)
    bound.apply_defaults()
    found: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = signature.parameters[name].kind
        try:
            converted = to_json(value, serializer=serializer, path=name)
        except InvalidArguments:
            if name in said:
                raise
            continue
        if kind == inspect.Parameter.VAR_KEYWORD:
            found |= converted
        else:
            found[name] = converted
    return found


def check_key(value: Any, field: str = "unique") -> str:
    """Return `value` if it can be a unique key. Raises `InvalidArguments`."""
    if not isinstance(value, str):
        raise InvalidArguments(f"{field}: a key is text, not {type(value).__name__}.", path=field)
    if not value.strip() or len(value) > MAX_KEY:
        raise InvalidArguments(f"{field}: a key has 1 to {MAX_KEY} characters, not {len(value)}.", path=field)
    to_json(value, path=field)
    return value

"""What a queue's name may be, and how a job's options come down the tree of queues.

A name is dotted: `billing.invoices` is below `billing`. A queue need not be declared: what it does not say itself it takes
from its nearest declared ancestor that does, and after the root from the defaults.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from .exceptions import InvalidOption

MAX_NAME_LENGTH: Final = 100
_NAME: Final = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*")


def check_queue_name(name: Any, *, field: str = "queue_name") -> str:
    """Return `name` if it can name a queue: letters, digits, `_`, `-`, in parts set apart by `.`; else raise `InvalidOption`."""
    if not isinstance(name, str):
        raise InvalidOption(field, f"a queue's name is text, not {type(name).__name__}.")
    if len(name) > MAX_NAME_LENGTH:
        raise InvalidOption(field, f"a queue's name has at most {MAX_NAME_LENGTH} characters, not {len(name)}.")
    if not _NAME.fullmatch(name):
        raise InvalidOption(field, f"{name!r} can't name a queue: use letters, digits, '_' and '-', in parts set apart by '.'.")
    return name


def lineage(name: str) -> tuple[str, ...]:
    """Return `name` and its ancestors, the nearest first: `a.b.c` -> `("a.b.c", "a.b", "a")`."""
    parts = name.split(".")
    return tuple(".".join(parts[:length]) for length in range(len(parts), 0, -1))


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """What a declared queue says about the jobs in it; None: nothing, the next ancestor is asked. Seconds, 0 = off."""

    timeout: float | None = None
    heartbeat_timeout: float | None = None
    max_attempts: int | None = None
    backoff: Any = None
    retention: Mapping[str, float | None] | None = None
    is_http: bool | None = None
    retry_for: tuple[str, ...] | None = None  # dotted paths of exception classes; said in code only, no row has it

    def over(self, other: QueueOptions) -> QueueOptions:
        """Return these options, with those of `other` where these say nothing."""
        return QueueOptions(
            timeout=other.timeout if self.timeout is None else self.timeout,
            heartbeat_timeout=other.heartbeat_timeout if self.heartbeat_timeout is None else self.heartbeat_timeout,
            max_attempts=other.max_attempts if self.max_attempts is None else self.max_attempts,
            backoff=other.backoff if self.backoff is None else self.backoff,
            retention={**(other.retention or {}), **(self.retention or {})} or None,
            is_http=other.is_http if self.is_http is None else self.is_http,
            retry_for=other.retry_for if self.retry_for is None else self.retry_for,
        )


#: Options that a queue's row has, too.
OF_ROWS: Final = tuple(item.name for item in fields(QueueOptions) if item.name != "retry_for")


@dataclass(frozen=True, slots=True)
class JobOptions:
    """The options that are copied to a job's row when it is enqueued, fully resolved. Seconds.

    `backoff` and `retention` stay None where nobody said anything: then the settings are asked when the time comes, so that a
    change of the settings reaches jobs that wait.
    """

    timeout: float | None
    heartbeat_timeout: float | None
    max_attempts: int | None
    backoff: Any = None
    retention: dict[str, float | None] | None = None
    is_http: bool = False  # for HTTP workers


def resolve(queue: str, said: Mapping[str, Any], declared: Mapping[str, QueueOptions], defaults: JobOptions) -> JobOptions:
    """Return the options of a job in `queue`: its own word first, then the queues' from near to far, then the defaults.

    `said` holds only what the task or the caller said: a key that is absent is inherited, a value of None means "off" (no
    limit, no bound). `declared` maps names of queues to what they say. `retention` is joined status by status.
    """

    def pick(name: str) -> Any:
        if name in said:
            return said[name]
        for ancestor in lineage(queue):
            options = declared.get(ancestor)
            if options is not None and (value := getattr(options, name)) is not None:
                return value
        return getattr(defaults, name)

    return JobOptions(
        timeout=pick("timeout") or None,
        heartbeat_timeout=pick("heartbeat_timeout") or None,
        max_attempts=pick("max_attempts"),
        backoff=pick("backoff"),
        retention=_retention(queue, said, declared, defaults),
        is_http=pick("is_http"),
    )


def _retention(
    queue: str, said: Mapping[str, Any], declared: Mapping[str, QueueOptions], defaults: JobOptions
) -> dict[str, float | None] | None:
    joined: dict[str, float | None] = dict(defaults.retention or {})
    for ancestor in reversed(lineage(queue)):
        options = declared.get(ancestor)
        if options is not None and options.retention:
            joined.update(options.retention)
    joined.update(said.get("retention") or {})
    return joined or None

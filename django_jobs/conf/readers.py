"""Readers of settings: each turns what a site wrote into the value that is used, or raises `InvalidOption` naming the place.

Text is accepted for every kind of value, because environment variables have nothing else.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from ..durations import format_duration, parse_duration
from ..exceptions import InvalidOption
from ..queues import QueueOptions, check_queue_name
from ..retry import EXPONENTIAL, normalise_backoff
from ..statuses import FINAL, Status

#: Takes a value and the name to call it by in an error.
Reader = Callable[[Any, str], Any]

_DAY: Final = 86_400.0
_MAX_WHOLE: Final = 2**31 - 1  # of an integer column
_DIGITS: Final = re.compile(r"\s*[+-]?[0-9]{1,18}\s*")
_FLAGS: Final = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
_FINAL_NAMES: Final = [status.value for status in Status if status in FINAL]


def nearest(name: Any, known: Iterable[Any]) -> str:
    """Return `: did you mean 'x'?` if something known is near to `name`, else a full stop."""
    found = difflib.get_close_matches(str(name), [str(each) for each in known], n=1)
    return f": did you mean {found[0]!r}?" if found else "."


def _is_off(value: Any) -> bool:
    return value is None or (isinstance(value, str) and value.strip().lower() in ("", "none", "null", "off"))


def duration(low: float = 0.0, *, can_be_off: bool = False) -> Reader:
    """Read a duration of at least `low` seconds; if it `can_be_off`, None and 0 both mean None."""

    def read(value: Any, name: str) -> float | None:
        if can_be_off and _is_off(value):
            return None
        seconds = parse_duration(value, field=name)
        if can_be_off and seconds == 0:
            return None
        if seconds < low:
            raise InvalidOption(name, f"at least {format_duration(low)}.")
        return seconds

    return read


def whole(low: int, *, can_be_off: bool = False) -> Reader:
    """Read a whole number from `low` up; if it `can_be_off`, None means no bound."""

    def read(value: Any, name: str) -> int | None:
        if can_be_off and _is_off(value):
            return None
        if isinstance(value, str) and _DIGITS.fullmatch(value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidOption(name, f"a whole number, not {type(value).__name__}.")
        if not low <= value <= _MAX_WHOLE:
            raise InvalidOption(name, f"from {low} to {_MAX_WHOLE}.")
        return value

    return read


def flag(value: Any, name: str) -> bool:
    """Read True or False."""
    if isinstance(value, str):
        value = _FLAGS.get(value.strip().lower())
    if not isinstance(value, bool):
        raise InvalidOption(name, "True or False.")
    return value


def _decoded(value: Any, name: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise InvalidOption(name, "text has to be JSON here.") from None


def _mapping(value: Any, name: str) -> Mapping[Any, Any]:
    value = _decoded(value, name)
    if not isinstance(value, Mapping):
        raise InvalidOption(name, f"a dict, not {type(value).__name__}.")
    return value


def backoff(value: Any, name: str) -> Any:
    """Read a back-off; None means the built-in growing one."""
    if _is_off(value):
        return dict(EXPONENTIAL)
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        value = _decoded(value, name)
    if callable(value):
        raise InvalidOption(name, "a callable belongs to a task; here use seconds, a list or a dict.")
    return normalise_backoff(value, field=name)


def retention(value: Any, name: str = "retention") -> dict[str, float | None]:
    """Read `{final status: duration, or None for ever}`; what is not named is left out."""
    kept: dict[str, float | None] = {}
    for status, age in _mapping(value, name).items():
        if status not in _FINAL_NAMES:
            raise InvalidOption(name, f"{status!r} is not a final status{nearest(status, _FINAL_NAMES)}")
        kept[str(status)] = None if age is None else parse_duration(age, field=f"{name}['{status}']")
    return kept


def default_retention() -> dict[str, float | None]:
    """Keep what went well for a week, and what somebody may still have to deal with for ever."""
    return {"succeeded": 7 * _DAY, "cancelled": 7 * _DAY, "failed": None, "timed_out": None}


def full_retention(value: Any, name: str) -> dict[str, float | None]:
    """Read a retention on top of the default one."""
    return default_retention() | retention(value, name)


def aliases(value: Any, name: str) -> dict[str, str]:
    """Read `{old dotted name of a task: new one}`."""
    read = dict(_mapping(value, name))
    if not all(isinstance(path, str) and path for pair in read.items() for path in pair):
        raise InvalidOption(name, "a dict from old dotted names of tasks to new ones.")
    return read


def context(value: Any, name: str) -> tuple[tuple[Any, Any], ...]:
    """Read a list of (capture, restore) pairs, each a function or the dotted path of one."""
    value = _decoded(value, name)
    if not isinstance(value, (list, tuple)):
        raise InvalidOption(name, f"a list of (capture, restore) pairs, not {type(value).__name__}.")
    for index, pair in enumerate(value):
        is_pair = isinstance(pair, (list, tuple)) and len(pair) == len(("capture", "restore"))
        if not is_pair or not all(isinstance(half, str) or callable(half) for half in pair):
            raise InvalidOption(f"{name}[{index}]", "a (capture, restore) pair of functions or of their dotted paths.")
    return tuple((capture, restore) for capture, restore in value)


_QUEUE_READERS: Final[Mapping[str, Reader]] = {
    "timeout": duration(),
    "heartbeat_timeout": duration(),
    "max_attempts": whole(1),
    "backoff": backoff,
    "retention": retention,
    "is_http": flag,
}


def declared_queues(value: Any, name: str) -> dict[str, QueueOptions]:
    """Read `{queue: {option: value}}`; an option of None is inherited."""
    declared = {}
    for queue, options in _mapping(value, name).items():
        check_queue_name(queue, field=name)
        place = f"{name}['{queue}']"
        said = {}
        for key, option in _mapping({} if options is None else options, place).items():
            if key not in _QUEUE_READERS:
                raise InvalidOption(place, f"{key!r} is not an option of a queue{nearest(key, _QUEUE_READERS)}")
            if option is not None:
                said[key] = _QUEUE_READERS[key](option, f"{place}['{key}']")
        declared[queue] = QueueOptions(**said)
    return declared

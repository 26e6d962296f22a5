"""Readers of settings: each turns what a site wrote into the value that is used, or raises `InvalidOption` naming the place.

Text is accepted for every kind of value, because environment variables have nothing else.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
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
_SHOWN_CHARS: Final = 60  # of a value that can't be read
_FINAL_NAMES: Final = [status.value for status in Status if status in FINAL]


def nearest(name: Any, known: Iterable[Any]) -> str:
    """Return `: did you mean 'x'?` if something known is near to `name`, else a full stop."""
    found = difflib.get_close_matches(str(name), [str(each) for each in known], n=1)
    return f": did you mean {found[0]!r}?" if found else "."


class InvalidOptions(InvalidOption):
    """Several options of one setting that can't be used: `each` has them, so that all are mended at once."""

    def __init__(self, each: Sequence[InvalidOption]) -> None:
        self.each = tuple(each)
        first, *rest = self.each
        super().__init__(first.field, " ".join([_message(first), *map(str, rest)]))


def all_of(error: InvalidOption) -> tuple[InvalidOption, ...]:
    """Return every option that `error` is about."""
    return error.each if isinstance(error, InvalidOptions) else (error,)


def _message(error: InvalidOption) -> str:
    return str(error).removeprefix(f"{error.field}: ")


def shown(value: Any) -> str:
    """Return `value` as one would write it, cut to what fits a line."""
    try:
        text = repr(value)
    except Exception:  # somebody else's __repr__, or an int with more digits than Python prints
        return type(value).__name__
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "..."


def read_value(read: Reader, value: Any, name: str) -> Any:
    """Read `value`; an error says what it is, where the reader has not said it."""
    try:
        return read(value, name)
    except InvalidOptions:
        raise
    except InvalidOption as error:
        if error.field != name or shown(value) in str(error):
            raise
        raise InvalidOption(name, f"{_message(error)} It is {shown(value)}.") from None


class _Collector:
    """Reads parts of one setting, and raises in the end for all that can't be read."""

    def __init__(self) -> None:
        self.wrong: list[InvalidOption] = []

    def __enter__(self) -> _Collector:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if error is None and self.wrong:
            raise self.wrong[0] if len(self.wrong) == 1 else InvalidOptions(self.wrong)

    def add(self, place: str, message: str) -> None:
        """Note a part that can't be used."""
        self.wrong.append(InvalidOption(place, message))

    def read(self, read: Reader, value: Any, place: str) -> tuple[Any, bool]:
        """Return what was read, and whether it could be."""
        try:
            return read_value(read, value, place), True
        except InvalidOption as error:
            self.wrong += all_of(error)
            return None, False


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
            raise InvalidOption(name, f"a whole number, not {shown(value)}.")
        if not low <= value <= _MAX_WHOLE:
            raise InvalidOption(name, f"from {low} to {_MAX_WHOLE}, not {shown(value)}.")
        return value

    return read


def flag(value: Any, name: str) -> bool:
    """Read True or False."""
    read = _FLAGS.get(value.strip().lower()) if isinstance(value, str) else value
    if not isinstance(read, bool):
        raise InvalidOption(name, f"True or False, not {shown(value)}.")
    return read


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
        raise InvalidOption(name, f"a dict, not {shown(value)}.")
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
    with _Collector() as collector:
        for status, age in _mapping(value, name).items():
            if status not in _FINAL_NAMES:
                collector.add(name, f"{shown(status)} is not a final status{nearest(status, _FINAL_NAMES)}")
                continue
            seconds, is_read = (None, True) if age is None else collector.read(duration(), age, f"{name}['{status}']")
            if is_read:
                kept[str(status)] = seconds
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


def function(value: Any, name: str) -> Any:
    """Read a function or the dotted path of one; None means none."""
    if _is_off(value):
        return None
    if not callable(value) and not (isinstance(value, str) and "." in value):
        raise InvalidOption(name, "a function or the dotted path of one.")
    return value


def paths(value: Any, name: str) -> tuple[str, ...]:
    """Read a list of dotted paths; text may also be one path, or several with commas."""
    if isinstance(value, str) and not value.lstrip().startswith("["):
        value = [stripped for each in value.split(",") if (stripped := each.strip())]
    value = _decoded(value, name)
    if not isinstance(value, (list, tuple)) or not all(isinstance(path, str) and "." in path for path in value):
        raise InvalidOption(name, "a list of dotted paths.")
    return tuple(value)


def context(value: Any, name: str) -> tuple[tuple[Any, Any], ...]:
    """Read a list of (capture, restore) pairs, each a function or the dotted path of one."""
    value = _decoded(value, name)
    if not isinstance(value, (list, tuple)):
        raise InvalidOption(name, f"a list of (capture, restore) pairs, not {shown(value)}.")
    with _Collector() as collector:
        for index, pair in enumerate(value):
            if not _is_context_pair(pair):
                what = f"a (capture, restore) pair of functions or of their dotted paths, not {shown(pair)}."
                collector.add(f"{name}[{index}]", what)
    return tuple((capture, restore) for capture, restore in value)


def _is_context_pair(pair: Any) -> bool:
    is_pair = isinstance(pair, (list, tuple)) and len(pair) == len(("capture", "restore"))
    return is_pair and all(isinstance(half, str) or callable(half) for half in pair)


_QUEUE_READERS: Final[Mapping[str, Reader]] = {
    "timeout": duration(),
    "heartbeat_timeout": duration(),
    "max_attempts": whole(1),
    "backoff": backoff,
    "retention": retention,
    "is_http": flag,
    "retry_for": paths,
}


def declared_queues(value: Any, name: str) -> dict[str, QueueOptions]:
    """Read `{queue: {option: value}}`; an option of None is inherited."""
    declared = {}
    with _Collector() as collector:
        for queue, options in _mapping(value, name).items():
            _, is_named = collector.read(lambda given, place: check_queue_name(given, field=place), queue, name)
            place = f"{name}['{queue}']"
            given, is_dict = collector.read(_mapping, {} if options is None else options, place)
            if is_named and is_dict:
                declared[queue] = QueueOptions(**_queue_options(given, place, collector))
    return declared


def _queue_options(given: Mapping[Any, Any], place: str, collector: _Collector) -> dict[str, Any]:
    said = {}
    for key, option in given.items():
        if key not in _QUEUE_READERS:
            collector.add(place, f"{shown(key)} is not an option of a queue{nearest(key, _QUEUE_READERS)}")
        elif option is not None:
            read, is_read = collector.read(_QUEUE_READERS[key], option, f"{place}['{key}']")
            if is_read:
                said[key] = read
    return said

"""The options of a task: each is checked where it is declared, and frozen, so that a task stays hashable."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, Final, Literal, NoReturn

from django.db import connections

from . import retry, serializers
from .durations import MAX_SECONDS, parse_duration
from .exceptions import InvalidArguments, InvalidOption
from .related import reference
from .statuses import FINAL
from .unique import ON_CONFLICT, UNTIL, UniqueBy, check_key

PRIORITY_MIN: Final = -100
PRIORITY_MAX: Final = 100
MAX_DESCRIPTION: Final = 255
MAX_TAG: Final = 100
#: The greatest value of an integer column on every database.
MAX_INTEGER: Final = 2**31 - 1
#: No moment before this: none is meant, and some databases store what Python can't read back.
EARLIEST: Final = datetime(1970, 1, 1, tzinfo=UTC)

SERIALIZERS: Final = ("json", "typed")


class Unset(Enum):
    """The type of `UNSET`."""

    UNSET = "unset"

    def __repr__(self) -> str:
        return "UNSET"


#: "This option says nothing", where None says something: `max_attempts=None` means no bound.
UNSET: Final = Unset.UNSET


class FrozenDict(dict[str, Any]):
    """A dict that can't be changed, and can be hashed. Make one with `freeze`."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[Any, ...]:
        return (FrozenDict, (dict(self),))

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError("The options of a task can't be changed: make another task with using().")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse


NOTHING: Final = FrozenDict()


def freeze(value: Any) -> Any:
    """Return `value` (JSON, or a tuple) with dicts as `FrozenDict` and lists as tuples, to any depth."""
    if isinstance(value, Mapping):
        return FrozenDict({key: freeze(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return tuple(freeze(item) for item in value)
    return value


def seconds(value: Any, field: str) -> float:
    """Return a duration (see `durations.parse_duration`) in seconds; numbers may be negative. Raises `InvalidOption`."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, int | float) and not isinstance(value, bool) and value < 0:
        return -parse_duration(-value, field=field)
    return parse_duration(value, field=field)


def limit(value: Any, field: str) -> float | None:
    """Return a limit in seconds; None stays None ("as the queue says"), 0 means no limit. Raises `InvalidOption`."""
    return None if value is None else parse_duration(value, field=field)


def moment(value: Any, field: str) -> datetime | timedelta | None:
    """Return when something is due: an aware datetime, or a timedelta from now by the database's clock; None stays None.

    Takes those two, numbers of seconds, and strings such as "1h30m". Raises `InvalidOption` for a naive datetime, since it
    says of no time zone, and for one further ahead than a hundred years.
    """
    if value is None:
        return None
    if isinstance(value, datetime):
        return check_moment(value, field)
    return timedelta(seconds=seconds(value, field))


def check_moment(value: datetime, field: str) -> datetime:
    """Return `value` if it is aware, not before 1970 and at most a hundred years ahead. Else raise `InvalidOption`.

    So every database can store it, and Python can read it back in any time zone.
    """
    if value.tzinfo is None or value.utcoffset() is None:
        raise InvalidOption(field, f"must be an aware datetime, but {value!r} has no time zone.")
    if (value - datetime.now(UTC)).total_seconds() > MAX_SECONDS:
        raise InvalidOption(field, f"{value.isoformat()} is out of range: a hundred years ahead are the most.")
    if value < EARLIEST:
        raise InvalidOption(field, f"{value.isoformat()} is out of range: the year 1970 is the earliest.")
    return value


def _count(value: Any, field: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidOption(field, f"must be a whole number, not {value!r}.")
    if not 1 <= value <= MAX_INTEGER:
        raise InvalidOption(field, f"must be at least 1, and at most {MAX_INTEGER}: {value!r} is not. None means no bound.")
    return value


def _max_attempts(value: Any, field: str) -> int | Unset | None:
    return value if value is None or value is UNSET else _count(value, field)


def _max_deaths(value: Any, field: str) -> int | None:
    return None if value is None else _count(value, field)


def _backoff(value: Any, field: str) -> Any:
    return value if callable(value) else freeze(retry.normalise_backoff(value, field=field))


def _retry_for(value: Any, field: str) -> tuple[type[BaseException], ...]:
    classes = (value,) if isinstance(value, type) else tuple(value) if isinstance(value, Iterable) else (value,)
    for item in classes:
        if not (isinstance(item, type) and issubclass(item, BaseException)):
            raise InvalidOption(field, f"must hold exception classes, but {item!r} is none.")
    return classes


def shown(value: Any, most: int = 60) -> str:
    """Return `value` as a message shows it, cut to `most` characters: whatever somebody passed, the message stays a line."""
    text = repr(value)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _tags(value: Any, field: str) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidOption(field, f"must be a list of strings, not {value!r}.")
    tags = tuple(dict.fromkeys(value))
    for tag in tags:
        if not isinstance(tag, str) or not tag.strip() or len(tag) > MAX_TAG:
            raise InvalidOption(field, f"{shown(tag)} is no tag: use strings of 1 to {MAX_TAG} characters.")
    _json(list(tags), field)
    return tags


def _metadata(value: Any, field: str) -> FrozenDict:
    if not isinstance(value, Mapping):
        raise InvalidOption(field, f"must be a dict, not {value!r}.")
    result: FrozenDict = freeze(_json(dict(value), field))
    return result


def _json(value: Any, field: str) -> Any:
    try:
        return serializers.to_json(value, path=field)
    except TypeError as error:
        raise InvalidOption(field, str(error).removeprefix(f"{field}: ")) from error


def _retention(value: Any, field: str) -> FrozenDict | None:
    """One duration for every final status, or a dict from final status to duration (None: keep for ever)."""
    if value is None:
        return None
    known = sorted(status.value for status in FINAL)
    if not isinstance(value, Mapping):
        value = dict.fromkeys(known, value)
    if unknown := sorted(str(key) for key in value if key not in known):
        raise InvalidOption(field, f"{', '.join(unknown)}: no final status. Use {', '.join(known)}.")
    return FrozenDict({str(key): limit(item, field) for key, item in value.items()})


def _description(value: Any, field: str) -> str:
    if not isinstance(value, str) or len(value) > MAX_DESCRIPTION:
        raise InvalidOption(field, f"must be a string of {MAX_DESCRIPTION} characters at most.")
    return str(_json(value, field))


def _serializer(value: Any, field: str) -> str:
    if value not in SERIALIZERS:
        raise InvalidOption(field, f"{value!r} is unknown: use one of {', '.join(SERIALIZERS)}.")
    return str(value)


def _flag(value: Any, field: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidOption(field, f"must be True or False, not {value!r}.")
    return value


def _flag_or_alias(value: Any, field: str) -> bool | str:
    if not isinstance(value, str):
        return _flag(value, field)
    if value not in connections.settings:
        known = ", ".join(sorted(connections.settings))
        raise InvalidOption(field, f"there is no database {shown(value)}: use True, or one of {known}.")
    return value


def _callable(value: Any, field: str) -> Callable[..., Any] | None:
    if value is not None and not callable(value):
        raise InvalidOption(field, f"must be a function, not {value!r}.")
    result: Callable[..., Any] | None = value
    return result


def _unique(value: Any, field: str) -> Any:
    if value is None or isinstance(value, UniqueBy):
        return value
    if value == "args":
        return UniqueBy()
    if isinstance(value, str):
        try:
            return check_key(value, field)
        except InvalidArguments as error:
            raise InvalidOption(field, str(error).partition(": ")[2]) from None
    if callable(value):
        return value
    raise InvalidOption(
        field, f'"args", a key, a function of the arguments that returns a key, or unique_by(...); not {shown(value)}.'
    )


def _related(value: Any, field: str) -> Any:
    if callable(value) and not hasattr(value, "_meta"):
        return value
    found = reference(value, field)
    return None if found is None else FrozenDict(found)


def _one_of(*known: str) -> Callable[[Any, str], str]:
    def check(value: Any, field: str) -> str:
        if value not in known:
            raise InvalidOption(field, f"one of {', '.join(map(repr, known))}, not {shown(value)}.")
        return str(value)

    return check


#: Option -> the function that checks and freezes its value.
CHECKS: Final[Mapping[str, Callable[[Any, str], Any]]] = {
    "max_attempts": _max_attempts,
    "backoff": _backoff,
    "retry_for": _retry_for,
    "timeout": limit,
    "timeout_grace": limit,
    "heartbeat_timeout": limit,
    "cpu_timeout": limit,
    "start_by": moment,
    "max_deaths": _max_deaths,
    "retention": _retention,
    "tags": _tags,
    "metadata": _metadata,
    "serializer": _serializer,
    "atomic": _flag,
    "isolate": _flag,
    "on_success": _callable,
    "on_failure": _callable,
    "enqueue_on_commit": _flag_or_alias,
    "description": _description,
    "related": _related,
    "unique": _unique,
    "unique_until": _one_of(*UNTIL),
    "on_conflict": _one_of(*ON_CONFLICT),
}

#: Options of the function and not of a job: they are not stored with it, so a worker takes them from the declared task.
DECLARED: Final = frozenset({"retry_for", "on_success", "on_failure", "atomic", "isolate"})


def refuse_declared(changes: Mapping[str, Any]) -> None:
    """Raise `InvalidOption` if `changes`, meant for single jobs, has an option that no job carries."""
    for name, value in changes.items():
        if name in DECLARED:
            raise InvalidOption(name, "declare it in @job: it belongs to the function, and using() changes what a job carries.")
        if name == "backoff" and callable(value):
            raise InvalidOption(name, "declare a function in @job: a job carries seconds, a list or a dict.")


SerializerName = Literal["json", "typed"]

"""Read what a body or a query says into the values that the rest of the package takes. Each raises `InvalidOption` or 400."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from .. import options
from ..conf import readers
from ..durations import parse_duration
from ..exceptions import InvalidOption
from ..retry import CALLABLE, normalise_backoff
from ..statuses import FINAL, Status

#: ocypod's names, taken for ours.
STATUS_WORDS: Final[Mapping[str, str]] = {"queued": Status.READY.value, "completed": Status.SUCCEEDED.value}
MAX_UNIQUE_KEY: Final = 128
_DATE: Final = re.compile(r"\s*[0-9]{4}-")


def status_word(value: Any) -> str:
    """Return a status by our name. Raises `InvalidOption` for a word that is none."""
    if isinstance(value, str):
        value = STATUS_WORDS.get(value, value)
        if value in set(Status):
            return str(value)
    known = [*Status, *STATUS_WORDS]
    raise InvalidOption("status", f"{str(value)[:50]!r} is no status{readers.nearest(str(value)[:50], known)}")


def date(value: Any, field: str) -> datetime:
    """Return a moment in RFC 3339 with its offset. Raises `InvalidOption`."""
    if not isinstance(value, str):
        raise InvalidOption(field, "a time in RFC 3339, such as 2030-01-31T12:00:00Z.")
    try:
        moment = datetime.fromisoformat(value.strip())
    except ValueError:
        raise InvalidOption(field, f"{value[:50]!r} is no time in RFC 3339, such as 2030-01-31T12:00:00Z.") from None
    if moment.tzinfo is None or moment.utcoffset() is None:
        raise InvalidOption(field, f"{value[:50]!r} has no offset from UTC: end it with Z, or +02:00.")
    try:
        moment.timestamp()
        return moment.astimezone(tz=UTC)
    except (OverflowError, ValueError):
        raise InvalidOption(field, f"{value[:50]!r} is out of range.") from None


def moment(value: Any, field: str) -> datetime | timedelta | None:
    """Return when something is due: RFC 3339, or from now on a number of seconds or a duration; None stays None."""
    if value is None:
        return None
    if isinstance(value, str) and _DATE.match(value):
        checked: datetime | timedelta | None = options.moment(date(value, field), field)
        return checked
    return timedelta(seconds=parse_duration(value, field=field))


def whole(value: Any, field: str, low: int, high: int = options.MAX_INTEGER) -> int:
    """Return a whole number within bounds."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidOption(field, f"a whole number from {low} to {high}, not {str(value)[:50]!r}.")
    return value


def flag(value: Any, field: str) -> bool:
    """Return true or false, from JSON or from a query."""
    if isinstance(value, str):
        value = {"true": True, "1": True, "false": False, "0": False}.get(value.strip().lower())
    if not isinstance(value, bool):
        raise InvalidOption(field, "true or false.")
    return value


def text(value: Any, field: str, limit: int) -> str:
    """Return text of at most `limit` characters."""
    if not isinstance(value, str):
        raise InvalidOption(field, "text.")
    if len(value) > limit:
        raise InvalidOption(field, f"at most {limit} characters, not {len(value)}.")
    return value


def unique_key(value: Any, field: str = "unique_key") -> str | None:
    """Return a unique key; None stays None."""
    if value is not None and not text(value, field, MAX_UNIQUE_KEY).strip():
        raise InvalidOption(field, "an empty key: leave it out.")
    return value  # type: ignore[no-any-return]


def uuid(value: Any, field: str) -> UUID:
    """Return an id."""
    try:
        return UUID(value if isinstance(value, str) else "")
    except ValueError:
        raise InvalidOption(field, f"{str(value)[:50]!r} is no id.") from None


def retention(value: Any, field: str) -> dict[str, float | None]:
    """Return `{final status: seconds}` from one duration for all, or from a dict; null and 0 are for ever."""
    statuses = {status.value for status in FINAL}
    if not isinstance(value, Mapping):
        value = dict.fromkeys(sorted(statuses), value)
    kept = {STATUS_WORDS.get(name, name): age for name, age in value.items()}
    if len(kept) < len(value):
        raise InvalidOption(field, "'completed' is another word for 'succeeded': say one of them.")
    if unknown := [name for name in kept if name not in statuses]:
        raise InvalidOption(field, f"{unknown[0][:50]!r} is no final status{readers.nearest(unknown[0], statuses)}")
    return {name: duration_or_none(age, f"{field}.{name}") for name, age in kept.items()}


def duration_or_none(value: Any, field: str) -> float | None:
    """Return seconds; null and 0 are None."""
    return None if value is None else parse_duration(value, field=field) or None


def backoff(value: Any, field: str) -> Any:
    """Return a back-off in normal form; an empty list, as ocypod's programs send it, says nothing."""
    if value == [] or value is None:
        return None
    if value == CALLABLE:
        raise InvalidOption(field, "a function belongs to a task: use seconds, a list or an object.")
    return normalise_backoff(value, field=field)


def attempts(data: Mapping[str, Any]) -> int | None:
    """Return the greatest number of starts from `max_attempts` or `retries`, whichever is there; null is no bound."""
    if "retries" in data:
        value = data["retries"]
        return None if value is None else whole(value, "retries", 0, options.MAX_INTEGER - 1) + 1
    value = data["max_attempts"]
    return None if value is None else whole(value, "max_attempts", 1)


#: Two names for one thing: only one of them may be said.
SYNONYMS: Final = (("retries", "max_attempts"), ("retry_delays", "backoff"))


def limits(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `data` says of the options that jobs and queues share, in seconds and normal form, by the columns' names.

    What it does not mention is left out. A timeout of null is None ("as the queue says"), one of 0 is 0.0 ("off").
    """
    for names in SYNONYMS:
        if all(name in data for name in names):
            raise InvalidOption(names[0], f"is another word for {names[1]}: say one of them.")
    said: dict[str, Any] = {name: options.limit(data[name], name) for name in ("timeout", "heartbeat_timeout") if name in data}
    if "retries" in data or "max_attempts" in data:
        said["max_attempts"] = attempts(data)
    for name in ("retry_delays", "backoff"):
        if name in data:
            said["backoff"] = backoff(data[name], name)
    if data.get("retention") is not None:
        said["retention"] = retention(data["retention"], "retention")
    elif "retention" in data:
        said["retention"] = None
    if "expires_after" in data:
        if Status.SUCCEEDED in (said.get("retention") or {}):
            raise InvalidOption("expires_after", "is another word for retention.succeeded: say one of them.")
        age = duration_or_none(data["expires_after"], "expires_after")
        said["retention"] = {**(said.get("retention") or {}), Status.SUCCEEDED.value: age}
    return said


def merged_retention(data: Mapping[str, Any], said: dict[str, Any], own: Mapping[str, float | None] | None) -> dict[str, Any]:
    """Return `said` (what `limits` made of `data`) where `expires_after` alone changes one status of the retention `own`."""
    if "expires_after" not in data or data.get("retention") is not None:
        return said
    return {**said, "retention": {**(own or {}), **said["retention"]}}


#: The names that `limits` reads.
LIMITS: Final = (
    "timeout",
    "heartbeat_timeout",
    "retries",
    "max_attempts",
    "retry_delays",
    "backoff",
    "retention",
    "expires_after",
)


def tags(value: Any, field: str = "tags") -> list[str]:
    """Return tags, each once; null is none."""
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(tag, str) for tag in value):
        raise InvalidOption(field, "a list of text.")
    return list(options.CHECKS["tags"](value, field))


#: What describes a job, besides its limits.
DESCRIPTION: Final = ("tags", "priority", "description", "metadata", "run_after", "start_by")


def job_options(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that `data` says, checked, by the columns' names; what it does not mention is left out."""
    said = limits(data)
    if "tags" in data:
        said["tags"] = tags(data["tags"])
    if "priority" in data:
        said["priority"] = whole(data["priority"], "priority", options.PRIORITY_MIN, options.PRIORITY_MAX)
    for name in ("description", "metadata"):
        if name in data:
            said[name] = options.CHECKS[name](data[name], name)
    for name in ("run_after", "start_by"):
        if name in data:
            said[name] = moment(data[name], name)
    return said

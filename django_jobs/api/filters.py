"""Which jobs a request means: the same words in a list's query and in the filter of a bulk verb."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from django.http import QueryDict

from ..conf import readers
from ..exceptions import InvalidOption
from ..models import AttemptOutcome
from ..models.selection import ALL, EVERYTHING, HTTP, OPEN, OPEN_SEGMENTS, PARKED, SEGMENTS, JobFilter, Segment
from ..options import MAX_TAG
from ..queues import check_queue_name
from ..statuses import FINAL, LIVE, Status
from . import values
from .errors import ApiError

#: Words of `?status=` that are not a status.
ENDED: Final = "ended"
FILTERS: Final = (
    "status",
    "ended",
    "queue",
    "task",
    "tag",
    "since",
    "until",
    "unique_key",
    "error",
    "last_outcome",
    "batch",
)
_MAX_TEXT: Final = 255
_WORDS: Final = (ENDED, OPEN, ALL, PARKED, HTTP)
#: A ready job is in one of these.
_READY: Final = (SEGMENTS["ready"], SEGMENTS[HTTP], SEGMENTS[PARKED])


def of_query(query: QueryDict) -> dict[str, Any]:
    """Return the filters of a query as a body has them. Raises 400 for one that is there twice (`status` may be)."""
    data: dict[str, Any] = {}
    for name in FILTERS:
        if name not in query:
            continue
        found = query.getlist(name)
        if name == "status":
            data[name] = [word.strip() for each in found for word in each.split(",")]
        elif len(found) > 1:
            raise InvalidOption(name, "may be given once.")
        elif name in ("since", "until"):
            data[name] = found[0].replace(" ", "+")  # what a plus becomes that nobody has escaped
        else:
            data[name] = found[0]
    return data


def of_body(data: Any) -> dict[str, Any]:
    """Check the keys of a bulk verb's filter. Raises 400."""
    if not isinstance(data, dict):
        raise InvalidOption("filter", "an object.")
    for name, value in data.items():
        if value is None:
            raise InvalidOption(f"filter.{name[:50]}", "null chooses nothing: leave it out.")
        if name not in FILTERS:
            raise ApiError(
                400,
                "invalid",
                f"filter.{name[:50]}: there is no such filter{readers.nearest(name, FILTERS)}",
                {f"filter.{name[:50]}": f"there is no such filter{readers.nearest(name, FILTERS)}"},
            )
    return data


class Choice:
    """A filter that has been read: the parts of the table in which to look, and the condition on the rest."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        statuses, words = _statuses(data)
        self.statuses = statuses  # None: any
        self._words = words
        self.filter = JobFilter(
            queue=_queue(data),
            task=_text(data, "task"),
            error_class=_text(data, "error"),
            since=_date(data, "since"),
            until=_date(data, "until"),
            tag=_tag(data),
            unique_key=values.unique_key(data.get("unique_key")) or "",
            last_outcome=_outcome(data),
            batch=values.uuid(data["batch"], "batch") if "batch" in data else None,
        )

    @property
    def parts(self) -> tuple[Segment, ...]:
        """The parts of the table in which to look, each in the order of an index."""
        if self.statuses is None and not self._words:
            return (EVERYTHING,)
        found: dict[str, Segment] = {}
        for status in self.statuses or ():
            for segment in _READY if status == Status.READY else (SEGMENTS[status],):
                found[segment.name] = segment
        for word in self._words:
            found[word] = SEGMENTS[word]
        order = [segment.name for segment in OPEN_SEGMENTS] + sorted(status.value for status in FINAL)
        return tuple(sorted(found.values(), key=lambda segment: order.index(segment.name)))


def _statuses(data: Mapping[str, Any]) -> tuple[frozenset[str] | None, frozenset[str]]:
    """Return the statuses that are meant (None: any), and the lists that are not a status."""
    asked = data.get("status")
    chosen: set[str] | None = None
    words: set[str] = set()
    if asked is not None:
        chosen = set()
        for word in [asked] if isinstance(asked, str) else _list(asked):
            match word:
                case "ended":
                    chosen |= {status.value for status in FINAL}
                case "open":
                    chosen |= {status.value for status in LIVE}
                case "all":
                    chosen |= {status.value for status in Status}
                case "parked" | "http":
                    words.add(word)
                case _:
                    chosen.add(_status(word))
    if "ended" in data:
        bound = FINAL if values.flag(data["ended"], "ended") else LIVE
        names = {status.value for status in bound}
        chosen = names if chosen is None else chosen & names
        words = words if bound is LIVE else set()
    if Status.READY in (chosen or ()):
        words = set()  # they are parts of it
    if chosen is not None and chosen == set(Status):
        chosen, words = None, set()
    return None if chosen is None else frozenset(chosen), frozenset(words)


def _status(word: Any) -> str:
    try:
        return values.status_word(word)
    except InvalidOption:
        known = [*_WORDS, *Status, *values.STATUS_WORDS]
        raise InvalidOption("status", f"{str(word)[:50]!r} is no status{readers.nearest(str(word)[:50], known)}") from None


def _list(value: Any) -> Sequence[Any]:
    if not isinstance(value, list) or not value:
        raise InvalidOption("status", "text, or a list of it.")
    return value


def _text(data: Mapping[str, Any], name: str) -> str:
    if name not in data:
        return ""
    found = values.text(data[name], name, _MAX_TEXT)
    if not found:
        raise InvalidOption(name, "is empty: leave it out.")
    return found


def _date(data: Mapping[str, Any], name: str) -> datetime | None:
    if name not in data:
        return None
    found = values.date(data[name], name)
    if found.timestamp() < 0:
        raise InvalidOption(name, "is before 1970.")
    return found


def _queue(data: Mapping[str, Any]) -> str:
    if "queue" not in data:
        return ""
    name = data["queue"]
    check_queue_name(name.removesuffix(".*") if isinstance(name, str) else name, field="queue")
    return str(name)


def _tag(data: Mapping[str, Any]) -> str:
    if "tag" not in data:
        return ""
    tag = values.text(data["tag"], "tag", MAX_TAG)
    if not tag.strip():
        raise InvalidOption("tag", "an empty tag is none.")
    return tag


def _outcome(data: Mapping[str, Any]) -> str:
    if "last_outcome" not in data:
        return ""
    found = values.text(data["last_outcome"], "last_outcome", _MAX_TEXT)
    if found not in AttemptOutcome.values:
        raise InvalidOption("last_outcome", f"{found[:50]!r} is none of {', '.join(AttemptOutcome.values)}.")
    return found

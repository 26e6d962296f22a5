"""The serializer `"typed"`: JSON that also carries the types which Python programs pass around, and gives them back.

A value that JSON lacks becomes `{"$type": name, "value": ...}`; a dict that could be taken for one, or whose keys are not all
text, becomes a list of pairs under the name "dict". Carried: tuple, set, frozenset, datetime (with its zone's name), date, time,
timedelta, Decimal, UUID, bytes, whole numbers of any size, enums, model instances.

Nothing is imported because a row names it. An enum comes back only if its class was registered (`register_enum`, or by being
in the annotations of a task with this serializer); a model by Django's own registry, from its label, database and primary key.
"""

from __future__ import annotations

import base64
import typing
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from typing import Any, Final, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

from django.apps import apps
from django.core.exceptions import ObjectDoesNotExist
from django.db import DEFAULT_DB_ALIAS, models
from django.utils.connection import ConnectionDoesNotExist

from .exceptions import InvalidOption, JobsError, RelatedObjectGone
from .serializers import Copier, Refused, dumps

TAG: Final = "$type"
E = TypeVar("E", bound=type[Enum])

_enums: dict[str, type[Enum]] = {}


def enum_name(enum: type[Enum]) -> str:
    """Return the name under which an enum's class is stored."""
    return f"{enum.__module__}.{enum.__qualname__}"


def register_enum(enum: E) -> E:
    """Let members of this class travel with jobs; a class decorator. The class must be registered where jobs run, too."""
    if "<locals>" in enum.__qualname__:
        raise InvalidOption("enum", f"{enum_name(enum)} is made in a function: another process would not find it.")
    _enums[enum_name(enum)] = enum
    return enum


def register_annotated_enums(function: Callable[..., Any]) -> None:
    """Register every enum among the annotations of `function`, also within `list[...]`, `X | None` and the like."""
    try:
        hints = typing.get_type_hints(function)
    except Exception:  # annotations are free text: one that can't be resolved names no enum for us
        return
    pending = list(hints.values())
    while pending:
        hint = pending.pop()
        if isinstance(hint, type) and issubclass(hint, Enum) and "<locals>" not in hint.__qualname__:
            register_enum(hint)
        pending.extend(typing.get_args(hint))


_NODES_OF_A_TAG: Final = 12  # what a tag adds to the estimate of the size: two keys, two names


class TypedCopier(Copier):
    """Makes the JSON of typed values."""

    def tagged(self, name: str, value: Any, **more: Any) -> dict[str, Any]:
        """Return the JSON of a value that JSON lacks."""
        self.nodes += _NODES_OF_A_TAG
        return {TAG: name, "value": value, **more}

    def large(self, value: int, depth: int) -> Any:
        """Carry a whole number of any size as text."""
        self.descend(depth)
        try:
            return self.tagged("int", self.text(str(value)))
        except ValueError:
            raise Refused("a whole number of more than 4300 digits") from None

    def mapping(self, value: dict[Any, Any], depth: int) -> dict[str, Any]:
        """Copy a dict, as pairs where it could be misread."""
        if TAG not in value and all(type(key) is str for key in value):
            return super().mapping(value, depth)
        self.descend(depth)
        pairs = []
        for key, item in value.items():
            try:
                pairs.append([self.copy(key, depth + 3), self.copy(item, depth + 3)])
            except Refused as refused:
                raise refused.within(f"[{'...' if type(key) is not str else dumps(key)}]") from None
        self.descend(depth + 2)
        return self.tagged("dict", pairs)

    def other(self, value: Any, kind: type, depth: int) -> Any:
        """Tag what JSON lacks."""
        self.descend(depth)
        if issubclass(kind, Enum):
            return self.enum(value, kind, depth)
        for base, name, encode in _SCALARS:
            if issubclass(kind, base):
                return self.scalar(value, kind, name, encode)
        if issubclass(kind, (set, frozenset)):
            members = self.items(list(value), depth + 1)
            return self.tagged("set" if issubclass(kind, set) else "frozenset", sorted(members, key=dumps))
        if issubclass(kind, tuple):
            return self.tagged("tuple", self.items(tuple.__iter__(value), depth + 1))
        if issubclass(kind, models.Model):
            return self.instance(value, kind, depth)
        return super().other(value, kind, depth)

    def scalar(self, value: Any, kind: type, name: str, encode: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        """Tag a value that is one text or a few numbers."""
        try:
            encoded = encode(value)
        except Refused:
            raise
        except Exception as error:  # a subclass, or a time zone, that is not what it says
            raise Refused(f"a {kind.__qualname__} that can't be written down ({type(error).__name__})") from None
        if isinstance(encoded["value"], str):
            self.text(encoded["value"])
        return self.tagged(name, **encoded)

    def enum(self, value: Any, kind: type[Enum], depth: int) -> dict[str, Any]:
        """Tag a member of a registered enum: by name, a flag by value."""
        name = enum_name(kind)
        if _enums.get(name) is not kind:
            raise Refused(f"a member of {name}, which is not registered: use register_enum, or pass its value")
        if issubclass(kind, Flag):
            return self.tagged("enum", self.copy(value.value, depth + 1), enum=name)
        return self.tagged("enum", self.text(value.name), enum=name)

    def instance(self, value: Any, kind: type[models.Model], depth: int) -> dict[str, Any]:
        """Tag a model instance: label, database, primary key."""
        if value.pk is None or value._state.adding:
            raise Refused(f"a {kind._meta.label} that is not saved: a job could not find it")
        database = value._state.db or DEFAULT_DB_ALIAS
        return self.tagged("model", self.copy(value.pk, depth + 1), model=kind._meta.label, database=database)


def _datetime(value: datetime) -> dict[str, Any]:
    encoded: dict[str, Any] = {"value": datetime.isoformat(value)}
    if value.fold:
        encoded["fold"] = 1
    zone = value.tzinfo
    if isinstance(zone, ZoneInfo) and zone.key:
        encoded["zone"] = zone.key
    return encoded


def _time(value: time) -> dict[str, Any]:
    if value.tzinfo is not None and value.utcoffset() is None:
        raise Refused("a time in a zone without a date has no offset: pass a datetime")
    return {"value": time.isoformat(value), **({"fold": 1} if value.fold else {})}


#: (type, name, to JSON), a subclass before its base: a datetime is a date.
_SCALARS: Final[tuple[tuple[type, str, Callable[[Any], dict[str, Any]]], ...]] = (
    (datetime, "datetime", _datetime),
    (date, "date", lambda value: {"value": date.isoformat(value)}),
    (time, "time", _time),
    (timedelta, "timedelta", lambda value: {"value": f"{value.days} {value.seconds} {value.microseconds}"}),
    (Decimal, "decimal", lambda value: {"value": Decimal.__str__(value)}),
    (UUID, "uuid", lambda value: {"value": UUID.__str__(value)}),
    (bytes, "bytes", lambda value: {"value": base64.b64encode(value).decode("ascii")}),
)


def restored(value: Any) -> Any:
    """Return the value that this JSON stands for. Raises `RelatedObjectGone` or `JobsError`."""
    if isinstance(value, list):
        return [restored(item) for item in value]
    if not isinstance(value, dict):
        return value
    if TAG not in value:
        return {key: restored(item) for key, item in value.items()}
    try:
        return _RESTORERS[value[TAG]](value)
    except JobsError:
        raise
    except Exception as error:
        raise JobsError(f"A stored value of type {value[TAG]!r} can't be read: {type(error).__name__}.") from error


def _restored_datetime(value: dict[str, Any]) -> datetime:
    moment = datetime.fromisoformat(value["value"]).replace(fold=value.get("fold", 0))
    if "zone" not in value:
        return moment
    try:
        zone = ZoneInfo(value["zone"])
    except Exception:  # a host that lacks this zone still has the offset
        return moment
    local = moment.replace(tzinfo=zone)
    # Should this host's rules differ from those of the host that wrote it, the moment counts, not the clock on the wall.
    return local if local.utcoffset() == moment.utcoffset() else moment.astimezone(zone)


def _restored_enum(value: dict[str, Any]) -> Enum:
    enum = _enums.get(value["enum"])
    if enum is None:
        raise JobsError(f"The enum {value['enum']} is not registered in this process: see register_enum.")
    return enum(restored(value["value"])) if issubclass(enum, Flag) else enum[value["value"]]


def _restored_instance(value: dict[str, Any]) -> models.Model:
    label, database, pk = value["model"], value["database"], restored(value["value"])
    try:
        found: models.Model = apps.get_model(label)._base_manager.using(database).get(pk=pk)
    except (LookupError, ObjectDoesNotExist, ConnectionDoesNotExist) as error:
        raise RelatedObjectGone(f"{label} {pk} on the database {database!r} no longer exists.") from error
    return found


def _restored_all(value: dict[str, Any]) -> Iterable[Any]:
    return (restored(item) for item in value["value"])


_RESTORERS: Final[dict[str, Callable[[dict[str, Any]], Any]]] = {
    "int": lambda value: int(value["value"]),
    "dict": lambda value: {restored(key): restored(item) for key, item in value["value"]},
    "tuple": lambda value: tuple(_restored_all(value)),
    "set": lambda value: set(_restored_all(value)),
    "frozenset": lambda value: frozenset(_restored_all(value)),
    "datetime": _restored_datetime,
    "date": lambda value: date.fromisoformat(value["value"]),
    "time": lambda value: time.fromisoformat(value["value"]).replace(fold=value.get("fold", 0)),
    "timedelta": lambda value: timedelta(*map(int, value["value"].split())),
    "decimal": lambda value: Decimal(value["value"]),
    "uuid": lambda value: UUID(value["value"]),
    "bytes": lambda value: base64.b64decode(value["value"], validate=True),
    "enum": _restored_enum,
    "model": _restored_instance,
}

"""Arguments and results to JSON and back, strictly: what is accepted is stored, and comes back, the same on every database.

The rules of `"json"`:

* None, True, False, text, lists and dicts with text for keys. A tuple becomes a list. Subclasses of these (a `StrEnum`, a
  `SafeString`, a `defaultdict`) become what they are made of.
* Text without NUL (PostgreSQL refuses it) and without lone surrogates (nobody can encode them).
* Whole numbers of 64 bits, signed: a larger one is a float to MySQL. Mind that JavaScript is exact up to 2**53 only.
* Finite floats. They are written with a decimal point, for PostgreSQL would give `1e+16` back as a whole number; -0.0 may come
  back as 0.0.
* At most `MAX_DEPTH` levels of lists and dicts: MariaDB takes no more. At most as many bytes as the settings allow.

Anything else is refused with the path of the value, before any SQL. `"typed"` carries more types, see `typed`.
"""

from __future__ import annotations

import re
from decimal import Decimal
from json import JSONEncoder
from typing import Any, Final

from . import conf
from .exceptions import InvalidArguments, InvalidResult

#: Levels of lists and dicts, the outermost included. MariaDB's JSON_VALID says no to 32.
MAX_DEPTH: Final = 31
INT_MIN, INT_MAX = -(2**63), 2**63 - 1
SERIALIZERS: Final = ("json", "typed")

_MAX_BYTES_PER_CHAR: Final = 6  # \u0001
_MAX_BYTES_PER_NODE: Final = 26  # -2.2250738585072014e-308 and a comma
_LARGE_FLOAT: Final = 1e16  # from here on repr() has an exponent, and `dumps` writes all digits: 309 and a sign and a point
_MAX_CHARS_OF_LARGE_FLOAT: Final = 312 // _MAX_BYTES_PER_CHAR
_HINTS: Final = {
    "datetime": "pass its isoformat(), or use serializer='typed'",
    "date": "pass its isoformat(), or use serializer='typed'",
    "time": "pass its isoformat(), or use serializer='typed'",
    "timedelta": "pass its total_seconds(), or use serializer='typed'",
    "Decimal": "pass it as text, or use serializer='typed'",
    "UUID": "pass it as text, or use serializer='typed'",
    "bytes": "pass it as base64 text, or use serializer='typed'",
    "set": "pass a sorted list, or use serializer='typed'",
    "frozenset": "pass a sorted list, or use serializer='typed'",
    "generator": "pass a list",
    "QuerySet": "pass a list of primary keys",
    "__proxy__": "pass str() of a lazy text",
}


class Refused(Exception):
    """A value that can't be stored; gathers its path on the way out. Inside this package only."""

    def __init__(self, why: str) -> None:
        self.why = why
        self.steps: list[str] = []
        super().__init__(why)

    def within(self, step: str) -> Refused:
        """Note that the value is at `step` of its container."""
        self.steps.append(step)
        return self

    def path(self, root: str) -> str:
        """Return the whole path, from `root`."""
        return root + "".join(reversed(self.steps))


class Copier:
    """Makes a deep copy that is plain JSON. One object a value, for it counts what it has seen."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.nodes = 0
        self.chars = 0

    def copy(self, value: Any, depth: int = 1) -> Any:
        """Return `value` as JSON; raise `Refused`. `depth` is the level that a container here would be on."""
        kind = type(value)
        self.nodes += 1
        if kind is str:
            return self.text(value)
        if kind is int:
            if not INT_MIN <= value <= INT_MAX:
                return self.large(value, depth)
            return value
        if value is None or kind is bool:
            return value
        if kind is float:
            return self.number(value)
        if kind is list:
            return self.items(value, depth)
        if kind is dict:
            return self.mapping(value, depth)
        return self.other(value, kind, depth)

    def text(self, value: str) -> str:
        """Check a text."""
        self.chars += len(value)
        if self.chars > self.max_bytes:
            raise self.too_large()
        if "\x00" in value:
            raise Refused("text with a NUL character can't be stored: take it out, or encode the text")
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise Refused("text with a lone surrogate can't be stored: decode it another way, or encode it") from None
        return value

    def number(self, value: float) -> float:
        """Check a float."""
        if value - value != 0.0:  # NaN and the infinities
            raise Refused(f"{value} is not a number that JSON has: use None, or text")
        if abs(value) >= _LARGE_FLOAT:
            self.chars += _MAX_CHARS_OF_LARGE_FLOAT
        return value

    def large(self, value: int, depth: int) -> Any:
        """Answer to a whole number of more than 64 bits."""
        raise Refused("a whole number of more than 64 bits can't be stored on every database: pass it as text")

    def items(self, value: Any, depth: int) -> list[Any]:
        """Copy a sequence."""
        self.descend(depth)
        copied = []
        for item in value:
            try:
                copied.append(self.copy(item, depth + 1))
            except Refused as refused:
                raise refused.within(f"[{len(copied)}]") from None
        return copied

    def mapping(self, value: dict[Any, Any], depth: int) -> dict[str, Any]:
        """Copy a dict."""
        self.descend(depth)
        copied: dict[str, Any] = {}
        for key, item in value.items():
            if type(key) is not str:
                key = self.key(key)
            try:
                self.text(key)
                plain = self.copy(item, depth + 1)
            except Refused as refused:
                raise refused.within(f"[{_shown(key)}]") from None
            if key in copied:
                raise Refused(f"two keys are the same text: {_shown(key)}")
            copied[key] = plain
        return copied

    def key(self, key: Any) -> str:
        """Return the plain text of a key that is a subclass of str."""
        if issubclass(type(key), str):
            return str.__str__(key)
        raise Refused(f"a key of type {_name(type(key))}: JSON has only text for keys")

    def descend(self, depth: int) -> None:
        """Enter a container."""
        if depth > MAX_DEPTH:
            raise Refused(f"more than {MAX_DEPTH} levels of lists and dicts (or a cycle): flatten it, or pass it as text")
        if self.nodes > self.max_bytes:
            raise self.too_large()

    def other(self, value: Any, kind: type, depth: int) -> Any:
        """Answer to everything whose type is not one of JSON's own. Never asks the value itself: it may lie, or raise."""
        if issubclass(kind, str):
            return self.text(str.__str__(value))
        if issubclass(kind, int):
            return self.copy(int.__int__(value), depth)
        if issubclass(kind, float):
            return self.number(float.__float__(value))
        if issubclass(kind, (list, tuple)):
            return self.items(tuple.__iter__(value) if issubclass(kind, tuple) else list.__iter__(value), depth)
        if issubclass(kind, dict):
            return self.mapping(dict(dict.items(value)), depth)
        raise self.unknown(kind)

    def unknown(self, kind: type) -> Refused:
        """Return the refusal of a type, with what to do instead."""
        hint = next((_HINTS[base.__name__] for base in kind.__mro__ if base.__name__ in _HINTS), "")
        if not hint and any(f"{base.__module__}.{base.__name__}" == "django.db.models.base.Model" for base in kind.__mro__):
            hint = "pass its primary key, or use serializer='typed'"
        return Refused(f"Unsupported type: {_a(_name(kind))} can't be stored as JSON" + (f": {hint}" if hint else ""))

    def too_large(self) -> Refused:
        """Return the refusal of a value that is too large."""
        return Refused(f"more than {self.max_bytes} bytes of JSON: store it elsewhere and pass where")

    def check_size(self, plain: Any) -> None:
        """Refuse `plain`, a finished copy, if it has too many bytes. Measured only where it may be near the bound."""
        if self.chars * _MAX_BYTES_PER_CHAR + self.nodes * _MAX_BYTES_PER_NODE < self.max_bytes:
            return
        if len(dumps(plain).encode()) > self.max_bytes:
            raise self.too_large()


def _a(word: str) -> str:
    return f"{'an' if word[:1] in 'aeiouAEIOU' else 'a'} {word}"


def _name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _shown(key: str) -> str:
    """Return a key as it stands in a path: in double quotes, escaped, cut."""
    shown = _encode_ascii(key)
    return shown if len(shown) <= 60 else shown[:56] + '..."'


def _copier(serializer: str, max_bytes: int) -> Copier:
    if serializer == "json":
        return Copier(max_bytes)
    if serializer == "typed":
        from .typed import TypedCopier

        return TypedCopier(max_bytes)
    raise InvalidArguments(f"there is no serializer {serializer!r}: use one of {', '.join(SERIALIZERS)}.")


def _converted(
    value: Any, serializer: str, path: str, max_bytes: int, error: type[InvalidArguments] | type[InvalidResult]
) -> Any:
    copier = _copier(serializer, max_bytes)
    try:
        plain = copier.copy(value)
        copier.check_size(plain)
    except Refused as refused:
        place = refused.path(path)
        message = f"{place}: {refused.why}."
        raise (InvalidArguments(message, path=place) if error is InvalidArguments else error(message)) from None
    except Exception as broken:  # a value whose own code raises, or that another thread changes meanwhile
        raise error(f"{path}: reading it raised {type(broken).__qualname__}.") from None
    return plain


def to_json(value: Any, *, serializer: str = "json", path: str = "value", max_bytes: int | None = None) -> Any:
    """Return `value` as plain JSON, a deep copy: what the caller changes later does not alter the job.

    A tuple at the root is the arguments of a call: a list, for every serializer. Raises `InvalidArguments` (a TypeError) with the
    path of the first value that can't be stored, for example `kwargs["order"]["total"]` for the path `kwargs`. `max_bytes`: the
    setting MAX_ARGUMENT_BYTES unless given.
    """
    kind = type(value)
    if kind is tuple:
        value = list(value)
    if (kind is tuple or kind is list or kind is dict) and not value:
        return {} if kind is dict else []
    if max_bytes is None:
        max_bytes = conf.jobs_settings().max_argument_bytes
    return _converted(value, serializer, path, max_bytes, InvalidArguments)


def check_json(value: Any, path: str = "value", *, max_bytes: int | None = None) -> None:
    """Raise `InvalidArguments` unless `value` is what `"json"` accepts."""
    to_json(value, path=path, max_bytes=max_bytes)


def result_to_json(value: Any, serializer: str = "json", *, max_bytes: int | None = None) -> Any:
    """Return what a task returned as plain JSON; raise `InvalidResult` with the path (from `result`) if it can't be stored."""
    if value is None:
        return None
    if max_bytes is None:
        max_bytes = conf.jobs_settings().max_result_bytes
    return _converted(value, serializer, "result", max_bytes, InvalidResult)


def from_json(value: Any, *, serializer: str = "json") -> Any:
    """Return the value that `to_json` was given, made anew: each attempt gets a copy of its own.

    `"typed"` raises `RelatedObjectGone` where a model instance no longer exists, and `JobsError` for what it can't read.
    """
    if serializer == "typed":
        from .typed import restored

        return restored(value)
    return _fresh(value)


def _fresh(value: Any) -> Any:
    if type(value) is list:
        return [_fresh(item) for item in value]
    if type(value) is dict:
        return {key: _fresh(item) for key, item in value.items()}
    return value


# --- JSON text ---

_encode: Final = JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), check_circular=True).encode
_encode_ascii: Final = JSONEncoder().encode
#: A string, or a number with a positive exponent. Strings are matched so that they are passed over whole.
_STRING_OR_LARGE: Final = re.compile(r'"(?:[^"\\]|\\.)*"|-?[0-9]+(?:\.[0-9]+)?e\+[0-9]+')
_NUL: Final = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def dumps(value: Any) -> str:
    """Return `value` as compact JSON text that every database takes and gives back the same. The fast path to a column.

    For values that `to_json` made. Others raise `ValueError` or `TypeError` rather than fail in the database: NaN, NUL, lone
    surrogates, foreign objects.
    """
    text = _encode(value)
    if "e+" in text:  # perhaps a large float: PostgreSQL would make a whole number of it
        text = _STRING_OR_LARGE.sub(_with_point, text)
    if "\\u0000" in text and _NUL.search(text):
        raise ValueError("Text with a NUL character can't be stored.")
    if not text.isascii():
        text.encode()  # a lone surrogate is a UnicodeEncodeError, which is a ValueError
    return text


def _with_point(match: re.Match[str]) -> str:
    found = match[0]
    return found if found.startswith('"') else f"{Decimal(found):f}.0"


class Encoder(JSONEncoder):
    """`dumps` as an encoder, for `JSONField(encoder=...)` and `json.dumps(cls=...)`."""

    def encode(self, o: Any) -> str:
        """Return `o` as `dumps` has it."""
        return dumps(o)


# --- text ---

_CUT: Final = "\n[... {} characters left out ...]\n"


def clean_text(text: Any, limit: int) -> str:
    r"""Return `text` as every database takes it: NUL and lone surrogates escaped (`\x00`, `\udc80`), at most `limit` characters.

    Where it is longer, its head and its tail are kept with a note between them; they say most in a traceback.
    """
    text = text if type(text) is str else str.__str__(text) if isinstance(text, str) else str(text)
    text = _capped(text, limit)  # first, so that 50 MB are not copied over and over
    if "\x00" in text:
        text = text.replace("\x00", "\\x00")
    if not text.isascii():
        text = text.encode("utf-8", "backslashreplace").decode()
    return _capped(text, limit)


def _capped(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    room = limit - len(_CUT.format(len(text)))
    if room < limit // 2:  # too short for a note
        return text[: limit - 1] + "…" if limit > 0 else ""
    note = _CUT.format(len(text) - room)
    head = room // 2
    return text[:head] + note + text[len(text) - (room - head) :]

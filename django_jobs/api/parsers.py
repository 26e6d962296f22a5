"""JSON as strictly as it is stored: UTF-8, no doubled keys, nothing that JSON does not have, bounded in size and depth."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import IO, Any, ClassVar, Final, NoReturn

from django.http import RawPostDataException
from rest_framework.parsers import BaseParser
from rest_framework.renderers import JSONRenderer

from ..conf import jobs_settings
from ..serializers import MAX_DEPTH
from .errors import ApiError

#: Levels of a body: those of a stored value, and what a request wraps around it (a list of jobs, a job, its arguments).
BODY_DEPTH: Final = MAX_DEPTH + 6


class StrictJSONParser(BaseParser):
    """Parses `application/json`, or says what is wrong with it (400), or that it is too large (413)."""

    media_type = "application/json"
    renderer_class = JSONRenderer  # of the browsable API's form
    #: Whether text that can't be stored is taken, because the view makes it fit, or refuses it by its field.
    takes_any_text: ClassVar[bool] = False

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Mapping[str, Any] | None = None) -> Any:
        """Return the body's value."""
        text = _text(_read(stream), media_type or "")
        try:
            value = json.loads(text, object_pairs_hook=_object, parse_constant=_constant, parse_float=_float)
        except RecursionError:
            raise _deep() from None
        except ValueError as error:
            raise ApiError(400, "invalid", f"The body is not JSON: {error}") from None
        _check(value, any_text=self.takes_any_text)
        return value


class AnyTextJSONParser(StrictJSONParser):
    """Parses texts of errors and the like, too, in which NUL characters and lone surrogates come by accident."""

    takes_any_text = True


def _read(stream: IO[bytes]) -> bytes:
    limit = jobs_settings().api_max_body_bytes
    declared = getattr(stream, "META", {}).get("CONTENT_LENGTH") or "0"
    if declared.isdecimal() and int(declared) > limit:
        raise _large(limit)
    try:
        body = stream.read(limit + 1)
    except RawPostDataException:
        body = stream.body  # type: ignore[attr-defined]
    if len(body) > limit:
        raise _large(limit)
    return body


def _large(limit: int) -> ApiError:
    return ApiError(413, "too_large", f"The body is larger than {limit} bytes, which is as much as is taken.", limit=limit)


def _deep() -> ApiError:
    return ApiError(400, "invalid", f"The body has more than {BODY_DEPTH} levels of lists and objects.")


def _text(body: bytes, media_type: str) -> str:
    for parameter in media_type.split(";")[1:]:
        name, _sign, value = parameter.strip().partition("=")
        if name.strip().lower() == "charset" and value.strip('" ').lower() not in ("utf-8", "utf8"):
            raise ApiError(415, "unsupported_media_type", f"Send JSON as UTF-8, not as {value.strip()}.")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ApiError(400, "invalid", f"The body is not UTF-8: {error.reason} at byte {error.start}.") from None
    if text.startswith("\ufeff"):
        raise ApiError(400, "invalid", "The body begins with a byte order mark, which JSON does not have.")
    return text


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the key {name!r} is there twice")
        found[name] = value
    return found


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number that JSON has")


def _float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:20]} is too large a number")
    return number


def _check(root: Any, *, any_text: bool) -> None:
    """Look at every value, without recursion: how deep it is, and whether its text can be stored, that of keys always."""
    waiting = [(root, 1)]
    while waiting:
        value, depth = waiting.pop()
        if isinstance(value, str):
            if not any_text:
                _check_text(value)
        elif isinstance(value, dict | list):
            if depth > BODY_DEPTH:
                raise _deep()
            if isinstance(value, dict):
                for name in value:
                    _check_text(name)
            waiting.extend((each, depth + 1) for each in (value.values() if isinstance(value, dict) else value))


def _check_text(text: str) -> None:
    if "\x00" in text:
        raise ApiError(400, "invalid", "The body has text with a NUL character, which can't be stored.")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ApiError(400, "invalid", "The body has text with a lone surrogate, which can't be stored.") from None

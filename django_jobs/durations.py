"""Read and write durations: seconds as a number, a timedelta, or text such as `1w2d7h`, `10m`, `90s`."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import Any, Final

from .exceptions import InvalidOption

#: The longest duration that is accepted: a century. Past it dates overflow in one database or another.
MAX_SECONDS: Final = 36_525 * 86_400.0

_UNITS: Final = {"w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s": 1, "ms": 0.001}
_NUMBER: Final = r"[0-9]+(?:\.[0-9]+)?"
#: Each unit at most once, the larger before the smaller.
_TEXT: Final = re.compile(r"\s*".join(f"(?:({_NUMBER})\\s*{unit})?" for unit in _UNITS))
_PLAIN: Final = re.compile(_NUMBER)
_MICROSECONDS: Final = 1_000_000
_HOW: Final = "use seconds, a timedelta, or text such as '10m', '90s' or '1w2d7h'"


def parse_duration(value: Any, *, field: str = "duration") -> float:
    """Return `value` in seconds, from 0 to `MAX_SECONDS`.

    Takes a number of seconds, a timedelta, or text of numbers with units (w, d, h, m, s, ms) in falling order; text
    without a unit is seconds, as environment variables have it. Raises `InvalidOption`, naming `field`.
    """
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, str):
        seconds = _parse_text(value, field)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        seconds = _to_float(value)
    else:
        raise InvalidOption(field, f"a duration can't be of type {type(value).__name__}: {_HOW}.")
    if math.isnan(seconds):
        raise InvalidOption(field, f"not a number: {_HOW}.")
    if seconds < 0:
        raise InvalidOption(field, "a duration can't be negative.")
    if seconds > MAX_SECONDS:
        raise InvalidOption(field, "a duration can't be longer than a hundred years.")
    return seconds + 0.0  # turns -0.0 into 0.0


def format_duration(seconds: float) -> str:
    """Return `seconds` in the normal form, rounded to microseconds: `1w2d7h`, `1m30s`, `0.25s`, `0s`."""
    seconds = parse_duration(seconds)
    micros = round(seconds * _MICROSECONDS)
    if micros == 0:
        return "0s"
    parts = []
    for unit in ("w", "d", "h", "m"):
        count, micros = divmod(micros, int(_UNITS[unit]) * _MICROSECONDS)
        if count:
            parts.append(f"{count}{unit}")
    if micros:
        whole, fraction = divmod(micros, _MICROSECONDS)
        parts.append(f"{whole}.{fraction:06}".rstrip("0").rstrip(".") + "s")
    return "".join(parts)


def _to_float(value: float) -> float:
    """Return `value` as a float; an int too large for one is infinite, which the bound refuses."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _parse_text(text: str, field: str) -> float:
    stripped = text.strip().lower()
    if _PLAIN.fullmatch(stripped):
        return float(stripped)
    match = _TEXT.fullmatch(stripped)
    if match is None or not any(match.groups()):
        raise InvalidOption(field, f"can't read {text[:50]!r} as a duration: {_HOW}.")
    return math.fsum(float(number) * unit for number, unit in zip(match.groups(), _UNITS.values(), strict=True) if number)

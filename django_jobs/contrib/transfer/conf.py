"""The settings of this app: the dict `DJANGO_JOBS_TRANSFER`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from ...durations import parse_duration
from ...exceptions import InvalidOption

SETTING: Final = "DJANGO_JOBS_TRANSFER"
_NAMES: Final = ("KEEP", "MAX_BYTES", "FORMULAS")


@dataclass(frozen=True, slots=True)
class TransferSettings:
    """The settings as they are used."""

    keep: timedelta = timedelta(days=7)  # an export, and the link to it
    max_bytes: int = 200_000_000  # of a file to be imported
    formulas: bool = False  # whether cells that begin like formulas stay as they are


def transfer_settings() -> TransferSettings:
    """Return the settings. Raises `ImproperlyConfigured`."""
    raw: Any = getattr(settings, SETTING, {})
    if not isinstance(raw, Mapping):
        raise ImproperlyConfigured(f"{SETTING}: a dict, not {raw!r}.")
    if unknown := [name for name in raw if name not in _NAMES]:
        raise ImproperlyConfigured(f"{SETTING}: there is no setting {unknown[0]!r}: use {', '.join(_NAMES)}.")
    values: dict[str, Any] = {}
    if "KEEP" in raw:
        try:
            values["keep"] = timedelta(seconds=parse_duration(raw["KEEP"], field="KEEP"))
        except InvalidOption as error:
            raise ImproperlyConfigured(f"{SETTING}: {error}") from error
    for name, kind in (("MAX_BYTES", int), ("FORMULAS", bool)):
        if name in raw:
            if type(raw[name]) is not kind:
                raise ImproperlyConfigured(f"{SETTING}: {name}: {kind.__name__}, not {raw[name]!r}.")
            values[name.lower()] = raw[name]
    return TransferSettings(**values)

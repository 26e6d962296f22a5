"""The settings of this app: the dict `DJANGO_JOBS_NOTIFY`."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from ...durations import parse_duration
from ...exceptions import InvalidOption
from ...queues import check_queue_name

SETTING = "DJANGO_JOBS_NOTIFY"


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifySettings:
    """The settings as they are used. Durations are seconds."""

    enabled: bool = True
    period: float = 3_600.0  # between two mails about one group to one user
    look_every: float = 300.0  # for what no signal told of
    queue: str = "default"  # of this app's own jobs
    base_url: str = ""  # of the site, for links in mails: "https://example.com"
    keep: float = 90 * 86_400.0  # how long groups are kept that nothing was added to


def load(raw: Any) -> tuple[NotifySettings, list[str]]:
    """Read the dict; return the settings and everything that is wrong with it."""
    if not isinstance(raw, Mapping):
        return NotifySettings(), [f"{SETTING}: a dict, not {raw!r}."]
    known = {item.name.upper(): item for item in fields(NotifySettings)}
    values: dict[str, Any] = {}
    wrong = []
    for name, value in raw.items():
        if name not in known:
            near = difflib.get_close_matches(str(name).upper(), known, 1)
            wrong.append(f"{SETTING}: there is no setting {name!r}" + (f", did you mean {near[0]!r}?" if near else "."))
            continue
        try:
            values[name.lower()] = _read(name, value)
        except InvalidOption as error:
            wrong.append(f"{SETTING}: {error}")
    return NotifySettings(**values), wrong


def _read(name: str, value: Any) -> Any:
    match name:
        case "ENABLED":
            if not isinstance(value, bool):
                raise InvalidOption(name, f"True or False, not {value!r}.")
            return value
        case "QUEUE":
            return check_queue_name(value, field=name)
        case "BASE_URL":
            if not isinstance(value, str) or (value and not value.startswith(("http://", "https://"))):
                raise InvalidOption(name, f"the address of the site, such as 'https://example.com', not {value!r}.")
            return value.rstrip("/")
        case _:
            return parse_duration(value, field=name)


def notify_settings() -> NotifySettings:
    """Return the settings. Raises `ImproperlyConfigured`."""
    read, wrong = load(getattr(settings, SETTING, {}))
    if wrong:
        raise ImproperlyConfigured(" ".join(wrong))
    return read

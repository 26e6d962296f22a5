"""The settings of this app: the dict `DJANGO_JOBS_MAIL`; and which mailer really sends."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from django.conf import settings
from django.core import mail
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from ...exceptions import InvalidOption
from ...options import CHECKS, PRIORITY_MAX, PRIORITY_MIN
from ...queues import check_queue_name

SETTING: Final = "DJANGO_JOBS_MAIL"
PATH: Final = "django_jobs.contrib.mail.EmailBackend"
_SMTP: Final = "django.core.mail.backends.smtp.EmailBackend"


@dataclass(frozen=True, slots=True, kw_only=True)
class MailSettings:
    """The settings as they are used."""

    mailer: str = ""  # an alias of MAILERS (Django 6.1): the one that sends
    backend: str = _SMTP  # before that: the class that sends
    options: Mapping[str, Any] = field(default_factory=dict)  # and what it is made with
    queue: str = "default"
    priority: int = 0
    max_attempts: int | None = 10
    max_bytes: int = 5 * 1_048_576  # of one message, attachments included
    retry_for: tuple[str, ...] = ()  # more exceptions of the real back end that are worth another attempt


def load(raw: Any) -> tuple[MailSettings, list[str]]:
    """Read the dict; return the settings and everything that is wrong with it."""
    if not isinstance(raw, Mapping):
        return MailSettings(), [f"{SETTING}: a dict, not {raw!r}."]
    known = {item.name.upper() for item in fields(MailSettings)}
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
    return MailSettings(**values), wrong


def _read(name: str, value: Any) -> Any:
    match name:
        case "QUEUE":
            return check_queue_name(value, field=name)
        case "MAX_ATTEMPTS":
            return CHECKS["max_attempts"](value, name)
        case "MAX_BYTES" | "PRIORITY":
            low, high = (1, 2**31 - 1) if name == "MAX_BYTES" else (PRIORITY_MIN, PRIORITY_MAX)
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise InvalidOption(name, f"a whole number from {low} to {high}, not {value!r}.")
            return value
        case "OPTIONS":
            if not isinstance(value, Mapping):
                raise InvalidOption(name, f"a dict, not {value!r}.")
            return dict(value)
        case "RETRY_FOR":
            if not isinstance(value, list | tuple) or not all(isinstance(path, str) and "." in path for path in value):
                raise InvalidOption(name, "a list of dotted paths of exception classes.")
            return tuple(value)
        case _:
            if not isinstance(value, str):
                raise InvalidOption(name, f"text, not {value!r}.")
            return value


def mail_settings() -> MailSettings:
    """Return the settings. Raises `ImproperlyConfigured`."""
    read, wrong = load(getattr(settings, SETTING, {}))
    if wrong:
        raise ImproperlyConfigured(" ".join(wrong))
    return read


def has_mailers() -> bool:
    """Whether the project names its mailers in MAILERS, as Django does from 6.1 on."""
    return hasattr(mail, "mailers") and hasattr(settings, "MAILERS")


def real_mailer(name: str) -> Any:
    """Return the back end that really sends: the mailer `name`, or the one of the settings. Raises `ImproperlyConfigured`."""
    from .backend import EmailBackend

    read = mail_settings()
    name = name or read.mailer
    if has_mailers():
        if not name:
            raise ImproperlyConfigured(
                f'{PATH}: name the mailer that sends, in "OPTIONS": {{"mailer": ...}} or {SETTING}["MAILER"].'
            )
        if name not in mail.mailers:
            raise ImproperlyConfigured(f"{PATH}: there is no mailer {name!r} in MAILERS.")
        found = mail.mailers[name]
    else:
        try:
            import_string(read.backend)
        except ImportError as error:
            raise ImproperlyConfigured(f"{SETTING}: BACKEND: {error}") from error
        found = mail.get_connection(read.backend, **read.options)
    if isinstance(found, EmailBackend):
        raise ImproperlyConfigured(f"{PATH}: the mailer that really sends can't be one that enqueues, too.")
    return found

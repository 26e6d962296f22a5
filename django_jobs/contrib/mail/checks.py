"""The system check."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, register
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from .conf import PATH, SETTING, has_mailers, load, real_mailer


@register("django_jobs")
def check_settings(**kwargs: Any) -> list[CheckMessage]:
    """Tell everything that is wrong with `DJANGO_JOBS_MAIL`; where the back end is used, that nothing would really send."""
    read, wrong = load(getattr(settings, SETTING, {}))
    found: list[CheckMessage] = [Error(message, hint=f"Mend it in {SETTING}.", id="django_jobs_mail.E001") for message in wrong]
    if wrong:
        return found
    for path in read.retry_for:
        try:
            import_string(path)
        except ImportError as error:
            found.append(Error(f"{SETTING}: RETRY_FOR: {error}", hint="Name a class.", id="django_jobs_mail.E001"))
    for name in _used():
        try:
            real_mailer(name)
        except Exception as error:
            hint = "" if isinstance(error, ImproperlyConfigured) else f"{type(error).__name__}: "
            found.append(Error(f"{hint}{error}", hint="Name what really sends.", id="django_jobs_mail.E002"))
    return found


def _used() -> Iterator[str]:
    """Yield the name of the real mailer for each place where the back end is used."""
    if has_mailers():
        mailers: dict[str, dict[str, Any]] = settings.MAILERS
        for mailer in mailers.values():
            if mailer.get("BACKEND") == PATH:
                yield mailer.get("OPTIONS", {}).get("mailer", "")
    elif getattr(settings, "EMAIL_BACKEND", "") == PATH:
        yield ""

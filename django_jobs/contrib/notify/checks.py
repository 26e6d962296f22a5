"""The system check."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, register

from .conf import SETTING, load


@register("django_jobs")
def check_settings(**kwargs: Any) -> list[CheckMessage]:
    """Tell everything that is wrong with `DJANGO_JOBS_NOTIFY`."""
    wrong = load(getattr(settings, SETTING, {}))[1]
    return [Error(message, hint=f"Mend it in {SETTING}.", id="django_jobs_notify.E001") for message in wrong]

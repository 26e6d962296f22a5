"""The Django app."""

from __future__ import annotations

from django.apps import AppConfig
from django.conf import settings
from django.utils.translation import gettext_lazy as _


class NotifyConfig(AppConfig):
    """Listens to failures, unless the setting `ENABLED` is off."""

    name = "django_jobs.contrib.notify"
    label = "django_jobs_notify"
    verbose_name = _("Notifications of failed jobs")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Connect the listeners and register the check."""
        from . import checks  # noqa: F401
        from .conf import SETTING, load
        from .listeners import connect

        if load(getattr(settings, SETTING, {}))[0].enabled:
            connect()

"""The Django app."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class TransferConfig(AppConfig):
    """Imports and exports by jobs."""

    name = "django_jobs.contrib.transfer"
    label = "django_jobs_transfer"
    verbose_name = _("Imports and exports")
    default_auto_field = "django.db.models.BigAutoField"

"""The Django app: has workers know the task, and registers the check."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class MailConfig(AppConfig):
    """Must be installed where the back end is used: workers import the tasks of installed apps."""

    name = "django_jobs.contrib.mail"
    label = "django_jobs_mail"
    verbose_name = _("Mail by jobs")

    def ready(self) -> None:
        """Register the check."""
        from . import checks  # noqa: F401

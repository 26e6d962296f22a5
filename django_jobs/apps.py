"""The Django app."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class DjangoJobsConfig(AppConfig):
    """Registers the system checks and finds the project's tasks; touches no database."""

    name = "django_jobs"
    label = "django_jobs"
    verbose_name = _("Background jobs")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Import the checks and every installed app's `tasks` and `jobs` modules, so that tasks are registered."""
        from . import checks  # noqa: F401
        from .task import autodiscover

        autodiscover()

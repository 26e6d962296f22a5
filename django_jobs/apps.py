"""The Django app."""

from __future__ import annotations

from django.apps import AppConfig
from django.db.models.signals import post_migrate
from django.utils.translation import gettext_lazy as _


class DjangoJobsConfig(AppConfig):
    """Registers the system checks and finds the project's tasks; touches no database."""

    name = "django_jobs"
    label = "django_jobs"
    verbose_name = _("Background jobs")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Import the checks and every installed app's `tasks` and `jobs` modules, so that tasks are registered.

        Have the declared queues made after each migration.
        """
        from . import checks, hooks, signals  # noqa: F401
        from .lifecycle.declare import after_migrate
        from .task import autodiscover

        post_migrate.connect(after_migrate, sender=self, dispatch_uid="django_jobs.declare")
        signals.tell_ends_by(hooks.tell_end)
        autodiscover()

"""The Django app."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.apps import AppConfig
from django.db import transaction
from django.db.models.signals import post_delete
from django.utils.translation import gettext_lazy as _


class TransferConfig(AppConfig):
    """Imports and exports by jobs."""

    name = "django_jobs.contrib.transfer"
    label = "django_jobs_transfer"
    verbose_name = _("Imports and exports")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Have files deleted with their rows, whoever deletes them."""
        for name in ("Import", "Export"):
            post_delete.connect(_delete_files, sender=self.get_model(name), dispatch_uid=f"django_jobs_transfer {name}")


def _delete_files(sender: Any, instance: Any, using: str, **kwargs: Any) -> None:
    """Delete the files of a row when its deletion is committed."""
    for field in ("file", "errors"):
        if found := getattr(instance, field, None):
            transaction.on_commit(partial(found.storage.delete, found.name), using=using, robust=True)

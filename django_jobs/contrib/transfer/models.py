"""Imports with their chunks, and exports. Both keep a file in the default storage."""

from __future__ import annotations

import uuid
from typing import Any

from django.conf import settings
from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _


class State(models.TextChoices):
    """What an import or an export can be."""

    WAITING = "waiting", _("waiting")
    RUNNING = "running", _("running")
    FINISHED = "finished", _("finished")
    FAILED = "failed", _("failed")
    CANCELLED = "cancelled", _("cancelled")


def _path(instance: models.Model, name: str) -> str:
    # Nothing of the name that somebody gave the file: it could be anything.
    return f"django_jobs_transfer/{uuid.uuid4().hex}.csv"


class Transfer(models.Model):
    """What both have in common."""

    state = models.CharField(_("state"), max_length=10, choices=State.choices, default=State.WAITING, editable=False)
    error = models.TextField(_("error"), blank=True, editable=False)
    created_at = models.DateTimeField(_("created at"), default=timezone.now, editable=False)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        verbose_name=_("created by"),
        null=True,
        on_delete=models.SET_NULL,
        editable=False,
        related_name="+",
    )
    finished_at = models.DateTimeField(_("finished at"), null=True, editable=False)
    job_id = models.UUIDField(_("job"), null=True, editable=False)

    class Meta:
        abstract = True
        ordering = ["-id"]

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.state not in (State.WAITING, State.RUNNING)


class Import(Transfer):
    """A file of rows, and what became of them."""

    importer = models.CharField(_("importer"), max_length=100)
    name = models.CharField(_("name of the file"), max_length=255, editable=False)
    file = models.FileField(_("file"), upload_to=_path)
    batch_id = models.UUIDField(_("batch"), null=True, editable=False)
    total = models.IntegerField(_("rows"), default=0, editable=False)
    good = models.IntegerField(_("rows imported"), default=0, editable=False)
    bad = models.IntegerField(_("rows with errors"), default=0, editable=False)
    errors = models.FileField(_("rows with errors"), upload_to=_path, blank=True, editable=False)

    class Meta(Transfer.Meta):
        verbose_name = _("import")
        verbose_name_plural = _("imports")

    def __str__(self) -> str:
        return f"{self.name} ({self.importer})"


class ImportChunk(models.Model):
    """Some rows of an import, which one job deals with: all of them and its own end in one transaction, or nothing."""

    parent = models.ForeignKey(Import, on_delete=models.CASCADE, related_name="chunks")
    number = models.IntegerField()
    rows = models.JSONField(null=True)  # [[line, [cells]], ...]; empty once they are dealt with
    bad_rows = models.JSONField(default=list)  # [[line, [cells], error], ...]
    good = models.IntegerField(default=0)
    is_done = models.BooleanField(default=False)

    class Meta:
        verbose_name = _("chunk of an import")
        verbose_name_plural = _("chunks of imports")
        constraints = [models.UniqueConstraint(fields=["parent", "number"], name="django_jobs_transfer_chunk_number")]

    def __str__(self) -> str:
        return f"{self.parent_id} #{self.number}"


class Export(Transfer):
    """Rows of a model in a file, for a while."""

    model = models.CharField(_("model"), max_length=100, editable=False)
    fields = models.JSONField(_("fields"), default=list, editable=False)
    keys: Any = models.JSONField(_("keys"), default=list, editable=False)  # of the rows that were chosen
    file = models.FileField(_("file"), upload_to=_path, blank=True, editable=False)
    rows = models.IntegerField(_("rows"), default=0, editable=False)
    expires_at = models.DateTimeField(_("expires at"), null=True, editable=False)

    class Meta(Transfer.Meta):
        verbose_name = _("export")
        verbose_name_plural = _("exports")

    def __str__(self) -> str:
        return f"{self.model} ({self.created_at:%Y-%m-%d %H:%M})"

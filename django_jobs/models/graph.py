"""Jobs that belong together: the edges of graphs, batches, and what has ended and is still to be followed."""

from __future__ import annotations

from typing import Final

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_jobs.ids import uuid7
from django_jobs.serializers import Encoder

from ..db import DatabaseNow
from .job import Job

#: What a child does when a parent fails, and when one is cancelled. The first is what an empty column means.
ON_PARENT_FAILURE: Final = ("wait", "cancel", "run")
ON_PARENT_CANCEL: Final = ("cancel", "run", "wait")


class Edge(models.Model):
    """`child` comes after `parent`."""

    # No constraints in the database: foreign keys would make every insert lock the rows of jobs.
    parent = models.ForeignKey(Job, on_delete=models.CASCADE, db_constraint=False, db_index=False, related_name="child_edges")
    child = models.ForeignKey(Job, on_delete=models.CASCADE, db_constraint=False, db_index=False, related_name="parent_edges")

    class Meta:
        verbose_name = _("edge of a graph")
        verbose_name_plural = _("edges of graphs")
        constraints = [models.UniqueConstraint(fields=["child", "parent"], name="django_jobs_edge_child")]
        indexes = [models.Index(fields=["parent", "child"], name="django_jobs_edge_parent")]

    def __str__(self) -> str:
        return f"{self.parent_id} -> {self.child_id}"


class Ended(models.Model):
    """A job of a graph that has ended, written with its end: until this row is gone its children are to be looked at.

    It is looked at in a transaction of its own, after the commit. So of two parents that end at one moment the second to be
    followed sees both, and neither waits for the other.
    """

    id = models.BigAutoField(primary_key=True)
    job_id = models.UUIDField()

    class Meta:
        verbose_name = _("ended job to be followed")
        verbose_name_plural = _("ended jobs to be followed")

    def __str__(self) -> str:
        return str(self.job_id)


class Batch(models.Model):
    """Jobs that are counted together, and what is to be done at their end."""

    id = models.UUIDField(_("id"), primary_key=True, default=uuid7, editable=False)
    name = models.CharField(_("name"), max_length=255, blank=True, default="")
    metadata = models.JSONField(_("metadata"), encoder=Encoder, default=dict, blank=True)
    created_by = models.CharField(_("created by"), max_length=64, null=True, blank=True)
    created_at = models.DateTimeField(_("created at"), db_default=DatabaseNow(), editable=False)
    sealed_at = models.DateTimeField(_("sealed at"), null=True, blank=True)
    finished_at = models.DateTimeField(_("finished at"), null=True, blank=True)
    read_at = models.DateTimeField(_("read at"), null=True, blank=True)
    # Jobs that wait for the batch.
    on_success_id = models.UUIDField(null=True, editable=False)
    on_failure_id = models.UUIDField(null=True, editable=False)
    on_finish_id = models.UUIDField(null=True, editable=False)

    class Meta:
        verbose_name = _("batch")
        verbose_name_plural = _("batches")
        ordering = ["-id"]
        indexes = [models.Index(fields=["finished_at", "id"], name="django_jobs_batch_finished")]

    def __str__(self) -> str:
        return self.name or str(self.id)


class BatchCount(models.Model):
    """The sum of the deltas of one name and batch that have been folded."""

    # No constraint in the database: see `Edge`.
    batch = models.ForeignKey(Batch, on_delete=models.CASCADE, db_constraint=False, db_index=False, related_name="counts")
    name = models.CharField(_("name"), max_length=20)
    value = models.BigIntegerField(_("value"), default=0)

    class Meta:
        verbose_name = _("count of a batch")
        verbose_name_plural = _("counts of batches")
        constraints = [models.UniqueConstraint(fields=["batch", "name"], name="django_jobs_batchcount_name")]

    def __str__(self) -> str:
        return f"{self.batch_id} {self.name}: {self.value}"

"""`Worker`: the registry of worker processes. `Leader`: the rows by which maintenance takes turns."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from ..db import DatabaseNow


class WorkerKind(models.TextChoices):
    """A worker tree is one supervisor and its processes."""

    SUPERVISOR = "supervisor", _("supervisor")
    PROCESS = "process", _("process")


class Worker(models.Model):
    """One incarnation of a process. Its id is random: a host's or worker's name identifies nobody."""

    id = models.UUIDField(_("id"), primary_key=True, editable=False)
    parent = models.UUIDField(_("supervisor"), null=True)
    kind = models.CharField(_("kind"), max_length=10, choices=WorkerKind.choices)
    name = models.CharField(_("name"), max_length=128)
    host = models.CharField(_("host"), max_length=255)
    pid = models.IntegerField(_("process id"))
    queues = models.JSONField(_("queues"), default=list)
    slots = models.IntegerField(_("slots"), default=0)
    running = models.IntegerField(_("running"), default=0)
    memory_mb = models.FloatField(_("memory (MB)"), null=True)
    version = models.CharField(_("version"), max_length=64, blank=True, default="")
    started_at = models.DateTimeField(_("started at"), db_default=DatabaseNow())
    seen_at = models.DateTimeField(_("seen at"), db_default=DatabaseNow())
    stopped_at = models.DateTimeField(_("stopped at"), null=True)
    stop_reason = models.CharField(_("reason for the stop"), max_length=255, blank=True, default="")
    jobs_done = models.BigIntegerField(_("jobs done"), default=0)

    class Meta:
        verbose_name = _("worker")
        verbose_name_plural = _("workers")
        indexes = [models.Index(fields=["stopped_at", "seen_at"], name="django_jobs_worker_seen")]

    def __str__(self) -> str:
        return f"{self.name} ({self.pid})"


class Leader(models.Model):
    """One maintenance service's turn. Whoever locks the row while it is due runs one sweep, in the same transaction.

    So a leader's death costs nothing: its lock goes with its connection, and the next worker takes the next turn.
    """

    name = models.CharField(_("service"), max_length=32, primary_key=True)
    worker = models.UUIDField(_("worker"), null=True)
    next_at = models.DateTimeField(_("next sweep"), db_default=DatabaseNow())
    ran_at = models.DateTimeField(_("last sweep"), null=True)
    touched = models.BigIntegerField(_("rows touched"), default=0)
    error = models.CharField(_("last error"), max_length=500, blank=True, default="")

    class Meta:
        verbose_name = _("maintenance service")
        verbose_name_plural = _("maintenance services")

    def __str__(self) -> str:
        return self.name

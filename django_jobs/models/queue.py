"""`Queue`: settings of a node of the dotted tree. Optional: a queue that nobody declared works with defaults."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class Queue(models.Model):
    """A declared queue. What is null is inherited from the nearest declared ancestor, else from the defaults."""

    name = models.CharField(_("name"), max_length=100, unique=True)
    description = models.CharField(_("description"), max_length=255, blank=True, default="")
    paused_at = models.DateTimeField(_("paused at"), null=True, blank=True)
    paused_until = models.DateTimeField(_("paused until"), null=True, blank=True)
    paused_by = models.CharField(_("paused by"), max_length=64, blank=True, default="")
    pause_reason = models.CharField(_("reason for the pause"), max_length=500, blank=True, default="")
    # Its jobs are claimed over HTTP, and may be free input instead of a task's arguments.
    is_http = models.BooleanField(_("for HTTP workers"), null=True, blank=True)
    timeout = models.FloatField(_("timeout"), null=True, blank=True)
    heartbeat_timeout = models.FloatField(_("heartbeat timeout"), null=True, blank=True)
    max_attempts = models.IntegerField(_("maximum attempts"), null=True, blank=True)
    backoff = models.JSONField(_("back-off"), null=True, blank=True)
    retention = models.JSONField(_("retention"), null=True, blank=True)

    class Meta:
        verbose_name = _("queue")
        verbose_name_plural = _("queues")
        ordering = ["name"]
        permissions = [("pause_queue", "Can pause and resume a queue")]
        constraints = [
            models.CheckConstraint(condition=~models.Q(name=""), name="django_jobs_queue_name"),
            models.CheckConstraint(
                condition=models.Q(max_attempts__isnull=True) | models.Q(max_attempts__gte=1),
                name="django_jobs_queue_max_attempts",
            ),
        ]

    def __str__(self) -> str:
        return self.name

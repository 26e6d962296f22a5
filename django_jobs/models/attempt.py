"""`JobAttempt`: the record of one attempt that did not simply succeed."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from .job import Job


class AttemptOutcome(models.TextChoices):
    """How an attempt ended."""

    SUCCEEDED = "succeeded", _("succeeded")  # only kept if the attempt logged something
    FAILED = "failed", _("failed")
    RETRY = "retry", _("asked for a retry")
    TIMED_OUT = "timed_out", _("timed out")
    CANCELLED = "cancelled", _("cancelled")
    LOST = "lost", _("lost")  # its worker died, or was killed because of another job
    HANDED_BACK = "handed_back", _("handed back")  # an orderly stop


class JobAttempt(models.Model):
    """One failed, timed-out, lost, cancelled or interrupted attempt. A success is told by the job's own row."""

    # No constraint in the database: a foreign key would make every insert lock the job's row.
    job = models.ForeignKey(Job, on_delete=models.CASCADE, db_constraint=False, related_name="attempts")
    number = models.IntegerField(_("number"))
    token = models.UUIDField(_("token"), null=True)
    worker = models.CharField(_("worker"), max_length=64, blank=True, default="")
    started_at = models.DateTimeField(_("started at"), null=True)
    ended_at = models.DateTimeField(_("ended at"))
    outcome = models.CharField(_("outcome"), max_length=12, choices=AttemptOutcome.choices)
    counted = models.BooleanField(_("counted"), default=True)
    cause = models.CharField(_("cause"), max_length=500, blank=True, default="")
    error_class = models.CharField(_("error class"), max_length=255, blank=True, default="")
    error_message = models.TextField(_("error message"), blank=True, default="")
    traceback = models.TextField(_("traceback"), blank=True, default="")
    fingerprint = models.CharField(_("fingerprint"), max_length=32, blank=True, default="")
    logs = models.TextField(_("logs"), blank=True, default="")
    run_seconds = models.FloatField(_("run time"), null=True)

    class Meta:
        verbose_name = _("attempt")
        verbose_name_plural = _("attempts")
        ordering = ["job_id", "number"]
        # The same attempt is recorded once, whoever records it.
        constraints = [models.UniqueConstraint(fields=["job", "number"], name="django_jobs_attempt_number")]

    def __str__(self) -> str:
        return f"{self.job_id} #{self.number}"

"""`JobLock`: the row that exists while an attempt runs, and the one definition of "held".

**An attempt is held while its lock row is locked by a transaction, or `expires_at` is in the future.** A worker keeps the
row locked through its control connection and refreshes `expires_at` every few seconds; a lost connection frees the row at
once, a worker that merely can't run (GIL, swap, a debugger) keeps it locked. So there is no false alarm under load and no long
wait after a death.

A table of its own, because a lock on the job's row would block every other transaction that writes the job.
A lock row whose job is not running is rubbish, not evidence.
"""

from __future__ import annotations

from django.db import NotSupportedError, connections, models
from django.utils.translation import gettext_lazy as _

from ..db import DatabaseNow
from .job import Job


class LockKind(models.TextChoices):
    """Who holds the row."""

    WORKER = "worker", _("worker")  # by a transaction on the control connection
    HTTP = "http", _("HTTP worker")  # by `expires_at` alone: a lease


class JobLockQuerySet(models.QuerySet["JobLock"]):
    """Lock rows, with the one question that matters."""

    def expired(self) -> JobLockQuerySet:
        """Rows past `expires_at`: what a dead worker leaves, or one that can't refresh. Says nothing about row locks."""
        return self.filter(expires_at__lt=DatabaseNow())

    def unheld(self) -> JobLockQuerySet:
        """Rows that nobody holds, locked FOR UPDATE by the caller's transaction: past `expires_at` and not locked.

        Plain FOR UPDATE, never NO KEY: an `atomic=True` job fences with FOR KEY SHARE, which only FOR UPDATE respects.
        Raises `NotSupportedError` where the database has no row locks (Django's SQLite back end would ignore
        `skip_locked` silently and return every row): there, `expired()` is all that can be known.
        """
        if not connections[self.db].features.has_select_for_update_skip_locked:
            raise NotSupportedError("This database has no row locks: use expired(), a lease is all it can tell.")
        return self.expired().select_for_update(skip_locked=True, of=())


class JobLock(models.Model):
    """One running attempt. Deleted when the attempt ends; `token` fences every write about it."""

    job = models.OneToOneField(Job, verbose_name=_("job"), on_delete=models.CASCADE, primary_key=True, related_name="lock")
    token = models.UUIDField(_("token"))
    worker = models.UUIDField(_("worker"), null=True)  # the incarnation that claimed it; names identify nobody
    kind = models.CharField(_("kind"), max_length=8, choices=LockKind.choices, default=LockKind.WORKER)
    queue = models.CharField(_("queue"), max_length=100)
    limit_keys = models.JSONField(_("limit keys"), default=list, blank=True)
    prefetched = models.BooleanField(_("prefetched"), default=False)  # claimed ahead: not started, not to be counted
    claimed_at = models.DateTimeField(_("claimed at"))
    expires_at = models.DateTimeField(_("expires at"))

    objects = JobLockQuerySet.as_manager()

    class Meta:
        verbose_name = _("lock")
        verbose_name_plural = _("locks")

    def __str__(self) -> str:
        return str(self.job_id)


class CancelRequest(models.Model):
    """A wish to stop a running job. A row of its own, so that asking locks nothing of the job."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, db_constraint=False, related_name="cancel_requests")
    requested_at = models.DateTimeField(_("requested at"), db_default=DatabaseNow())
    requested_by = models.CharField(_("requested by"), max_length=64, blank=True, default="")
    reason = models.CharField(_("reason"), max_length=500, blank=True, default="")
    force = models.BooleanField(_("force"), default=False)  # kill the process if the task does not stop
    delete_job = models.BooleanField(_("delete the job"), default=False)  # once its attempt has ended, by maintenance

    class Meta:
        verbose_name = _("cancel request")
        verbose_name_plural = _("cancel requests")

    def __str__(self) -> str:
        return str(self.job_id)

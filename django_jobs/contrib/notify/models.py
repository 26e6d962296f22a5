"""What is known of failures, who wants to hear of them, and what was told to whom."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import F
from django.utils.translation import gettext_lazy as _


class FailureGroup(models.Model):
    """Equal failures: of one task, with one fingerprint (where there is none, one class of error)."""

    task = models.CharField(_("task"), max_length=255)
    key = models.CharField(_("key"), max_length=255)
    status = models.CharField(_("status"), max_length=10)
    queue = models.CharField(_("queue"), max_length=100)
    error_class = models.CharField(_("error class"), max_length=255, blank=True)
    error_message = models.TextField(_("error message"), blank=True)
    last_job = models.UUIDField(_("last job"))
    count = models.BigIntegerField(_("count"), default=0)
    first_at = models.DateTimeField(_("first at"))
    last_at = models.DateTimeField(_("last at"), db_index=True)

    class Meta:
        verbose_name = _("group of failures")
        verbose_name_plural = _("groups of failures")
        ordering = ["-last_at", "-id"]
        constraints = [models.UniqueConstraint(fields=["task", "key"], name="django_jobs_notify_one_group")]

    def __str__(self) -> str:
        return f"{self.task}: {self.error_name}"

    @property
    def error_name(self) -> str:
        """The class of the error without its module; for want of one the status."""
        return self.error_class.rpartition(".")[2] or self.status


class Failure(models.Model):
    """One failure that was looked at already. Kept as long as a look may come by it again."""

    job_id = models.UUIDField()
    finished_at = models.DateTimeField(db_index=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["job_id", "finished_at"], name="django_jobs_notify_once")]

    def __str__(self) -> str:
        return f"{self.job_id} at {self.finished_at}"


class Progress(models.Model):
    """Up to when the jobs of a database have been looked at."""

    database = models.CharField(max_length=64, unique=True)
    looked_until = models.DateTimeField()
    next_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"{self.database} until {self.looked_until}"


class NoticeQuerySet(models.QuerySet["Notice"]):
    """Notices."""

    def shown(self) -> NoticeQuerySet:
        """Those of users who want to see them on the site."""
        return self.exclude(user__django_jobs_preference__on_site=False)

    def unread(self) -> NoticeQuerySet:
        """Those that were not read since the last failure."""
        return self.filter(read_at=None)

    def unmailed(self) -> NoticeQuerySet:
        """Those with failures that no mail told of, for users who want mails."""
        return self.filter(count__gt=F("mailed_count")).exclude(user__django_jobs_preference__by_mail=False)


class Notice(models.Model):
    """What one user is told about one group of failures; it grows, and becomes unread again, with each new one."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, verbose_name=_("user"), related_name="django_jobs_notices")
    group = models.ForeignKey(FailureGroup, models.CASCADE, verbose_name=_("group"), related_name="notices")
    count = models.BigIntegerField(_("count"), default=0)
    last_job = models.UUIDField(_("last job"))
    first_at = models.DateTimeField(_("first at"))
    last_at = models.DateTimeField(_("last at"))
    read_at = models.DateTimeField(_("read at"), null=True, blank=True)
    mailed_count = models.BigIntegerField(_("told by mail"), default=0)
    mailed_at = models.DateTimeField(_("mailed at"), null=True, blank=True)
    queued_at = models.DateTimeField(null=True, editable=False)  # a job that is to send a mail was enqueued

    objects = NoticeQuerySet.as_manager()

    class Meta:
        verbose_name = _("notice")
        verbose_name_plural = _("notices")
        ordering = ["-last_at", "-id"]
        constraints = [models.UniqueConstraint(fields=["user", "group"], name="django_jobs_notify_one_each")]
        indexes = [models.Index(fields=["user", "read_at", "-last_at"], name="django_jobs_notify_unread")]

    def __str__(self) -> str:
        return f"{self.group} ({self.count})"


class Subscription(models.Model):
    """A user's wish to hear of failures of a task, or in a queue and the queues below it; without both: of all failures."""

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.CASCADE, verbose_name=_("user"), related_name="django_jobs_subscriptions"
    )
    task = models.CharField(_("task"), max_length=255, blank=True, default="", help_text=_("The dotted name; empty: any."))
    queue = models.CharField(_("queue"), max_length=100, blank=True, default="", help_text=_("With those below; empty: any."))

    class Meta:
        verbose_name = _("subscription")
        verbose_name_plural = _("subscriptions")
        ordering = ["user", "task", "queue"]
        constraints = [models.UniqueConstraint(fields=["user", "task", "queue"], name="django_jobs_notify_one_wish")]

    def __str__(self) -> str:
        return " / ".join(part for part in (self.task, self.queue) if part) or str(_("all failures"))

    def matches(self, task: str, queue: str) -> bool:
        """Whether a failure of this task in this queue is meant."""
        return self.task in ("", task) and (not self.queue or f"{queue}.".startswith(f"{self.queue}."))


class Preference(models.Model):
    """How a user wants to be told. Without a row: by mail and on the site."""

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, models.CASCADE, verbose_name=_("user"), related_name="django_jobs_preference"
    )
    by_mail = models.BooleanField(_("by e-mail"), default=True)
    on_site = models.BooleanField(_("on the site"), default=True)

    class Meta:
        verbose_name = _("preference")
        verbose_name_plural = _("preferences")

    def __str__(self) -> str:
        return str(self.user)

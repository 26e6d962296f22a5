"""`ApiToken`: what a program shows to use the HTTP API; `IdempotencyKey`: what it has asked for already."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from ..db import DatabaseNow


class ApiToken(models.Model):
    """A secret of a program, kept as a hash only, limited to verbs and queues."""

    name = models.CharField(_("name"), max_length=100)
    # The primary key as text, no foreign key: users may live in another database, or nowhere.
    user_id = models.CharField(_("user"), max_length=64, blank=True, default="")
    prefix = models.CharField(_("begins with"), max_length=16, editable=False)  # tells it from others, is not enough to guess it
    digest = models.CharField(max_length=64, unique=True, editable=False)  # SHA-256 of the secret, which is random and long
    verbs = models.JSONField(_("verbs"), default=list, blank=True)
    queues = models.JSONField(_("queues"), default=list, blank=True)  # names, or `name.*` for a subtree; empty: every queue
    created_at = models.DateTimeField(_("created at"), db_default=DatabaseNow(), editable=False)
    created_by = models.CharField(_("created by"), max_length=64, blank=True, default="", editable=False)
    expires_at = models.DateTimeField(_("expires at"), null=True, blank=True)
    revoked_at = models.DateTimeField(_("revoked at"), null=True, blank=True, editable=False)
    last_used_at = models.DateTimeField(_("last used at"), null=True, blank=True, editable=False)

    class Meta:
        verbose_name = _("API token")
        verbose_name_plural = _("API tokens")
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"


class IdempotencyKey(models.Model):
    """An answer that was given to a request with an `Idempotency-Key`: the same request gets the same answer."""

    scope = models.CharField(max_length=64)  # who asked: a token or a user
    key = models.CharField(max_length=255)
    digest = models.CharField(max_length=64)  # of the request: the same key with another body is refused
    answer = models.JSONField(null=True)
    created_at = models.DateTimeField(db_default=DatabaseNow())

    class Meta:
        verbose_name = _("idempotency key")
        verbose_name_plural = _("idempotency keys")
        indexes = [models.Index(fields=["created_at"], name="django_jobs_idempotency_age")]
        constraints = [models.UniqueConstraint(fields=["scope", "key"], name="django_jobs_idempotency_key")]

    def __str__(self) -> str:
        return self.key

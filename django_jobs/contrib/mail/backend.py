"""The back end for MAILERS, or EMAIL_BACKEND."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.core.mail import EmailMessage
from django.core.mail.backends.base import BaseEmailBackend

from ...options import MAX_DESCRIPTION

#: What Django passes on its own account.
_DJANGOS = frozenset({"fail_silently", "_ignore_unknown_kwargs"})


class EmailBackend(BaseEmailBackend):
    """Stores a job for each message, in the caller's transaction: a rollback takes it back, nothing is sent before the commit.

    `mailer` names the one in MAILERS that really sends. A message that a job can't carry raises `UnserialisableMessage`, also
    with `fail_silently`: that is an error of the program's, and not of the mail server's.
    """

    def __init__(self, fail_silently: bool = False, *, alias: str | None = None, mailer: str = "", **options: Any) -> None:
        known: dict[str, Any] = {} if alias is None else {"alias": alias}
        super().__init__(**known)
        if unknown := sorted(name for name, value in options.items() if name not in _DJANGOS and value is not None):
            raise ImproperlyConfigured(
                f"{type(self).__module__}.{type(self).__qualname__} takes no {', '.join(unknown)}: a job does not carry it."
                " Say it to the mailer that really sends."
            )
        if not apps.is_installed("django_jobs.contrib.mail"):
            raise ImproperlyConfigured("Add 'django_jobs.contrib.mail' to INSTALLED_APPS: else no worker knows how to send.")
        self.fail_silently = fail_silently
        self.mailer = mailer

    def send_messages(self, email_messages: Sequence[EmailMessage]) -> int:
        """Store a job for each message that has recipients, all or none; return how many there were."""
        from .conf import mail_settings
        from .message import to_json
        from .tasks import deliver

        settings = mail_settings()
        calls = [
            (self.mailer, to_json(message, max_bytes=settings.max_bytes)) for message in email_messages if message.recipients()
        ]
        if not calls:
            return 0
        task = deliver.using(queue_name=settings.queue, priority=settings.priority, max_attempts=settings.max_attempts)
        if len(calls) == 1:
            task = task.using(description=" ".join(calls[0][1]["subject"].split())[:MAX_DESCRIPTION])
        task.enqueue_many(calls)
        return len(calls)

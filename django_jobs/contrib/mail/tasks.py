"""The job that sends one message."""

from __future__ import annotations

from smtplib import SMTPAuthenticationError, SMTPException, SMTPRecipientsRefused, SMTPResponseException
from typing import Any, Final

from django.utils.module_loading import import_string

from ...conf import jobs_aliases
from ...exceptions import Fail
from ...execution.running import retry_also
from ...task import job
from .conf import mail_settings, real_mailer
from .message import from_json

#: From here on a mail server's answer is for good.
_PERMANENT: Final = 500


@job(
    backend=next(iter(jobs_aliases()), "default"),
    serializer="typed",
    retry_for=(SMTPException, OSError),
    backoff=[10, 60, 300, 900, 3_600],
    timeout="5m",
    # A sent message may hold what is secret: the link that sets a new password.
    retention={"succeeded": "1h", "cancelled": "1h", "failed": "30d", "timed_out": "30d"},
)
def deliver(mailer: str, message: dict[str, Any]) -> None:
    """Send a message by the mailer that really sends. Tried again when the mail server is away, busy or asks for it (4xx)."""
    retry_also(tuple(import_string(path) for path in mail_settings().retry_for))
    try:
        real_mailer(mailer).send_messages([from_json(message)])
    except SMTPException as error:
        if is_permanent(error):
            raise Fail(f"The mail server has refused it for good: {type(error).__name__}: {error}") from error
        raise


def is_permanent(error: SMTPException) -> bool:
    """Whether the mail server would say the same to the same message again: 5xx, but not to a wrong password, which is mended."""
    if isinstance(error, SMTPAuthenticationError):
        return False
    if isinstance(error, SMTPRecipientsRefused):
        return all(code >= _PERMANENT for code, _ in error.recipients.values())
    return isinstance(error, SMTPResponseException) and error.smtp_code >= _PERMANENT

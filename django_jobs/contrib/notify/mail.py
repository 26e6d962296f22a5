"""The mail about one group of failures."""

from __future__ import annotations

from typing import Any

from django.contrib.auth import get_user_model
from django.core.mail import EmailMessage
from django.template.loader import render_to_string
from django.urls import NoReverseMatch, reverse

from .conf import notify_settings
from .models import Notice


def address_of(user: Any) -> str:
    """Return a user's address; empty if there is none."""
    return str(getattr(user, get_user_model().get_email_field_name(), "") or "")


def message_for(notice: Notice) -> EmailMessage:
    """Return the mail: the first one, or a summary of what came since the last one."""
    group = notice.group
    context = {
        "notice": notice,
        "group": group,
        "new": notice.count - notice.mailed_count,
        "is_first": notice.mailed_count == 0,
        "job_url": _url("admin:django_jobs_job_change", notice.last_job),
        "preferences_url": _url("django_jobs_notify:preferences"),
    }
    subject = " ".join(render_to_string("django_jobs_notify/mail_subject.txt", context).split())
    body = render_to_string("django_jobs_notify/mail.txt", context)
    # So that answering machines do not answer.
    headers = {"Auto-Submitted": "auto-generated"}
    return EmailMessage(subject[:200], body, to=[address_of(notice.user)], headers=headers)


def _url(name: str, *args: Any) -> str:
    """Return a full address; empty if the site has no such page, or `BASE_URL` is not set."""
    base = notify_settings().base_url
    try:
        return base and base + reverse(name, args=args)
    except NoReverseMatch:
        return ""

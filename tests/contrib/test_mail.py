"""The mail back end that enqueues: a message comes out of the job as it went in, once the mail server takes it."""

from __future__ import annotations

import email
import smtplib
import socket
from email.message import EmailMessage as PythonMessage
from email.mime.image import MIMEImage
from pathlib import Path
from typing import Any

import django
import pytest
from django.core import mail
from django.core.exceptions import ImproperlyConfigured
from django.core.mail import EmailMessage, EmailMultiAlternatives, send_mail
from django.core.mail.backends.base import BaseEmailBackend
from django.db import transaction
from django.test import override_settings
from django.utils.functional import lazystr
from django.utils.safestring import mark_safe

from django_jobs.contrib.mail import EmailBackend
from django_jobs.contrib.mail.checks import check_settings
from django_jobs.contrib.mail.message import UnserialisableMessage
from django_jobs.contrib.mail.tasks import deliver, is_permanent
from django_jobs.models import Job
from django_jobs.statuses import Status
from django_jobs.testing import run_jobs
from tests.contrib.mailers import HAS_MAILERS, LOCMEM, OURS, SMTP, enqueueing, mail_server

pytestmark = pytest.mark.django_db


class Odd(BaseEmailBackend):
    """A back end whose errors nobody knows."""

    def send_messages(self, email_messages: Any) -> int:
        raise LookupError("the service is away")


class OwnMessage(EmailMessage):
    """A message of some package."""


def image() -> Any:
    """Return a part of the kind that this Django takes."""
    if django.VERSION >= (6, 0):
        part = PythonMessage()
        part.set_content(b"\x89PNG rest", maintype="image", subtype="png", cid="<logo>", disposition="inline")
        return part
    old = MIMEImage(b"\x89PNG rest", "png")
    old.add_header("Content-ID", "<logo>")
    return old


def plain(**values: Any) -> EmailMessage:
    return EmailMessage("Hello", "Text", "shop@example.com", ["ada@example.com"], **values)


def sent(message: EmailMessage) -> Any:
    """Send a message by way of a job, and return what came out."""
    with enqueueing():
        assert message.send() == 1
        assert mail.outbox == []
        run_jobs()
    (out,) = mail.outbox
    assert Job.objects.get().status == Status.SUCCEEDED
    return out


def flat(message: Any) -> list[Any]:
    """Return what of a message is to be the same, part by part."""
    built = email.message_from_bytes(message.message().as_bytes())
    headers = {name: value for name, value in built.items() if name not in ("Date", "Message-ID", "Content-Type")}
    parts = [
        (part.get_content_type(), part.get_filename(), part["Content-ID"], part.get_payload(decode=True)) for part in built.walk()
    ]
    return [headers, parts, message.recipients()]


def test_a_message_is_sent_by_a_job() -> None:
    with enqueueing():
        assert send_mail("Hello\tthere", "Text", None, ["ada@example.com", "bob@example.com"]) == 1
        job = Job.objects.get()
        assert (job.task, job.status, job.description) == (deliver.module_path, Status.READY, "Hello there")
        assert mail.outbox == []
        run_jobs()
    (out,) = mail.outbox
    assert (out.subject, out.body, out.to) == ("Hello\tthere", "Text", ["ada@example.com", "bob@example.com"])


def test_nothing_of_a_message_is_lost() -> None:
    message = EmailMultiAlternatives(
        lazystr("Grüße ✓"),
        mark_safe("Text\nwith lines ✓"),
        "Shop <shop@example.com>",
        ["Ada <ada@example.com>"],
        bcc=["b@example.com"],
        cc=["c@example.com"],
        reply_to=["r@example.com"],
        headers={"X-Campaign": "spring", "List-Id": "<news.example.com>"},
    )
    message.attach_alternative("<p>HTML ✓</p>", "text/html")
    message.attach("notes.txt", "a note ✓", "text/plain")
    message.attach("données.bin", b"\x00\xff" * 100, "application/octet-stream")
    message.attach("inner.eml", plain(), "message/rfc822")
    message.attach(image())
    if django.VERSION < (6, 0):
        message.mixed_subtype = "related"
    out = sent(message)
    assert flat(out) == flat(message)
    assert "image/png" in [part[0] for part in flat(out)[1]]


def test_a_file_and_a_body_of_html(tmp_path: Path) -> None:
    (tmp_path / "report.csv").write_text("a,b\n1,ü\n")
    message = EmailMessage("Report", "<p>Here</p>", "shop@example.com", ["ada@example.com"])
    message.content_subtype = "html"
    message.encoding = "iso-8859-1"
    message.attach_file(str(tmp_path / "report.csv"))
    out = sent(message)
    assert flat(out) == flat(message)
    assert out.content_subtype == "html"


def test_date_and_id_are_those_of_the_enqueue_however_often_it_is_sent() -> None:
    with enqueueing():
        plain().send()
        plain(headers={"message-id": "<mine@example.com>", "Date": "Tue, 01 Dec 2026 09:00:00 -0000"}).send()
        for job in Job.objects.order_by("id"):
            for _ in range(2):
                deliver.call(*[job.args[0], job.args[1]])
    ids = [out.message()["Message-ID"] for out in mail.outbox]
    assert ids[0] == ids[1] != ids[2]
    assert ids[2:] == ["<mine@example.com>"] * 2
    assert mail.outbox[0].message()["Date"] == mail.outbox[1].message()["Date"]


@pytest.mark.django_db(transaction=True)
def test_a_rollback_takes_the_mail_back() -> None:
    with enqueueing():
        with transaction.atomic():
            plain().send()
            transaction.set_rollback(True)
        run_jobs()
    assert mail.outbox == []


def test_many_messages_are_a_job_each_and_those_for_nobody_none() -> None:
    with enqueueing():
        connection = mail.mailers.default if HAS_MAILERS else mail.get_connection()
        assert connection.send_messages([plain(), EmailMessage("x", "y"), plain()]) == 2
        assert connection.send_messages([]) == 0
        assert Job.objects.count() == 2


def test_the_settings_say_where_and_how_often() -> None:
    with enqueueing(QUEUE="mail", PRIORITY=7, MAX_ATTEMPTS=3):
        plain().send()
    job = Job.objects.get()
    assert (job.queue, job.priority, job.max_attempts) == ("mail", 7, 3)
    assert job.retention is not None
    assert job.retention["succeeded"] == 3600


# -- what is refused


class _Weird:
    def __str__(self) -> str:
        return "weird"


def _with_attribute() -> EmailMessage:
    message = plain()
    message.template_id = 7  # type: ignore[attr-defined]
    return message


def _with_object() -> EmailMessage:
    message = plain()
    message.attachments.append(("x", _Weird(), "text/plain"))  # type: ignore[arg-type]
    return message


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: OwnMessage("a", "b", None, ["ada@example.com"]), "tests.contrib.test_mail.OwnMessage"),
        (_with_attribute, "'template_id'"),
        (_with_object, r"attachments\[0\] is a _Weird"),
        (lambda: EmailMessage("x" * 3000, "y", None, ["ada@example.com"]), "MAX_BYTES is 2000"),
        (lambda: plain(attachments=[("a.bin", b"x" * 3000, "application/zip")]), "MAX_BYTES is 2000"),
    ],
    ids=["subclass", "attribute", "object", "long", "attachment"],
)
def test_what_a_job_can_not_carry_is_refused_and_named(make: Any, word: str) -> None:
    with enqueueing(MAX_BYTES=2000), pytest.raises(UnserialisableMessage, match=word):
        make().send()
    assert not Job.objects.exists()


def test_what_the_real_back_end_would_refuse_is_refused_at_once() -> None:
    with enqueueing(), pytest.raises(ValueError, match=r"(?i)header|newline|linefeed"):
        EmailMessage("two\nlines", "x", None, ["ada@example.com"]).send()
    assert not Job.objects.exists()


def test_one_bad_message_of_many_and_nothing_is_stored() -> None:
    with enqueueing(), pytest.raises(UnserialisableMessage):
        EmailBackend().send_messages([plain(), _with_attribute()])
    assert not Job.objects.exists()


def test_passwords_are_not_carried() -> None:
    with pytest.raises(ImproperlyConfigured, match="takes no password, username"):
        EmailBackend(username="me", password="secret")
    assert EmailBackend(fail_silently=True).fail_silently


def test_without_the_app_no_worker_would_send() -> None:
    from django.conf import settings

    apps = [name for name in settings.INSTALLED_APPS if name != "django_jobs.contrib.mail"]
    with override_settings(INSTALLED_APPS=apps), pytest.raises(ImproperlyConfigured, match="INSTALLED_APPS"):
        EmailBackend()


# -- the mail server


def test_over_smtp() -> None:
    with mail_server() as server, enqueueing(SMTP, options=server.options):
        plain(bcc=["secret@example.com"]).send()
        run_jobs()
        (received,) = server.received
    assert b"Subject: Hello" in received
    assert b"secret@example.com" not in received
    assert Job.objects.get().status == Status.SUCCEEDED


@pytest.mark.parametrize(
    ("command", "answer", "status"),
    [
        ("MAIL", "451 try again later", Status.SCHEDULED),
        ("RCPT", "450 greylisted", Status.SCHEDULED),
        ("DATA", "452 disk full", Status.SCHEDULED),
        ("MAIL", "553 who are you", Status.FAILED),
        ("RCPT", "550 no such user", Status.FAILED),
        ("DATA", "554 spam", Status.FAILED),
    ],
)
def test_what_the_mail_server_says(command: str, answer: str, status: Status) -> None:
    with mail_server() as server, enqueueing(SMTP, options=server.options):
        server.answers[command] = answer
        plain().send()
        run_jobs()
        job = Job.objects.get()
        assert (job.status, job.starts) == (status, 1)
        assert answer.partition(" ")[2] in job.error_message
        server.answers.clear()
        if status == Status.SCHEDULED:
            Job.objects.update(status=Status.READY)
            run_jobs()
            assert len(server.received) == 1
            assert Job.objects.get().status == Status.SUCCEEDED


def test_a_mail_server_that_is_away_is_tried_again() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        with enqueueing(SMTP, options={"host": "127.0.0.1", "port": nobody.getsockname()[1], "timeout": 5}):
            plain().send()
            run_jobs()
    job = Job.objects.get()
    assert (job.status, job.error_class) == (Status.SCHEDULED, "builtins.ConnectionRefusedError")


@pytest.mark.parametrize(("more", "status"), [({}, Status.FAILED), ({"RETRY_FOR": ["builtins.LookupError"]}, Status.SCHEDULED)])
def test_errors_of_other_back_ends(more: dict[str, Any], status: Status) -> None:
    with enqueueing("tests.contrib.test_mail.Odd", **more):
        plain().send()
        run_jobs()
    assert Job.objects.get().status == status


def test_a_wrong_password_is_mended_and_not_for_good() -> None:
    assert not is_permanent(smtplib.SMTPAuthenticationError(535, b"no"))
    assert not is_permanent(smtplib.SMTPServerDisconnected("gone"))
    assert not is_permanent(smtplib.SMTPRecipientsRefused({"a": (550, b""), "b": (450, b"")}))
    assert is_permanent(smtplib.SMTPRecipientsRefused({"a": (550, b""), "b": (554, b"")}))


# -- settings


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"QUEUES": "x"}, "did you mean 'QUEUE'"),
        ({"QUEUE": "a..b"}, "QUEUE"),
        ({"PRIORITY": 1000}, "PRIORITY"),
        ({"MAX_ATTEMPTS": 0}, "MAX_ATTEMPTS"),
        ({"MAX_BYTES": 0}, "MAX_BYTES"),
        ({"OPTIONS": 5}, "OPTIONS"),
        ({"BACKEND": 5}, "BACKEND"),
        ({"RETRY_FOR": "x"}, "RETRY_FOR"),
        ({"RETRY_FOR": ["no.such.Error"]}, "RETRY_FOR"),
        (5, "a dict"),
    ],
    ids=str,
)
def test_wrong_settings_are_told(given: Any, word: str) -> None:
    with override_settings(DJANGO_JOBS_MAIL=given):
        (message,) = check_settings()
    assert word in message.msg
    assert message.id == "django_jobs_mail.E001"


def test_a_back_end_that_would_send_to_itself_or_to_nobody_is_told() -> None:
    with enqueueing():
        assert check_settings() == []
    with enqueueing(OURS):
        assert {message.id for message in check_settings()} == {"django_jobs_mail.E002"}
    with enqueueing("no.such.Backend"):
        assert [message.id for message in check_settings()] == ["django_jobs_mail.E002"]
    if HAS_MAILERS:
        for options in ({}, {"mailer": "nobody"}):
            with override_settings(MAILERS={"default": {"BACKEND": OURS, "OPTIONS": options}}):
                assert [message.id for message in check_settings()] == ["django_jobs_mail.E002"]
        mailers = {"default": {"BACKEND": OURS}, "real": {"BACKEND": LOCMEM}}
        with override_settings(MAILERS=mailers, DJANGO_JOBS_MAIL={"MAILER": "real"}):
            assert check_settings() == []

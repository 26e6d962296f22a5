"""A message as the argument of a job, and back. What can't be carried is refused when it is enqueued, and named.

The date and the message's id are fixed then, so a mail server, or a reader, that gets a message twice can tell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from email import message_from_bytes, policy
from email.message import EmailMessage as PythonMessage
from email.message import Message, MIMEPart
from email.mime.base import MIMEBase
from email.utils import format_datetime, formatdate
from typing import Any, Final

from django.conf import settings
from django.core.mail import DNS_NAME, EmailMessage, EmailMultiAlternatives, make_msgid
from django.utils.functional import Promise

from ...exceptions import InvalidArguments

_LISTS: Final = ("to", "cc", "bcc", "reply_to")
_TEXTS: Final = ("subject", "body", "from_email")
#: Attributes of a class that somebody may set on one message.
_CLASS_TEXTS: Final = ("content_subtype", "mixed_subtype", "alternative_subtype")
#: Attributes of a message that mean nothing to the job.
_LEFT_OUT: Final = frozenset({"connection", "_connection"})
_KNOWN: Final = frozenset({*_LISTS, *_TEXTS, *_CLASS_TEXTS, "encoding", "attachments", "alternatives", "extra_headers"})


class UnserialisableMessage(InvalidArguments):
    """A message that a job can't carry; the text says what of it."""


def to_json(message: EmailMessage, *, max_bytes: int) -> dict[str, Any]:
    """Return what a job carries of `message`. Raises `UnserialisableMessage`, and whatever building the message raises."""
    kind = type(message)
    if kind not in (EmailMessage, EmailMultiAlternatives):
        name = f"{kind.__module__}.{kind.__qualname__}"
        raise UnserialisableMessage(f"A {name} can't be enqueued: only Django's EmailMessage and EmailMultiAlternatives can.")
    if more := sorted(vars(message).keys() - _KNOWN - _LEFT_OUT):
        raise UnserialisableMessage(
            f"A message with {', '.join(map(repr, more))} can't be enqueued: a job carries what Django's messages have."
        )
    carried: dict[str, Any] = {name: _text(getattr(message, name), name) for name in _TEXTS}
    carried |= {name: [_text(item, name) for item in getattr(message, name)] for name in _LISTS if getattr(message, name)}
    carried |= {name: getattr(message, name) for name in _CLASS_TEXTS if name in vars(message)}
    if message.encoding is not None:
        if not isinstance(message.encoding, str):
            raise UnserialisableMessage(
                "A message whose encoding is an object can't be enqueued: use the name of a character set."
            )
        carried["encoding"] = message.encoding
    carried["headers"] = _headers(message.extra_headers)
    if message.attachments:
        carried["attachments"] = [_attachment(item, f"attachments[{n}]") for n, item in enumerate(message.attachments)]
    if isinstance(message, EmailMultiAlternatives):
        carried["alternatives"] = [
            [_content(content, f"alternatives[{n}]"), str(mimetype)] for n, (content, mimetype) in enumerate(message.alternatives)
        ]
    if (size := _size(carried)) > max_bytes:
        raise UnserialisableMessage(f"A message of {size} bytes can't be enqueued: MAX_BYTES is {max_bytes}.")
    message.message()  # as the real back end will do it: what it refuses, a header of two lines, is told now
    return carried


def from_json(carried: Mapping[str, Any]) -> EmailMessage:
    """Return the message again."""
    given: dict[str, Any] = {name: carried[name] for name in _TEXTS} | {name: carried.get(name) for name in _LISTS}
    kind: Callable[..., EmailMessage] = EmailMessage
    if "alternatives" in carried:
        kind = EmailMultiAlternatives
        given["alternatives"] = [tuple(each) for each in carried["alternatives"]]
    message = kind(headers=dict(carried["headers"]), **given)
    for name in (*_CLASS_TEXTS, "encoding"):
        if name in carried:
            setattr(message, name, carried[name])
    for item in carried.get("attachments", ()):
        if "mime" in item:
            message.attachments.append(_part(item["mime"], is_old=item["is_old"]))
        else:
            message.attach(item["name"], item["content"], item["type"])
    return message


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str | Promise):
        raise UnserialisableMessage(f"A message can't be enqueued: {name} is a {type(value).__qualname__}, and no text.")
    return str(value)


def _headers(headers: Mapping[str, Any]) -> dict[str, str]:
    said = {str(name): format_datetime(value) if isinstance(value, datetime) else str(value) for name, value in headers.items()}
    names = {name.lower() for name in said}
    if "date" not in names:
        said["Date"] = formatdate(localtime=settings.EMAIL_USE_LOCALTIME)
    if "message-id" not in names:
        said["Message-ID"] = make_msgid(domain=str(DNS_NAME))
    return said


def _content(value: Any, place: str) -> str | bytes:
    if isinstance(value, EmailMessage):
        value = value.message()
    if isinstance(value, Message):
        return value.as_bytes()
    if isinstance(value, str | Promise):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise UnserialisableMessage(
        f"A message can't be enqueued: {place} is a {type(value).__qualname__}, and neither text nor bytes."
    )


def _attachment(item: Any, place: str) -> dict[str, Any]:
    if isinstance(item, MIMEBase | MIMEPart):
        return {"mime": item.as_bytes(), "is_old": isinstance(item, MIMEBase)}
    name, content, mimetype = item
    return {"name": None if name is None else str(name), "content": _content(content, place), "type": mimetype}


def _part(content: bytes, *, is_old: bool) -> Message:
    """Return a part as it was: of Python's newer kind, or of the older one."""
    if not is_old:
        return message_from_bytes(content, _class=PythonMessage, policy=policy.default)
    read = message_from_bytes(content)
    part = MIMEBase(read.get_content_maintype(), read.get_content_subtype())
    del part["Content-Type"], part["MIME-Version"]
    for name, value in read.items():
        part[name] = value
    part.set_payload(read.get_payload())
    return part


def _size(value: Any) -> int:
    if isinstance(value, str):
        return len(value.encode(errors="replace"))
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, Mapping):
        return sum(_size(item) for item in value.values())
    return sum(_size(item) for item in value) if isinstance(value, list) else 0

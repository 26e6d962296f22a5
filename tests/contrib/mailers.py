"""Mailers for tests: settings in the form of the Django at hand, and a small mail server."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import django
from django.test import override_settings

LOCMEM = "django.core.mail.backends.locmem.EmailBackend"
SMTP = "django.core.mail.backends.smtp.EmailBackend"
OURS = "django_jobs.contrib.mail.EmailBackend"
HAS_MAILERS = django.VERSION >= (6, 1)


def mailer(path: str) -> override_settings:
    """Have mails sent by this back end."""
    return override_settings(MAILERS={"default": {"BACKEND": path}}) if HAS_MAILERS else override_settings(EMAIL_BACKEND=path)


def enqueueing(path: str = LOCMEM, *, options: dict[str, Any] | None = None, **more: Any) -> override_settings:
    """Have mails enqueued by our back end, and sent by the back end `path`, made with `options`."""
    options = options or {}
    if HAS_MAILERS:
        mailers = {"default": {"BACKEND": OURS, "OPTIONS": {"mailer": "real"}}, "real": {"BACKEND": path, "OPTIONS": options}}
        return override_settings(MAILERS=mailers, DJANGO_JOBS_MAIL=more)
    return override_settings(EMAIL_BACKEND=OURS, DJANGO_JOBS_MAIL={"BACKEND": path, "OPTIONS": options, **more})


class Server(socketserver.ThreadingTCPServer):
    """A mail server that answers as it is told: `answers` maps a command to a line."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Session)
        self.answers: dict[str, str] = {}
        self.received: list[bytes] = []

    @property
    def options(self) -> dict[str, Any]:
        return {"host": "127.0.0.1", "port": self.server_address[1], "timeout": 5}


class _Session(socketserver.StreamRequestHandler):
    server: Server

    def handle(self) -> None:
        self._say("220 here")
        while line := self.rfile.readline():
            command = line[:4].decode().upper().strip()
            answer = self.server.answers.get(command)
            if command == "DATA" and answer is None:
                self._say("354 go on")
                content = bytearray()
                while (line := self.rfile.readline()) != b".\r\n":
                    content += line
                self.server.received.append(bytes(content))
            self._say(answer or "250 yes")
            if command == "QUIT":
                return

    def _say(self, line: str) -> None:
        self.wfile.write(f"{line}\r\n".encode())


@contextmanager
def mail_server() -> Iterator[Server]:
    """Run a mail server."""
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join(5)

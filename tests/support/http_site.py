"""The test project as a real web server in a process of its own, which can be killed and started again at the same address."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tests.support.worker import until


class HttpSite:
    """Serves `tests.urls` on a free port of 127.0.0.1, with Django's own server: one thread for each connection."""

    def __init__(self, environment: Mapping[str, str], folder: Path) -> None:
        self._environment, self._folder = dict(environment), folder
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self.log = folder / f"site-{self.port}.log"
        self.start()

    @property
    def url(self) -> str:
        """The address of the API."""
        return self.url_at(self.port)

    def url_at(self, port: int) -> str:
        """Return the address of the API through another port, as of a proxy."""
        return f"http://127.0.0.1:{port}/api/jobs/"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "django", "runserver", "--noreload", f"127.0.0.1:{self.port}"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env=self._environment,
            )
        until(self._answers, "a web server")

    def _answers(self) -> bool:
        assert self.process.poll() is None, self.text()
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def kill(self) -> None:
        """End it as a crash does."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(20)

    def close(self) -> None:
        """Leave nothing behind."""
        if self.process.poll() is None:
            self.kill()

    def text(self) -> str:
        """Return what it has logged."""
        return self.log.read_text(errors="replace")

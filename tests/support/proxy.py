"""A network that can be cut: a small TCP proxy before a server, which drops what goes through it, or swallows it."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType


class Proxy:
    """Use as a context manager; connect to `port`. `cut()`, `swallow()` and `mend()` say what the network does."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._whole = threading.Event()
        self._whole.set()
        self._swallows = False
        self._closed = False
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]

    def __enter__(self) -> Proxy:
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._closed = True
        self._server.close()
        self.cut()

    def cut(self) -> None:
        """Close every connection, and each new one at once."""
        self._whole.clear()
        with self._lock:
            for each in self._open:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def swallow(self) -> None:
        """Let nothing come back from the server: what is sent arrives, and its answer is lost."""
        self._swallows = True

    def mend(self) -> None:
        """Let everything through again."""
        self._swallows = False
        self._whole.set()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            if not self._whole.is_set():
                client.close()
                continue
            try:
                server = socket.create_connection(self._target, 5)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            with self._lock:
                self._open |= {client, server}
            for source, target, back in ((client, server, False), (server, client, True)):
                threading.Thread(target=self._pass, args=(source, target, back), name="proxy", daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, back: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if back and self._swallows:
                    break
                target.sendall(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._open.discard(source)
        source.close()

"""A small pooler for PostgreSQL: like PgBouncer in transaction mode it lends a session of the server for one transaction.

So a client finds nothing of what it left in "its" session: prepared statements, LISTEN, settings, locks.
"""

from __future__ import annotations

import asyncio
import random
import struct
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

_SSL, _CANCEL = 80877103, 80877102
_Session = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Pooler:
    """Use as a context manager; clients connect with `folder` as their host. `settings`: of the database behind it."""

    def __init__(self, settings: Mapping[str, Any], folder: Path, *, size: int) -> None:
        folder.mkdir()
        self.folder, self.size = folder, size
        self.sessions = 0
        self.transactions = 0
        self._server = Path(str(settings["HOST"]), f".s.PGSQL.{settings['PORT'] or 5432}")
        self._startup = {"user": str(settings["USER"]), "database": str(settings["NAME"])}
        self._writers: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._run, name="pooler", daemon=True)
        self._ready = threading.Event()
        self._greeting = b""

    def __enter__(self) -> Pooler:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.run(self._work())

    async def _work(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._idle: asyncio.LifoQueue[_Session | None] = asyncio.LifoQueue()
        for _ in range(self.size - 1):
            self._idle.put_nowait(None)  # one that has yet to be opened
        self._idle.put_nowait(await self._open())
        server = await asyncio.start_unix_server(self._serve, self.folder / ".s.PGSQL.5432")
        self._ready.set()
        await self._stop.wait()
        server.close()
        for writer in self._writers:
            writer.close()

    async def _open(self) -> _Session:
        reader, writer = await asyncio.open_unix_connection(self._server)
        words = "".join(f"{name}\0{value}\0" for name, value in self._startup.items()).encode() + b"\0"
        writer.write(struct.pack("!ii", len(words) + 8, 196608) + words)
        greeting = b""
        while True:
            kind, body = await _message(reader)
            assert kind != b"E", body
            if kind == b"Z":
                break
            greeting += _pack(kind, body) if kind != b"K" else b""
        self._greeting = greeting
        self.sessions += 1
        self._writers.add(writer)
        return reader, writer

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        session: _Session | None = None
        self._writers.add(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            if not await _greet(reader, writer):
                return
            # No client is told which session is whose: it gets a process id that is nobody's.
            key = struct.pack("!ii", random.randrange(1 << 24, 1 << 30), 0)
            writer.write(self._greeting + _pack(b"K", key) + _pack(b"Z", b"I"))
            while True:
                message = _pack(*await _message(reader))
                if message[:1] == b"X":
                    break
                if session is None:
                    session = await self._idle.get() or await self._open()
                    self.transactions += 1
                session[1].write(message)
                # After a query, a sync or a function call the server says when it is ready again.
                if message[:1] in b"QSF" and await _forward(session[0], writer) == b"I":
                    self._idle.put_nowait(session)
                    session = None
        if session is not None:
            session[1].close()  # in the middle of a transaction: it is rolled back
            self.sessions -= 1
            self._idle.put_nowait(None)
        writer.close()


async def _greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Read a client's first message; False if it only wants to cancel something."""
    while True:
        length, code = struct.unpack("!ii", await reader.readexactly(8))
        await reader.readexactly(length - 8)
        if code == _CANCEL:
            writer.close()
            return False
        if code != _SSL:
            return True
        writer.write(b"N")


async def _forward(server: asyncio.StreamReader, client: asyncio.StreamWriter) -> bytes:
    """Pass the server's answer on up to its end, and return the state of its transaction."""
    while True:
        kind, body = await _message(server)
        client.write(_pack(kind, body))
        if kind == b"Z":
            return body
        if kind == b"G":
            raise NotImplementedError("COPY is not passed on")


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    kind = await reader.readexactly(1)
    (length,) = struct.unpack("!i", await reader.readexactly(4))
    return kind, await reader.readexactly(length - 4)


def _pack(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body

"""How a waiting worker learns that there is work: LISTEN/NOTIFY on PostgreSQL, polling elsewhere.

A wake may be lost or doubled: the poll makes the system correct, the wake makes it fast. So a process sends at most one
notification per queue in `DEBOUNCE_SECONDS`, and a worker that was woken looks once more after `SECOND_LOOK_SECONDS`, which finds
what was enqueued in between. Processes on the same machine and database without NOTIFY rely on the poll alone.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from django.db import DatabaseError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from . import db

CHANNEL = "django_jobs"
#: One notification per queue and process in this time. NOTIFY takes a lock over the whole database at commit.
DEBOUNCE_SECONDS = 0.02
#: A woken worker looks again after this long: more than the debounce, plus a commit.
SECOND_LOOK_SECONDS = 0.03
#: PostgreSQL refuses payloads of 8,000 bytes; queue names are far shorter.
_ANY_QUEUE = "*"

logger = logging.getLogger("django_jobs.wakeup")

_sent: dict[tuple[str, str], float] = {}
_sent_lock = threading.Lock()


def wake(using: str, queues: Iterable[str]) -> None:
    """Tell waiting workers, when the current transaction on `using` commits, that `queues` have work. Never raises."""
    connection = connections[using]
    if connection.vendor != "postgresql":
        return
    names = tuple(dict.fromkeys(queues))
    if connection.in_atomic_block:
        transaction.on_commit(lambda: _send(using, names), using=using, robust=True)
    else:
        _send(using, names)


def due(using: str, queues: Iterable[str]) -> list[str]:
    """Return which of `queues` are to be notified now; the caller does it at once, or they are late by a poll."""
    found = []
    now = time.monotonic()
    with _sent_lock:
        for queue in queues:
            if now - _sent.get((using, queue), float("-inf")) >= DEBOUNCE_SECONDS:
                _sent[using, queue] = now
                found.append(queue)
        if len(_sent) > 10_000:
            _sent.clear()
    return found


def _send(using: str, queues: tuple[str, ...]) -> None:
    if names := due(using, queues):
        try:
            _notify(connections[using], names)
        except DatabaseError:
            logger.warning("The wake-up of %s could not be sent: the next poll finds the work.", ", ".join(names), exc_info=True)


def wake_over(connection: BaseDatabaseWrapper, queues: Iterable[str]) -> None:
    """Do what `wake` does, in the transaction that is open on `connection`, of which Django does not know. Raises what fails."""
    if connection.vendor == "postgresql" and (names := due(connection.alias, queues)):
        _notify(connection, names)


def _notify(connection: BaseDatabaseWrapper, names: Sequence[str]) -> None:
    # Many queues at once: one notification that wakes everybody.
    payloads = names if len(names) <= 8 else [_ANY_QUEUE]
    with connection.cursor() as cursor:
        cursor.execute("SELECT " + ", ".join(["pg_notify(%s, %s)"] * len(payloads)), [x for p in payloads for x in (CHANNEL, p)])


def can_listen(connection: BaseDatabaseWrapper) -> bool:
    """Whether this connection can LISTEN: PostgreSQL through psycopg 3."""
    if connection.vendor != "postgresql":
        return False
    try:
        from django.db.backends.postgresql.psycopg_any import is_psycopg3
    except ImportError:
        return False
    return bool(is_psycopg3)


def can_listen_alias(alias: str) -> bool:
    """Whether workers on the database `alias` are told of new jobs by notifications."""
    return can_listen(connections[alias])


class Listener:
    """A connection of its own that waits for notifications, in autocommit: none arrives inside an open transaction."""

    def __init__(self, alias: str) -> None:
        self.connection = db.control_connection(alias)

    def open(self) -> None:
        """Connect and LISTEN. Raises a database error."""
        self.connection.close()
        self.connection.connect()
        with self.connection.cursor() as cursor:
            cursor.execute(f"LISTEN {CHANNEL}")

    def wait(self, timeout: float) -> Iterator[str]:
        """Yield the queues of the notifications that arrive, until `timeout` seconds have passed.

        Raises a database error when the session is lost.
        """
        raw: Any = self.connection.connection
        for note in raw.notifies(timeout=timeout):
            yield note.payload

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

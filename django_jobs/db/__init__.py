"""Everything that differs between databases: clocks, locks, transactions by hand, bulk statements, capabilities.

One `Dialect` per vendor; `dialect(connection)` finds it. Parameters are always passed apart from the SQL, except in
`Dialect.hold` on PostgreSQL, whose statements must travel as one message and whose literals are UUIDs and numbers that this
package made.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, connections, models
from django.db.backends.base.base import BaseDatabaseWrapper

from .base import Dialect, batches
from .errors import errno, sqlstate
from .mysql import MySQL, MySQL8, is_mariadb
from .postgresql import PostgreSQL
from .sqlite import SQLite
from .tables import ATTEMPT, BATCH, BATCH_COUNT, CANCEL, COUNT, DELTA, EDGE, ENDED, JOB, LEADER, LOCK, QUEUE, TAG, WORKER

__all__ = [
    "ATTEMPT",
    "BATCH",
    "BATCH_COUNT",
    "CANCEL",
    "COUNT",
    "DELTA",
    "EDGE",
    "ENDED",
    "JOB",
    "LEADER",
    "LOCK",
    "QUEUE",
    "TAG",
    "WORKER",
    "DatabaseNow",
    "Dialect",
    "answers",
    "as_datetime",
    "batches",
    "control_connection",
    "dialect",
    "errno",
    "savepoint",
    "server_now",
    "sqlstate",
]

_MYSQL8 = MySQL8()
_DIALECTS: dict[str, Dialect] = {d.vendor: d for d in (PostgreSQL(), MySQL(), SQLite())}


def dialect(connection: BaseDatabaseWrapper) -> Dialect:
    """Return the dialect of `connection`. Raises `ImproperlyConfigured` for a database that can't keep the promises."""
    try:
        found = _DIALECTS[connection.vendor]
        return _MYSQL8 if connection.vendor == "mysql" and not is_mariadb(connection) else found
    except KeyError:
        raise ImproperlyConfigured(
            f"django_jobs keeps jobs in PostgreSQL, MariaDB, MySQL or SQLite;"
            f" the database {connection.alias!r} is {connection.vendor}."
        ) from None


@contextmanager
def savepoint(connection: BaseDatabaseWrapper, name: str = "one_row") -> Iterator[None]:
    """A savepoint by hand, for transactions that Django does not know of. Undone when the block raises; the error goes on."""
    with connection.cursor() as cursor:
        cursor.execute(f"SAVEPOINT {name}")
        try:
            yield
        except BaseException:
            with suppress(DatabaseError):
                cursor.execute(f"ROLLBACK TO SAVEPOINT {name}")
            raise
        cursor.execute(f"RELEASE SAVEPOINT {name}")


def control_connection(alias: str) -> BaseDatabaseWrapper:
    """Return a new, unshared connection for `alias`, with the options that a control connection needs. Not yet connected."""
    connection = connections.create_connection(alias)
    options = dialect(connection).options()
    settings = {**connection.settings_dict, "CONN_MAX_AGE": None, "CONN_HEALTH_CHECKS": False}
    settings["OPTIONS"] = {key: value for key, value in settings["OPTIONS"].items() if key != "pool"} | options
    connection.settings_dict = settings
    connection.inc_thread_sharing()  # made in one thread, used by one other
    return connection


def answers(alias: str) -> None:
    """Ask the database something over a session of its own, made for this and closed. Raises what the driver raises."""
    connection = control_connection(alias)
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    finally:
        connection.close()


def server_now(connection: BaseDatabaseWrapper) -> datetime:
    """Return the database's clock as an aware datetime."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {dialect(connection).now_sql}", [])
        return as_datetime(cursor.fetchone()[0])


def as_datetime(value: Any) -> datetime:
    """Return what a raw query gave for a time (aware, naive UTC, or SQLite's text) as an aware datetime."""
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    moment: datetime = value
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


class DatabaseNow(models.Func):
    """The statement's time, UTC, by the database's clock. (Django's `Now()` is the server's local time on MariaDB.)"""

    output_field = models.DateTimeField()

    def as_sql(self, compiler: Any, connection: BaseDatabaseWrapper, *args: Any, **context: Any) -> tuple[str, tuple[()]]:
        """Return the SQL of this connection's dialect."""
        return dialect(connection).now_sql, ()

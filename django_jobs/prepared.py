"""Run a hot statement as one that the server has prepared, where that is safe; else through Django's cursor.

Django leaves psycopg's prepared statements off, since they break behind a transaction pooler: there each statement may meet
another session. Parsing and planning a wide INSERT anew costs about a third of it. So a statement is prepared only where
nothing can go wrong: on PostgreSQL through psycopg 3, in autocommit, and on a session that is the server's own, which is
asked once: a pooler gives its clients a process id of its own invention. Where somebody watches the statements (DEBUG,
`execute_wrapper`), Django's cursor runs them, as they expect.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

from django.db import DatabaseError
from django.db.backends.base.base import BaseDatabaseWrapper

#: A connection that runs fewer of these statements is not worth the question.
WORTH_IT: Final = 4

#: The prepared statement was dropped (DISCARD, DEALLOCATE), or the table was altered under it. Nothing was done.
_STALE: Final = frozenset({"26000", "0A000"})

#: Driver's connection -> statements run so far, or a cursor for prepared ones, or None: not safe here.
_sessions: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


def fetch_one(connection: BaseDatabaseWrapper, sql: str, params: Sequence[Any]) -> Any:
    """Run `sql` and return its first row, None if there is none. Raises Django's database errors."""
    rows = fetch_all(connection, sql, params)
    return rows[0] if rows else None


def fetch_all(connection: BaseDatabaseWrapper, sql: str, params: Sequence[Any]) -> list[Any]:
    """Run `sql` and return its rows, as tuples; none for a statement that returns none. Raises Django's database errors."""
    if connection.vendor == "postgresql" and not (
        connection.in_atomic_block or connection.queries_logged or connection.execute_wrappers
    ):
        cursor = _cursor(connection)
        if cursor is not None:
            return _run(connection, cursor, sql, params)
    with connection.cursor() as django_cursor:
        django_cursor.execute(sql, params)
        return [] if django_cursor.description is None else list(django_cursor.fetchall())


def _cursor(connection: BaseDatabaseWrapper) -> Any:
    """Return a cursor whose statements may be prepared, None if they may not."""
    raw: Any = connection.connection
    if raw is None or not connection.get_autocommit():
        return None
    state = _sessions.get(raw, 0)
    if not isinstance(state, int):
        return state
    if state < WORTH_IT:
        _sessions[raw] = state + 1
        return None
    _sessions[raw] = state = _open(connection, raw)
    return state


def _open(connection: BaseDatabaseWrapper, raw: Any) -> Any:
    try:
        from psycopg import Connection, Cursor
    except ImportError:
        return None
    if not isinstance(raw, Connection):  # psycopg2
        return None
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        if cursor.fetchone()[0] != raw.info.backend_pid:
            return None
    return Cursor(raw)


def _run(connection: BaseDatabaseWrapper, cursor: Any, sql: str, params: Sequence[Any]) -> list[Any]:
    connection.validate_thread_sharing()
    connection.close_if_health_check_failed()
    if connection.connection is not cursor.connection:  # it had gone: another one comes
        return fetch_all(connection, sql, params)
    raw = cursor.connection
    threshold = raw.prepare_threshold
    raw.prepare_threshold = 0
    try:
        with connection.wrap_database_errors:
            cursor.execute(sql, params, prepare=True)
            return [] if cursor.description is None else cursor.fetchall()
    except DatabaseError as error:
        if getattr(error.__cause__, "sqlstate", None) not in _STALE:
            raise
        _sessions[raw] = None  # whoever did that may do it again
    finally:
        raw.prepare_threshold = threshold
    return fetch_all(connection, sql, params)

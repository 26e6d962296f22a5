"""Leave a thread, after a job, as a job should find it: as Django does after a request, without paying for new connections.

Connections stay open between jobs: closing one per job costs a database-backed worker a factor of five. One that is
unusable, older than its time, or left in a transaction is closed; whatever the job left open is rolled back by that.
"""

from __future__ import annotations

import logging
import time
from typing import Any, Final

from django.core.cache import caches
from django.core.signals import request_finished
from django.db import DatabaseError, connections

logger = logging.getLogger("django_jobs.execution")

#: Seconds for which a connection is kept at least, also where CONN_MAX_AGE is less: that is meant for requests.
MIN_AGE: Final = 60.0
#: A connection not used for so many seconds is asked whether it still works before the next job uses it.
IDLE: Final = 5.0

_PG_IDLE: Final = 0  # libpq: PQTRANS_IDLE
_MYSQL_IN_TRANSACTION: Final = 1  # SERVER_STATUS_IN_TRANS


def open_transactions() -> frozenset[int]:
    """Return the ids of this thread's connections that are in an `atomic` block: not the job's, so not to be touched."""
    return frozenset(id(connection) for connection in _opened() if connection.in_atomic_block)


def prepare(idle_seconds: float) -> None:
    """Have connections that nobody used for a while checked before their next use; costs nothing if there is none."""
    if idle_seconds < IDLE:
        return
    for connection in _opened():
        if not connection.in_atomic_block:
            connection.health_check_enabled = True
            connection.health_check_done = False


def tidy(kept: frozenset[int] = frozenset(), *, discard: bool = False) -> None:
    """Clean up this thread's connections and caches; never raises.

    `kept` are connections to leave alone (see `open_transactions`). `discard` closes the others whatever their state: after
    an interruption, which may have struck within the driver.
    """
    for connection in _opened():
        if id(connection) in kept:
            continue
        try:
            _tidy_connection(connection, discard)
        except Exception:
            logger.warning("Could not clean up the connection %r: it is dropped.", connection.alias, exc_info=True)
            _drop(connection)
    _close_caches()


def free_logging() -> None:
    """Give back locks of log handlers that this thread still has: an interruption within `logging` may leave one taken."""
    for reference in list(getattr(logging, "_handlerList", ())):
        lock = getattr(reference() if callable(reference) else None, "lock", None)
        for _ in range(10):  # more than any nesting
            if lock is None or not getattr(lock, "_is_owned", bool)():
                break
            lock.release()


def _opened() -> list[Any]:
    return list(connections.all(initialized_only=True))


def _tidy_connection(connection: Any, discard: bool) -> None:
    if connection.queries_log:
        connection.queries_log.clear()
    if connection.connection is None and not connection.in_atomic_block:
        return
    if discard or connection.in_atomic_block or _is_stale(connection) or _in_transaction(connection):
        _drop(connection)
        return
    connection.health_check_done = False  # only asked with CONN_HEALTH_CHECKS


def _is_stale(connection: Any) -> bool:
    """As `close_if_unusable_or_obsolete()`, but for the least age."""
    if connection.autocommit != connection.settings_dict["AUTOCOMMIT"]:
        return True
    if connection.errors_occurred:
        if not connection.is_usable():
            return True
        connection.errors_occurred = False
        connection.health_check_done = True
    if connection.close_at is None:
        return False
    age_allowed = float(connection.settings_dict["CONN_MAX_AGE"] or 0)
    return bool(time.monotonic() >= connection.close_at + max(0.0, MIN_AGE - age_allowed))


def _in_transaction(connection: Any) -> bool:
    """Whether raw SQL left a transaction open behind Django's back, as far as the driver knows without asking the server."""
    driver = connection.connection
    if connection.vendor == "postgresql":
        info = getattr(driver, "info", None)
        return info is not None and int(info.transaction_status) != _PG_IDLE
    if connection.vendor == "sqlite":
        return bool(driver.in_transaction)
    return bool(getattr(driver, "server_status", 0) & _MYSQL_IN_TRANSACTION)


def _drop(connection: Any) -> None:
    """Close a connection, and have it forget whatever it believes of open blocks; the next use opens another."""
    try:
        connection.close()
    except DatabaseError:  # it is going anyway
        logger.debug("Closing the connection %r failed.", connection.alias, exc_info=True)
    except Exception:
        logger.warning("Closing the connection %r failed.", connection.alias, exc_info=True)
    connection.connection = None
    if connection.in_atomic_block:
        connection.in_atomic_block = False
        connection.needs_rollback = False
        connection.closed_in_transaction = False
        connection.savepoint_ids = []
        connection.atomic_blocks = []
        connection.run_on_commit = []


def _close_caches() -> None:
    for cache in caches.all(initialized_only=True):
        try:
            cache.close(signal=request_finished)
        except Exception:
            logger.warning("Closing a cache failed.", exc_info=True)

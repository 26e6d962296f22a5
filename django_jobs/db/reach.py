"""Says that a database can't be used, once, and once that it can again, whoever finds out."""

from __future__ import annotations

import logging
import threading

from django.db import connections

from . import dialect
from .schema import is_without_tables, one_line, unreachable, without_tables

logger = logging.getLogger("django_jobs.db")


class Reach:
    """Shared by the threads of a process. What is said of an alias is said once until it works again."""

    def __init__(self) -> None:
        self._away: set[str] = set()
        self._lock = threading.Lock()

    def failed(self, alias: str, error: BaseException) -> None:
        """Something on the database failed with this error of the database's."""
        with self._lock:
            if alias in self._away:
                return
            self._away.add(alias)
        connection = connections[alias]
        if is_without_tables(error):
            text = without_tables(alias).rstrip(".")
        elif connection.connection is None or dialect(connection).is_connection_loss(error):
            text = unreachable(alias, error)
        else:
            text = f"The database {alias!r} refused a statement: {one_line(error)}"
        logger.warning("%s; trying again", text)

    def works(self, alias: str) -> None:
        """Something on the database worked."""
        if alias not in self._away:
            return
        with self._lock:
            self._away.discard(alias)
        logger.info("The database %r works again", alias)

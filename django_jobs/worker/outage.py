"""What a control loop says while it can't work: each thing once, and nothing that its supervisor says for all."""

from __future__ import annotations

import logging
import time

from django_jobs.db import Dialect
from django_jobs.db.schema import one_line

logger = logging.getLogger("django_jobs.worker")

#: A process that has never worked is silent for so long: if the database is away, its supervisor says so.
PATIENCE_SECONDS = 10.0
_AWAY = "away"


class Outage:
    """The failures of one loop, since it last worked."""

    def __init__(self, name: str, dialect: Dialect) -> None:
        self.name, self.dialect = name, dialect
        self.has_worked = False
        self._began = time.monotonic()
        self._said = ""

    def over(self) -> None:
        """A cycle went well."""
        self.has_worked = True
        self._said = ""

    def away(self, error: BaseException) -> bool:
        """There is no connection. Return whether the server refuses everybody one: then no sweeper can judge either."""
        is_refusal = self.dialect.is_refusal(error)
        if self._said != _AWAY:
            if self.has_worked:
                self._said = _AWAY
                logger.warning("Worker %s has lost its database connection: %s", self.name, one_line(error))
            elif not is_refusal and time.monotonic() - self._began > PATIENCE_SECONDS:
                self._said = _AWAY
                logger.warning("Worker %s can't connect to the database: %s", self.name, one_line(error))
        return is_refusal

    def failed(self, error: BaseException) -> None:
        """A cycle failed, and the connection lives. The same error, again and again, is said once."""
        text = one_line(error)
        if text != self._said:
            logger.warning("A cycle of worker %s failed and is undone: %s", self.name, text)
            self._said = text

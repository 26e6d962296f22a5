"""Log lines of a worker: clean by default, also with Django's default LOGGING and DEBUG off; JSON on request."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Final

_LEVELS: Final = {0: logging.ERROR, 1: logging.INFO, 2: logging.DEBUG, 3: logging.DEBUG}
_EXTRA: Final = ("job_id", "task", "queue", "attempt", "outcome", "duration")


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, process, message, and what the record says of a job."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "process": self._process,
            "message": record.getMessage(),
        }
        line |= {name: str(value) for name in _EXTRA if (value := getattr(record, name, None)) is not None}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure(process: str, *, as_json: bool, verbosity: int) -> None:
    """Give the package's logger a handler on standard error, unless the project's LOGGING has given it one that is its own."""
    logger = logging.getLogger("django_jobs")
    for handler in {*logger.handlers, *logging.getLogger().handlers}:
        _contain(handler)
    if logger.handlers and not as_json:
        return
    handler = logging.StreamHandler(sys.stderr)
    if as_json:
        handler.setFormatter(JsonFormatter(process))
    else:
        handler.setFormatter(logging.Formatter(f"%(asctime)s %(levelname)s {process}: %(message)s", "%H:%M:%S"))
    logger.handlers[:] = [handler]
    logger.setLevel(_LEVELS.get(verbosity, logging.INFO))
    logger.propagate = False


def _contain(handler: logging.Handler) -> None:
    """Keep an error of a project's handler from whoever logs: in the control loop it would cost the process and its jobs."""
    handle = handler.handle

    def contained(record: logging.LogRecord) -> bool:
        try:
            return bool(handle(record))
        except Exception:
            handler.handleError(record)  # prints it to standard error, as `logging` does with errors in formatting
            return False

    handler.handle = contained  # type: ignore[method-assign]

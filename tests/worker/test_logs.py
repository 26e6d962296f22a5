"""Logging of a worker: what a project's handlers do wrong stays theirs."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from django_jobs.worker import logs


class Broken(logging.Handler):
    """Raises instead of writing, as one does whose server is away."""

    def emit(self, record: logging.LogRecord) -> None:
        raise ConnectionError("the log server is away")


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    logger = logging.getLogger("django_jobs")
    before = logger.handlers[:], logger.level, logger.propagate
    yield logger
    logger.handlers[:], logger.level, logger.propagate = before


@pytest.mark.parametrize("place", ["the package's", "the root's"])
def test_a_handler_that_raises_costs_nobody_anything(
    logger: logging.Logger, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    broken, holder = Broken(), logger if place == "the package's" else logging.getLogger()
    holder.addHandler(broken)
    try:
        with pytest.raises(ConnectionError):
            logging.getLogger("django_jobs.worker").warning("before")
        logs.configure("w", as_json=False, verbosity=1)
        logging.getLogger("django_jobs.worker").warning("after")
    finally:
        holder.removeHandler(broken)
    said = capsys.readouterr().err
    assert "the log server is away" in said if place == "the package's" else "after" in said

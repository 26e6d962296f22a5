"""Fixtures for pytest: `trap_jobs`, `run_jobs`, `eager_jobs`. Loaded by pytest wherever this package is installed.

Nothing of Django is imported before a test asks for a fixture: a test run of a project that does not use it is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .testing import Trap


def _database(request: pytest.FixtureRequest) -> None:
    """Let the test use the database, as pytest-django does it, and in the way that it asks for."""
    asks = {"db", "transactional_db", "django_db_reset_sequences", "django_db_serialized_rollback"} & set(request.fixturenames)
    if not asks and request.node.get_closest_marker("django_db") is None:
        request.getfixturevalue("db")


@pytest.fixture
def trap_jobs(request: pytest.FixtureRequest) -> Iterator[Trap]:
    """The jobs that the test enqueues: see `django_jobs.testing.Trap`."""
    from .testing import trap_jobs

    _database(request)
    with trap_jobs() as trap:
        yield trap


@pytest.fixture
def run_jobs(request: pytest.FixtureRequest) -> Callable[..., int]:
    """Return `django_jobs.testing.run_jobs`."""
    from .testing import run_jobs

    _database(request)
    return run_jobs


@pytest.fixture
def eager_jobs(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Let jobs run as they are enqueued, and their exceptions be raised there: see `django_jobs.testing.eager_jobs`."""
    from .testing import eager_jobs

    _database(request)
    with eager_jobs(raise_errors=True):
        yield

"""What every test shares: markers by folder, a bounded hypothesis, and the environment of a real worker process."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import django
import pytest
from django.db import connection, connections
from hypothesis import HealthCheck, settings
from pytest_django import DjangoDbBlocker
from pytest_django.plugin import blocking_manager_key

from tests.support import emptying
from tests.support.databases import to_url

ROOT = Path(__file__).resolve().parent.parent

# No deadline: two runs share the cores. Derandomised, so that a run says something about the change and not about the dice.
settings.register_profile(
    "tests", deadline=None, derandomize=True, database=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tests")


def pytest_report_header() -> str:
    return f"Python {sys.version.split()[0]}, Django {django.get_version()}, {connection.vendor}"


def pytest_sessionstart(session: pytest.Session) -> None:
    """Empty databases the quick way. On MariaDB, ask now what `connection.features` needs while tests are collected."""
    emptying.install()
    if connection.vendor == "mysql":
        with session.config.stash[blocking_manager_key].unblock(), connection._nodb_cursor() as cursor:
            connections["default"].__dict__["mysql_server_data"] = cursor.db.mysql_server_data


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of tests/process: they start real processes."""
    for item in items:
        if "process" in item.path.relative_to(ROOT).parts:
            item.add_marker(pytest.mark.process)


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """Drop the test database also when a thread or process of a test has left a connection to it."""
    yield
    if connection.vendor != "postgresql":
        return
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid, left(query, 100), pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
        for pid, query, _ in cursor.fetchall():
            print(f"\na test left connection {pid} open; its last statement: {query}")


@pytest.fixture
def process_environment(transactional_db: None) -> dict[str, str]:
    """Return the environment of a process that shall work on the test database, beside this one."""
    return {
        **os.environ,
        "DATABASE_URL": to_url(connection.settings_dict),
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
    }

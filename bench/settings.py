"""Settings for the benchmarks: the tests' project on the database that `DATABASE_URL` names."""

from __future__ import annotations

from tests.settings import *  # noqa: F403

INSTALLED_APPS = [*INSTALLED_APPS, "bench"]  # noqa: F405

"""Settings for the type checker, which has to know the example's models beside ours."""

from __future__ import annotations

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS as _APPS

INSTALLED_APPS = [*_APPS, "example_project.atlas"]
ATLAS_MIN_POPULATION = 15_000
ATLAS_REPORT_TO = "editor@example.com"

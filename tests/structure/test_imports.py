"""What importing the package does, and does without: seen in a fresh interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from textwrap import dedent

from tests.structure.files import ROOT

OPTIONAL = [
    "psycopg",
    "psycopg_pool",
    "pymysql",
    "MySQLdb",
    "prometheus_client",
    "opentelemetry",
    "sentry_sdk",
    "drf_spectacular",
    "httpx",
]


def run(code: str, **environment: str) -> str:
    """Run `code` in a fresh interpreter, where a warning is an error, and return what it prints."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if key not in ("DJANGO_SETTINGS_MODULE", "DATABASE_URL", "COVERAGE_PROCESS_START")
    }
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", dedent(code)],
        cwd=ROOT,
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_the_package_loads_no_model() -> None:
    """Task modules are imported before, or without, `django.setup()`."""
    code = """
        import sys
        import django_jobs
        import django_jobs.retry, django_jobs.serializers, django_jobs.signals, django_jobs.outcomes, django_jobs.statuses
        print(sorted(name for name in sys.modules if name.startswith("django_jobs.models")))
        from django.conf import settings
        print(settings.configured)
    """
    assert run(code).split() == ["[]", "False"]


def test_a_task_is_defined_without_loading_a_model() -> None:
    code = """
        import sys
        from django.conf import settings
        settings.configure(TASKS={"default": {"BACKEND": "django_jobs.backend.JobsBackend"}}, INSTALLED_APPS=["django_jobs"])
        from django_jobs import job

        @job(max_attempts=3)
        def add(a, b):
            return a + b

        print(sorted(name for name in sys.modules if name.startswith("django_jobs.models")), add.func(1, 2))
    """
    assert run(code).strip() == "[] 3"


def test_every_module_imports_without_the_optional_packages() -> None:
    """The extras are extras: on SQLite nothing but what `dependencies` names is there."""
    code = f"""
        import sys

        class Absent:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] in {OPTIONAL!r}:
                    raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

        sys.meta_path.insert(0, Absent())
        import django, importlib, pkgutil
        django.setup()
        import django_jobs
        count = 0
        for module in pkgutil.walk_packages(django_jobs.__path__, "django_jobs."):
            if not module.name.startswith(("django_jobs.contrib", "django_jobs.client", "django_jobs.api.schema")):
                importlib.import_module(module.name)
                count += 1
        print(count)
    """
    printed = run(code, DJANGO_SETTINGS_MODULE="tests.settings", DATABASE_URL="sqlite:///:memory:")
    assert int(printed) > 30


def test_django_without_tasks_and_no_back_port_is_told_what_to_install() -> None:
    code = """
        import sys
        sys.modules["django.tasks"] = sys.modules["django_tasks"] = None
        try:
            import django_jobs.compat
        except ImportError as error:
            print(error)
    """
    assert "pip install 'django-jobs-queue[django52]'" in run(code)

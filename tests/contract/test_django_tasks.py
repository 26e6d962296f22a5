"""Django's own tests of its Tasks, pointed at our back end.

What can't pass is listed here by name, each with its reason; everything else that Django tests has to pass.
"""

from __future__ import annotations

import importlib
import sys
import unittest
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from django.test import TransactionTestCase, override_settings

from tests.contract import sdist

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

JOBS = "django_jobs.backend.JobsBackend"
DRAINING = "tests.contract.draining.DrainingBackend"
IMMEDIATE = "django.tasks.backends.immediate.ImmediateBackend"

ITS_CLASS = "asks whether the back end is an instance of one of Django's own"
ITS_RESULTS = "reads DummyBackend.results, the list that stands for its store"

#: module, class -> (settings, how many tests have to pass, test -> why it can't)
SUITES: dict[tuple[str, str], tuple[dict[str, Any], int, dict[str, str]]] = {
    ("test_tasks", "TaskTestCase"): (
        {
            "default": {"BACKEND": JOBS, "QUEUES": ["default", "queue_1"]},
            "immediate": {"BACKEND": IMMEDIATE, "QUEUES": []},
            "missing": {"BACKEND": "does.not.exist"},
        },
        34,
        {
            "test_using_correct_backend": ITS_CLASS,
            "test_get_backend": ITS_CLASS,
            "test_enqueue_task": ITS_RESULTS,
            "test_enqueue_task_async": ITS_RESULTS,
            "test_refresh_result": "calls the synchronous refresh() on an event loop, where Django forbids queries",
        },
    ),
    ("test_dummy_backend", "DummyBackendTestCase"): (
        {"default": {"BACKEND": JOBS, "QUEUES": []}},
        10,
        {
            "test_using_correct_backend": ITS_CLASS,
            "test_enqueue_task": ITS_RESULTS,
            "test_enqueue_task_async": ITS_RESULTS,
            "test_refresh_result": ITS_RESULTS,
            "test_refresh_result_async": ITS_RESULTS,
            "test_clear": "DummyBackend.clear() empties its list",
        },
    ),
    ("test_immediate_backend", "ImmediateBackendTestCase"): (
        {"default": {"BACKEND": DRAINING, "QUEUES": []}},
        15,
        {
            "test_using_correct_backend": ITS_CLASS,
            "test_cannot_get_result": "the immediate back end can't, ours can",
            "test_cannot_refresh_result": "the immediate back end can't, ours can",
            "test_cannot_pass_run_after": "the immediate back end can't, ours can",
        },
    ),
}


@pytest.fixture(scope="module")
def django_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    pytest.importorskip("django.tasks", reason="this Django has no Tasks: the tests of the back-port are not in any distribution")
    try:
        folder = sdist.find(tmp_path_factory.mktemp("django"))
    except sdist.NotToBeHadError as error:
        pytest.skip(str(error))
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))
    for name in [name for name in sys.modules if name == "tasks" or name.startswith("tasks.")]:
        del sys.modules[name]


@pytest.mark.parametrize(("module", "name"), SUITES)
def test_django_s_own_tests(module: str, name: str, django_tests: Path) -> None:
    settings, count, excluded = SUITES[module, name]
    with override_settings(TASKS=settings, USE_TZ=True):
        found: ModuleType = importlib.import_module(f"tasks.{module}")
        case = repointed(getattr(found, name), excluded)
        suite = unittest.defaultTestLoader.loadTestsFromTestCase(case)
        result = unittest.TestResult()
        suite.run(result)
    wrong = [f"{test}\n{trace}" for test, trace in result.failures + result.errors]
    assert not wrong, "\n".join(wrong)
    assert not result.skipped
    assert result.testsRun == count, "Django has changed its tests: look at the new ones"


def repointed(theirs: type[Any], excluded: dict[str, str]) -> type[TransactionTestCase]:
    """Return a test case that uses the database, with their tests, without those excluded."""
    tests = {key: value for key, value in vars(theirs).items() if key.startswith("test_")}
    assert set(excluded) <= set(tests), "a test that is excluded is no longer there"
    return type(theirs.__name__, (TransactionTestCase,), {key: value for key, value in tests.items() if key not in excluded})

"""What the process tests share: the ledger, runners that never outlive a test, and a server of PostgreSQL of their own."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection, connections
from pytest_django import DjangoDbBlocker

from tests.support.databases import to_url
from tests.support.worker import LEDGER, Ledger, Runner

#: Settings that make deaths and time-outs quick to see. Seconds.
QUICK = {"GRACE": 2, "SWEEP_INTERVAL": 0.2, "TIMEOUT_GRACE": 1}
#: Where nothing tells a worker of new jobs, these tests would mostly wait for its next look.
QUICK_POLL = {} if connection.vendor == "postgresql" else {"POLL_INTERVAL": 0.2}

Start = Callable[..., Runner]
Site = Callable[..., dict[str, str]]
ROOT = Path(__file__).parents[2]


class Runners:
    """Starts runners with one ledger, and ends them all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ledger = Ledger(folder / "ledger")
        self.all: list[Runner] = []

    def start(self, *options: str, env: dict[str, str] | None = None, prefix: tuple[str, ...] = (), **settings: Any) -> Runner:
        """Start a runner: `start("--threads=1", GRACE=3, env={...})`."""
        environment = {
            **os.environ,
            "DATABASE_URL": to_url(connection.settings_dict),
            "DJANGO_SETTINGS_MODULE": "tests.settings",
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            LEDGER: str(self.ledger.path),
            **(env or {}),
        }
        runner = Runner(environment, self.folder, *options, prefix=prefix, **{**QUICK, **QUICK_POLL, **settings})
        self.all.append(runner)
        return runner

    def close(self) -> None:
        for runner in self.all:
            runner.close()

    def show(self) -> None:
        """Print what they said, for a test that has failed."""
        for number, runner in enumerate(self.all):
            print(f"\n--- what runner {number} said ---\n{runner.text()[-6000:]}")
        print("\n--- the ledger ---\n" + "\n".join(map(str, self.ledger.lines()[-40:])))


@pytest.fixture
def runners(transactional_db: None, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Runners]:
    runners = Runners(tmp_path)
    yield runners
    runners.close()
    if getattr(request.node, "has_failed", False):
        runners.show()


@pytest.fixture
def ledger(runners: Runners) -> Ledger:
    return runners.ledger


@pytest.fixture
def start(runners: Runners) -> Start:
    return runners.start


@pytest.fixture(scope="module")
def shared(
    django_db_setup: None, django_db_blocker: DjangoDbBlocker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Runners]:
    """Return runners that live as long as the tests of a module; so do the rows."""
    with django_db_blocker.unblock():
        runners = Runners(tmp_path_factory.mktemp("shared"))
        yield runners
        runners.close()
        call_command("flush", interactive=False, verbosity=0)
        connections.close_all()


@pytest.fixture
def db(shared: Runners) -> None:
    """Stand in for the fixture of this name, by which the test database is made for a test: here nothing is rolled back."""


@pytest.fixture
def together(shared: Runners, db: None, request: pytest.FixtureRequest) -> Iterator[Runners]:
    """Return the shared runners, and show what they said if this test fails."""
    yield shared
    if getattr(request.node, "has_failed", False):
        shared.show()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Let fixtures know that the test has failed."""
    report = yield
    if report.when == "call" and report.failed:
        item.has_failed = True  # type: ignore[attr-defined]
    return report


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Return a function that writes an app of its own and settings with it; it returns the environment that chooses them.

    `site(apps="...", jobs="...", settings="...")`: the texts of modules. With `here` its jobs are imported in this process, too.
    """

    def site(*, name: str = "site_app", settings: str = "", here: bool = False, **modules: str) -> dict[str, str]:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "__init__.py").touch()
        for module, text in modules.items():
            (folder / f"{module}.py").write_text(text)
        with_app = f"from tests.settings import *\nINSTALLED_APPS = [*INSTALLED_APPS, {name!r}]\n{settings}\n"
        (tmp_path / f"{name}_settings.py").write_text(with_app)
        if here:
            monkeypatch.syspath_prepend(str(tmp_path))
            for module in [module for module in sys.modules if module.partition(".")[0] == name]:
                monkeypatch.delitem(sys.modules, module)  # another test's
            importlib.import_module(f"{name}.jobs")
        return {"DJANGO_SETTINGS_MODULE": f"{name}_settings", "PYTHONPATH": f"{tmp_path}:{ROOT}"}

    return site

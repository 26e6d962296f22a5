"""The layers of the package: the contracts of pyproject.toml hold, and say something about every module."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.structure.files import ROOT

pytestmark = pytest.mark.structure


def contracts() -> dict[str, dict[str, Any]]:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    return {contract["id"]: contract for contract in table["contracts"]}


def test_the_layers_are_exhaustive() -> None:
    """Else a new module belongs nowhere and may import everything."""
    layers = contracts()["layers"]
    assert layers["containers"] == ["django_jobs"]
    assert layers["exhaustive"] is True
    assert layers["exhaustive_ignores"] == ["migrations"]


def test_the_words_and_rows_are_below_the_verbs_and_loops() -> None:
    """The order is the design: a contract turned upside down would hold, too."""
    order = [layer.replace("(", "").replace(")", "") for layer in contracts()["layers"]["layers"]]

    def level(name: str) -> int:
        return next(i for i, layer in enumerate(order) if name in layer.replace(":", "|").replace(" ", "").split("|"))

    names = ["exceptions", "conf", "db", "wakeup", "models", "lifecycle", "maintenance", "worker", "backend", "apps"]
    assert [level(name) for name in names] == sorted((level(name) for name in names), reverse=True)
    assert level("execution") == level("lifecycle")


def test_every_contract_is_kept() -> None:
    pytest.importorskip("importlinter")
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr

"""What is shipped and committed: the wheel's contents, a pin for every requirement, no package registry, no machine of ours."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.structure.files import ROOT, modules, tracked

pytestmark = pytest.mark.structure
# Put together here so that this file does not hold what it looks for.
REGISTRIES = re.compile(
    r"https?://[^/\s\"']*(" + "|".join(["py" + "pi", "pythonh" + "osted", "npm" + "js", "deb" + r"ian\.org"]) + r")[^\s\"']*"
)
OUR_MACHINES = re.compile("|".join(["/wo" + "rk/", r"/ro" + r"ot/\.", r"\.libr" + "ary/"]))


def texts() -> dict[str, str]:
    found = {}
    for path in tracked():
        try:
            found[str(path.relative_to(ROOT))] = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # an image
    return found


def test_no_file_names_a_package_registry() -> None:
    """A lock file with addresses ties everybody to the mirror of whoever made it."""
    found = texts()
    assert "pyproject.toml" in found
    assert {name: match[0] for name, text in found.items() if (match := REGISTRIES.search(text))} == {}
    assert not {"uv.lock", "pylock.toml", "poetry.lock"} & {Path(name).name for name in found}


def test_the_project_speaks_of_no_machine_of_its_makers() -> None:
    assert {name: match[0] for name, text in texts().items() if (match := OUR_MACHINES.search(text))} == {}


def names(requirements: list[str]) -> set[str]:
    return {re.sub(r"[-_.]+", "-", match[0]).lower() for line in requirements if (match := re.match(r"[A-Za-z0-9._-]+", line))}


def test_every_requirement_is_pinned_in_the_constraints() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = list(project["project"]["dependencies"])
    for lines in project["project"]["optional-dependencies"].values():
        wanted += lines
    for lines in project["dependency-groups"].values():
        wanted += [line for line in lines if isinstance(line, str)]
    pinned = (ROOT / "constraints.txt").read_text().splitlines()
    assert all(re.fullmatch(r"[a-z0-9.-]+==[^\s;]+( ; .+)?", line) for line in pinned)
    assert names(wanted) - names(pinned) == set()


def test_django_has_no_upper_bound() -> None:
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert [line for line in wanted if "<" in line.split(";")[0]] == []


def test_the_wheel_holds_the_package_and_nothing_else(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    package = {str(path.relative_to(ROOT)) for path in modules()}
    assets = {
        str(path.relative_to(ROOT))
        for folder in ("templates", "static", "locale", "migrations")
        for path in (ROOT / "django_jobs" / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert (package | assets | {"django_jobs/py.typed"}) - held == set()
    assert [name for name in held if not name.startswith(("django_jobs/", "django_jobs_queue-"))] == []

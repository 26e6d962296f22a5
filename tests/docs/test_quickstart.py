"""The quick start of the README, done as a newcomer does it: a new project, the blocks of the page, real commands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.db import connection

from tests.docs.pages import ROOT, blocks

pytestmark = [
    pytest.mark.process,
    # A new project has a database of its own, in SQLite: the same on each database of the tests, so once is enough.
    pytest.mark.skipif(connection.vendor != "sqlite", reason="the quick start makes its own SQLite database"),
]

#: Runs what the page shows: the enqueue, the commands between, and the look, with the variables that the page goes on using.
DRIVER = """
import subprocess, sys
import django
django.setup()
names = {}
for kind, text in STEPS:
    if kind == "shell":
        for line in text.splitlines():
            subprocess.run([sys.executable, *line.split()[1:]], check=True, timeout=60)
    else:
        exec(text, names)
"""


def run(folder: Path, *arguments: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("DJANGO_", "PYTHON", "DATABASE_"))}
    environment |= {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]), "DJANGO_SETTINGS_MODULE": "mysite.settings"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_quick_start(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "django", "startproject", "mysite", str(tmp_path)],
        env={name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"},
        check=True,
        timeout=60,
    )
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    steps = [(block.what, block.text) for block in blocks(ROOT / "README.md") if block.kind == "quickstart"]
    assert [what for what, _ in steps] == ["mysite/settings.py", "shell", "shop/tasks.py", "enqueue", "shell", "look"]
    for what, text in steps:
        if what.endswith(".py"):
            with (tmp_path / what).open("a") as file:
                file.write("\n" + text)
    commands = [(what, text) for what, text in steps if not what.endswith(".py")]
    said = run(tmp_path, "-c", f"STEPS = {commands!r}\n{DRIVER}").splitlines()
    assert "ready" in said
    assert said[-1] == "succeeded 42"
    run(tmp_path, "manage.py", "check", "--fail-level", "ERROR")

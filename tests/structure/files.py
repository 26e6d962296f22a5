"""The files of the project: those that git tracks, or would."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


@cache
def tracked() -> tuple[Path, ...]:
    """Return every file that is, or is about to be, part of the project; skips the test where git knows nothing."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30)
    if done.returncode:
        pytest.skip("not a checkout of git")
    return tuple(path for name in done.stdout.split("\0") if name and (path := ROOT / name).is_file())


def modules(folder: str = "django_jobs") -> list[Path]:
    """Return the Python modules below `folder`, migrations left out."""
    return sorted(path for path in (ROOT / folder).rglob("*.py") if "migrations" not in path.parts)

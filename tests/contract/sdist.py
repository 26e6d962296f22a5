"""Django's own tests of its Tasks, from its source distribution: they are not in the wheel, and not ours to keep here.

`DJANGO_SDIST` names a folder that has (or gets) the archive; else it is kept in the user's cache. pip fetches it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import django

#: pip makes an environment to ask the archive for its metadata, so this takes a while.
DOWNLOAD_SECONDS = 100


class NotToBeHadError(Exception):
    """The archive could not be fetched."""


def find(target: Path) -> Path:
    """Unpack Django's `tests/tasks` into `target` and return the folder that has the package `tasks`."""
    version = django.get_version()
    cache = Path(
        os.environ.get("DJANGO_SDIST") or Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "django-sdist"
    )
    archive = cache / f"django-{version}.tar.gz"
    if not archive.exists():
        _download(version, cache)
    with tarfile.open(archive) as tar:
        prefix = f"django-{version}/tests/tasks/"
        members = [member for member in tar.getmembers() if member.name.startswith(prefix) and member.isfile()]
        if not members:
            raise NotToBeHadError(f"Django {version} has no tests of Tasks")
        tar.extractall(target, members=members, filter="data")
    return target / f"django-{version}" / "tests"


def _download(version: str, cache: Path) -> None:
    cache.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "--no-binary",
        "django",
        "-d",
        str(cache),
        f"django=={version}",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotToBeHadError(f"pip could not fetch Django's source distribution: {error}") from error
    if done.returncode or not (cache / f"django-{version}.tar.gz").exists():
        raise NotToBeHadError(f"pip could not fetch Django's source distribution: {done.stderr.strip()[-300:]}")

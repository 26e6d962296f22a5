"""Find Pythons by running them, make virtual environments, and install into them what pyproject.toml asks for.

Imported before a fitting interpreter is known: what is at the top must run on Python 3.8.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".dev"
LEAST = (3, 11)
VERSIONS = ("3.14", "3.13", "3.12", "3.11")
INSTALL_TIMEOUT_SECONDS = 600
PROBE = """
import importlib.util, sys
has = [int(importlib.util.find_spec(name) is not None) for name in ("venv", "ensurepip")]
print("%d.%d" % sys.version_info[:2], sys.implementation.name, *has, getattr(sys, "_base_executable", sys.executable), sep="|")
"""


class Interpreter(NamedTuple):
    """A Python that ran when it was asked: its version ("3.12"), its path, and whether it can make an environment with pip."""

    version: str
    path: str
    has_pip: bool


def say(text: str) -> None:
    """Print one line of what is being done."""
    print("dev.py: " + text, flush=True)


def give_up(text: str) -> NoReturn:
    """End with a message and exit status 2."""
    print("dev.py: " + text, file=sys.stderr, flush=True)
    sys.exit(2)


def _candidates() -> Iterator[str]:
    yield sys.executable
    roots = [os.environ.get("PYENV_ROOT", ""), os.path.expanduser("~/.pyenv")]
    for version in VERSIONS:
        yield from filter(None, [shutil.which("python" + version)])
        for pattern in [r + "/versions/" + version + ".*/bin/python" for r in roots if r] + [
            "/usr/bin/python" + version,
            "/usr/local/bin/python" + version,
            "/opt/homebrew/bin/python" + version,
            os.path.expanduser("~/.local/share/uv/python/cpython-" + version + ".*/bin/python" + version),
        ]:
            yield from sorted(glob.glob(pattern), reverse=True)
    yield from filter(None, [shutil.which("python3"), shutil.which("python"), "/usr/bin/python3"])


def _probe(path: str) -> Interpreter | None:
    """Run `path`: a name on PATH may be a shim that runs nothing."""
    try:
        done = subprocess.run([path, "-I", "-c", PROBE], capture_output=True, text=True, timeout=20, cwd="/")
        version, name, has_venv, has_ensurepip, base = done.stdout.strip().split("|")
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    if done.returncode or name != "cpython" or tuple(map(int, version.split("."))) < LEAST:
        return None
    return Interpreter(version, base or path, has_venv == has_ensurepip == "1")


def interpreters() -> dict[str, Interpreter]:
    """Return the fitting Pythons of this machine by version; one with pip is preferred."""
    found: dict[str, Interpreter] = {}
    seen = set()
    for path in _candidates():
        if path in seen or not os.path.exists(path):
            continue
        seen.add(path)
        one = _probe(path)
        if one and (one.version not in found or (one.has_pip and not found[one.version].has_pip)):
            found[one.version] = one
    return found


def pick() -> Interpreter:
    """Return the Python to go on with: the one that runs this, if it fits, else the newest that does."""
    own = _probe(sys.executable)
    if own and own.has_pip:
        return own
    found = interpreters()
    if not found:
        give_up("no Python {}.{} or newer that runs was found: install one and try again".format(*LEAST))
    fitting = [one for one in found.values() if one.has_pip]
    if not fitting:
        version, path, _ = next(iter(found.values()))
        give_up(
            f"{path} (Python {version}) can't make environments: its venv is missing. apt-get install python3-venv, and try again"
        )
    return max(fitting, key=lambda one: tuple(map(int, one.version.split("."))))


def enter(name: str, arguments: Sequence[str]) -> Path:
    """Make the environment `name` and go on inside it, by replacing this process. Returns its folder once inside."""
    folder = HOME / name
    if Path(sys.prefix).resolve() == folder.resolve():
        return folder
    python = make(folder, pick())
    sys.stdout.flush()
    os.execv(str(python), [str(python), str(ROOT / "dev.py"), *arguments])


def make(folder: Path, interpreter: Interpreter, uv: str | None = None) -> Path:
    """Make a virtual environment of `interpreter` in `folder` (kept if it is one already) and return its Python."""
    python = folder / "bin" / "python"
    config = folder / "pyvenv.cfg"
    if config.exists() and python.exists() and (has := _probe(str(python))) and has.version == interpreter.version:
        return python
    if folder.exists():
        shutil.rmtree(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    say(f"makes an environment of Python {interpreter.version} ({interpreter.path}) in {folder.relative_to(ROOT)}")
    command = [uv, "venv", "-q", "-p", interpreter.path, str(folder)] if uv else [interpreter.path, "-m", "venv", str(folder)]
    done = subprocess.run(command, env=install_environment(), capture_output=True, text=True, timeout=INSTALL_TIMEOUT_SECONDS)
    if done.returncode:
        hint = "; on Debian and Ubuntu: apt-get install python3-venv" if "ensurepip" in done.stdout + done.stderr else ""
        give_up(f"{' '.join(command)} failed{hint}\n{done.stdout}{done.stderr}")
    return python


def install_environment() -> dict[str, str]:
    """Return the environment for pip and uv: quiet, with the system's certificates, and no download of a Python."""
    return {
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "UV_NO_PROGRESS": "1",
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_SYSTEM_CERTS": "1",
        **{key: value for key, value in os.environ.items() if key not in ("VIRTUAL_ENV", "PYTHONHOME", "PYTHONPATH")},
    }


def requirements(*groups: str) -> list[str]:
    """Return the requirements of the dependency groups of pyproject.toml, groups within groups included."""
    import tomllib

    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]

    def walk(group: str) -> Iterator[str]:
        for entry in table[group]:
            if isinstance(entry, str):
                yield entry
            else:
                yield from walk(entry["include-group"])

    return sorted({line for group in groups for line in walk(group)})


def install(folder: Path, wanted: Sequence[str], *, django: str = "", uv: str | None = None) -> None:
    """Install this project (editable) and `wanted` into the environment, by constraints.txt; once.

    `django`: "5.2" installs that release line, whatever constraints.txt says of Django.
    """
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    if django:
        lines = [line for line in lines if not re.match(r"django==", line)] + [f"django=={django}.*"]
    project = "django-jobs-queue" + ("[django52]" if django == "5.2" else "")
    wanted = [*wanted, *([f"django=={django}.*"] if django else [])]
    text = "\n".join([*lines, *wanted, project, (ROOT / "pyproject.toml").read_text()])
    stamp = folder / "installed.sha256"
    digest = hashlib.sha256(text.encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == digest:
        return
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join(lines) + "\n")
    say(f"installs {len(wanted)} packages and what they need into {folder.relative_to(ROOT)}")
    python = str(folder / "bin" / "python")
    command = [uv, "pip", "install", "-q", "-p", python] if uv else [python, "-m", "pip", "install", "-q"]
    editable = ["-e", f"{ROOT}[django52]" if django == "5.2" else str(ROOT)]
    done = subprocess.run(
        [*command, "-c", str(constraints), *wanted, *editable],
        env=install_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=INSTALL_TIMEOUT_SECONDS,
        cwd=str(ROOT),
    )
    if done.returncode:
        raise InstallError(done.stdout + done.stderr)
    stamp.write_text(digest)


class InstallError(Exception):
    """pip or uv failed; the message is what it printed."""


def on_path(name: str) -> str | None:
    """Return the program `name` if it is on PATH and runs."""
    path = shutil.which(name)
    return path if path and _runs(path) else None


def _runs(path: str) -> bool:
    try:
        return subprocess.run([path, "--version"], capture_output=True, timeout=30).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def find_uv(folder: Path) -> str | None:
    """Return uv, from PATH or installed into `folder` by pip; None where it can't be had: pip does the same, more slowly."""
    own = folder / "bin" / "uv"
    if found := on_path("uv") or (str(own) if _runs(str(own)) else None):
        return found
    say("installs uv into " + str(folder.relative_to(ROOT)))
    done = subprocess.run(
        [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", "uv"],
        env=install_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=INSTALL_TIMEOUT_SECONDS,
    )
    return str(own) if done.returncode == 0 and own.exists() else None

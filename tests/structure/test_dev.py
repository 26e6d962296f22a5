"""dev.py needs nothing but Python, and what it starts ends with it."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from devtools import environments, matrix, servers
from tests.structure.files import ROOT

pytestmark = pytest.mark.structure
FILES = [ROOT / "dev.py", *sorted((ROOT / "devtools").glob("*.py"))]


def wait_until(is_true: Callable[[], bool], seconds: float = 20) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if is_true():
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_only_the_standard_library_is_imported(path: Path) -> None:
    allowed = set(sys.stdlib_module_names) | {"devtools"}
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module or "")
    assert {name for name in imported if name.split(".")[0] not in allowed} == set()


@pytest.mark.parametrize("path", [ROOT / "dev.py", ROOT / "devtools" / "environments.py"], ids=lambda path: path.name)
def test_an_old_python_can_read_what_looks_for_a_newer_one(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 8))
    assert any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body)


def test_help_names_both_commands() -> None:
    done = subprocess.run(
        [sys.executable, "-I", str(ROOT / "dev.py"), "--help"], capture_output=True, text=True, timeout=30, cwd="/"
    )
    assert done.returncode == 0
    assert "\n    demo " in done.stdout
    assert "\n    test " in done.stdout


def test_a_name_on_the_path_that_runs_nothing_is_not_taken_for_a_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Version managers put names on PATH that exit 127."""
    for version in environments.VERSIONS:
        shim = tmp_path / f"python{version}"
        shim.write_text("#!/bin/sh\nexit 127\n")
        shim.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = environments.interpreters()
    assert "{}.{}".format(*sys.version_info) in found
    assert not any(one.path.startswith(str(tmp_path)) for one in found.values())


def test_groups_within_groups_are_expanded() -> None:
    assert set(environments.requirements("database")) < set(environments.requirements("test"))
    assert all(isinstance(line, str) for line in environments.requirements("dev"))


def test_the_plan_runs_both_ends_in_full_and_names_each_run_once() -> None:
    runs = matrix.plan({"3.11", "3.12", "3.13"})
    names = [run.name for run in runs]
    assert len(set(names)) == len(names)
    assert len({run.slug for run in runs}) == len(runs)
    for combination in ("py3.12-django6.1", "py3.11-django5.2"):
        for database in ("sqlite", "postgres", "mariadb"):
            assert f"{combination} {database} core" in names
        assert f"{combination} postgres process" in names
    assert {run.combination.django for run in runs} == {"5.2", "6.0", "6.1"}


def test_a_skipped_database_fails_where_it_is_required() -> None:
    run = matrix.plan({"3.11"})[1]
    run.note = "not run: it is asleep"
    assert matrix.missed([run], {"3.14"}, f"{run.database},py3.14") == sorted([run.database, "py3.14"])


def test_a_url_given_from_outside_keeps_its_options_and_gets_names_of_its_own() -> None:
    server = servers.given("postgres://me@db:5433/site?sslmode=require", "given")
    assert server.url("one") == "postgres://me@db:5433/site_one?sslmode=require"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_private_server_ends_with_the_command_that_started_it(number: signal.Signals) -> None:
    if not servers.installed_postgres():
        pytest.skip("no PostgreSQL server is installed")
    code = """
        import time
        from devtools import servers
        print(servers.start_postgres(servers.installed_postgres()).url("x").split("host=")[1], flush=True)
        time.sleep(60)
    """
    lines = "\n".join(line.strip() for line in code.splitlines())
    child = subprocess.Popen(
        [sys.executable, "-c", lines],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        assert child.stdout
        folder = Path(child.stdout.readline().strip())
        server = int((folder / "data" / "postmaster.pid").read_text().split()[0])
        if os.geteuid() == 0:
            assert os.stat(f"/proc/{server}").st_uid != 0
        os.killpg(child.pid, number)
        assert wait_until(lambda: not folder.exists()), "its folder is still there"
        assert wait_until(lambda: not is_alive(server)), "the server is still there"
    finally:
        child.kill()
        child.wait(10)
        if child.stdout:
            child.stdout.close()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True

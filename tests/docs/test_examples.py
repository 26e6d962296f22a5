"""Every example that a page marks as tested is run, page by page, and says what it says; all others can be read by Python."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import django
import pytest

from tests.docs.pages import DOCS, ROOT, Block, blocks, checked

PAGES = sorted([*DOCS.rglob("*.md"), ROOT / "README.md"])
TESTED = [page for page in PAGES if any(block.kind == "tested" for block in blocks(page))]


def _same(value: Any, said: Any) -> None:
    assert value == said


def _raises(name: str, function: Any) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the page names it
        function()
    assert name in {kind.__name__.removesuffix("Error") for kind in type(caught.value).__mro__} | {type(caught.value).__name__}


def _applies(block: Block) -> bool:
    wanted = re.fullmatch(r"django>=(\d+)\.(\d+)", block.what)
    return wanted is None or (int(wanted[1]), int(wanted[2])) <= django.VERSION


def test_there_are_examples() -> None:
    assert {page.name for page in TESTED} >= {"tasks.md", "testing.md"}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("page", TESTED, ids=lambda page: page.stem)
def test_the_examples_of_a_page_do_what_they_say(page: Path) -> None:
    """They are one module, in the order of the page, so that tasks are at the level of a module, as on a site."""
    name = f"examples_of_{page.stem}"
    module = types.ModuleType(name)
    module.__dict__.update(_same=_same, _raises=_raises)
    sys.modules[name] = module
    try:
        for block in blocks(page):
            if block.kind != "tested" or not _applies(block):
                continue
            tree = ast.parse(checked(block))
            ast.increment_lineno(tree, block.line - 1)
            exec(compile(tree, str(page), "exec"), module.__dict__)
    finally:
        del sys.modules[name]


@pytest.mark.structure
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_python_block_can_be_read(page: Path) -> None:
    for block in blocks(page):
        if block.language == "python":
            ast.parse(block.text, f"{page}:{block.line}")


@pytest.mark.structure
def test_every_mark_is_above_a_block() -> None:
    for page in PAGES:
        marks = len(re.findall(r"^<!-- (?:tested|quickstart|settings)", page.read_text(), re.MULTILINE))
        assert marks == sum(1 for block in blocks(page) if block.kind in ("tested", "quickstart", "settings")), page


@pytest.mark.structure
@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(block.kind == "settings" for block in blocks(page))], ids=lambda page: page.stem
)
def test_settings_that_a_page_shows_pass_the_system_checks(page: Path, tmp_path: Path) -> None:
    """Each block in turn, over the settings of the tests."""
    pytest.importorskip("psycopg")
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "shop" / "tenants.py").write_text("def current_tenant_id(): ...\ndef use_tenant(tenant_id): ...\n")
    for number, block in enumerate(block for block in blocks(page) if block.kind == "settings"):
        name = f"shown_{number}"
        (tmp_path / f"{name}.py").write_text(f"from tests.settings import *\n{block.text}")
        environment = {key: value for key, value in os.environ.items() if not key.startswith("DJANGO_JOBS_")}
        environment |= {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]), "DJANGO_SETTINGS_MODULE": name}
        done = subprocess.run(
            [sys.executable, "-m", "django", "check", "--fail-level", "WARNING"],
            env=environment | {"DATABASE_URL": "postgres://nobody@localhost/nothing"},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, f"{page.name}:{block.line}: {done.stderr}"

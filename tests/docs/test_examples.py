"""Every example that a page marks as tested is run, page by page, and says what it says; all others can be read by Python."""

from __future__ import annotations

import ast
import re
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
        marks = len(re.findall(r"^<!-- (?:tested|quickstart)", page.read_text(), re.MULTILINE))
        assert marks == sum(1 for block in blocks(page) if block.kind in ("tested", "quickstart")), page

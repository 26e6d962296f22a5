"""Modules and functions stay small enough to be read at one go."""

from __future__ import annotations

import ast
from statistics import median

import pytest

from tests.structure.files import ROOT, modules

pytestmark = pytest.mark.structure
MODULE_LINES = 400
MEDIAN_LINES = 160
FUNCTION_LINES = 50


def test_no_module_is_longer_than_the_budget() -> None:
    """A module past the budget holds two ideas; split it by idea."""
    lines = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in modules() + modules("example_project")}
    assert len(lines) > 20
    assert {name: count for name, count in lines.items() if count > MODULE_LINES} == {}
    assert median(lines.values()) <= MEDIAN_LINES


def test_no_function_is_longer_than_the_budget() -> None:
    long = {}
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno
                if (count := node.end_lineno - node.lineno + 1) > FUNCTION_LINES:
                    long[f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"] = count
    assert long == {}


def test_every_module_says_what_it_is_for() -> None:
    bare = [
        str(path.relative_to(ROOT))
        for path in modules()
        if path.read_text().strip() and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert bare == []

"""Faults that people reported of other job systems: each has a test here that carries its number."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.structure.files import ROOT

pytestmark = pytest.mark.structure

FAULTS = {
    "b07": "an orderly stop, and others declare the stopping worker dead",
    "b08": "a crashed job blocks its own recovery",
    "b09": "requeue of a running job makes two copies",
    "b11": "a pooler that hands out connections per transaction",
    "b12": "an outage of the database ends the worker, or every later job",
    "b13": "children inherit sockets and random state",
    "b14": "claiming and inserting lock in opposite order; a busy file",
    "b15": "connections and stored queries pile up",
    "b16": "pipes and zombies pile up",
    "b17": "exceptions outside the ordinary hierarchy take the worker down",
    "b18": "the process of a job is killed, and the job stays running, or kills worker after worker",
    "b19": "recording a failure fails",
    "b20": "an observer's error changes the job's fate",
    "b22": "a function that can't be found",
    "b23": "zero bytes in texts and results",
    "b26": "results that are no JSON",
    "b27": "a job changes its own arguments and is retried",
    "b28": "a time limit that is swallowed or can't be delivered",
    "b30": "programs that a timed-out job launched live on",
    "b31": "does the limit count the first run? and zero, unlimited, no base delay",
    "b33": "run later: naive dates, numbers that outgrow a column",
    "b34": "hosts whose clocks disagree",
    "b38": "whether two jobs are equal depends on which comes first, or on how arguments are stored",
    "b39": "one bad item in a bulk enqueue",
    "b42": "empty groups, groups of one, long chains, deep nesting",
    "b43": "a parent fails, is cancelled or deleted: children wait for ever, or run anyway, or never come when it was repaired",
    "b45": "asked to stop, then an ordinary error",
    "b56": "pruning in one statement hits the time limit",
    "b60": "lists are unordered, endless, or lose and double jobs while others come and go",
}


@cache
def numbered() -> dict[str, list[str]]:
    """Return the tests that are named after a fault, by its number."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            if is_function and (match := re.match(r"test_?(b\d\d)_", node.name, re.IGNORECASE)):
                found.setdefault(match[1].lower(), []).append(f"{path.relative_to(ROOT)}::{node.name}")
    return found


@pytest.mark.parametrize("fault", FAULTS)
def test_every_reported_fault_has_a_test(fault: str) -> None:
    assert numbered().get(fault), f"no test is named test_{fault}_...: {FAULTS[fault]}"


def test_every_numbered_test_is_of_a_fault_in_the_list() -> None:
    assert {fault: tests for fault, tests in numbered().items() if fault not in FAULTS} == {}

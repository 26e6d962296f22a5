"""The docs say what the code does: settings, checks, commands, invariants and links are compared with it."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from pathlib import Path

import pytest
from django.core.management import get_commands

from tests.structure.files import ROOT, modules, tracked

pytestmark = pytest.mark.structure
DOCS = ROOT / "docs"
NOT_OF_DJANGO = {"makemigrations"}


def pages() -> list[Path]:
    return [path for path in tracked() if path.suffix == ".md"]


def test_every_setting_is_documented_and_no_other() -> None:
    """`docs/settings.md` has one row or heading for each setting, beginning with its name in back quotes."""
    from django_jobs.conf.settings import JobsSettings

    text = (DOCS / "settings.md").read_text()
    documented = set(re.findall(r"^(?:\| |#+ )`([A-Z_]+)`", text, re.MULTILINE))
    assert documented == {each.name.upper() for each in fields(JobsSettings)}


def test_the_documented_defaults_are_the_defaults() -> None:
    """The second column is read as an environment variable would be."""
    from django_jobs.conf.settings import JobsSettings

    rows = re.findall(r"^\| `([A-Z_]+)` \| `([^`]*)` \|", (DOCS / "settings.md").read_text(), re.MULTILINE)
    defaults, readers = JobsSettings(), {each.name: each.metadata["read"] for each in fields(JobsSettings)}
    assert len(rows) == len(readers)
    wrong = {name for name, text in rows if readers[name.lower()](text, name) != getattr(defaults, name.lower())}
    assert wrong == set()


def test_every_system_check_is_documented_and_no_other() -> None:
    raised = {match for path in modules() for match in re.findall(r"django_jobs\.[EWI]\d{3}", path.read_text())}
    documented = set(re.findall(r"^(?:\| |#+ )`(django_jobs\.[EWI]\d{3})`", (DOCS / "checks.md").read_text(), re.MULTILINE))
    assert raised
    assert documented == raised


def test_every_invariant_names_a_test_that_exists() -> None:
    """Each numbered invariant of `docs/architecture.md` ends with the test that guards it: `tests/...py::test_name`."""
    text = (DOCS / "architecture.md").read_text()
    section = re.search(r"^## Invariants\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert section
    entries = re.split(r"^\d+\. ", section[1], flags=re.MULTILINE)[1:]
    assert len(entries) >= 14
    for entry in entries:
        guards = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", entry)
        assert guards, f"no test guards: {entry[:80]}"
        for name, test in guards:
            assert (ROOT / name).is_file(), f"{name} does not exist"
            names = {node.name for node in ast.walk(ast.parse((ROOT / name).read_text())) if isinstance(node, ast.FunctionDef)}
            assert not test or test in names, f"{name} has no {test}"


def test_every_command_in_the_docs_exists() -> None:
    """A `manage.py NAME` or `dev.py NAME` that a page shows can be run."""
    commands = set(get_commands())
    shown = {
        (str(page.relative_to(ROOT)), name) for page in pages() for name in re.findall(r"manage\.py ([a-z]\w+)", page.read_text())
    }
    assert {(page, name) for page, name in shown if name not in commands} == set()
    readme = (ROOT / "README.md").read_text()
    assert set(re.findall(r"dev\.py ([a-z]\w+)", readme)) == {"demo", "test"}


def test_every_link_between_pages_leads_somewhere() -> None:
    broken = {}
    for page in pages():
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target and not target.startswith("mailto:") and not (page.parent / target).exists():
                broken[str(page.relative_to(ROOT))] = target
    assert broken == {}

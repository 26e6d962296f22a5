"""What the pages list is what there is: moves, options, fields, commands, files."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.core.management import load_command_class

from django_jobs import backend, conf, exceptions, maintenance, options, signals, statuses
from django_jobs.execution.context import JobContext
from django_jobs.maintenance.service import make_services
from django_jobs.models import AttemptOutcome
from django_jobs.results import JobResult
from django_jobs.task import job
from tests.docs import moves
from tests.docs.pages import DOCS, ROOT, rows

pytestmark = pytest.mark.structure

PAGES = sorted([*DOCS.rglob("*.md"), ROOT / "README.md"])
#: Options of every command of Django's.
SHARED = {"help", "version", "verbosity", "settings", "pythonpath", "traceback", "no_color", "force_color", "skip_checks"}


def page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text()


def named(text: str, heading: str) -> list[str]:
    """Return what stands in back quotes in the first column of the table below a heading."""
    return [name for row in rows(text, heading) for name in re.findall(r"`([^`]+)`", row[0])]


# --- lifecycle ---


def test_the_moves_and_their_picture_are_those_of_the_code() -> None:
    """`python -m tests.docs.moves` writes them anew."""
    assert moves.filled(page("lifecycle")) == page("lifecycle")
    assert set(moves.WORDS) == set(statuses.Move)


def test_every_status_is_described_with_its_name_for_django() -> None:
    from django_jobs.results import DJANGO_STATUS

    said = {row[0].strip("`"): row[2] for row in rows(page("lifecycle"), "Statuses")}
    assert said == {status.value: DJANGO_STATUS[status].name for status in statuses.Status}


# --- tasks ---


def test_every_option_of_a_task_is_described() -> None:
    own = {name for name in signature(job).parameters if name not in ("function", "task_options")}
    assert set(named(page("tasks"), "Options")) == own | set(options.CHECKS)


def test_every_attribute_of_the_context_is_described() -> None:
    public = {name for name in dir(JobContext) if not name.startswith("_")}
    said = {name.partition("(")[0] for name in named(page("tasks"), "Context")}
    assert said == public


def test_what_the_page_tells_of_results_exists() -> None:
    for name in named(page("tasks"), "Results"):
        assert hasattr(JobResult, name.partition("(")[0]), name


def test_every_signal_is_described() -> None:
    assert sorted(named(page("tasks"), "Hooks and signals")) == sorted(signals.EVENTS)


# --- operations ---


def parsers(name: str) -> dict[str, argparse.ArgumentParser]:
    """Return the parser of a command of ours and those of its verbs."""
    parser: Any = load_command_class("django_jobs", name).create_parser("manage.py", name)
    found = {"": parser}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found |= action.choices
    return found


def flags(parser: argparse.ArgumentParser) -> set[str]:
    """Return the options of a parser, and of its actions (`token add`)."""
    found = set()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found |= set().union(*map(flags, action.choices.values()))
        elif action.dest not in SHARED:
            found |= {flag for flag in action.option_strings if flag.startswith("--")}
    return found


def test_every_option_of_runjobs_is_described_with_its_default() -> None:
    table = {re.findall(r"`(--[\w-]+)", row[0])[0]: row[1] for row in rows(page("operations"), "Options of runjobs")}
    parser = parsers("runjobs")[""]
    assert set(table) == flags(parser)
    for action in parser._actions:
        if isinstance(action.default, int) and not isinstance(action.default, bool):
            for flag in set(action.option_strings) & set(table):
                assert table[flag] == str(action.default), flag


def test_every_verb_and_option_of_the_jobs_command_is_described() -> None:
    verbs = {name: parser for name, parser in parsers("jobs").items() if name}
    assert {name.split()[0] for name in named(page("operations"), "The jobs command")} == set(verbs)
    section = page("operations").partition("## The jobs command")[2].partition("\n## ")[0]
    wanted = set().union(*map(flags, verbs.values()))
    assert set(re.findall(r"--[a-z][\w-]+", section)) == wanted


def test_every_service_of_maintenance_is_described() -> None:
    said = [row[0].strip("`") for row in rows(page("operations"), "Maintenance")]
    looks: Any = None
    assert said == list(make_services(looks, conf.jobs_settings()))
    assert maintenance.__doc__


def test_options_that_pages_show_exist() -> None:
    """`manage.py runjobs --...` and `manage.py jobs VERB --...`, wherever a page shows them."""
    known = {name: set().union(*(flags(parser) for parser in parsers(name).values())) for name in ("runjobs", "jobs")}
    for path in PAGES:
        for command, rest in re.findall(r"manage\.py (runjobs|jobs)\b([^`\n]*)", path.read_text()):
            assert set(re.findall(r"--[a-z][\w-]+", rest)) - known[command] == set(), (path.name, rest)


# --- tables ---


def columns(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield (model, field, type) as the page has them."""
    for model in re.findall(r"^## (\w+)$", text, re.MULTILINE):
        for row in rows(text, model):
            for name in re.findall(r"`([^`]+)`", row[0]):
                yield model, name, row[1]


def test_every_field_of_every_model_is_described_with_its_type() -> None:
    documented = set(columns(page("tables")))
    models = list(apps.get_app_config("django_jobs").get_models())
    actual = {
        (model.__name__, field.name, field.get_internal_type().removesuffix("Field") + (", null" if field.null else ""))
        for model in models
        for field in model._meta.concrete_fields
    }
    assert documented == actual


def test_every_outcome_of_an_attempt_is_described() -> None:
    assert set(named(page("tables"), "Outcomes of attempts")) == {outcome.value for outcome in AttemptOutcome}


# --- glossary and names ---


def test_every_public_name_exists() -> None:
    """`django_jobs.x.y`, wherever a page names it, can be imported; ids of checks and names of tables and indexes aside."""
    from importlib import import_module

    from django_jobs.models import Job

    others = {index.name for index in Job._meta.indexes} | {model._meta.db_table for model in apps.get_models()}
    for path in PAGES:
        for name in set(re.findall(r"`(django_jobs(?:\.\w+)+)`", path.read_text())):
            if re.fullmatch(r"django_jobs\.[EW]\d{3}", name) or name in others:
                continue
            parts = name.split(".")
            for length in range(len(parts), 0, -1):
                try:
                    found: Any = import_module(".".join(parts[:length]))
                except ModuleNotFoundError:
                    continue
                for part in parts[length:]:
                    assert hasattr(found, part), f"{path.name}: {name}"
                    found = getattr(found, part)
                break


def test_exceptions_that_pages_name_exist() -> None:
    known = set(dir(exceptions)) | {"InvalidTask", "NotSupportedError"}
    for path in PAGES:
        for name in set(
            re.findall(
                r"`(Invalid\w+|Unknown[A-Z]\w+|Wait[A-Z]\w+|Attempt[A-Z]\w+|Related\w+|Job[A-Z]\w*(?:Exist|Error|Timeout|Cancelled))`",
                path.read_text(),
            )
        ):
            assert name in known, (path.name, name)


def test_files_that_pages_name_exist() -> None:
    """A path in back quotes that begins with one of the project's folders."""
    for path in PAGES:
        for name in set(re.findall(r"`((?:django_jobs|tests|docs|bench|devtools|example_project)/[\w./*-]*)`", path.read_text())):
            target = name.partition("::")[0].rstrip("/")
            assert list(ROOT.glob(target)), f"{path.name}: {name}"


def test_tests_that_pages_name_exist() -> None:
    """`tests/...py::test_name`, wherever a page says what shows it."""
    for path in PAGES:
        for name, test in set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", path.read_text())):
            assert f"def {test}(" in (ROOT / name).read_text(), (path.name, name, test)


def test_every_heading_that_a_link_names_exists() -> None:
    for path in PAGES:
        for target, anchor in re.findall(r"\]\(([^)#\s]*)#([^)]+)\)", path.read_text()):
            if "://" in target:
                continue
            other = (path.parent / target) if target else path
            headings = {_anchor(text) for text in re.findall(r"^#+ (.+)$", other.read_text(), re.MULTILINE)}
            assert anchor in headings, f"{path.name}: {target}#{anchor}"


def _anchor(heading: str) -> str:
    """Return the anchor that a heading gets."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_every_page_can_be_reached_from_the_readme() -> None:
    seen: set[Path] = set()
    pending = [ROOT / "README.md"]
    while pending:
        path = pending.pop().resolve()
        if path in seen:
            continue
        seen.add(path)
        pending += [path.parent / target for target in re.findall(r"\]\(([^)#\s:]+\.md)(?:#[^)]*)?\)", path.read_text())]
    assert {path.resolve() for path in PAGES} - seen == set()


def test_the_settings_of_a_backend_are_described() -> None:
    said = {name.lower() for row in rows(page("settings"), "TASKS") for name in re.split(r"[,\s]+", row[0].replace("`", ""))}
    assert said == {each.name for each in fields(conf.BackendOptions)}
    assert backend.JobsBackend.__doc__

"""System checks: each mistake is told by its id, with what to do; a sound project is told nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import django
import pytest
from django.apps import apps
from django.core import checks as django_checks
from django.core.checks import CheckMessage
from django.db import connection, connections

from django_jobs import checks, conf, registry

OURS = conf.BACKEND_PATH
#: The back-port registers its check of backends from an app of its own.
_TASKS_APP = "" if django.VERSION >= (6, 0) else "'django_tasks'"


class ToOther:
    """A router that keeps the jobs' table on `other`, and lets it be made nowhere else."""

    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        return "other" if model._meta.app_label == "django_jobs" else None

    db_for_read = db_for_write

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return db == "other" if app_label == "django_jobs" else None


class NotOnDefault:
    """A router that lets the jobs' tables be made nowhere."""

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return False if app_label == "django_jobs" else None


@pytest.fixture(autouse=True)
def _read_anew() -> Iterator[None]:
    conf.reset()
    yield
    conf.reset()


@pytest.fixture
def aliases(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that declares databases beside the default one, copies of it but for what is said."""
    made: list[str] = []

    def declare(alias: str = "other", **changes: Any) -> None:
        declared = {**settings.DATABASES["default"], **changes}
        monkeypatch.setitem(settings.DATABASES, alias, declared)
        monkeypatch.setitem(connections.settings, alias, declared)
        made.append(alias)

    yield declare
    for alias in made:
        if hasattr(connections._connections, alias):  # type: ignore[attr-defined]
            connections[alias].close()
            del connections[alias]


@pytest.fixture
def as_default(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that changes the settings of the default database."""

    def change(**changes: Any) -> None:
        for key, value in changes.items():
            monkeypatch.setitem(connection.settings_dict, key, value)

    return change


def run(**arguments: Any) -> list[CheckMessage]:
    """Run our checks as `manage.py check` does, and return what they tell."""
    tags = ["django_jobs", *([django_checks.Tags.database] if "databases" in arguments else [])]
    return [message for message in django_checks.run_checks(tags=tags, **arguments) if str(message.id).startswith("django_jobs.")]


def told(**arguments: Any) -> dict[str, CheckMessage]:
    """Run our checks; return what they told, by the end of the id. Each has a hint."""
    messages = run(**arguments)
    assert all(message.hint for message in messages)
    assert all((message.id or "").partition(".")[2][0] == ("E" if message.is_serious() else "W") for message in messages)
    return {str(message.id).partition(".")[2]: message for message in messages}


def test_a_sound_project_is_told_nothing() -> None:
    assert told() == {}


# --- settings ---


def test_everything_that_is_wrong_with_the_settings_is_told_at_once(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.DJANGO_JOBS = {"GRACES": 1, "MAX_ATEMPTS": 2, "TIMEOUT": "soon", "LISTEN": 5}
    monkeypatch.setenv("DJANGO_JOBS_POLL_INTERVALL", "1")
    messages = run()
    assert sorted((str(message.id), message.msg.partition(":")[0]) for message in messages) == [
        ("django_jobs.E001", "GRACES"),
        ("django_jobs.E001", "MAX_ATEMPTS"),
        ("django_jobs.E002", "LISTEN"),
        ("django_jobs.E002", "TIMEOUT"),
        ("django_jobs.W001", "DJANGO_JOBS_POLL_INTERVALL"),
    ]
    assert any("did you mean 'MAX_ATTEMPTS'?" in message.msg for message in messages)


def test_the_place_that_was_read_is_named_and_the_value_shown(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.DJANGO_JOBS = {"LISTEN": True, "TIMEOUT": "soon"}
    monkeypatch.setenv("DJANGO_JOBS_LISTEN", "maybe")
    by_text = {message.msg: message.hint for message in run()}
    assert by_text["DJANGO_JOBS_LISTEN: True or False, not 'maybe'."] == (
        "Mend the environment variable DJANGO_JOBS_LISTEN: it is read instead of LISTEN in DJANGO_JOBS."
    )
    (timeout,) = (text for text in by_text if text.startswith("TIMEOUT: "))
    assert "'soon'" in timeout
    assert by_text[timeout] == "Mend TIMEOUT in DJANGO_JOBS."


def test_settings_that_are_no_dict_get_a_hint_of_their_own(settings: Any) -> None:
    settings.DJANGO_JOBS = [1]
    message = told()["E002"]
    assert message.msg == "DJANGO_JOBS: a dict, not [1]."
    assert "DJANGO_JOBS_DJANGO_JOBS" not in str(message.hint)


def test_one_problem_hides_no_other(settings: Any) -> None:
    """A setting that can't be read, a function that is not there, an option that can't be read, a route: all in one run."""
    settings.DJANGO_JOBS = {"LISTEN": 5, "CONTEXT": [("os.getcwd", "os.nothing")]}
    settings.TASKS = {"default": {"BACKEND": OURS, "OPTIONS": {"max_attempts": 0}}}
    settings.DATABASE_ROUTERS = [NotOnDefault()]
    assert set(told()) == {"E002", "E004", "E005", "E008"}


def test_use_tz(settings: Any) -> None:
    settings.USE_TZ = False
    assert "USE_TZ" in told()["E003"].msg


@pytest.mark.parametrize("path", ["no.such.module", "os.nothing", "os.name", "os"])
def test_context_functions_that_are_not_there(settings: Any, path: str) -> None:
    settings.DJANGO_JOBS = {"CONTEXT": [("os.getcwd", "os.chdir"), ("os.getcwd", path)]}
    assert told()["E004"].msg.startswith(f"CONTEXT[1]: {path!r}")


def test_exceptions_of_a_queue_that_are_not_there(settings: Any) -> None:
    settings.DJANGO_JOBS = {"QUEUES": {"net": {"retry_for": ["builtins.OSError", "no.such.Error"]}}}
    assert told()["E012"].msg.startswith("QUEUES['net']['retry_for']: 'no.such.Error'")


# --- TASKS ---


def test_no_backend_of_ours(settings: Any) -> None:
    settings.TASKS = {"default": {"BACKEND": "django.tasks.backends.dummy.DummyBackend"}}
    assert "W002" in {str(message.id).partition(".")[2] for message in checks.check_backends()}


def test_wrong_options_of_a_backend_are_all_told(settings: Any) -> None:
    settings.TASKS = {
        "default": {"BACKEND": OURS, "OPTIONS": {"databse": "default", "MAX_ATTEMPTS": 0}},
        "more": {"BACKEND": OURS, "OPTIONS": {"database": "moon"}},
    }
    messages = list(checks.check_backends())
    assert [message.id for message in messages] == ["django_jobs.E005"] * 3
    assert "did you mean 'database'?" in messages[0].msg
    assert messages[2].msg.startswith("TASKS['more']['OPTIONS']: database: 'moon'")
    assert {message.hint for message in messages} == {"The options are database, direct_database, max_attempts, backoff."}
    assert list(checks.check_databases()) == []  # what can't be read is told once
    assert checks.check_versions(databases=["default"]) == []


def test_the_backend_without_the_app() -> None:
    assert checks.missing_app() == []
    with mock.patch.object(apps, "is_installed", return_value=False):
        (message,) = checks.missing_app()
    assert message.id == "django_jobs.E006"
    assert message.hint
    assert "INSTALLED_APPS" in message.hint


def test_the_backend_without_the_app_is_told_by_django_itself() -> None:
    """Without the app nobody registers its checks: Django asks each backend of TASKS for its own."""
    code = (
        "import django; from django.conf import settings;"
        f"settings.configure(TASKS={{'default': {{'BACKEND': {OURS!r}}}}}, DATABASES={{}}, INSTALLED_APPS=[{_TASKS_APP}]);"
        "django.setup(); from django.core.checks import run_checks; import django_jobs.backend;"
        "print(*[message.id for message in run_checks()])"
    )
    environment = {key: value for key, value in os.environ.items() if key != "DJANGO_SETTINGS_MODULE"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert "django_jobs.E006" in done.stdout.split()


# --- tasks ---


def test_modules_of_tasks_that_can_not_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(checks.check_tasks()) == []
    monkeypatch.setitem(registry._import_errors, "mail.tasks", "ImportError: no module named x")
    (message,) = checks.check_tasks()
    assert message.id == "django_jobs.W008"
    assert "mail.tasks" in message.msg
    assert "no module named x" in message.msg
    assert message.hint
    assert not message.is_serious(), "the tasks of the other apps still run"
    assert "W008" in told()


def test_http_queues_without_a_limit(settings: Any) -> None:
    settings.DJANGO_JOBS = {
        "QUEUES": {
            "web": {"is_http": True},
            "web.timed": {"timeout": "5m"},
            "beating": {"is_http": True, "heartbeat_timeout": 30},
            "web.plain": {"is_http": False},
        }
    }
    (message,) = checks.check_http_queues()
    assert message.id == "django_jobs.W009"
    assert "QUEUES['web']" in message.msg
    settings.DJANGO_JOBS = {"TIMEOUT": "1h", "QUEUES": {"web": {"is_http": True}}}
    assert list(checks.check_http_queues()) == []


# --- databases ---


def test_a_vendor_that_is_not_supported() -> None:
    with mock.patch.object(connections["default"], "vendor", "oracle"):
        assert "oracle" in told()["E007"].msg


@pytest.mark.skipif(connection.vendor != "postgresql", reason="about PostgreSQL's drivers")
def test_psycopg_2() -> None:
    with mock.patch("django.db.backends.postgresql.psycopg_any.is_psycopg3", False):
        assert "psycopg2" in told()["W003"].msg


@pytest.mark.skipif(connection.vendor != "sqlite", reason="about SQLite's transactions")
def test_sqlite_in_deferred_mode(as_default: Any) -> None:
    as_default(OPTIONS={})
    assert "deferred" in told()["W004"].msg


def test_routers_that_do_not_let_the_tables_be_made(settings: Any) -> None:
    settings.DATABASE_ROUTERS = [NotOnDefault()]
    assert set(told()) == {"E008"}


def test_a_backend_on_another_database_than_the_routers_say(settings: Any, aliases: Any) -> None:
    aliases("other")
    settings.DATABASE_ROUTERS = [ToOther()]
    settings.TASKS = {"default": {"BACKEND": OURS, "OPTIONS": {"database": "default"}}}
    assert set(told()) == {"E008", "W005"}


def test_jobs_beside_the_data_or_not(settings: Any, aliases: Any) -> None:
    aliases("other")
    settings.DATABASE_ROUTERS = [ToOther()]
    message = told()["W006"]
    assert "rolled back" in message.msg
    assert "'other'" in message.msg


@pytest.mark.skipif(connection.vendor != "postgresql", reason="about poolers of PostgreSQL")
class TestPoolers:
    """A worker behind a transaction pooler would hold nothing."""

    def test_a_transaction_pooler_is_refused(self, as_default: Any) -> None:
        as_default(DISABLE_SERVER_SIDE_CURSORS=True)
        assert set(told()) == {"E009"}

    @pytest.mark.parametrize(
        "changes", [{"PORT": "6432"}, {"PORT": 6432}, {"HOST": "ep-1-pooler.example.org"}, {"HOST": "pgbouncer"}]
    )
    def test_what_looks_like_a_pooler_is_asked_about(self, as_default: Any, changes: dict[str, Any]) -> None:
        as_default(**changes)
        assert set(told()) == {"W007"}

    def test_a_direct_alias_mends_it(self, settings: Any, as_default: Any, aliases: Any) -> None:
        aliases("direct")
        as_default(DISABLE_SERVER_SIDE_CURSORS=True, PORT="6432")
        settings.TASKS = {"default": {"BACKEND": OURS, "OPTIONS": {"direct_database": "direct"}}}
        connections["direct"].settings_dict["NAME"] = connection.settings_dict["NAME"]
        assert told() == {}
        assert conf.direct_database("default") == "direct"

    def test_a_direct_alias_of_another_database(self, settings: Any, aliases: Any) -> None:
        aliases("direct", NAME="elsewhere")
        settings.TASKS = {"default": {"BACKEND": OURS, "OPTIONS": {"direct_database": "direct"}}}
        assert set(told()) == {"E010"}


@pytest.mark.django_db
def test_versions_are_asked_only_where_databases_are() -> None:
    assert told(databases=["default"]) == {}
    with mock.patch.object(connections["default"], "get_database_version", return_value=(3, 1)) as asked:
        assert told() == {}
        asked.assert_not_called()
        messages = checks.check_versions(databases=["default"])
    assert [message.id for message in messages] == ["django_jobs.E011"]
    assert "3.1" in messages[0].msg


def test_other_databases_may_be_as_old_as_they_like() -> None:
    assert checks.check_versions(databases=["reports"]) == []


def test_checks_of_other_apps_do_not_run_ours(settings: Any) -> None:
    settings.USE_TZ = False
    assert told(app_configs=[apps.get_app_config("auth")]) == {}
    assert set(told(app_configs=[apps.get_app_config("django_jobs")])) == {"E003"}


# --- what settings name ---

PATH_OF_NO_FUNCTION = "a text"


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("VISIBLE_TO", "tests.nowhere.visible"),
        ("VISIBLE_TO", "tests.test_checks.PATH_OF_NO_FUNCTION"),
        ("API_AUTHENTICATION", ["tests.nowhere.Authentication"]),
        ("API_THROTTLES", ["rest_framework.throttling.NoSuchThrottle"]),
    ],
)
def test_what_settings_of_the_api_name_has_to_be_there(settings: Any, setting: str, value: Any) -> None:
    settings.DJANGO_JOBS = {setting: value}
    (problem,) = list(checks.check_paths())
    assert problem.msg.startswith(setting)


def test_what_settings_of_the_api_name_and_is_there_is_silent(settings: Any) -> None:
    settings.DJANGO_JOBS = {
        "VISIBLE_TO": lambda user, jobs: jobs,
        "API_AUTHENTICATION": ["django_jobs.api.authentication.TokenAuthentication"],
        "API_THROTTLES": ["rest_framework.throttling.UserRateThrottle"],
    }
    assert list(checks.check_paths()) == []

"""Settings: defaults, overriding by the environment, and every mistake named at once."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import FrozenInstanceError
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from hypothesis import given
from hypothesis import strategies as st

from django_jobs import conf
from django_jobs.conf.settings import load
from django_jobs.queues import JobOptions, QueueOptions
from django_jobs.retry import EXPONENTIAL

OURS = "django_jobs.backend.JobsBackend"


@pytest.fixture(autouse=True)
def _read_anew() -> Iterator[None]:
    conf.reset()
    yield
    conf.reset()


class ToOther:
    """A router that keeps the jobs on another database."""

    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        return "other" if model._meta.app_label == "django_jobs" else None


# --- the dict ---


def test_defaults() -> None:
    settings, found = load({}, {})
    assert found == []
    assert (settings.grace, settings.slice, settings.poll_interval, settings.sweep_interval) == (10.0, 3.0, 1.0, 1.0)
    assert (settings.max_attempts, settings.timeout, settings.timeout_grace, settings.heartbeat_timeout) == (5, None, 5.0, None)
    assert settings.retention == {"succeeded": 604_800.0, "cancelled": 604_800.0, "failed": None, "timed_out": None}
    assert settings.backoff == EXPONENTIAL
    assert (settings.stop_timeout, settings.unknown_task_grace, settings.worker_retention) == (30.0, 3_600.0, 86_400.0)
    assert settings.max_argument_bytes == settings.max_result_bytes == 10 * 1024 * 1024
    assert (settings.prune_batch, settings.sweep_batch, settings.listen) == (1_000, 500, True)
    assert (settings.context, settings.task_aliases, settings.queues) == ((), {}, {})


def test_defaults_are_not_shared() -> None:
    one, other = load({}, {})[0], load({}, {})[0]
    one.backoff["base"] = 999
    one.retention["failed"] = 1.0  # type: ignore[index]
    assert (other.backoff, other.retention["failed"]) == (EXPONENTIAL, None)


def test_what_is_set_is_read() -> None:
    settings, found = load(
        {
            "GRACE": "20s",
            "TIMEOUT": timedelta(minutes=5),
            "HEARTBEAT_TIMEOUT": 0,
            "MAX_ATTEMPTS": None,
            "BACKOFF": [10, "1m"],
            "RETENTION": {"failed": "90d"},
            "LISTEN": False,
            "TASK_ALIASES": {"old.path": "new.path"},
            "QUEUES": {
                "mail": {"timeout": "30s", "max_attempts": None},
                "mail.bulk": {"backoff": 5, "retention": {"failed": 60}},
            },
        },
        {},
    )
    assert found == []
    assert settings.grace == 20.0
    assert settings.slice == pytest.approx(6.0)
    assert (settings.timeout, settings.heartbeat_timeout, settings.max_attempts) == (300.0, None, None)
    assert settings.backoff == [10.0, 60.0]
    assert settings.retention == {"succeeded": 604_800.0, "cancelled": 604_800.0, "failed": 90 * 86_400.0, "timed_out": None}
    assert settings.listen is False
    assert settings.task_aliases == {"old.path": "new.path"}
    assert settings.queues == {
        "mail": QueueOptions(timeout=30.0),
        "mail.bulk": QueueOptions(backoff=5.0, retention={"failed": 60.0}),
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GRACE", 0.5),
        ("GRACE", None),
        ("GRACE", "soon"),
        ("GRACE", True),
        ("SLICE", 5),
        ("SLICE", 0),
        ("POLL_INTERVAL", 0),
        ("SWEEP_INTERVAL", -1),
        ("MAX_ATTEMPTS", 0),
        ("MAX_ATTEMPTS", 1.5),
        ("MAX_ATTEMPTS", "five"),
        ("MAX_ATTEMPTS", True),
        ("MAX_ATTEMPTS", 2**31),
        ("BACKOFF", []),
        ("BACKOFF", -1),
        ("BACKOFF", print),
        ("TIMEOUT", "-1s"),
        ("TIMEOUT", math.nan),
        ("TIMEOUT", 10**12),
        ("RETENTION", {"finished": 1}),
        ("RETENTION", {"failed": "never"}),
        ("RETENTION", 7),
        ("MAX_TRACEBACK_CHARS", 5),
        ("MAX_ARGUMENT_BYTES", "10 MB"),
        ("PRUNE_BATCH", 0),
        ("LISTEN", "perhaps"),
        ("LISTEN", 1),
        ("LISTEN", None),
        ("TASK_ALIASES", {"old": 1}),
        ("TASK_ALIASES", {"": "new"}),
        ("TASK_ALIASES", ["old", "new"]),
        ("CONTEXT", "capture"),
        ("CONTEXT", {"capture": "restore"}),
        ("CONTEXT", [("capture",)]),
        ("CONTEXT", ["ab"]),
        ("CONTEXT", [(1, 2)]),
        ("QUEUES", ["mail"]),
        ("QUEUES", {"p.": {}}),
        ("QUEUES", {"mail": {"timeot": 1}}),
        ("QUEUES", {"mail": {"max_attempts": 0}}),
        ("QUEUES", {"mail": 5}),
    ],
)
def test_what_can_not_be_read_is_named_and_keeps_its_default(name: str, value: Any) -> None:
    settings, (problem,) = load({name: value}, {})
    assert (problem.kind, problem.setting) == ("invalid", name)
    assert name in problem.message
    assert getattr(settings, name.lower()) == getattr(load({}, {})[0], name.lower())


@pytest.mark.parametrize(
    ("name", "meant"), [("GRACES", "GRACE"), ("grace", "GRACE"), ("max_attempt", "MAX_ATTEMPTS"), ("RETENTIONS", "RETENTION")]
)
def test_an_unknown_setting_is_told_with_the_nearest_known(name: str, meant: str) -> None:
    _, (problem,) = load({name: 1}, {})
    assert problem.kind == "unknown"
    assert f"did you mean '{meant}'?" in problem.message


def test_a_name_like_no_other_has_no_nearest() -> None:
    _, (problem,) = load({"XYZZY": 1}, {})
    assert "did you mean" not in problem.message


def test_everything_that_is_wrong_is_told_at_once() -> None:
    _, found = load(
        {"GRACES": 1, "TIMEOUT": "soon", 5: 5, "LISTEN": "perhaps"}, {"DJANGO_JOBS_GRASE": "1", "DJANGO_JOBS_SLICE": "x"}
    )
    assert {problem.setting for problem in found} == {"GRACES", "TIMEOUT", "5", "LISTEN", "DJANGO_JOBS_GRASE", "SLICE"}


@pytest.mark.parametrize(
    ("name", "value", "places"),
    [
        (
            "QUEUES",
            {
                "p.": {},
                "mail": {
                    "timeot": 1, "timeout": "soon", "max_attempts": 0, "retention": {"failed": "x", "no": 1}, "retry_for": 5,
                },
                "x": 5,
            },
            [
                "QUEUES", "QUEUES['mail']", "QUEUES['mail']['timeout']", "QUEUES['mail']['max_attempts']",
                "QUEUES['mail']['retention']['failed']", "QUEUES['mail']['retention']", "QUEUES['mail']['retry_for']",
                "QUEUES['x']",
            ],
        ),
        ("RETENTION", {"failed": "never", "finished": 1}, ["RETENTION['failed']", "RETENTION"]),
        ("CONTEXT", [("a",), ("a", "b"), 5], ["CONTEXT[0]", "CONTEXT[2]"]),
    ],
)  # fmt: skip
def test_everything_that_is_wrong_within_one_setting_is_told(name: str, value: Any, places: list[str]) -> None:
    settings, found = load({name: value}, {})
    assert [problem.message.partition(": ")[0] for problem in found] == places
    assert {problem.setting for problem in found} == {name}
    assert getattr(settings, name.lower()) == getattr(load({}, {})[0], name.lower())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LISTEN", "maybe"),
        ("LISTEN", 5),
        ("GRACE", 0.5),
        ("TIMEOUT", "-1s"),
        ("TIMEOUT", -1),
        ("TIMEOUT", [1]),
        ("MAX_ATTEMPTS", "five"),
        ("MAX_ATTEMPTS", 0),
        ("BACKOFF", -1),
        ("QUEUES", ["mail"]),
        ("RETENTION", 7),
        ("SLICE", "9s"),
    ],
)
def test_the_value_that_can_not_be_read_is_shown_once(name: str, value: Any) -> None:
    _, (problem,) = load({name: value}, {})
    assert problem.message.count(str(value)) == 1, problem.message
    _, (long,) = load({name: "v" * 10_000}, {})
    assert len(long.message) < 500


def test_what_was_read_is_named() -> None:
    _, found = load({"GRACE": "soon", "LISTEN": True}, {"DJANGO_JOBS_LISTEN": "maybe"})
    assert {(problem.setting, problem.source) for problem in found} == {
        ("GRACE", "DJANGO_JOBS"),
        ("LISTEN", "DJANGO_JOBS_LISTEN"),
    }


@pytest.mark.parametrize("raw", [None, [], "GRACE=1", 5])
def test_settings_that_are_no_dict_are_told(raw: Any) -> None:
    settings, (problem,) = load(raw, {})
    assert problem.setting == "DJANGO_JOBS"
    assert settings.grace == 10.0


@given(
    st.dictionaries(
        st.sampled_from([name.upper() for name in conf.JobsSettings.__slots__]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.binary(max_size=3),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8) | st.integers(), inner, max_size=3),
            max_leaves=6,
        ),
        max_size=5,
    )
)
def test_no_value_whatever_breaks_the_reading(raw: dict[str, Any]) -> None:
    settings, found = load(raw, {})
    assert {problem.setting for problem in found} <= set(raw)
    assert 0 < settings.slice < settings.grace / 2
    assert settings.max_attempts is None or settings.max_attempts >= 1
    assert set(settings.retention) == {"succeeded", "cancelled", "failed", "timed_out"}


# --- the environment ---


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("GRACE", "30s", 30.0),
        ("GRACE", "30", 30.0),
        ("TIMEOUT", "none", None),
        ("TIMEOUT", "", None),
        ("TIMEOUT", "0", None),
        ("MAX_ATTEMPTS", "7", 7),
        ("MAX_ATTEMPTS", "none", None),
        ("LISTEN", "0", False),
        ("LISTEN", "TRUE", True),
        ("BACKOFF", "1m", 60.0),
        ("BACKOFF", "[1, 2]", [1.0, 2.0]),
        ("BACKOFF", '{"1": 5, "3": [1, 2]}', {"1": 5.0, "3": [1.0, 2.0]}),
        ("TASK_ALIASES", '{"a": "b"}', {"a": "b"}),
        ("QUEUES", '{"mail": {"timeout": 5}}', {"mail": QueueOptions(timeout=5.0)}),
        ("CONTEXT", '[["a.capture", "a.restore"]]', (("a.capture", "a.restore"),)),
    ],
)
def test_the_environment_overrides(name: str, text: str, value: Any) -> None:
    settings, found = load({name: "not even read"}, {f"DJANGO_JOBS_{name}": text, "HOME": "/"})
    assert found == []
    assert getattr(settings, name.lower()) == value


@pytest.mark.parametrize(
    ("name", "text"), [("MAX_ATTEMPTS", "٣"), ("MAX_ATTEMPTS", "9" * 5_000), ("QUEUES", "{"), ("RETENTION", "[" * 9_999)]
)
def test_text_that_can_not_be_read_is_told(name: str, text: str) -> None:
    _, (problem,) = load({}, {f"DJANGO_JOBS_{name}": text})
    assert (problem.kind, problem.setting) == ("invalid", name)


def test_an_unknown_variable_is_told_with_the_nearest_known() -> None:
    _, (problem,) = load({}, {"DJANGO_JOBS_GRASE": "1"})
    assert problem.kind == "variable"
    assert "'GRACE'" in problem.message


# --- in use ---


def test_settings_are_read_once_and_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    first = conf.jobs_settings()
    monkeypatch.setenv("DJANGO_JOBS_GRACE", "99")
    assert conf.jobs_settings() is first
    with pytest.raises(FrozenInstanceError):
        first.grace = 1.0  # type: ignore[misc]
    conf.reset()
    assert conf.jobs_settings().grace == 99.0


def test_a_test_that_overrides_settings_is_heard(settings: Any) -> None:
    settings.DJANGO_JOBS = {"GRACE": 44}
    assert conf.jobs_settings().grace == 44.0
    settings.DJANGO_JOBS = {}
    assert conf.jobs_settings().grace == 10.0


def test_wrong_settings_raise_with_all_that_is_wrong(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DJANGO_JOBS_GRASE", "1")  # only a warning: it may be somebody else's
    settings.DJANGO_JOBS = {"GRACES": 1, "TIMEOUT": "soon"}
    with pytest.raises(ImproperlyConfigured, match=r"GRACES.*TIMEOUT|TIMEOUT.*GRACES") as refusal:
        conf.jobs_settings()
    assert "GRASE" not in str(refusal.value)
    assert {problem.setting for problem in conf.problems()} == {"GRACES", "TIMEOUT", "DJANGO_JOBS_GRASE"}
    settings.DJANGO_JOBS = {}
    assert conf.jobs_settings().grace == 10.0


def test_context_pairs_are_imported_where_they_are_paths(settings: Any) -> None:
    settings.DJANGO_JOBS = {"CONTEXT": [("os.getcwd", "os.chdir"), (len, print)]}
    assert conf.context_pairs() == ((os.getcwd, os.chdir), (len, print))


# --- backends ---


def test_without_options_the_routers_choice_counts(settings: Any) -> None:
    settings.TASKS = {"default": {"BACKEND": OURS}}
    assert conf.backend_options() == conf.BackendOptions("default", "default", 5, None)
    assert conf.jobs_database() == "default"
    settings.DATABASE_ROUTERS = [ToOther()]
    assert conf.backend_options().database == "other"
    assert conf.jobs_database() == conf.routed_database() == "other"


def test_a_backends_options(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for alias in ("jobs", "direct"):
        monkeypatch.setitem(settings.DATABASES, alias, settings.DATABASES["default"])
    settings.TASKS = {
        "default": {
            "BACKEND": OURS,
            "OPTIONS": {"database": "jobs", "direct_database": "direct", "MAX_ATTEMPTS": 3, "BACKOFF": [1, "1m"]},
        },
        "endless": {"BACKEND": OURS, "OPTIONS": {"max_attempts": None}},
    }
    assert conf.backend_options("default") == conf.BackendOptions("jobs", "direct", 3, [1.0, 60.0])
    assert conf.backend_options("endless").max_attempts is None
    assert conf.jobs_database() == "jobs"


def test_a_backend_that_is_not_declared_has_the_defaults(settings: Any) -> None:
    settings.TASKS = {}
    assert conf.backend_options("nowhere").database == "default"
    assert conf.jobs_aliases() == ()
    assert conf.jobs_database() == "default"


@pytest.mark.parametrize(
    "options",
    [
        {"database": "moon"},
        {"databse": "default"},
        {"MAX_ATTEMPTS": 0},
        {"BACKOFF": "soon"},
        {"direct_database": 5},
        ["database"],
    ],
)
def test_wrong_options_raise_naming_the_backend(settings: Any, options: Any) -> None:
    settings.TASKS = {"default": {"BACKEND": OURS, "OPTIONS": options}}
    with pytest.raises(ImproperlyConfigured, match=r"TASKS\['default'\]"):
        conf.backend_options()
    assert len(conf.read_options(options)[1]) == 1


def test_which_backends_are_ours(settings: Any) -> None:
    settings.TASKS = {
        "a": {"BACKEND": "django.tasks.backends.dummy.DummyBackend"},
        "b": {"BACKEND": OURS},
        "c": {"BACKEND": "no.such.Backend"},
        "default": {"BACKEND": OURS},
        "d": {},
    }
    assert conf.jobs_aliases() == ("default", "b")


# --- what a new job gets ---


def test_a_job_without_a_word_gets_the_settings(settings: Any) -> None:
    settings.DJANGO_JOBS = {"TIMEOUT": 60, "MAX_ATTEMPTS": 7}
    assert conf.job_options("default", {}) == JobOptions(60.0, None, 7, None, None)


def test_who_has_the_say_about_a_job(settings: Any) -> None:
    """The task, then queues from near to far (a row before the settings), then the backend, then the settings."""
    settings.DJANGO_JOBS = {
        "TIMEOUT": 1,
        "HEARTBEAT_TIMEOUT": 1,
        "MAX_ATTEMPTS": 1,
        "QUEUES": {"a.b": {"timeout": 2, "heartbeat_timeout": 2, "retention": {"failed": 2}}, "a": {"backoff": 2}},
    }
    settings.TASKS = {"default": {"BACKEND": OURS, "OPTIONS": {"MAX_ATTEMPTS": 3, "BACKOFF": 3}}}
    rows = {"a.b": QueueOptions(timeout=4.0, retention={"succeeded": 4.0}), "a": QueueOptions(heartbeat_timeout=4.0)}
    assert conf.job_options("a.b.c", {}, rows=rows) == JobOptions(4.0, 2.0, 3, 2.0, {"failed": 2.0, "succeeded": 4.0})
    own = conf.job_options("a.b.c", {"timeout": 5.0, "max_attempts": None, "backoff": [5.0]}, rows=rows)
    assert (own.timeout, own.max_attempts, own.backoff) == (5.0, None, [5.0])
    assert conf.job_options("elsewhere", {}, rows=rows) == JobOptions(1.0, 1.0, 3, 3.0, None)


@pytest.mark.parametrize(
    ("status", "own", "kept"),
    [
        ("succeeded", None, 604_800.0),
        ("failed", None, None),
        ("failed", {"failed": 60.0}, 60.0),
        ("succeeded", {"succeeded": None}, None),
        ("succeeded", {"failed": 60.0}, 604_800.0),
        ("timed_out", {}, None),
    ],
)
def test_how_long_a_job_is_kept(status: str, own: dict[str, float | None] | None, kept: float | None) -> None:
    assert conf.retention_seconds(status, own) == kept


# --- the HTTP API ---


def test_the_api_has_defaults_and_reads_the_environment() -> None:
    settings, found = load({}, {})
    assert found == []
    assert (settings.api_authentication, settings.api_throttles, settings.visible_to) == ((), (), None)
    assert (settings.api_page_size, settings.api_page_size_max, settings.api_open_health) == (50, 500, False)
    settings, found = load(
        {"VISIBLE_TO": "shop.visible"},
        {
            "DJANGO_JOBS_API_AUTHENTICATION": "a.B, c.D",
            "DJANGO_JOBS_API_THROTTLES": '["e.F"]',
            "DJANGO_JOBS_API_WAIT_MAX": "5s",
            "DJANGO_JOBS_VISIBLE_TO": "none",
        },
    )
    assert found == []
    assert (settings.api_authentication, settings.api_throttles) == (("a.B", "c.D"), ("e.F",))
    assert (settings.api_wait_max, settings.visible_to) == (5.0, None)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("VISIBLE_TO", "nodots"),
        ("VISIBLE_TO", 5),
        ("API_AUTHENTICATION", ["nodots"]),
        ("API_AUTHENTICATION", [5]),
        ("API_THROTTLES", {"a.B": 1}),
        ("API_THROTTLES", "[1"),
        ("API_PAGE_SIZE", 0),
        ("API_MAX_BODY_BYTES", 5),
        ("API_OPEN_HEALTH", "perhaps"),
    ],
)
def test_settings_of_the_api_that_can_not_be_meant(name: str, value: Any) -> None:
    assert [problem.setting for problem in load({name: value}, {})[1]] == [name]

"""The decorator, the task object, and the registry."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import fields
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.test import override_settings

import django_jobs
from django_jobs import job
from django_jobs.compat import InvalidTask, Task
from django_jobs.exceptions import InvalidOption, UnknownTask
from django_jobs.options import CHECKS, DECLARED, UNSET
from django_jobs.registry import find_task, import_errors, registered
from django_jobs.task import JobTask
from tests.support.tasks import Holder, add, after_commit

DUMMY = f"{Task.__module__.rpartition('.')[0]}.backends.dummy.DummyBackend"
NAME = "tests.support.tasks.add"


def plain(a: int) -> int:
    return a


def test_the_decorator_makes_a_task_of_django_s() -> None:
    assert isinstance(add, Task)
    assert isinstance(add, JobTask)
    assert add.call(1, 2) == 3
    assert (add.name, add.module_path) == ("add", NAME)
    assert find_task(NAME) is add


def test_options_are_kept_in_one_form_and_the_task_can_be_hashed() -> None:
    task = job(
        queue_name="mail.bulk",
        timeout=timedelta(minutes=1),
        heartbeat_timeout="10s",
        backoff={1: 10, 3: (20, 40)},
        retry_for=[OSError],
        retention="1d",
        tags=["a", "b", "a"],
        metadata={"x": {"y": [1, 2]}},
        start_by=60,
    )(plain)
    assert (task.timeout, task.heartbeat_timeout, task.start_by) == (60.0, 10.0, timedelta(seconds=60))
    assert task.backoff == {"1": 10.0, "3": (20.0, 40.0)}
    assert task.retention == dict.fromkeys(("cancelled", "failed", "succeeded", "timed_out"), 86_400.0)
    assert (task.tags, task.retry_for) == (("a", "b"), (OSError,))
    assert task.max_attempts is UNSET
    assert {task: 1}[task.using()] == 1
    with pytest.raises(TypeError):
        task.metadata["x"] = 1


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("max_attempts", 0),
        ("max_attempts", True),
        ("max_attempts", 2**31),
        ("timeout", -1),
        ("timeout", "soon"),
        ("timeout", float("nan")),
        ("backoff", []),
        ("retry_for", ["OSError"]),
        ("retry_for", 5),
        ("tags", "welcome"),
        ("tags", [""]),
        ("tags", ["a\x00"]),
        ("metadata", {"a": object()}),
        ("metadata", []),
        ("retention", {"ready": 5}),
        ("description", "x" * 256),
        ("description", "a\x00"),
        ("serializer", "pickle"),
        ("atomic", 1),
        ("on_success", "notify"),
        ("max_deaths", 0),
        ("start_by", datetime(2030, 1, 1)),
        ("enqueue_on_commit", 3),
    ],
)
def test_a_bad_option_is_refused_where_the_task_is_declared(option: str, value: Any) -> None:
    with pytest.raises(InvalidOption, match=rf"^{option}"):
        job(**{option: value})(plain)
    with pytest.raises(InvalidOption, match=rf"^{option}"):
        add.using(**{option: value})


def test_an_unknown_option_is_answered_with_the_nearest_known() -> None:
    with pytest.raises(TypeError, match=r"'time_out' is no option of a task\. Did you mean 'timeout'"):
        job(time_out=3)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="Did you mean 'queue_name'"):
        add.using(queuename="x")  # type: ignore[call-arg]


def test_misuse_of_the_decorator_is_told() -> None:
    with pytest.raises(TypeError, match="run_after"):
        job(run_after=5)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="options by name"):
        job("mail")  # type: ignore[call-overload]
    with pytest.raises(InvalidTask, match="module level"):
        job(lambda: None)


@pytest.mark.parametrize("value", [-(2**31) - 1, 2**31, 10**12, 1.5, "high", True, float("nan")])
def test_b33_a_priority_out_of_range_is_refused(value: Any) -> None:
    with pytest.raises(InvalidTask, match="priority"):
        add.using(priority=value)
    with pytest.raises(InvalidTask, match="priority"):
        job(priority=value)(plain)


def test_b33_no_priority_is_refused_where_it_is_declared() -> None:
    with pytest.raises(InvalidTask, match="priority"):
        job(priority=None)(plain)  # type: ignore[call-overload]


@pytest.mark.parametrize("value", [10**12, -(10**12), timedelta(days=40_000), "1x", float("inf"), True, object()])
def test_b33_a_delay_that_can_not_be_meant_is_refused(value: Any) -> None:
    with pytest.raises(InvalidOption, match=r"^run_after"):
        add.using(run_after=value)


def test_b33_a_naive_time_and_one_far_ahead_are_refused() -> None:
    with pytest.raises(InvalidTask, match="run_after must be an aware datetime"):
        add.using(run_after=datetime(2030, 1, 1))
    with pytest.raises(InvalidTask, match=r"run_after: .* is out of range"):
        add.using(run_after=datetime(9999, 12, 31, tzinfo=UTC))


@pytest.mark.parametrize("name", ["", "a b", ".a", "a..b", "a" * 101, "é", None, 5])
def test_an_odd_queue_name_is_refused(name: Any) -> None:
    with pytest.raises(InvalidTask, match="queue_name"):
        job(queue_name=name)(plain)


def test_using_makes_another_task() -> None:
    changed = add.using(priority=5, queue_name="mail", timeout=3, max_attempts=None)
    assert (changed.priority, changed.queue_name, changed.timeout, changed.max_attempts) == (5, "mail", 3.0, None)
    assert (add.priority, add.queue_name, add.timeout, add.max_attempts) == (0, "default", None, UNSET)
    assert changed.using(timeout=None).timeout is None
    assert changed.using(priority=None, queue_name=None) == changed
    assert find_task(NAME) is add


def test_a_start_time_is_a_date_or_counts_from_the_enqueue() -> None:
    moment = datetime(2040, 1, 1, tzinfo=UTC)
    assert (add.using(run_after=moment).run_after, add.using(run_after=moment).delay) == (moment, None)
    for delay in (90, 90.0, timedelta(seconds=90), "1m30s"):
        later = add.using(run_after=moment).using(run_after=delay)
        assert (later.run_after, later.delay) == (None, 90.0)
    assert add.using(run_after=90).using(run_after=moment).delay is None
    assert add.using(run_after=90).using(run_after=0) == add
    assert add.using(run_after=90).using(priority=1).delay == 90.0


def test_pickling_ships_the_path_and_the_changes_only() -> None:
    assert pickle.loads(pickle.dumps(add)) is add
    changed = add.using(priority=5, tags=["x"], metadata={"a": [1]}, run_after=5)
    data = pickle.dumps(changed)
    assert pickle.loads(data) == changed
    assert b"heartbeat_timeout" not in data
    assert pickle.loads(pickle.dumps(Holder.held)) is Holder.held


@pytest.mark.parametrize("backend", [DUMMY, DUMMY.replace("dummy.Dummy", "immediate.Immediate")])
def test_tasks_work_on_the_back_ends_of_django(backend: str) -> None:
    with override_settings(TASKS={"default": {"BACKEND": backend, "QUEUES": []}}):
        task = job(max_attempts=3, timeout=5)(plain)
        result = task.enqueue(7)
        assert result.args == [7]
        assert [result.args for result in task.enqueue_many([(1,), {"a": 2}])] == [[1], []]


def test_a_delay_becomes_a_date_on_the_dummy_back_end() -> None:
    with override_settings(TASKS={"default": {"BACKEND": DUMMY, "QUEUES": []}}):
        later = add.using(run_after=60)
        assert later.delay is None
        assert later.run_after > datetime.now(UTC) + timedelta(seconds=50)


def test_find_task_follows_aliases_and_imports_nothing() -> None:
    with override_settings(DJANGO_JOBS={"TASK_ALIASES": {"old.name": "older.name", "older.name": NAME, "x": "y", "y": "x"}}):
        assert find_task("old.name") is add
        with pytest.raises(UnknownTask):
            find_task("x")
    assert "wave" not in sys.modules
    with pytest.raises(UnknownTask, match=r"wave\.open"):
        find_task("wave.open")
    assert "wave" not in sys.modules
    with pytest.raises(TypeError):
        registered()["x"] = add  # type: ignore[index]


def test_b22_a_module_that_can_not_be_imported_takes_only_its_own_tasks_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sources = {
        "appsyntax": "def (",
        "appimport": "import no_such_module_anywhere",
        "appexit": "import sys; sys.exit(3)",
        "apphealthy": "from django_jobs import job\n@job\ndef good():\n    pass\n",
    }
    for name, source in sources.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
        (tmp_path / name / "tasks.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    with override_settings(INSTALLED_APPS=[*django_settings.INSTALLED_APPS, *sources]):
        assert find_task("apphealthy.tasks.good").name == "good"
        assert set(import_errors()) == {"appsyntax.tasks", "appimport.tasks", "appexit.tasks"}
        assert "SystemExit: 3" in import_errors()["appexit.tasks"]
        with pytest.raises(UnknownTask, match="could not be imported: ModuleNotFoundError"):
            find_task("appimport.tasks.f")
    assert "appsyntax.tasks" in caplog.text


def test_the_package_exports_lazily_and_loads_no_model() -> None:
    for name in django_jobs.__all__:
        assert getattr(django_jobs, name) is not None
    with pytest.raises(AttributeError):
        _ = django_jobs.nonsense  # type: ignore[attr-defined]
    code = (
        "import sys, django_jobs; assert 'django' not in sys.modules;"
        "from django_jobs import Retry, Status; assert 'django_jobs.models' not in sys.modules;"
        "import django_jobs.backend; assert 'django_jobs.models' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert not done.returncode, done.stderr


def test_a_lone_true_for_enqueue_on_commit_is_kept() -> None:
    assert after_commit.enqueue_on_commit is True


# -- moments, and options that no job carries

#: Before the year 1 in UTC: PostgreSQL stores it, and nothing in Python can read it back.
BEFORE_ALL = datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14)))
AFTER_ALL = datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-14)))
OLD = datetime(1969, 12, 31, 23, 59, tzinfo=UTC)


@pytest.mark.parametrize("moment", [BEFORE_ALL, AFTER_ALL, OLD])
def test_a_moment_that_can_not_be_read_back_is_refused_before_any_sql(moment: datetime) -> None:
    with pytest.raises(InvalidTask, match=r"^run_after: .* is out of range"):
        add.using(run_after=moment)
    with pytest.raises(InvalidOption, match=r"^start_by: .* is out of range"):
        add.using(start_by=moment)
    with pytest.raises(InvalidOption, match=r"^start_by: .* is out of range"):
        job(start_by=moment)(plain)


def test_the_first_moment_of_1970_will_do() -> None:
    moment = datetime(1970, 1, 1, tzinfo=UTC)
    assert add.using(run_after=moment, start_by=moment).start_by == moment


def hook(result: Any) -> None:
    """Serve as a function that belongs to another function."""


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("retry_for", [OSError]),
        ("on_success", hook),
        ("on_failure", hook),
        ("atomic", True),
        ("isolate", True),
        ("backoff", hook),
    ],
)
def test_an_option_that_no_job_carries_is_refused_by_using(option: str, value: Any) -> None:
    with pytest.raises(InvalidOption, match=rf"^{option}: declare .* in @job") as raised:
        add.using(**{option: value})
    assert raised.value.field == option
    declared = job(**{option: value})(plain)
    assert getattr(declared.using(priority=5), option) == getattr(declared, option) != getattr(add, option)


def test_every_option_is_either_stored_with_the_job_or_refused_by_using() -> None:
    from django_jobs.lifecycle.enqueue import JobSpec

    stored = {item.name for item in fields(JobSpec)}
    at_the_enqueue = {"enqueue_on_commit", "unique", "on_conflict"}
    refused = set(CHECKS) - stored - at_the_enqueue
    assert refused == DECLARED
    assert stored & DECLARED == set()


def test_a_tag_that_is_too_long_is_not_shown_whole() -> None:
    with pytest.raises(InvalidOption, match="is no tag") as raised:
        add.using(tags=["x" * 5_000])
    assert len(str(raised.value)) < 200


def test_a_database_that_there_is_not_is_no_place_to_wait_for_a_commit() -> None:
    with pytest.raises(InvalidOption, match=r"^enqueue_on_commit: there is no database 'nope'.*default"):
        job(enqueue_on_commit="nope")(plain)
    assert job(enqueue_on_commit="default")(plain).enqueue_on_commit == "default"

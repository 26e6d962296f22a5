"""`later`: methods of models as jobs, and only those that are marked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import date, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.db import models

from django_jobs import InvalidArguments, InvalidOption, Retry, UnknownMethod, allow_later, later, signals
from django_jobs.lifecycle.recover import lock_free, recover, writing
from django_jobs.methods import _allowed
from django_jobs.models import Job
from django_jobs.statuses import Status
from django_jobs.tasks import call_method
from django_jobs.testing import arun_jobs, run_jobs
from tests.support.jobs import claim_jobs

pytestmark = pytest.mark.django_db

told: list[tuple[str, Any]] = []


def on_end(result: Any) -> None:
    told.append((result.job_status.value, result.args[1]))


class Account(User):
    """A user with methods of its own; a proxy, so that it needs no table."""

    class Meta:
        proxy = True
        app_label = "auth"

    @allow_later(queue_name="accounts", priority=7, max_attempts=2, retry_for=(KeyError,), backoff=0)
    def rename(self, to: str, *, since: date | None = None) -> str:
        """Rename."""
        self.username = to
        self.save()
        return f"{to} {since}"

    @allow_later
    async def arename(self, to: str) -> str:
        await Account.objects.filter(pk=self.pk).aupdate(username=to)
        return to

    @classmethod
    @allow_later
    def count_all(cls, least: int = 0) -> str:
        return f"{cls.__name__} {cls.objects.count() >= least}"

    @allow_later
    @classmethod
    def also(cls) -> str:
        return cls.__name__

    @allow_later(retry_for=ConnectionError, max_attempts=3, backoff=0, on_failure=on_end, on_success=on_end)
    def sync_with(self, what: str) -> str:
        match what:
            case "fine":
                return what
            case "cable":
                raise ConnectionError(what)
            case "later":
                raise Retry(after=60, count=False)
        raise ValueError(what)

    def wipe(self) -> None:
        self.delete()


class Child(Account):
    class Meta:
        proxy = True
        app_label = "auth"

    def rename(self, to: str, *, since: date | None = None) -> str:
        return "not marked again"


@pytest.fixture
def ada() -> Account:
    return Account.objects.create(username="ada")


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    told.clear()
    before = dict(_allowed)
    yield
    _allowed.clear()
    _allowed.update(before)


def returned(result: Any) -> Any:
    result.refresh()
    return result.return_value


def test_a_marked_method_is_called_later(ada: Account) -> None:
    result = later(ada).rename("countess", since=date(1835, 7, 8))
    ada.refresh_from_db()
    assert ada.username == "ada"
    job = result.job
    assert (job.queue, job.priority, job.max_attempts, job.description) == ("accounts", 7, 2, f"Account.rename({ada.pk})")
    run_jobs()
    assert returned(result) == "countess 1835-07-08"
    ada.refresh_from_db()
    assert ada.username == "countess"


def test_the_object_is_the_related_one(ada: Account) -> None:
    assert later(ada).rename("x").job.related == {"model": "auth.account", "pk": ada.pk, "using": "default"}
    group = Group.objects.create(name="readers")
    assert later(ada, related=group).rename("x").job.related["model"] == "auth.group"
    assert later(Account).count_all().job.related is None


def test_options_given_win_over_those_of_the_mark(ada: Account) -> None:
    job = later(ada, priority=-3, run_after=timedelta(hours=1), description="for the books").rename("x").job
    assert (job.queue, job.priority, job.description, job.status) == ("accounts", -3, "for the books", Status.SCHEDULED)


def test_a_bound_method_says_the_same(ada: Account) -> None:
    result = later(ada.rename)("countess")
    run_jobs()
    assert returned(result) == "countess None"


def test_methods_of_the_class(ada: Account) -> None:
    results = [later(Account).count_all(least=1), later(Account).also(), later(ada).also(), later(Account.also)()]
    assert results[0].job.description == "Account.count_all()"
    run_jobs()
    assert [returned(result) for result in results] == ["Account True", "Account", "Account", "Account"]


@pytest.mark.django_db(transaction=True)
def test_coroutines(ada: Account) -> None:
    async def main() -> Any:
        result = await later(ada).arename.aenqueue("countess")
        await arun_jobs()
        await result.arefresh()
        return result.return_value

    assert asyncio.run(main()) == "countess"
    assert Account.objects.get().username == "countess"


def test_an_object_that_is_gone_is_a_final_failure_that_says_so(ada: Account) -> None:
    result = later(ada).rename("x")
    pk = ada.pk
    ada.delete()
    run_jobs()
    job = result.job
    assert (job.status, job.starts) == (Status.FAILED, 1)
    assert job.error_class == "django_jobs.exceptions.RelatedObjectGone"
    assert f"auth.Account {pk}" in job.error_message


def test_an_object_that_is_not_saved_is_refused() -> None:
    with pytest.raises(InvalidArguments, match="not saved"):
        later(Account(username="new")).rename("x")
    assert not Job.objects.exists()


@pytest.mark.parametrize("name", ["wipe", "delete", "nothing", "_meta", "objects", "username", "pk"])
def test_what_is_not_marked_is_refused(ada: Account, name: str) -> None:
    with pytest.raises(UnknownMethod):
        getattr(later(ada), name)


def test_who_overrides_a_marked_method_marks_it_again(ada: Account) -> None:
    with pytest.raises(UnknownMethod, match="not marked"):
        later(Child.objects.get()).rename("x")
    assert later(Child.objects.get()).sync_with("fine")


def test_a_method_of_an_object_needs_one(ada: Account) -> None:
    with pytest.raises(UnknownMethod, match="is a method of an object"):
        later(Account).rename("x")


@pytest.mark.parametrize(
    "args",
    [
        [{"$type": "model", "model": "auth.Account", "database": "default", "value": "PK"}, "wipe", [], {}],
        [{"$type": "model", "model": "auth.Account", "database": "default", "value": "PK"}, "__class__", [], {}],
        [{"$type": "model", "model": "auth.Account", "database": "default", "value": "PK"}, "objects.all", [], {}],
        ["auth.Account", "rename", ["x"], {}],
        ["auth.Account", "nothing", [], {}],
        ["os", "getcwd", [], {}],
        ["os.path", "exists", ["/"], {}],
        ["no.such.model", "wipe", [], {}],
        [5, "wipe", [], {}],
    ],
)
def test_nothing_is_called_because_a_row_names_it(ada: Account, args: list[Any]) -> None:
    result = later(ada).rename("x")
    if isinstance(args[0], dict):
        args = [{**args[0], "value": ada.pk}, *args[1:]]
    Job.objects.update(args=args)
    run_jobs()
    assert (result.job.status, result.job.starts) == (Status.FAILED, 1)
    ada.refresh_from_db()
    assert ada.username == "ada"


def test_arguments_are_checked_when_enqueued(ada: Account) -> None:
    for call in (
        lambda: later(ada).rename(),
        lambda: later(ada).rename("x", when=1),
        lambda: later(ada).rename(object()),
        lambda: later(Account).count_all(1, 2),
    ):
        with pytest.raises(InvalidArguments):
            call()
    assert not Job.objects.exists()


def test_each_method_has_its_own_retries_and_hooks(ada: Account) -> None:
    kinds = {what: later(ada).sync_with(what) for what in ("fine", "cable", "later", "else")}
    other = later(ada).rename("countess")
    run_jobs()
    found = {what: (result.job.status, result.job.starts) for what, result in kinds.items()}
    assert found == {
        "fine": (Status.SUCCEEDED, 1),
        "cable": (Status.FAILED, 3),
        "later": (Status.SCHEDULED, 1),
        "else": (Status.FAILED, 1),
    }
    assert kinds["cable"].job.error_class == "builtins.ConnectionError"
    assert returned(other) == "countess None"
    assert sorted(told) == [("failed", "sync_with"), ("failed", "sync_with"), ("succeeded", "sync_with")]


@pytest.mark.django_db(transaction=True)
def test_the_hook_of_a_method_is_called_for_a_death_too(ada: Account) -> None:
    result = later(ada, max_attempts=1).sync_with("fine")
    claim_jobs()
    with writing("default"):
        events = recover(lock_free("default", [result.job_id]), using="default", cause="SIGKILL")
    signals.dispatch(events)
    assert told == [("failed", "sync_with")]


def test_methods_of_somebody_elses_models(ada: Account) -> None:
    group = Group.objects.create(name="readers")
    with pytest.raises(UnknownMethod):
        later(group).natural_key()
    allow_later(Group, "natural_key", queue_name="groups")
    result = later(group).natural_key()
    assert result.job.queue == "groups"
    run_jobs()
    assert returned(result) == ("readers",)
    with pytest.raises(UnknownMethod):
        later(Permission.objects.all()[0]).natural_key()


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"queue": "x"}, TypeError),
        ({"max_attempt": 3}, TypeError),
        ({"queue_name": "a..b"}, InvalidOption),
        ({"max_attempts": 0}, InvalidOption),
        ({"atomic": True}, InvalidOption),
        ({"isolate": True}, InvalidOption),
        ({"serializer": "json"}, InvalidOption),
        ({"backoff": lambda error, result: 1}, InvalidOption),
        ({"retry_for": "KeyError"}, InvalidOption),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_bad_options_are_refused_where_they_are_said(given: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        allow_later(**given)


def test_only_methods_can_be_marked() -> None:
    for what in (5, staticmethod(len), property(len), Account):
        with pytest.raises(TypeError):
            allow_later(what)  # type: ignore[arg-type]
    for name in ("nothing", "username", "groups", "is_authenticated"):
        with pytest.raises(TypeError):
            allow_later(User, name)
    for target in (5, "auth.Account", len, models.Model.save, User.objects):
        with pytest.raises(TypeError):
            later(target)  # type: ignore[call-overload]


def test_options_that_no_job_carries_are_the_marks(ada: Account) -> None:
    with pytest.raises(InvalidOption):
        later(ada, retry_for=(KeyError,)).rename("x")  # type: ignore[call-overload]
    with pytest.raises(InvalidOption):
        later(ada, serializer="json").rename("x")
    with pytest.raises(TypeError):
        later(ada, queue="x").rename("x")  # type: ignore[call-overload]


def test_a_call_that_waits_already_is_not_stored_twice(ada: Account) -> None:
    first, second = (later(ada, unique="args").rename("countess", since=None) for _ in range(2))
    other = later(ada, unique="args").rename("lady")
    assert first.id == second.id != other.id


def test_a_node_of_a_graph(ada: Account) -> None:
    node = later(ada).rename.s("countess")
    assert node.task.func is call_method.func

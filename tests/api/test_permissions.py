"""What callers may: verbs of tokens, permissions of users, bounds to queues, the project's VISIBLE_TO."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.db import transaction
from django.db.models import Q

from django_jobs.api.permissions import VERBS, Caller, TokenUser
from django_jobs.lifecycle.tokens import VERBS as TOKEN_VERBS
from django_jobs.models import ApiToken, Job, Queue
from tests.api.conftest import Api
from tests.api.echo import Echo
from tests.support.jobs import make_job

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.api.echo")]


def caller(verbs: Any = (), queues: Any = ()) -> Caller:
    token = ApiToken(pk=7, name="x", verbs=list(verbs), queues=list(queues))
    return Caller(TokenUser(token), token)


@pytest.mark.parametrize("verb", list(VERBS))
def test_a_verb_is_one_verb_of_a_token_and_one_permission_of_a_user(verb: str, user: Callable[..., Api]) -> None:
    of_token, permission = VERBS[verb]
    assert caller([of_token]).may(verb)
    assert not caller([other for other in TOKEN_VERBS if other != of_token]).may(verb)
    user(permission.removeprefix("django_jobs."))
    assert Caller(User.objects.get(), None).may(verb)
    assert [other for other in VERBS if Caller(User.objects.get(), None).may(other)] == [verb]
    assert not Caller(User.objects.create_user("bob"), None).may(verb)
    assert not Caller(User.objects.create_superuser("out", is_active=False), None).may(verb)
    assert not Caller(AnonymousUser(), None).may(verb)


def test_the_permissions_exist_in_the_database() -> None:
    from django.contrib.auth.models import Permission

    known = set(Permission.objects.filter(content_type__app_label="django_jobs").values_list("codename", flat=True))
    assert {permission.removeprefix("django_jobs.") for _verb, permission in VERBS.values()} <= known


@pytest.mark.parametrize(("method", "verb"), [("GET", "view"), ("HEAD", "view"), ("POST", "enqueue"), ("PATCH", "change")])
def test_each_method_asks_for_its_verb(token: Callable[..., Api], method: str, verb: str) -> None:
    assert token(verb).send(method, "echo/", {} if method != "HEAD" else None).status_code == 200
    others = [other for other in TOKEN_VERBS if other not in (verb, "claim")]
    refused = token(*others)
    response = refused.send(method, "echo/", {})
    assert response.status_code == 403
    if method != "HEAD":
        assert verb in refused.body["error"]["verbs"]
        assert f"'{verb}'" in refused.body["error"]["message"]


def test_a_method_may_be_open_to_either_of_two_verbs(token: Callable[..., Api]) -> None:
    assert token("claim").send("PATCH", "echo/", {}).status_code == 200
    error = token("view").error("PATCH", "echo/", 403, {})
    assert error["verbs"] == ["change", "claim"]
    assert "django_jobs.change_job or django_jobs.claim_job" in error["message"]


def test_a_method_that_a_view_gave_no_verb_is_nobodys(token: Callable[..., Api]) -> None:
    assert "PUT" not in Echo.verbs
    assert token().error("PUT", "echo/", 403, {})["code"] == "forbidden"


def test_a_superuser_may_everything_and_a_token_of_one_only_its_verbs(
    user: Callable[..., Api], token: Callable[..., Api]
) -> None:
    root = user(name="root", is_superuser=True)
    assert root.get("echo/").status_code == 200
    bound = token("enqueue", user_id=User.objects.get().pk)
    assert bound.error("GET", "echo/", 403)["verbs"] == ["view"]


@pytest.mark.parametrize(
    ("patterns", "seen", "hidden"),
    [
        ((), ["mail", "a.b.c"], []),
        (("mail",), ["mail"], ["mail.bulk", "mailing", "Mail"]),
        (("mail.*",), ["mail", "mail.bulk", "mail.bulk.x"], ["mailing", "mail_x", "post"]),
        (("a_b.*", "x"), ["a_b.c", "x"], ["axb.c", "x.y"]),
    ],
)
def test_bounds_are_the_same_in_python_and_in_the_database(patterns: Any, seen: list[str], hidden: list[str]) -> None:
    who = caller(queues=patterns)
    assert [name for name in [*seen, *hidden] if who.sees(name)] == seen
    for name in [*seen, *hidden]:
        if name != "Mail":  # some databases don't tell it from mail
            make_job(queue=name)
            Queue.objects.create(name=name)
    assert sorted(who.narrow(Job.objects.all()).values_list("queue", flat=True)) == sorted(seen)
    assert sorted(who.narrow_by_name(Queue.objects.all(), "name").values_list("name", flat=True)) == sorted(seen)


def test_a_token_for_one_queue_sees_no_job_of_another(token: Callable[..., Api]) -> None:
    mine, other = make_job(queue="mail.x"), make_job(queue="post")
    api = token("view", queues=["mail.*"])
    assert api.get(f"one/{mine.pk}/").json() == {"queue": "mail.x"}
    hidden = api.error("GET", f"one/{other.pk}/", 404)
    gone = api.error("GET", f"one/{uuid.uuid4()}/", 404)
    assert hidden["message"].replace(str(other.pk), "") == gone["message"].replace(gone["message"].split()[-1], ".").replace(
        "..", "."
    )
    assert api.get("open/?list=all").json()["results"] == [str(mine.pk)]


def own_jobs(user: Any, jobs: Any) -> Any:
    """What a project of its own might have."""
    return jobs if user.is_superuser else jobs.filter(Q(created_by=user.get_username()))


def test_visible_to_narrows_lists_and_single_jobs(settings: Any, user: Callable[..., Api], token: Callable[..., Api]) -> None:
    settings.DJANGO_JOBS = {"VISIBLE_TO": f"{__name__}.own_jobs"}
    hers, other = make_job(created_by="ann"), make_job(created_by="token test")
    ann = user("view_job")
    assert ann.get("open/?list=all").json()["results"] == [str(hers.pk)]
    assert ann.get(f"one/{hers.pk}/").status_code == 200
    ann.error("GET", f"one/{other.pk}/", 404)
    assert token("view").get("open/?list=all").json()["results"] == [str(other.pk)]
    root = user(name="root", is_superuser=True)
    assert len(root.get("open/?list=all").json()["results"]) == 2


def test_numbers_of_all_jobs_are_for_those_who_see_all_jobs(settings: Any, user: Callable[..., Api]) -> None:
    ann, root = user("view_job"), user(name="root", is_superuser=True)
    for path in ("info/", "metrics/"):
        assert ann.get(path).status_code == 200
    settings.DJANGO_JOBS = {"VISIBLE_TO": own_jobs}
    for path in ("info/", "metrics/"):
        assert ann.error("GET", path, 403)["code"] == "forbidden"
        assert root.get(path).status_code == 200


def test_a_queue_out_of_bounds_is_named_in_the_refusal() -> None:
    from django_jobs.api.errors import ApiError

    view = Echo()
    view.request = type("Request", (), {"user": None, "auth": None})()
    view.request.auth = ApiToken(pk=7, name="x", verbs=["enqueue"], queues=["mail"])
    view.check_queue("mail", "enqueue")
    with pytest.raises(ApiError) as caught:
        view.check_queue("post", "enqueue")
    assert (caught.value.status_code, caught.value.body["error"]["queue"]) == (403, "post")
    view.require("enqueue")
    with pytest.raises(ApiError):
        view.require("claim")


@pytest.mark.django_db(transaction=True)
def test_requests_are_not_one_transaction(settings: Any, token: Callable[..., Api], monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim that waits would keep it open; a job would not be there yet when its id is told."""
    from django.db import connection

    seen: list[bool] = []
    monkeypatch.setattr(
        Echo, "get", lambda self, request: seen.append(connection.in_atomic_block) or Echo.post.__get__(self)(request)
    )
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    assert token().get("echo/").status_code == 200
    assert seen == [False]
    assert not transaction.get_connection().in_atomic_block

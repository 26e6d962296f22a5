"""The user who enqueues: recorded with the job, found again while it runs, inherited by the jobs that it enqueues."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import AnonymousUser, User
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import AsyncClient, Client, override_settings
from django.urls import path

from django_jobs import acurrent_user, as_user, current_user, job
from django_jobs.models import Job
from django_jobs.testing import arun_jobs, run_jobs
from tests.settings import MIDDLEWARE

pytestmark = pytest.mark.django_db


def _name(user: Any) -> str:
    return "nobody" if user is None else str(user.username)


@job
def whose() -> str:
    return _name(current_user())


@job
async def awhose() -> str:
    return _name(await acurrent_user())


@job(isolate=True)
def whose_apart() -> str:
    return _name(current_user())


@job
def enqueues() -> str:
    return str(whose.enqueue().id)


def view(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"job": whose.enqueue().id})


async def aview(request: HttpRequest) -> HttpResponse:
    await asyncio.sleep(0)
    return JsonResponse({"job": (await whose.aenqueue()).id})


def quiet(request: HttpRequest) -> HttpResponse:
    return HttpResponse("nothing")


urlpatterns = [path("sync/", view), path("async/", aview), path("quiet/", quiet)]
site = override_settings(
    ROOT_URLCONF="tests.test_users", MIDDLEWARE=[*MIDDLEWARE, "django_jobs.middleware.CurrentUserMiddleware"]
)


@pytest.fixture
def ada() -> User:
    return User.objects.create_user("ada")


def test_a_job_remembers_who_enqueued_it(ada: User) -> None:
    with as_user(ada):
        mine, also_mine = whose.enqueue(), awhose.enqueue()
    nobodys = whose.enqueue()
    assert (mine.job.created_by, mine.job.context) == ("ada", {"user": str(ada.pk)})
    assert (nobodys.job.created_by, nobodys.job.context) == (None, {})
    run_jobs()
    for result, name in ((mine, "ada"), (also_mine, "ada"), (nobodys, "nobody")):
        result.refresh()
        assert result.return_value == name
    assert current_user() is None


def test_the_user_is_found_by_key_and_not_by_name(ada: User) -> None:
    with as_user(ada):
        result = whose.enqueue()
    User.objects.filter(pk=ada.pk).update(username="countess")
    User.objects.create_user("ada")
    run_jobs()
    result.refresh()
    assert result.return_value == "countess"


def test_a_user_who_is_gone_is_none_and_the_job_runs(ada: User) -> None:
    with as_user(ada):
        result = whose.enqueue()
    ada.delete()
    run_jobs()
    result.refresh()
    assert result.return_value == "nobody"
    assert result.job.created_by == "ada"


@pytest.mark.parametrize("key", ["not a number", "99999999999999999999", "-1"])
def test_a_key_that_fits_no_user_is_nobody(key: str) -> None:
    result = whose.enqueue()
    Job.objects.update(context={"user": key})
    run_jobs()
    result.refresh()
    assert result.return_value == "nobody"


def test_what_a_job_enqueues_is_its_users(ada: User) -> None:
    with as_user(ada):
        outer = enqueues.enqueue()
    with as_user(None):
        run_jobs()
    outer.refresh()
    inner = Job.objects.get(pk=outer.return_value)
    assert (inner.created_by, inner.context, inner.result) == ("ada", {"user": str(ada.pk)}, "ada")


def test_a_name_without_a_user_is_inherited_too() -> None:
    outer = enqueues.enqueue()
    Job.objects.update(created_by="importer (token)")
    run_jobs()
    outer.refresh()
    inner = Job.objects.get(pk=outer.return_value)
    assert (inner.created_by, inner.result) == ("importer (token)", "nobody")


def test_many_jobs_at_once_have_the_user(ada: User) -> None:
    with as_user(ada):
        whose.enqueue_many([(), ()])
    assert set(Job.objects.values_list("created_by", flat=True)) == {"ada"}


def test_nobody_is_nobody() -> None:
    for user in (None, AnonymousUser()):
        with as_user(user):
            assert current_user() is None
            assert whose.enqueue().job.created_by is None


@site
def test_a_request_records_its_user(ada: User, client: Client) -> None:
    assert Job.objects.get(pk=client.get("/sync/").json()["job"]).created_by is None
    client.force_login(ada)
    assert Job.objects.get(pk=client.get("/sync/").json()["job"]).created_by == "ada"
    assert current_user() is None


@site
def test_a_request_that_enqueues_nothing_costs_no_query(ada: User, client: Client, django_assert_num_queries: Any) -> None:
    client.force_login(ada)
    with django_assert_num_queries(0):
        client.get("/quiet/")


@site
@pytest.mark.django_db(transaction=True)
def test_requests_on_an_event_loop_do_not_mix_up_their_users() -> None:
    async def main() -> None:
        clients = []
        for name in ("ada", "bob"):
            clients.append(AsyncClient())
            await clients[-1].aforce_login(await User.objects.acreate(username=name))
        clients.append(AsyncClient())
        responses = await asyncio.gather(*(client.get("/async/") for client in clients * 3))
        ids = [json.loads(response.content)["job"] for response in responses]
        names = [(await Job.objects.aget(pk=job_id)).created_by for job_id in ids]
        assert names == ["ada", "bob", None] * 3
        assert await acurrent_user() is None

    asyncio.run(main())


@pytest.mark.django_db(transaction=True)
def test_coroutines_and_jobs_in_processes_of_their_own_find_it(ada: User, settings: Any) -> None:
    async def main() -> None:
        with as_user(ada):
            results = [await awhose.aenqueue(), await whose.aenqueue()]
        await arun_jobs()
        for result in results:
            await result.arefresh()
            assert result.return_value == "ada"
        await sync_to_async(run_jobs)()

    asyncio.run(main())

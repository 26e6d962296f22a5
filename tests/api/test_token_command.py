"""`manage.py jobs token` and `jobs sync-queues`; `--user` of the other verbs."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from pytest_django import DjangoAssertNumQueries

from django_jobs.lifecycle.tokens import digest, find_token
from django_jobs.models import ApiToken, Job, Queue
from django_jobs.statuses import Status
from tests.support.jobs import make_job

pytestmark = pytest.mark.django_db


def jobs(*args: str) -> str:
    out = StringIO()
    call_command("jobs", *args, stdout=out, stderr=StringIO())
    return out.getvalue()


def answer(*args: str) -> Any:
    return json.loads(jobs(*args, "--json"))


def fails(*args: str, returncode: int) -> str:
    with pytest.raises(CommandError) as caught:
        jobs(*args)
    assert caught.value.returncode == returncode
    return str(caught.value)


def test_a_token_is_made_and_its_secret_is_kept_nowhere() -> None:
    User.objects.create_user("ann")
    made = answer(
        "token", "add", "CI", "--verb", "view", "--verb", "enqueue", "--queue", "mail.*", "--as-user", "ann", "--expires", "30d"
    )
    secret = made["secret"]
    assert secret.startswith("dj_")
    assert len(secret) > 40
    token = ApiToken.objects.get()
    assert (token.name, token.verbs, token.queues) == ("CI", ["view", "enqueue"], ["mail.*"])
    assert token.user_id == str(User.objects.get().pk)
    assert (token.expires_at - token.created_at).days in (29, 30)
    assert token.digest == digest(secret) != secret
    stored = json.dumps(list(ApiToken.objects.values()), default=str)
    assert secret not in stored
    assert secret[len(token.prefix) :] not in stored
    assert find_token(secret, using="default") == token
    assert find_token(secret + "x", using="default") is None


def test_two_tokens_have_two_secrets_and_the_text_shows_it_alone_on_a_line() -> None:
    secrets = [jobs("token", "add", "a", "--verb", "view").splitlines()[0] for _ in range(2)]
    assert len(set(secrets)) == 2
    assert all(find_token(secret, using="default") for secret in secrets)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["x"], "verbs: a token needs at least one"),
        ([" ", "--verb", "view"], "name: "),
        (["x", "--verb", "view", "--queue", "no good"], "queues: 'no good'"),
        (["x", "--verb", "view", "--queue", "*"], "queues: '*'"),
        (["x", "--verb", "view", "--expires", "soon"], "--expires: "),
        (["x", "--verb", "view", "--expires", "0"], "expires_at: it would have expired"),
        (["x", "--verb", "view", "--as-user", "nobody"], "no user 'nobody'"),
    ],
)
def test_what_can_not_be_meant_makes_no_token(args: list[str], says: str) -> None:
    assert says in fails("token", "add", *args, returncode=2)
    assert not ApiToken.objects.exists()


def test_tokens_are_listed_and_revoked() -> None:
    first, second = (answer("token", "add", name, "--verb", "view")["id"] for name in ("one", "two"))
    assert "revoked" in jobs("token", "revoke", str(first))
    assert answer("token", "revoke", str(first)) == {"id": first, "revoked": False}
    assert [row["id"] for row in answer("token", "list")] == [second]
    assert [(row["id"], row["state"]) for row in answer("token", "list", "--all")] == [(first, "revoked"), (second, "works")]
    lines = jobs("token", "list").splitlines()
    assert lines[0].split()[:3] == ["ID", "NAME", "BEGINS"]
    assert "two" in lines[1]
    assert fails("token", "revoke", "999999", returncode=1) == "There is no token 999999."


def test_declared_queues_get_rows_that_say_nothing_so_that_the_setting_holds_on(settings: Any) -> None:
    settings.DJANGO_JOBS = {"QUEUES": {"mail": {"timeout": 60}, "mail.bulk": {"max_attempts": 2}}}
    Queue.objects.create(name="mail", timeout=5)
    Queue.objects.create(name="old")
    found = answer("sync-queues")
    assert found == {
        "created": ["mail.bulk"],
        "kept": ["mail"],
        "overridden": [{"queue": "mail", "option": "timeout", "row": 5.0, "setting": 60.0}],
        "undeclared": ["old"],
    }
    row = Queue.objects.get(name="mail.bulk")
    assert (row.max_attempts, row.timeout) == (None, None)
    text = jobs("sync-queues")
    assert "mail: timeout is 5s, as the row says; QUEUES says 1m." in text
    assert sorted(Queue.objects.values_list("name", flat=True)) == ["mail", "mail.bulk", "old"]


def test_migrate_makes_the_rows_of_declared_queues(settings: Any) -> None:
    settings.DJANGO_JOBS = {"QUEUES": {"mail": {"is_http": True}}}
    call_command("migrate", verbosity=0)
    assert Queue.objects.get().name == "mail"
    call_command("migrate", verbosity=0)
    assert Queue.objects.count() == 1


def test_migrate_does_not_stumble_over_settings_that_can_not_be_read(settings: Any) -> None:
    settings.DJANGO_JOBS = {"QUEUES": {"no good": {}}}
    call_command("migrate", verbosity=0, skip_checks=True)
    assert not Queue.objects.exists()


# --- visible_to ---


def own_jobs(user: Any, jobs: Any) -> Any:
    return jobs.filter(created_by=user.get_username())


def test_a_command_run_for_a_user_sees_and_touches_the_jobs_of_that_user(settings: Any) -> None:
    settings.DJANGO_JOBS = {"VISIBLE_TO": f"{__name__}.own_jobs"}
    User.objects.create_user("ann")
    hers, other = (make_job(Status.FAILED, created_by=name) for name in ("ann", "bob"))
    assert [row["id"] for row in answer("list", "--user", "ann")] == [str(hers.pk)]
    assert len(answer("list")) == 2
    assert "There is no job" in fails("show", str(other.pk), "--user", "ann", returncode=1)
    fails("requeue", str(other.pk), str(hers.pk), "--user", "ann", returncode=1)
    assert [Job.objects.get(pk=job.pk).status for job in (hers, other)] == ["ready", "failed"]
    assert answer("requeue", "--all", "--dry-run", "--user", "ann")["matching"] == 0
    fails("list", "--user", "nobody", returncode=2)


def test_without_the_setting_a_user_sees_every_job(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    User.objects.create_user("ann")
    make_job()
    with django_assert_num_queries(3):  # the user, the clock, the jobs
        assert len(answer("list", "--user", "ann")) == 1

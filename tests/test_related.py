"""The object that a job is about."""

from __future__ import annotations

import uuid

import pytest
from django.contrib.auth.models import Group, User

from django_jobs import InvalidArguments, InvalidOption, group, job
from django_jobs.models import Job

pytestmark = pytest.mark.django_db


@job(related=lambda user_id: User.objects.filter(pk=user_id).first())
def about(user_id: int) -> None:
    """Do nothing."""


@job
def plain(number: int = 0) -> None:
    """Do nothing."""


def related(result: object) -> object:
    return Job.objects.values_list("related", flat=True).get(id=result.id)  # type: ignore[attr-defined]


def test_it_is_said_by_the_task_or_by_the_caller() -> None:
    user = User.objects.create_user("ann")
    others = Group.objects.create(name="g")
    reference = {"model": "auth.user", "pk": user.pk, "using": "default"}
    assert related(about.enqueue(user.pk)) == reference
    assert related(about.enqueue(0)) is None
    assert [related(each) for each in about.enqueue_many([(user.pk,), (0,), (user.pk,)])] == [reference, None, reference]
    assert related(plain.enqueue()) is None
    assert related(plain.using(related=others).enqueue()) == {"model": "auth.group", "pk": others.pk, "using": "default"}
    assert related(plain.using(related=reference).enqueue()) == reference
    assert related(about.using(related=others).enqueue(user.pk))["model"] == "auth.group"
    first, second = group(about.s(user.pk), plain.s()).enqueue()
    assert (related(first), related(second)) == (reference, None)


def test_what_is_no_object_is_refused() -> None:
    for wrong in (5, "auth.user", User, {"model": "auth.user"}, {"model": 1, "pk": 1, "using": "x"}):
        with pytest.raises(InvalidOption, match="related"):
            plain.using(related=wrong).enqueue()
    with pytest.raises(InvalidOption, match="save it first"):
        plain.using(related=User())
    with pytest.raises(InvalidArguments, match="related"):
        plain.using(related=lambda number: "nothing").enqueue(1)
    assert not Job.objects.exists()


def test_keys_that_json_has_not_are_text() -> None:
    from django_jobs.models import Batch
    from django_jobs.related import reference

    key = uuid.uuid4()
    assert reference(Batch(pk=key)) == {"model": "django_jobs.batch", "pk": str(key), "using": "default"}

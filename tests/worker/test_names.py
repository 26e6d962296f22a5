"""The names of workers fit into every column, and stay apart."""

from __future__ import annotations

import pytest

from django_jobs.exceptions import InvalidOption
from django_jobs.models import Job, JobAttempt
from django_jobs.worker.names import MAX_NAME, check_name, default_name


def kept() -> int:
    return min(Job._meta.get_field("worker").max_length or 0, JobAttempt._meta.get_field("worker").max_length or 0)


@pytest.mark.parametrize("length", [1, 47, 48, 49, 50, 63, 255])
def test_the_default_name_fits_with_the_number_of_a_process_behind_it(length: int) -> None:
    name = default_name("h" * length, 4_194_304)
    assert name.endswith(":4194304")
    assert len(name) <= MAX_NAME
    assert len(f"{name}/9999999") <= kept()


def test_hosts_that_differ_at_their_end_or_their_beginning_stay_apart() -> None:
    middle = "deployment-of-the-billing-service-in-production-of-the-shop"
    names = {default_name(host, 7) for host in (f"a{middle}-x2k4q", f"a{middle}-x2k4r", f"b{middle}-x2k4q")}
    assert len(names) == 3
    assert {len(name) for name in names} == {MAX_NAME}


def test_a_short_host_name_is_kept_whole() -> None:
    assert default_name("shop", 12) == "shop:12"
    assert default_name("sh\udce9p\n", 12) == "sh?p?:12"


@pytest.mark.parametrize("name", ["x" * (MAX_NAME + 1), "x" * 200, "a\nb", "caf\udce9", "\x1b[31m"])
def test_a_name_that_can_not_be_kept_or_shown_is_refused(name: str) -> None:
    with pytest.raises(InvalidOption, match=r"^--name: "):
        check_name(name)


def test_the_longest_name_will_do() -> None:
    assert check_name("x" * MAX_NAME) == "x" * MAX_NAME
    assert len(f"{'x' * MAX_NAME}/9999999") <= kept()

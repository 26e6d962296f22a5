"""Names of queues, and how options come down their tree."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_jobs.exceptions import InvalidOption
from django_jobs.queues import JobOptions, QueueOptions, check_queue_name, lineage, resolve

DEFAULTS = JobOptions(timeout=30.0, heartbeat_timeout=None, max_attempts=5)


@pytest.mark.parametrize("name", ["default", "a", "billing.invoices", "A-b_c.9", "x" * 100, ".".join("a" * 50)])
def test_good_names(name: str) -> None:
    assert check_queue_name(name) == name


@pytest.mark.parametrize(
    "name", ["", ".", "p.", ".p", "a..b", " a", "a b", "a/b", "a\n", "é", "a\x00", "*", "mail.*", "x" * 101, None, 5, b"a", ["a"]]
)
def test_odd_names_are_refused_with_the_field(name: Any) -> None:
    with pytest.raises(InvalidOption) as refusal:
        check_queue_name(name)
    assert refusal.value.field == "queue_name"


def test_lineage_goes_from_near_to_far() -> None:
    assert lineage("a.b.c") == ("a.b.c", "a.b", "a")
    assert lineage("a") == ("a",)


def test_nothing_said_means_the_defaults() -> None:
    assert resolve("a.b", {}, {}, DEFAULTS) == DEFAULTS


def test_the_nearest_that_speaks_wins() -> None:
    declared = {
        "a": QueueOptions(timeout=10.0, max_attempts=2),
        "a.b": QueueOptions(timeout=20.0),
        "other": QueueOptions(timeout=1.0),
    }
    options = resolve("a.b.c", {}, declared, DEFAULTS)
    assert (options.timeout, options.max_attempts) == (20.0, 2)
    assert resolve("a", {}, declared, DEFAULTS).timeout == 10.0
    assert resolve("ab", {}, declared, DEFAULTS).timeout == 30.0


def test_a_jobs_own_word_wins_and_none_means_off() -> None:
    declared = {"a": QueueOptions(timeout=10.0, max_attempts=2, backoff=5.0)}
    options = resolve("a", {"timeout": None, "max_attempts": None, "backoff": [1.0]}, declared, DEFAULTS)
    assert (options.timeout, options.max_attempts, options.backoff) == (None, None, [1.0])


def test_zero_turns_a_limit_off_below() -> None:
    declared = {"a": QueueOptions(timeout=10.0), "a.b": QueueOptions(timeout=0.0)}
    assert resolve("a.b.c", {}, declared, DEFAULTS).timeout is None
    assert resolve("a.c", {}, declared, DEFAULTS).timeout == 10.0


def test_retention_is_joined_status_by_status() -> None:
    declared = {
        "a": QueueOptions(retention={"succeeded": 1.0, "failed": 2.0}),
        "a.b": QueueOptions(retention={"failed": 3.0, "cancelled": None}),
    }
    assert resolve("a.b", {"retention": {"timed_out": 4.0}}, declared, DEFAULTS).retention == {
        "succeeded": 1.0,
        "failed": 3.0,
        "cancelled": None,
        "timed_out": 4.0,
    }
    assert resolve("c", {}, declared, DEFAULTS).retention is None


def test_what_is_resolved_shares_nothing_with_what_was_declared() -> None:
    declared = {"a": QueueOptions(retention={"failed": 2.0})}
    resolved = resolve("a", {}, declared, DEFAULTS).retention
    assert resolved is not None
    resolved["failed"] = 0.0
    assert declared["a"].retention == {"failed": 2.0}


def test_a_rows_word_over_the_settings_word_of_the_same_queue() -> None:
    row, setting = (
        QueueOptions(timeout=0.0, retention={"failed": 1.0}),
        QueueOptions(timeout=5.0, max_attempts=3, retention={"succeeded": 2.0}),
    )
    assert row.over(setting) == QueueOptions(timeout=0.0, max_attempts=3, retention={"succeeded": 2.0, "failed": 1.0})
    assert QueueOptions().over(QueueOptions()) == QueueOptions()


@given(
    st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map(".".join),
    st.dictionaries(
        st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map(".".join),
        st.builds(QueueOptions, timeout=st.none() | st.floats(0, 100), max_attempts=st.none() | st.integers(1, 9)),
    ),
)
def test_only_ancestors_have_a_say(queue: str, declared: dict[str, QueueOptions]) -> None:
    related = {name: options for name, options in declared.items() if (queue + ".").startswith(name + ".")}
    assert resolve(queue, {}, declared, DEFAULTS) == resolve(queue, {}, related, DEFAULTS)

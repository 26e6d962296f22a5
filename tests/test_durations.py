"""Durations: every way to write one, the normal form, and what is refused."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_jobs.durations import MAX_SECONDS, format_duration, parse_duration
from django_jobs.exceptions import InvalidOption

WEEK, DAY, HOUR, MINUTE = 604_800, 86_400, 3_600, 60


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (0, 0.0),
        (1.5, 1.5),
        (90, 90.0),
        ("90", 90.0),
        ("0.25", 0.25),
        ("90s", 90.0),
        ("10m", 600.0),
        ("1w2d7h", WEEK + 2 * DAY + 7 * HOUR),
        ("1w 2d 7h", WEEK + 2 * DAY + 7 * HOUR),
        (" 1H30M ", 5_400.0),
        ("1.5h", 5_400.0),
        ("2 m", 120.0),
        ("250ms", 0.25),
        ("1m250ms", 60.25),
        ("0s", 0.0),
        (timedelta(minutes=1, milliseconds=5), 60.005),
        (MAX_SECONDS, MAX_SECONDS),
    ],
)
def test_ways_to_write_a_duration(written: Any, seconds: float) -> None:
    assert parse_duration(written) == pytest.approx(seconds, abs=1e-9)


@pytest.mark.parametrize(
    "written",
    [
        "",
        " ",
        "s",
        "10x",
        "1h1h",
        "7h2d",
        "-5",
        "-5s",
        "1h-5m",
        "1,5h",
        "1e3",
        "inf",
        "nan",
        "١٠m",
        "10 minutes",
        "1.h",
        -1,
        -0.001,
        timedelta(seconds=-1),
        math.nan,
        math.inf,
        -math.inf,
        MAX_SECONDS + 1,
        10**12,
        10**400,
        -(10**400),
        "99999999999w",
        "9" * 400,
        True,
        None,
        [10],
        {"seconds": 1},
        b"10m",
        1j,
    ],
)
def test_what_is_no_duration_is_refused_with_the_field(written: Any) -> None:
    with pytest.raises(InvalidOption) as refusal:
        parse_duration(written, field="timeout")
    assert refusal.value.field == "timeout"
    assert str(refusal.value).startswith("timeout: ")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (1e-7, "0s"),
        (0.25, "0.25s"),
        (90, "1m30s"),
        (600, "10m"),
        (3_600, "1h"),
        (WEEK + 2 * DAY + 7 * HOUR, "1w2d7h"),
        (8 * DAY, "1w1d"),
        (59.9999999, "1m"),
        (100, "1m40s"),
        (MAX_SECONDS, "5217w6d"),
    ],
)
def test_the_normal_form(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.floats(min_value=0, max_value=MAX_SECONDS))
def test_the_normal_form_reads_back_to_the_microsecond(seconds: float) -> None:
    text = format_duration(seconds)
    assert parse_duration(text) == pytest.approx(seconds, abs=1e-6)
    assert format_duration(parse_duration(text)) == text


@given(st.integers(min_value=0, max_value=int(MAX_SECONDS)))
def test_whole_seconds_are_exact(seconds: int) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


@given(st.one_of(st.text(max_size=30), st.text(alphabet="0123456789.wdhms -+e", max_size=20)))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        seconds = parse_duration(text)
    except InvalidOption:
        return
    assert 0 <= seconds <= MAX_SECONDS


@given(st.floats(allow_nan=True, allow_infinity=True) | st.integers())
def test_any_number_is_read_or_refused(number: float) -> None:
    try:
        seconds = parse_duration(number)
    except InvalidOption:
        assert not 0 <= number <= MAX_SECONDS
        return
    assert seconds == number
    assert math.copysign(1, seconds) == 1

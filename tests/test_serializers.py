"""Strict JSON: what is accepted comes back the same from every database; what is not is refused with its path."""

from __future__ import annotations

import collections
import enum
import json
import math
import uuid
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from unittest import mock

import pytest
from django.contrib.auth import get_user_model
from django.db import connection
from django.utils.functional import lazystr
from django.utils.safestring import mark_safe
from hypothesis import example, given
from hypothesis import strategies as st

from django_jobs import serializers
from django_jobs.exceptions import InvalidArguments, InvalidResult
from django_jobs.lifecycle.control import edit
from django_jobs.models import Job
from django_jobs.serializers import INT_MAX, INT_MIN, MAX_DEPTH, clean_text, dumps, from_json, result_to_json, to_json
from tests.support.jobs import make_job

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20)
INTEGERS = st.integers(INT_MIN, INT_MAX)
FLOATS = st.floats(allow_nan=False, allow_infinity=False).map(lambda number: number + 0.0 if number else 0.0)  # no -0.0
JSON = st.recursive(
    st.none() | st.booleans() | INTEGERS | FLOATS | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=15,
)


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal and of equal types all the way down: 1, 1.0 and True differ."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(item, other[key]) for key, item in one.items())
    return bool(one == other)


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Liar:
    """A foreign object that says what it is not, and raises whenever it is asked anything."""

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":
            return dict
        raise RuntimeError(name)

    def __repr__(self) -> str:
        raise RuntimeError("repr")

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("eq")

    def __hash__(self) -> int:
        return 1


# --- what is accepted ---


@given(JSON)
def test_json_comes_back_the_same(value: Any) -> None:
    stored = to_json(value)
    assert same(stored, value)
    assert same(from_json(json.loads(dumps(stored))), value)


@given(JSON)
def test_a_copy_shares_nothing_with_the_original(value: Any) -> None:
    def containers(one: Any) -> set[int]:
        inner = one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
        return {id(one)}.union(*(containers(item) for item in inner)) if isinstance(one, list | dict) else set()

    stored = to_json(value)
    assert containers(stored).isdisjoint(containers(value))
    assert containers(from_json(stored)).isdisjoint(containers(stored))


def test_b27_what_the_caller_changes_later_does_not_alter_the_job() -> None:
    items, options = [1, [2]], {"a": {"b": 1}}
    stored = to_json([items, options], path="args")
    items[1].append("x")  # type: ignore[union-attr]
    options["a"]["fn"] = None  # type: ignore[assignment]
    assert stored == [[1, [2]], {"a": {"b": 1}}]


def test_b27_each_attempt_gets_a_copy_of_its_own() -> None:
    stored = to_json([[1], {"a": [1]}])
    first = from_json(stored)
    first[0].append("x")
    first[1]["a"].clear()
    assert from_json(stored) == [[1], {"a": [1]}]


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ((1, (2, 3)), [1, [2, 3]]),
        ((), []),
        (collections.namedtuple("Point", "x y")(1, 2), [1, 2]),
        (collections.OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        (collections.defaultdict(list, a=[1]), {"a": [1]}),
        (Colour.RED, "red"),
        (Level.LOW, 1),
        ({Colour.RED: Level.LOW}, {"red": 1}),
        (mark_safe("<b>"), "<b>"),
    ],
)
def test_subclasses_become_what_they_are_made_of(value: Any, stored: Any) -> None:
    assert same(to_json(value), stored)


@pytest.mark.parametrize("value", [INT_MIN, INT_MAX, 2**53 + 1, 1e308, 5e-324, 0.1, "", "\x01\x7f\u2028\uffff😀", "\\u0000"])
def test_extremes_are_kept(value: Any) -> None:
    assert same(json.loads(dumps(to_json([value]))), [value])


def test_nothing_is_the_commonest_argument() -> None:
    assert same(to_json([]), [])
    assert same(to_json({}), {})
    assert same(to_json(()), [])
    assert result_to_json(None) is None


# --- what is refused ---

cycle: list[Any] = []
cycle.append(cycle)

REFUSED = [
    pytest.param(["a\x00b"], "args[0]", "NUL", id="nul"),
    pytest.param([{"k": ["v\x00"]}], 'args[0]["k"][0]', "NUL", id="nul, nested"),
    pytest.param([{"k\x00": 1}], 'args[0]["k\\u0000"]', "NUL", id="nul in a key"),
    pytest.param(["\ud800"], "args[0]", "surrogate", id="surrogate"),
    pytest.param([{"\udfff": 1}], 'args[0]["\\udfff"]', "surrogate", id="surrogate in a key"),
    pytest.param([1, math.nan], "args[1]", "nan", id="nan"),
    pytest.param([math.inf], "args[0]", "inf", id="inf"),
    pytest.param([-math.inf], "args[0]", "inf", id="-inf"),
    pytest.param([2**63], "args[0]", "64 bits", id="large"),
    pytest.param([-(2**63) - 1], "args[0]", "64 bits", id="large and negative"),
    pytest.param([10**5_000], "args[0]", "64 bits", id="too large to be written"),
    pytest.param([{1: "x"}], "args[0]", "key of type int", id="int key"),
    pytest.param([{None: "x"}], "args[0]", "key of type NoneType", id="None key"),
    pytest.param([{(1, 2): "x"}], "args[0]", "key of type tuple", id="tuple key"),
    pytest.param([object()], "args[0]", "an object", id="object"),
    pytest.param([{1, 2}], "args[0]", "sorted list", id="set"),
    pytest.param([b"x"], "args[0]", "base64", id="bytes"),
    pytest.param([bytearray(b"x")], "args[0]", "a bytearray", id="bytearray"),
    pytest.param([(n for n in [1])], "args[0]", "pass a list", id="generator"),
    pytest.param([Decimal("1.5")], "args[0]", "serializer='typed'", id="decimal"),
    pytest.param([uuid.UUID(int=1)], "args[0]", "serializer='typed'", id="uuid"),
    pytest.param([datetime(2024, 1, 1, tzinfo=UTC)], "args[0]", "isoformat", id="datetime"),
    pytest.param([date(2024, 1, 1)], "args[0]", "isoformat", id="date"),
    pytest.param([time(1)], "args[0]", "isoformat", id="time"),
    pytest.param([timedelta(1)], "args[0]", "total_seconds", id="timedelta"),
    pytest.param([lazystr("x")], "args[0]", "lazy", id="lazy text"),
    pytest.param([print], "args[0]", "builtin_function_or_method", id="function"),
    pytest.param([int], "args[0]", "a type", id="class"),
    pytest.param([1j], "args[0]", "a complex", id="complex"),
    pytest.param([Liar()], "args[0]", "Liar", id="liar"),
    pytest.param([{"deep": [Liar()]}], 'args[0]["deep"][0]', "Liar", id="liar, nested"),
    pytest.param(nested(MAX_DEPTH + 1), "args" + "[0]" * MAX_DEPTH, "levels", id="deep"),
    pytest.param(cycle, "args" + "[0]" * MAX_DEPTH, "cycle", id="cycle"),
]


@pytest.mark.parametrize(("value", "path", "why"), REFUSED)
def test_b23_b26_what_can_not_be_stored_is_refused_with_its_path(value: Any, path: str, why: str) -> None:
    with pytest.raises(InvalidArguments) as refusal:
        to_json(value, path="args")
    assert refusal.value.path == path
    assert str(refusal.value).startswith(f"{path}: ")
    assert why in str(refusal.value)
    assert isinstance(refusal.value, TypeError)
    str(refusal.value).encode()  # the message itself can be stored and shown


@pytest.mark.parametrize(("value", "path", "why"), REFUSED)
def test_b26_a_result_that_can_not_be_stored_is_refused_with_its_path(value: Any, path: str, why: str) -> None:
    with pytest.raises(InvalidResult) as refusal:
        result_to_json(value)
    assert str(refusal.value).startswith(path.replace("args", "result", 1))


def test_check_json_says_the_same_without_a_copy() -> None:
    serializers.check_json({"a": [1, "x", None]})
    with pytest.raises(InvalidArguments, match=r'metadata\["a"\]'):
        serializers.check_json({"a": {1}}, path="metadata")


def test_b26_two_keys_never_become_one() -> None:
    class Odd(str):
        __slots__ = ()

        def __hash__(self) -> int:
            return 1

        def __eq__(self, other: object) -> bool:
            return self is other

    with pytest.raises(InvalidArguments, match="two keys"):
        to_json({Odd("a"): 1, Odd("a"): 2})


def test_a_value_whose_own_code_raises_is_refused() -> None:
    class Broken(dict[str, Any]):
        @property
        def __dict__(self) -> Any:  # type: ignore[override]
            raise RuntimeError

    assert to_json(Broken(a=1)) == {"a": 1}

    class Key(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            raise RuntimeError("eq")

        def __hash__(self) -> int:
            return hash("a")

    assert to_json({Key("a"): 1}) == {"a": 1}


@given(
    st.recursive(
        st.one_of(
            st.none(),
            st.booleans(),
            st.integers(),
            st.floats(),
            st.text(),
            st.binary(max_size=3),
            st.decimals(),
            st.dates(),
            st.builds(object),
        ),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4) | st.integers(), inner, max_size=3),
        max_leaves=8,
    )
)
def test_anything_is_accepted_whole_or_refused_with_a_path(value: Any) -> None:
    try:
        stored = to_json(value, path="args")
    except InvalidArguments as refusal:
        path, message = refusal.path, str(refusal)
        message.encode()
    else:
        path = "args"
        assert json.loads(dumps(stored)) == stored == value
    assert path.startswith("args")


def test_an_unknown_serializer_is_refused() -> None:
    with pytest.raises(InvalidArguments, match="pickle"):
        to_json([1], serializer="pickle")


# --- size ---


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        (["x" * 994], False),
        (["x" * 993], False),
        (["x" * 96], True),
        (["x" * 97], False),
        (["é" * 48], True),
        (["é" * 49], False),
        (["\x01" * 16], True),
        (["\x01" * 17], False),
        ([1] * 49, True),
        ([1] * 50, False),
        ({"k" * 94: 1}, True),
        ({"k" * 95: 1}, False),
        ([-1.7976931348623157e308], False),
    ],
)
def test_the_bound_is_in_bytes_of_json(value: Any, fits: bool) -> None:
    assert (len(dumps(value).encode()) <= 100) == fits
    if fits:
        to_json(value, max_bytes=100)
        result_to_json(value, max_bytes=100)
    else:
        with pytest.raises(InvalidArguments, match="100 bytes"):
            to_json(value, max_bytes=100)
        with pytest.raises(InvalidResult, match="100 bytes"):
            result_to_json(value, max_bytes=100)


@given(JSON, st.integers(1, 200))
@example(["\x01" * 20], 100)
@example([1.7976931348623157e308], 100)
def test_nothing_larger_than_the_bound_is_accepted(value: Any, bound: int) -> None:
    size = len(dumps(value).encode())
    try:
        result_to_json(value, max_bytes=bound)
    except InvalidResult:
        assert size > bound
    else:
        assert value is None or size <= bound


def test_the_settings_bound_arguments_and_results(settings: Any) -> None:
    settings.DJANGO_JOBS = {"MAX_ARGUMENT_BYTES": 200, "MAX_RESULT_BYTES": 100}
    to_json(["x" * 150])
    with pytest.raises(InvalidArguments, match="200 bytes"):
        to_json(["x" * 250])
    with pytest.raises(InvalidResult, match="100 bytes"):
        result_to_json(["x" * 150])


def test_a_small_value_that_unfolds_to_a_huge_one_is_refused_early() -> None:
    """Lists that share: 10**20 nodes on the way to JSON, in a value of 20 lists."""
    value: Any = [1]
    for _ in range(20):
        value = [value] * 10
    with pytest.raises(InvalidArguments, match="bytes"):
        to_json(value, max_bytes=10_000)


def test_a_small_argument_is_not_written_out_to_be_measured() -> None:
    with mock.patch.object(serializers, "dumps", side_effect=AssertionError("measured")):
        assert to_json([1, "two", {"three": 3.0}], path="args") == [1, "two", {"three": 3.0}]


# --- JSON text ---


def test_the_text_is_compact_and_readable() -> None:
    assert dumps({"a": [1, "é"]}) == '{"a":[1,"é"]}'


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([1e16], "[10000000000000000.0]"),
        ([-1e16], "[-10000000000000000.0]"),
        ([6.02e23, "1e+16"], '[602000000000000000000000.0,"1e+16"]'),
        (['a "1e+16" b', 1.5e300], '["a \\"1e+16\\" b",15' + "0" * 299 + ".0]"),
        (["\\", 1e22, "\\\\"], '["\\\\",10000000000000000000000.0,"\\\\\\\\"]'),
        ({"1e+5": 1e-7}, '{"1e+5":1e-07}'),
    ],
)
def test_large_floats_have_a_point(value: Any, text: str) -> None:
    assert dumps(value) == text
    assert same(json.loads(text), value)


@pytest.mark.parametrize("value", [math.nan, [math.inf], "a\x00", {"\x00": 1}, "\\\x00", "\ud800", ["é\udc80"], object(), {1, 2}])
def test_values_that_were_not_checked_raise_before_the_database_does(value: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        dumps(value)


@given(st.text(alphabet='\\u0"e+1\x00é', max_size=12))
def test_only_a_nul_is_taken_for_a_nul(text: str) -> None:
    if "\x00" in text:
        with pytest.raises(ValueError, match="NUL"):
            dumps([text])
    else:
        assert json.loads(dumps([text])) == [text]


def test_the_encoder_is_for_json_fields() -> None:
    assert json.dumps([1e16, "é"], cls=serializers.Encoder) == '[10000000000000000.0,"é"]'


# --- the database itself ---


def stored_and_read(values: list[Any]) -> list[Any]:
    """Send values through a JSON column of the database and back, checked as Django's JSONField has the database check them."""
    kind = {"postgresql": "jsonb", "mysql": "json"}.get(connection.vendor, "text CHECK (json_valid(v))")
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS words_json")
        temporary = "" if connection.vendor == "mysql" else "TEMPORARY "
        cursor.execute(f"CREATE {temporary}TABLE words_json (n int, v {kind})")
        try:
            for number, value in enumerate(values):
                cursor.execute("INSERT INTO words_json VALUES (%s, %s)", [number, dumps(to_json(value))])
            text = "v::text" if connection.vendor == "postgresql" else "v"
            cursor.execute(f"SELECT {text} FROM words_json ORDER BY n")
            return [from_json(json.loads(row[0])) for row in cursor.fetchall()]
        finally:
            cursor.execute("DROP TABLE words_json")


@pytest.mark.django_db(transaction=True)
def test_b23_the_database_takes_what_is_accepted_and_gives_it_back() -> None:
    gathered: list[Any] = [
        nested(MAX_DEPTH),
        [INT_MIN, INT_MAX, 1e308, -1.7976931348623157e308, 5e-324, 1e16, 1e15, 0.1, 1.0, 1, True, None],
        ["\x01\x1f\x7f\x80\u2028\ufffe\uffff\U0001f600", "\\u0000", '"', "\\", "é", "e\u0301", " a ", "A", ""],
        {"": 1, "\t": 2, "ß": 3, "SS": 4, "ss": 5},
        ["x" * 1_000_000],
    ]

    @given(JSON)
    def gather(value: Any) -> None:
        gathered.append(value)

    gather()
    for value, read in zip(gathered, stored_and_read(gathered), strict=True):
        assert same(read, value)


@pytest.mark.django_db
def test_what_is_accepted_survives_a_row_that_is_saved_by_the_orm() -> None:
    """PostgreSQL gives 1e16 back as a whole number: the admin, an edit or the site's own code must not alter a job so."""
    value = [INT_MIN, INT_MAX, 1e308, 1e16, 1.0, "é\u2028", {"e+16": True}, None]
    job = make_job(args=value, kwargs={"x": value}, metadata={"x": value}, context={"x": value}, output=value, progress=value)
    job.result = value
    job.save(update_fields=["result"])
    edit([job.pk], metadata={"y": value})
    row = Job.objects.get(pk=job.pk)
    found = [row.args, row.kwargs["x"], row.metadata["y"], row.context["x"], row.output, row.progress, row.result]
    assert [repr(each) for each in found] == [repr(value)] * len(found)


# --- text ---


@given(st.text(max_size=300), st.integers(0, 200))
@example("\x00" * 100, 50)
@example("\ud800" * 100, 99)
def test_clean_text_fits_and_can_be_stored(text: str, limit: int) -> None:
    cleaned = clean_text(text, limit)
    assert len(cleaned) <= limit
    assert "\x00" not in cleaned
    cleaned.encode()


@given(TEXT)
def test_clean_text_leaves_good_text_alone(text: str) -> None:
    assert clean_text(text, 100) == text


def test_b23_what_is_replaced_stays_visible() -> None:
    assert clean_text("a\x00b\udc80", 100) == "a\\x00b\\udc80"


def test_head_and_tail_are_kept() -> None:
    cleaned = clean_text("HEAD" + "x" * 50_000_000 + "TAIL", 1_000)
    assert len(cleaned) <= 1_000
    assert cleaned.startswith("HEADx")
    assert cleaned.endswith("xTAIL")
    left_out = 50_000_008 - (len(cleaned) - len(cleaned[cleaned.index("\n") : cleaned.rindex("\n") + 1]))
    assert f"{left_out} characters left out" in cleaned


def test_a_subclass_of_text_becomes_text() -> None:
    assert type(clean_text(mark_safe("x"), 10)) is str


# --- a model instance is no JSON ---


def test_a_model_instance_is_refused_with_a_hint() -> None:
    with pytest.raises(InvalidArguments, match="primary key"):
        to_json([get_user_model()(username="ada")], path="args")


def test_a_queryset_is_refused_without_a_query() -> None:
    with pytest.raises(InvalidArguments, match="list of primary keys"):
        to_json([get_user_model().objects.all()], path="args")

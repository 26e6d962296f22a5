"""The typed serializer: what it carries comes back equal and of the same type; nothing is imported because a row names it."""

from __future__ import annotations

import enum
import json
import math
import sys
import uuid
from datetime import UTC, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from hypothesis import given
from hypothesis import strategies as st

from django_jobs import typed
from django_jobs.exceptions import InvalidArguments, InvalidOption, InvalidResult, JobsError, RelatedObjectGone
from django_jobs.serializers import MAX_DEPTH, dumps, from_json, result_to_json, to_json


@typed.register_enum
class Colour(enum.Enum):
    RED = "red"
    CRIMSON = "red"  # noqa: PIE796 - an alias
    BLUE = object()  # a value that JSON could not hold


@typed.register_enum
class Rights(enum.Flag):
    READ = 1
    WRITE = 2


@typed.register_enum
class Size(enum.StrEnum):
    LARGE = "L"


class Unregistered(enum.StrEnum):
    ONE = "one"


def through(value: Any) -> Any:
    """Send a value to JSON text and back."""
    return from_json(json.loads(dumps(result_to_json(value, "typed"))), serializer="typed")


ZONES = st.sampled_from(["UTC", "Europe/Paris", "America/New_York", "Asia/Kolkata", "Pacific/Apia"]).map(ZoneInfo)
OFFSETS = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=8) | st.just(typed.TAG)
HASHABLE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False).map(lambda number: number or 0.0),
    TEXT,
    st.datetimes(timezones=st.none() | ZONES | OFFSETS, allow_imaginary=True),
    st.dates(),
    st.times(timezones=st.none() | st.just(UTC)),
    st.timedeltas(),
    st.decimals(allow_nan=False),
    st.uuids(),
    st.binary(max_size=8),
    st.sampled_from([*Colour, *Size, Rights.READ, Rights.READ | Rights.WRITE, Rights(0)]),
)
VALUES = st.recursive(
    HASHABLE,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(TEXT | HASHABLE, inner, max_size=3),
        st.sets(HASHABLE, max_size=3),
        st.frozensets(HASHABLE, max_size=3),
    ),
    max_leaves=6,
)


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal and of equal types all the way down, zones and folds included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(item, other[key]) for key, item in one.items())
    if isinstance(one, datetime | time):
        return one.replace(tzinfo=None) == other.replace(tzinfo=None) and (one.tzinfo, one.fold) == (other.tzinfo, other.fold)
    return bool(one == other)


@given(VALUES)
def test_everything_that_is_carried_comes_back_the_same(value: Any) -> None:
    assert same(through(value), value)


@given(VALUES)
def test_the_same_value_has_the_same_text(value: Any) -> None:
    """Sets have no order, their JSON has: a unique key made of it finds its job again."""
    assert dumps(result_to_json(value, "typed")) == dumps(result_to_json(through(value), "typed"))


def test_a_set_has_the_same_text_in_whatever_order_it_was_filled() -> None:
    one, other = {0, 8}, {8, 0}  # they meet in one place of the hash table, so that the first one in comes out first
    assert list(one) != list(other)
    assert to_json([one], serializer="typed") == to_json([other], serializer="typed")


def test_the_form_of_a_stored_value_is_plain() -> None:
    stored = to_json({"at": datetime(2024, 5, 1, 12, tzinfo=ZoneInfo("Europe/Paris"))}, serializer="typed")
    assert stored == {"at": {"$type": "datetime", "value": "2024-05-01T12:00:00+02:00", "zone": "Europe/Paris"}}


@pytest.mark.parametrize(
    "value",
    [
        {"$type": "uuid", "value": "x"},
        {"$type": None},
        [{"$type": "model", "model": "auth.User", "value": 1}],
        {1: "a", "1": "b", None: "c", (1, 2): "d"},
        {"plain": {"$type": {"$type": 1}}},
    ],
)
def test_a_dict_that_looks_like_a_tag_stays_a_dict(value: Any) -> None:
    assert same(through(value), value)


def test_a_moment_in_the_repeated_hour_and_one_in_the_gap_keep_their_place() -> None:
    paris = ZoneInfo("Europe/Paris")
    for moment in (
        datetime(2024, 10, 27, 2, 30, tzinfo=paris),
        datetime(2024, 10, 27, 2, 30, tzinfo=paris, fold=1),
        datetime(2024, 3, 31, 2, 30, tzinfo=paris),
    ):
        assert same(through(moment), moment)
        assert through(moment).astimezone(UTC) == moment.astimezone(UTC)


def test_a_host_with_other_rules_keeps_the_moment_not_the_wall_clock() -> None:
    stored = {"$type": "datetime", "value": "2024-07-01T12:00:00+05:00", "zone": "Europe/Paris"}
    read = from_json(stored, serializer="typed")
    assert read.astimezone(UTC) == datetime(2024, 7, 1, 7, tzinfo=UTC)
    assert read.tzinfo == ZoneInfo("Europe/Paris")


@pytest.mark.parametrize("zone", ["Mars/Base", "../../etc/passwd", "", 5])
def test_a_zone_that_this_host_lacks_costs_only_the_zone(zone: Any) -> None:
    stored = {"$type": "datetime", "value": "2024-07-01T12:00:00+02:00", "zone": zone}
    assert from_json(stored, serializer="typed") == datetime(2024, 7, 1, 10, tzinfo=UTC)


def test_decimals_keep_their_digits() -> None:
    assert str(through(Decimal("1.500"))) == "1.500"
    assert through(Decimal("NaN")).is_nan()


def test_the_arguments_of_a_call_are_a_list_and_a_tuple_among_them_is_a_tuple() -> None:
    stored = to_json((1, (2, 3)), serializer="typed", path="args")
    assert stored == [1, {"$type": "tuple", "value": [2, 3]}]
    assert to_json((), serializer="typed") == []
    assert from_json(stored, serializer="typed") == [1, (2, 3)]


# --- refused ---


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ([object()], "an object"),
        ([math.nan], "nan"),
        (["a\x00"], "NUL"),
        ([{("a\x00",): 1}], "NUL"),
        ([10**5_000], "4300 digits"),
        ([Unregistered.ONE], "register_enum"),
        ([time(12, tzinfo=ZoneInfo("Europe/Paris"))], "without a date"),
        ([1j], "a complex"),
        ([get_user_model], "a function"),
    ],
)
def test_what_is_not_carried_is_refused_with_its_path(value: Any, why: str) -> None:
    with pytest.raises(InvalidArguments, match=why) as refusal:
        to_json(value, serializer="typed", path="args")
    assert refusal.value.path.startswith("args[0]")
    with pytest.raises(InvalidResult, match=why):
        result_to_json(value, "typed")


def levels(value: Any) -> int:
    """Return how many lists and dicts are in one another."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max((levels(item) for item in inner), default=0)


@pytest.mark.parametrize(
    "wrap", [lambda inner: (inner,), lambda inner: [inner], lambda inner: {1: inner}, lambda inner: {"a": inner}]
)
@pytest.mark.parametrize("core", [1, 2**70, uuid.UUID(int=1), Colour.RED, (), frozenset({1}), timedelta(1), Rights.READ])
def test_the_bound_of_levels_is_kept_by_what_is_stored(wrap: Any, core: Any) -> None:
    """MariaDB counts the levels of the JSON, not those of the value."""
    value, accepted = core, 0
    with pytest.raises(InvalidResult, match="levels"):  # noqa: PT012 - which round raises is the question
        for _ in range(MAX_DEPTH + 2):
            accepted = levels(result_to_json(value, "typed"))
            assert accepted <= MAX_DEPTH
            value = wrap(value)
    assert accepted > MAX_DEPTH - 4


@given(VALUES, st.integers(1, 300))
def test_nothing_larger_than_the_bound_is_accepted(value: Any, bound: int) -> None:
    size = len(dumps(result_to_json(value, "typed")).encode())
    try:
        result_to_json(value, "typed", max_bytes=bound)
    except InvalidResult:
        assert size > bound
    else:
        assert value is None or size <= bound


def test_the_bound_counts_what_the_tags_take() -> None:
    value = [frozenset()] * 100
    size = len(dumps(to_json(value, serializer="typed")))
    to_json(value, serializer="typed", max_bytes=size)
    for bound in range(1_000, size, 100):
        with pytest.raises(InvalidArguments, match="bytes"):
            to_json(value, serializer="typed", max_bytes=bound)


# --- enums ---


def test_an_alias_comes_back_as_its_member() -> None:
    assert through(Colour.CRIMSON) is Colour.RED


def test_an_enum_of_a_function_can_not_be_registered() -> None:
    class Local(enum.Enum):
        ONE = 1

    with pytest.raises(InvalidOption, match="another process"):
        typed.register_enum(Local)


def test_enums_in_annotations_are_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typed, "_enums", {})

    def task(colours: list[Colour], size: Size | None = None, *rights: Rights, other: int = 0) -> dict[str, Unregistered]: ...

    typed.register_annotated_enums(task)
    assert through([Colour.RED, Size.LARGE, Rights.READ, Unregistered.ONE]) == [
        Colour.RED,
        Size.LARGE,
        Rights.READ,
        Unregistered.ONE,
    ]


def test_annotations_that_can_not_be_resolved_do_no_harm() -> None:
    def task(item: NoSuchName) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    typed.register_annotated_enums(task)


@pytest.mark.parametrize(
    "stored",
    [
        {"$type": "enum", "enum": "smtpd.Unknown", "value": "RED"},
        {"$type": "enum", "enum": f"{__name__}.Colour", "value": "GREEN"},
        {"$type": "enum", "value": "RED"},
        {"$type": "pickle", "value": "gASVAAAA"},
        {"$type": ["uuid"], "value": "x"},
        {"$type": "uuid", "value": "no"},
        {"$type": "uuid"},
        {"$type": "dict", "value": [[[1], 2]]},
        {"$type": "bytes", "value": "é"},
        {"$type": "timedelta", "value": "999999999999 0 0"},
        {"$type": "datetime", "value": 5},
        {"$type": "int", "value": "9" * 5_000},
    ],
)
def test_what_can_not_be_read_is_an_error_of_ours(stored: Any) -> None:
    with pytest.raises(JobsError):
        from_json([stored], serializer="typed")


def test_nothing_is_imported_because_a_row_names_it() -> None:
    name = "this"  # a module of the standard library that prints when it is imported
    sys.modules.pop(name, None)
    for stored in (
        {"$type": "enum", "enum": f"{name}.Zen", "value": "s"},
        {"$type": "model", "model": f"{name}.s", "database": "default", "value": 1},
    ):
        with pytest.raises(JobsError):
            from_json(stored, serializer="typed")
    assert name not in sys.modules


# --- model instances ---


@pytest.mark.django_db
def test_a_model_instance_comes_back_fresh_from_the_database() -> None:
    user = get_user_model().objects.create_user("ada", first_name="Ada")
    stored = to_json([user], serializer="typed", path="args")
    assert stored == [{"$type": "model", "model": "auth.User", "database": "default", "value": user.pk}]
    get_user_model().objects.filter(pk=user.pk).update(first_name="Augusta")
    (read,) = from_json(stored, serializer="typed")
    assert read == user
    assert read.first_name == "Augusta"


@pytest.mark.django_db
def test_a_model_instance_that_is_gone_is_a_defined_failure() -> None:
    group = Group.objects.create(name="x")
    stored = to_json({"group": group}, serializer="typed")
    group.delete()
    with pytest.raises(RelatedObjectGone, match=r"auth\.Group"):
        from_json(stored, serializer="typed")


@pytest.mark.parametrize(("label", "database"), [("auth.Nothing", "default"), ("nothing.At", "default"), ("auth.Group", "moon")])
def test_a_model_or_database_that_is_gone_is_the_same_failure(label: str, database: str) -> None:
    with pytest.raises(RelatedObjectGone):
        from_json({"$type": "model", "model": label, "database": database, "value": 1}, serializer="typed")


def test_an_instance_that_is_not_saved_is_refused() -> None:
    for unsaved in (Group(name="x"), Group(pk=5, name="x")):
        with pytest.raises(InvalidArguments, match="not saved"):
            to_json([unsaved], serializer="typed", path="args")

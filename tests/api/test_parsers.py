"""Bodies: strict JSON, with caps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rest_framework.exceptions import APIException

from django_jobs.api.parsers import BODY_DEPTH, StrictJSONParser
from tests.api.conftest import Api

pytestmark = pytest.mark.urls("tests.api.echo")


class Stream:
    """A request, as far as the parser looks at it."""

    def __init__(self, body: bytes) -> None:
        self.body, self.META = body, {"CONTENT_LENGTH": str(len(body))}

    def read(self, size: int) -> bytes:
        return self.body[:size]


def parsed(body: bytes, media_type: str = "application/json") -> Any:
    return StrictJSONParser().parse(Stream(body), media_type)


def refused(body: bytes, media_type: str = "application/json") -> tuple[int, str]:
    with pytest.raises(APIException) as caught:
        parsed(body, media_type)
    return caught.value.status_code, str(caught.value.detail)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"{'a': 1}", "not JSON"),
        (b'{"a": 1, "a": 2}', "'a' is there twice"),
        (b'[{"b": {"c": 1, "c": 1}}]', "'c' is there twice"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": -Infinity}', "-Infinity"),
        (b'{"a": 1e999}', "too large a number"),
        (b'{"a": ' + b"1" * 5000 + b"}", "not JSON"),
        (b'{"a": "\xff"}', "not UTF-8"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        ('{"a": 1}'.encode("utf-16"), "not UTF-8"),
        (b'{"a": "\\u0000"}', "NUL"),
        (b'{"a\\u0000": 1}', "NUL"),
        (b'{"a": "\\ud800"}', "lone surrogate"),
        (b'{"a": ["\\udc00"]}', "lone surrogate"),
        (b"[" * (BODY_DEPTH + 1) + b"]" * (BODY_DEPTH + 1), "levels"),
        (b"[" * 100_000 + b"]" * 100_000, "levels"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "levels"),
    ],
)
def test_what_is_no_strict_json_is_refused_with_the_reason(body: bytes, says: str) -> None:
    status, message = refused(body)
    assert status == 400
    assert says in message


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b"null", None),
        (b'{"a": "\\ud83d\\ude00"}', {"a": "😀"}),
        ('{"ä": "ö"}'.encode(), {"ä": "ö"}),
        (b"[1, -0.5, 1e3, true]", [1, -0.5, 1000.0, True]),
        (b"9223372036854775808", 2**63),
        (b"[" * BODY_DEPTH + b"]" * BODY_DEPTH, None),
    ],
)
def test_what_is_json_is_taken(body: bytes, value: Any) -> None:
    assert value is None or parsed(body) == value
    parsed(body)


@given(st.binary(max_size=200))
def test_no_bytes_at_all_make_it_stumble(body: bytes) -> None:
    try:
        parsed(body)
    except APIException as error:
        assert error.status_code == 400  # noqa: PT017


def test_other_charsets_are_refused() -> None:
    assert parsed(b"{}", "application/json; charset=UTF-8") == {}
    assert parsed(b"{}", 'application/json; charset="utf-8"') == {}
    assert refused(b"{}", "application/json; charset=latin-1")[0] == 415


@pytest.mark.django_db
def test_a_body_that_is_too_large_is_not_read(settings: Any, token: Callable[..., Api]) -> None:
    settings.DJANGO_JOBS = {"API_MAX_BODY_BYTES": 1000}
    api = token("enqueue")
    error = api.error("POST", "echo/", 413, {"queue": "x" * 2000})
    assert (error["code"], error["limit"]) == ("too_large", 1000)
    assert api.send("POST", "echo/", {"queue": "x" * 900}).status_code == 200
    stream = Stream(b'"' + b"x" * 2000 + b'"')
    stream.META = {}  # a client that does not say how long it is
    with pytest.raises(APIException) as caught:
        StrictJSONParser().parse(stream)
    assert caught.value.status_code == 413


@pytest.mark.django_db
@pytest.mark.parametrize(
    "media_type", ["application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain", "application/xml", "x"]
)
def test_other_media_types_are_a_415(token: Callable[..., Api], media_type: str) -> None:
    error = token("enqueue").error("POST", "echo/", 415, raw=b"queue=x", Content_Type=media_type)
    assert error["code"] == "unsupported_media_type"


@pytest.mark.django_db
@pytest.mark.parametrize(("data", "kind"), [([], "a list"), ("x", "text"), (3, "a number"), (True, "true or false")])
def test_a_body_has_to_be_an_object(token: Callable[..., Api], data: Any, kind: str) -> None:
    assert kind in token("enqueue").error("POST", "echo/", 400, data)["message"]


@pytest.mark.django_db
def test_null_is_no_object_and_no_body_is_an_empty_one(token: Callable[..., Api]) -> None:
    api = token("enqueue")
    assert "null" in api.error("POST", "echo/", 400, raw=b"null")["message"]
    assert api.send("POST", "echo/").json() == {}


@pytest.mark.django_db
def test_unknown_keys_are_refused_with_the_nearest_name(token: Callable[..., Api]) -> None:
    error = token("enqueue").error("POST", "echo/", 400, {"queue": "a", "timeuot": 3, "zzz": 1})
    assert error["fields"] == {
        "timeuot": ["there is no such field: did you mean 'timeout'?"],
        "zzz": ["there is no such field."],
    }


@pytest.mark.django_db
def test_whoever_may_not_is_told_so_before_the_body_is_read(token: Callable[..., Api]) -> None:
    error = token("view").error("POST", "echo/", 403, raw=b"{ not JSON")
    assert error["verbs"] == ["enqueue"]

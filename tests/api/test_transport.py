"""Over a socket: what the test client would not show."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.api.conftest import Api

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.api.echo")]


Connect = Callable[[], http.client.HTTPConnection]


@pytest.fixture
def connect(live_server: Any) -> Iterator[Connect]:
    """Return a function that makes a connection, closed in the end."""
    with ExitStack() as stack:

        def make() -> http.client.HTTPConnection:
            return stack.enter_context(closing(http.client.HTTPConnection(urlsplit(live_server.url).netloc, timeout=20)))

        yield make


def answer(connection: http.client.HTTPConnection) -> tuple[int, Any, http.client.HTTPResponse]:
    response = connection.getresponse()
    body = response.read()
    return response.status, json.loads(body) if body else None, response


def test_a_body_of_unknown_length_is_none_and_stops_nobody(connect: Connect, token: Callable[..., Api]) -> None:
    """The server that Django's tests run does not read chunks; what does not fit its length is not waited for."""
    connection = connect()
    headers = {**token("enqueue").headers, "Content-Type": "application/json"}
    connection.request("POST", "/api/jobs/echo/", body=iter([b'{"queue":', b' "mail"}']), headers=headers, encode_chunked=True)
    status, body, _response = answer(connection)
    assert status in (200, 400)
    assert body.get("queue", "mail") == "mail"


def test_a_body_that_says_it_is_too_large_is_refused_before_it_is_sent(connect: Connect, token: Callable[..., Api]) -> None:
    connection = connect()
    connection.putrequest("POST", "/api/jobs/echo/")
    for name, value in {**token("enqueue").headers, "Content-Type": "application/json", "Content-Length": str(2**40)}.items():
        connection.putheader(name, value)
    connection.endheaders()
    status, body, _response = answer(connection)
    assert (status, body["error"]["code"]) == (413, "too_large")


def test_head_has_the_headers_of_get_and_no_body(connect: Connect, token: Callable[..., Api]) -> None:
    headers, lengths = token("view").headers, []
    for method in ("GET", "HEAD"):
        connection = connect()
        connection.request(method, "/api/jobs/version", headers=headers)
        status, body, response = answer(connection)
        assert status == 200
        assert (body is None) == (method == "HEAD")
        lengths.append(response.headers["Content-Length"])
    assert lengths[0] == lengths[1]


def test_odd_bytes_in_addresses_and_headers_are_4xx(connect: Connect, token: Callable[..., Api]) -> None:
    headers = token("view").headers
    for path, expected in {"%ff%fe": 404, "echo/?status=%ff": 200, "echo/?%ff=1": 400, "one/%00/": 404, "..%2f..": 404}.items():
        connection = connect()
        connection.request("GET", f"/api/jobs/{path}", headers=headers)
        assert answer(connection)[0] == expected, path
    connection = connect()
    connection.putrequest("GET", "/api/jobs/echo/")
    connection.putheader("Authorization", b"Bearer dj_\xff\xfe")
    connection.endheaders()
    assert answer(connection)[0] == 401


def test_addresses_in_answers_lead_back_here(live_server: Any, connect: Connect, token: Callable[..., Api]) -> None:
    api = token("view")
    connection = connect()
    connection.request("GET", "/api/jobs/", headers=api.headers)
    _status, links, _response = answer(connection)
    assert links["version"] == f"{live_server.url}/api/jobs/version/"
    connection.request("GET", urlsplit(links["version"]).path, headers=api.headers)
    assert answer(connection)[0] == 200

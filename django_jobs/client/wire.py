"""Send requests, and send them again where that can do no harm."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import httpx

from .errors import ApiError, Throttled, Unavailable, error_of

#: Nothing was given: not the same as null, which is a value.
MISSING: Final[Any] = type("Missing", (), {"__repr__": lambda self: "MISSING"})()
#: The request did not reach the server, so nothing was carried out.
_NOT_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_AGAIN: Final = frozenset({0, 502, 503, 504})
#: A server that asks to wait for longer is not waited for: the caller learns of it. Seconds.
LONGEST_PAUSE: Final = 60.0


def jittered(seconds: float) -> float:
    """Return about half to all of `seconds`, by chance: so that many clients don't come back at the same moment."""
    return seconds * random.uniform(0.5, 1.0)


class Pauses:
    """Growing pauses with jitter: `next()` says how long to wait, `reset()` begins anew. Seconds."""

    def __init__(self, first: float, longest: float) -> None:
        self.first, self.longest = first, longest
        self._next = first

    def next(self, at_least: float | None = None) -> float:
        """Return the next pause; at least what the server asked for."""
        pause = jittered(self._next)
        self._next = min(self._next * 2, self.longest)
        return max(pause, min(at_least or 0.0, LONGEST_PAUSE))

    def reset(self) -> None:
        """Begin with the shortest pause again."""
        self._next = self.first


class Wire:
    """A pool of connections to one server, with a token. May be used by several threads at once."""

    def __init__(
        self,
        base_url: str,
        token: str,
        *,
        timeout: float,
        retry_delays: Sequence[float],
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        if httpx.URL(base_url).scheme not in ("http", "https"):
            raise ValueError(f"base_url must begin with http:// or https://, not {base_url!r}")
        self.timeout = timeout
        self.retry_delays = tuple(retry_delays)
        self._sleep = sleep
        self._http = httpx.Client(
            base_url=base_url.rstrip("/") + "/",
            headers={"Authorization": f"Bearer {token}", "Accept": "application/json", "User-Agent": "django-jobs-client"},
            timeout=timeout,
            transport=transport,
        )

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def send(
        self,
        method: str,
        path: str,
        *,
        body: Any = MISSING,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        safe: bool = True,
        retry: bool = True,
    ) -> httpx.Response:
        """Send a request and return its answer, of 2xx. Raises `ApiError`; `TypeError` or `ValueError` for what JSON can't hold.

        `safe`: sending it twice does no harm. One that is not safe is sent again only if the one before surely did not arrive.
        """
        delays = iter(self.retry_delays if retry else ())
        content = None if body is MISSING else json.dumps(body, allow_nan=False).encode()
        sent = {**(headers or {}), **({} if content is None else {"Content-Type": "application/json"})}
        repeated = False
        while True:
            answer = self._once(
                method, path, content=content, params=query, headers=sent, timeout=self.timeout if timeout is None else timeout
            )
            if isinstance(answer, httpx.Response):
                return answer
            answer.repeated = repeated
            arrived = isinstance(answer, Unavailable) and answer.sent
            again = isinstance(answer, Throttled) or answer.status in _AGAIN
            pause = next(delays, None)
            if pause is None or not again or (arrived and not safe) or (answer.retry_after or 0.0) > LONGEST_PAUSE:
                raise answer
            repeated = repeated or arrived
            self._sleep(max(jittered(pause), answer.retry_after or 0.0))

    def _once(self, method: str, path: str, **options: Any) -> httpx.Response | ApiError:
        try:
            response = self._http.request(method, path, **options)
        except httpx.RequestError as error:
            away = Unavailable(f"{method} {path}: {str(error) or type(error).__name__}", code="unavailable")
            away.sent = not isinstance(error, _NOT_SENT)
            away.__cause__ = error
            return away
        return response if response.is_success else error_of(response)


def value_of(response: httpx.Response) -> Any:
    """Return the JSON of an answer. Raises `ApiError` where it is none, as from a proxy's page of its own."""
    try:
        return response.json()
    except ValueError:
        said = response.headers.get("Content-Type", "no type")
        raise ApiError(
            f"{response.request.method} {response.request.url}: the answer is not JSON but {said}: is this the API's address?",
            status=response.status_code,
            code="not_json",
        ) from None

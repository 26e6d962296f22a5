"""What can go wrong between a client and the server, as one tree below `ApiError`; and `Fail`, which a handler raises."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx


class ApiError(Exception):
    """The server refused, or gave no answer.

    `status`: of HTTP, 0 without an answer. `code`: the server's word ("invalid", "not_found", ...), or "http_<status>" if the
    answer was not the API's, as from a proxy. `fields`: the name of a field -> what is wrong with it. `retry_after`: seconds, if
    the server said so. `repeated`: the request was sent more than once, and an earlier one may have been carried out.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        code: str = "",
        fields: Mapping[str, Sequence[str]] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code or f"http_{status}"
        self.fields: dict[str, list[str]] = {name: list(problems) for name, problems in (fields or {}).items()}
        self.retry_after = retry_after
        self.repeated = False

    def __str__(self) -> str:
        said = "; ".join(f"{name}: {' '.join(problems)}" for name, problems in self.fields.items())
        return f"{self.message} ({said})" if said else self.message


class Invalid(ApiError):
    """400, 413 or 415: the request is wrong, and would be wrong again."""


class Unauthorized(ApiError):
    """401: there is no such token, or it is revoked or expired."""


class Forbidden(ApiError):
    """403: the token has not this verb or this queue."""


class NotFound(ApiError):
    """404: there is no such job or queue, or this token does not see it."""


class Conflict(ApiError):
    """409: the job's or queue's state does not allow it."""


class LeaseLost(Conflict):
    """The attempt is no longer this worker's: it was cancelled, taken over, or has ended. What it does is not recorded.

    `reason` says which; `job_status` is the status of the job, "" where it is not known.
    """

    def __init__(self, reason: str, *, job_status: str = "", status: int = 409, code: str = "lease_lost") -> None:
        super().__init__(reason, status=status, code=code)
        self.reason = reason
        self.job_status = job_status


class Throttled(ApiError):
    """429: too many requests. `retry_after` says when the next one is welcome."""


class Unavailable(ApiError):
    """The server, or the network between, is away: no answer (`status` 0), or one of 5xx.

    `sent`: the request may have reached the server, and may have been carried out, also where the answer says 503: a database can
    go away as it commits.
    """

    sent = True


class Fail(Exception):
    """Raised by a handler: the job has failed for good, and is not to be retried."""


_CLASSES: dict[int, type[ApiError]] = {
    400: Invalid,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    413: Invalid,
    415: Invalid,
    429: Throttled,
}


def error_of(response: httpx.Response) -> ApiError:
    """Return the error that a response means. What is not the API's own shape (a proxy's page) is told by its first line."""
    told = _told(response)
    status, code = response.status_code, str(told.get("code") or "")
    message = str(told.get("message") or _first_line(response))
    if code == "lease_lost":
        return LeaseLost(str(told.get("reason") or message), job_status=str(told.get("status") or ""))
    kind = Unavailable if status >= 500 else _CLASSES.get(status, ApiError)
    return kind(message, status=status, code=code, fields=_fields(told.get("fields")), retry_after=_retry_after(response))


def _told(response: httpx.Response) -> Mapping[str, Any]:
    try:
        body = response.json()
    except ValueError:
        return {}
    told = body.get("error") if isinstance(body, dict) else None
    return told if isinstance(told, dict) else {}


def _fields(value: Any) -> dict[str, list[str]]:
    if not isinstance(value, dict):
        return {}
    return {str(name): [str(each) for each in (said if isinstance(said, list) else [said])] for name, said in value.items()}


def _first_line(response: httpx.Response) -> str:
    lines = response.text.strip().splitlines()
    where = f" to {response.headers['Location']}" if "Location" in response.headers else ""
    said = f": {lines[0][:200]}" if lines else ""
    return f"The server answered {response.status_code}{where}{said}"


def _retry_after(response: httpx.Response) -> float | None:
    """Return the seconds that Retry-After names, as a number or a date."""
    value = response.headers.get("Retry-After", "").strip()
    if not value:
        return None
    try:
        return max(0.0, float(value)) if value.isdigit() else max(0.0, _until(value))
    except (ValueError, TypeError):
        return None


def _until(date: str) -> float:
    moment = parsedate_to_datetime(date)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() - datetime.now(UTC).timestamp()

"""What the holder of an attempt's token says: signs of life, partial output, and the end."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from rest_framework.request import Request
from rest_framework.response import Response

from ..conf import jobs_settings, readers
from ..exceptions import InvalidOption, InvalidResult
from ..lifecycle import lease
from ..outcomes import Cancelled, ErrorInfo, Failed, HandedBack, Outcome, Succeeded, TimedOut
from ..serializers import clean_text, result_to_json
from ..statuses import Status
from . import values
from .errors import invalid
from .outcome import refused
from .rendering import time_text

if TYPE_CHECKING:
    from .base import JobsView

TOKEN_HEADER: Final = "X-Job-Token"  # noqa: S105 - a name
LEASE_EXPIRES: Final = "Lease-Expires"
#: Statuses in which the holder may end the attempt; ready: it gives the job back.
ENDS: Final = (Status.SUCCEEDED, Status.FAILED, Status.TIMED_OUT, Status.CANCELLED, Status.READY)
ERROR_FIELDS: Final = ("class", "message", "traceback")
PROGRESS_FIELDS: Final = ("done", "total", "message")
#: The class of an error of which nobody has said any.
FAILURE: Final = "django_jobs.exceptions.Fail"
TIMEOUT: Final = "django_jobs.exceptions.JobTimeout"


def token_of(request: Request, data: Mapping[str, Any]) -> UUID | None:
    """Return the attempt's token from the header or the body; None if there is none. Raises 400."""
    header = request.headers.get(TOKEN_HEADER)
    if header is None:
        return values.uuid(data["token"], "token") if "token" in data else None
    token = values.uuid(header.strip(), TOKEN_HEADER)
    if "token" in data and values.uuid(data["token"], "token") != token:
        raise invalid("token", f"is another than in the header {TOKEN_HEADER}.")
    return token


def output_of(value: Any, field: str) -> Any:
    """Return output as it is stored. Raises `InvalidOption`, with the path, for what can't be."""
    try:
        return result_to_json(value)
    except InvalidResult as error:
        path, _sign, why = str(error).partition(": ")
        raise InvalidOption(path.replace("result", field, 1), why) from None


def progress_of(value: Any) -> dict[str, Any]:
    """Return a progress as jobs have it."""
    if not isinstance(value, dict):
        raise InvalidOption("progress", "an object with done, total and message.")
    for name, part in value.items():
        if name not in PROGRESS_FIELDS:
            raise InvalidOption(f"progress.{name[:50]}", f"there is no such field{readers.nearest(name, PROGRESS_FIELDS)}")
        if name == "message":
            if not isinstance(part, str):
                raise InvalidOption("progress.message", "text.")
        elif part is not None and (isinstance(part, bool) or not isinstance(part, int | float) or not math.isfinite(part)):
            raise InvalidOption(f"progress.{name}", "a number.")
    message = clean_text(value.get("message", ""), 500)
    return {"done": output_of(value.get("done"), "done"), "total": output_of(value.get("total"), "total"), "message": message}


def write(view: JobsView, pk: UUID, token: UUID, data: Mapping[str, Any]) -> Response:
    """Write what the holder says, in one transaction: 204. Without a status it is a sign of life."""
    has_output = "output" in data
    output = output_of(data["output"], "output") if has_output else None
    if "status" not in data:
        if alone := [name for name in ("error", "final", "logs", "reason") if name in data]:
            raise invalid(alone[0], "goes with a status, at the end of the attempt.")
        progress = progress_of(data["progress"]) if data.get("progress") is not None else None
        held = lease.report(pk, token, progress=progress, output=output, has_output=has_output, using=view.using)
        return leased(held)
    if "progress" in data:
        raise invalid("progress", "goes without a status, while the job runs.")
    status = values.status_word(data["status"])
    if status not in ENDS:
        raise refused(f"An attempt can't end as {status}.", Status.RUNNING, status)
    outcome = _outcome(Status(status), data, output)
    logs = values.text(data.get("logs", ""), "logs", 10**9)
    # What succeeded keeps its output as the result; null is written, so that no partial output stands in for it.
    as_output = has_output and (status != Status.SUCCEEDED or output is None)
    lease.finish(
        pk,
        token,
        outcome,
        output=output,
        has_output=as_output,
        logs=clean_text(logs, jobs_settings().max_log_chars),
        using=view.using,
    )
    return Response(status=204)


def leased(held: lease.Lease) -> Response:
    """Answer 204, with a header that says until when the lease is; without it the lease has no end."""
    headers = {} if held.expires_at is None else {LEASE_EXPIRES: str(time_text(held.expires_at))}
    return Response(status=204, headers=headers)


def _outcome(status: Status, data: Mapping[str, Any], output: Any) -> Outcome:
    is_final = values.flag(data.get("final", False), "final")
    if is_final and status != Status.FAILED:
        raise invalid("final", "goes with the status failed.")
    reason = values.text(data.get("reason", ""), "reason", 500)
    if status == Status.SUCCEEDED:
        if data.get("error") is not None:
            raise invalid("error", "a job that has succeeded has none.")
        return Succeeded(result=output, note=clean_text(reason, 500))
    if status == Status.READY:
        if data.get("error") is not None:
            raise invalid("error", "a job that is given back has none; to have it tried again as failed, say failed.")
        return HandedBack(clean_text(reason or "given back by its HTTP worker", 500), started=True)
    if status == Status.CANCELLED:
        return Cancelled(reason=clean_text(reason or "cancelled by its HTTP worker", 500), error=_error(data, "", ""))
    if status == Status.TIMED_OUT:
        error = _error(data, TIMEOUT, reason or "The HTTP worker ran out of time.")
        assert error is not None
        return TimedOut(error, limit="timeout")
    error = _error(data, FAILURE, reason or "The HTTP worker reported a failure.")
    assert error is not None
    return Failed(error, final=is_final)


def _error(data: Mapping[str, Any], default_class: str, default_message: str) -> ErrorInfo | None:
    """Return the error that is said, capped; None if none is said and there is no default."""
    said = data.get("error")
    if isinstance(said, str):
        said = {"message": said}
    if said is None:
        said = {}
    if not isinstance(said, dict):
        raise InvalidOption("error", "an object with class, message and traceback, or text.")
    for name, part in said.items():
        if name not in ERROR_FIELDS:
            raise InvalidOption(f"error.{name[:50]}", f"there is no such field{readers.nearest(name, ERROR_FIELDS)}")
        if not isinstance(part, str):
            raise InvalidOption(f"error.{name}", "text.")
    if not said and not default_class:
        return None
    settings = jobs_settings()
    name = clean_text(said.get("class") or default_class or FAILURE, 255)
    message = clean_text(said.get("message", default_message), settings.max_message_chars)
    traceback = clean_text(said.get("traceback", ""), settings.max_traceback_chars)
    # Equal for equal failures: numbers in a message are what differs.
    alike = "".join("0" if sign.isdigit() else sign for sign in message[:200])
    return ErrorInfo(name, message, traceback, hashlib.sha256(f"{name}\n{alike}".encode()).hexdigest()[:16])

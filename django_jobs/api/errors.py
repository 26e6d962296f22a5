"""Every error as one JSON shape: `{"error": {"code": ..., "message": ..., "fields": {name: [text, ...]}}}`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

from django.conf import settings
from django.core.exceptions import PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.core.signals import got_request_exception
from django.db import DataError, IntegrityError, InterfaceError, OperationalError
from django.http import Http404
from rest_framework import exceptions as drf
from rest_framework.response import Response
from rest_framework.views import set_rollback

from ..exceptions import (
    BatchDoesNotExist,
    InvalidArguments,
    InvalidOption,
    InvalidTransition,
    JobDoesNotExist,
    JobIsBusy,
    LeaseLost,
    UnknownTask,
)

logger = logging.getLogger("django_jobs.api")

#: Seconds after which a client may try again, when the database does not answer.
RETRY_AFTER: Final = 5

_CODES: Final[Mapping[int, str]] = {
    400: "invalid",
    401: "unauthenticated",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    406: "not_acceptable",
    409: "conflict",
    413: "too_large",
    415: "unsupported_media_type",
    429: "throttled",
    503: "unavailable",
}


class ApiError(drf.APIException):
    """An answer that is an error. `fields` maps names of fields to what is wrong with each; `extra` goes beside them."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        /,
        fields: Mapping[str, str | Sequence[str]] | None = None,
        headers: Mapping[str, str] | None = None,
        **extra: Any,
    ) -> None:
        self.status_code, self.code, self.message = status, code, message
        self.fields = {name: [text] if isinstance(text, str) else list(text) for name, text in (fields or {}).items()}
        self.headers, self.extra = dict(headers or {}), extra
        super().__init__(message, code)

    @property
    def body(self) -> dict[str, Any]:
        """The answer's body."""
        error: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.fields:
            error["fields"] = self.fields
        return {"error": error | self.extra}


def invalid(field: str, message: str, **extra: Any) -> ApiError:
    """Return the error of one field: 400."""
    return ApiError(400, "invalid", f"{field}: {message}", {field: message}, **extra)


def not_found(message: str) -> ApiError:
    """Return the error of a thing that is not there, or not for this caller: 404."""
    return ApiError(404, "not_found", message)


def unavailable(message: str = "The database does not answer. Try again.") -> ApiError:
    """Return the error of a moment: 503, with `Retry-After`."""
    return ApiError(503, "unavailable", message, headers={"Retry-After": str(RETRY_AFTER)})


def _of_field(error: InvalidOption) -> ApiError:
    text = str(error)
    return ApiError(400, "invalid", text, {error.field: text.removeprefix(f"{error.field}: ")})


def _of_arguments(error: InvalidArguments) -> ApiError:
    extra: dict[str, Any] = {} if error.index is None else {"index": error.index}
    return ApiError(400, "invalid", str(error), {error.path or "args": str(error)}, **extra)


def _of_move(error: InvalidTransition) -> ApiError:
    extra: dict[str, Any] = {"from": str(error.source), "to": str(error.target)}  # the first is no name in Python
    return ApiError(409, "conflict", str(error), **extra)


def _of_lease(error: LeaseLost) -> ApiError:
    return ApiError(409, "lease_lost", str(error), status=str(error.status), reason=str(error))


def _of_data(error: DataError) -> ApiError:
    # A check of ours has let it pass: worth a look, but it is the request that can't be stored.
    logger.warning("The database refused a value of a request", exc_info=error)
    return ApiError(400, "invalid", "A value does not fit what the database can hold.")


def _of_conflict(error: IntegrityError) -> ApiError:
    logger.warning("The database refused a request as a conflict", exc_info=error)
    return ApiError(409, "conflict", "Somebody else has changed the same at this moment. Try again.")


def _of_database(error: Exception) -> ApiError:
    logger.warning("The database does not answer a request: %s", error)
    return unavailable()


_ANSWERS: Final[Sequence[tuple[type[BaseException], Callable[[Any], ApiError]]]] = (
    (InvalidOption, _of_field),
    (InvalidArguments, _of_arguments),
    (UnknownTask, lambda error: ApiError(400, "invalid", str(error), {"task": str(error)})),
    (InvalidTransition, _of_move),
    (BatchDoesNotExist, lambda error: not_found(str(error))),
    (JobDoesNotExist, lambda error: not_found(str(error))),
    (LeaseLost, _of_lease),
    (JobIsBusy, lambda error: unavailable(str(error))),
    (Http404, lambda error: not_found("There is nothing here.")),
    (PermissionDenied, lambda error: ApiError(403, "forbidden", "This is not for you.")),
    (RequestDataTooBig, lambda error: ApiError(413, "too_large", "The body is too large.")),
    (SuspiciousOperation, lambda error: ApiError(400, "invalid", "The request can't be understood.")),
    (DataError, _of_data),
    (IntegrityError, _of_conflict),
    (OperationalError, _of_database),
    (InterfaceError, _of_database),
)


def _of_framework(error: drf.APIException) -> ApiError:
    """Answer to an error of REST framework, in our words where its own are of no use."""
    status = error.status_code
    if isinstance(error, drf.NotAuthenticated | drf.AuthenticationFailed):
        status = 401  # REST framework says 403 where the first authentication class has no challenge
    fields: dict[str, list[str]] = {}
    if isinstance(error, drf.ValidationError):
        fields = _fields(error.detail)
        message = "; ".join(f"{name}: {' '.join(texts)}" for name, texts in fields.items())
    else:
        message = str(error.detail)
    headers: dict[str, str] = {}
    if status == 401:
        headers["WWW-Authenticate"] = getattr(error, "auth_header", None) or "Bearer"
    if (wait := getattr(error, "wait", None)) is not None:
        headers["Retry-After"] = str(int(wait))  # rounded up already
    code = _CODES.get(status, "invalid" if status < 500 else "internal")
    return ApiError(status, code, message, fields, headers)


def _fields(detail: Any) -> dict[str, list[str]]:
    if not isinstance(detail, Mapping):
        return {"non_field_errors": [str(each) for each in (detail if isinstance(detail, list) else [detail])]}
    return {str(name): [str(each) for each in (texts if isinstance(texts, list) else [texts])] for name, texts in detail.items()}


def as_api_error(error: Exception) -> ApiError | None:
    """Return the answer to `error`; None for one that nobody expected."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, drf.APIException):
        return _of_framework(error)
    for kind, answer in _ANSWERS:
        if isinstance(error, kind):
            return answer(error)
    return None


def handler(error: Exception, context: Mapping[str, Any]) -> Response | None:
    """Answer to any exception of a view. One that nobody expected is logged and told to listeners as Django does: 500."""
    answer = as_api_error(error)
    if answer is None:
        if settings.DEBUG:
            return None  # Django's page shows where it was
        request = context["request"]
        logger.error("An API request failed: %s %s", request.method, request.path, exc_info=error)
        got_request_exception.send(sender=type(context["view"]), request=getattr(request, "_request", request))
        answer = ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, "internal", "Something went wrong here. It has been logged.")
    set_rollback()
    return Response(answer.body, status=answer.status_code, headers=answer.headers)

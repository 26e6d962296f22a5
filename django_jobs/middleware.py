"""Middleware."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from .users import enqueuing_as


class CurrentUserMiddleware:
    """Records the request's user as the one who enqueued a job (`Job.created_by`). Put it below AuthenticationMiddleware.

    The user is looked at when the request enqueues something, and not before: other requests cost nothing.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        self._is_async = iscoroutinefunction(get_response)
        if self._is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        """Answer the request."""
        if self._is_async:
            return self._acall(request)
        with enqueuing_as(lambda: getattr(request, "user", None)):
            response: HttpResponseBase = self.get_response(request)
            return response

    async def _acall(self, request: HttpRequest) -> HttpResponseBase:
        with enqueuing_as(lambda: getattr(request, "user", None)):
            response: HttpResponseBase = await self.get_response(request)
            return response

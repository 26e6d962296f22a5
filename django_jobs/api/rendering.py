"""Answers as JSON; as REST framework's browsable pages where that is installed as an app; as plain text where a view has some."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from django.apps import apps
from rest_framework.exceptions import NotAcceptable
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.renderers import BaseRenderer, BrowsableAPIRenderer, JSONRenderer
from rest_framework.utils.encoders import JSONEncoder


class _Encoder(JSONEncoder):
    """Writes times in one form."""

    def default(self, obj: Any) -> Any:
        """Return what JSON can hold."""
        return time_text(obj) if isinstance(obj, datetime) else super().default(obj)


class JobsJSONRenderer(JSONRenderer):
    """JSON in UTF-8, whatever the project has set for its own API."""

    encoder_class = _Encoder
    ensure_ascii, compact, strict = False, True, True

    def render(self, data: Any, accepted_media_type: Any = None, renderer_context: Any = None) -> bytes:
        """Return `data` as JSON. What was asked for may be null; REST framework would answer with nothing."""
        response = (renderer_context or {}).get("response")
        if data is None and response is not None and response.status_code == 200:
            return b"null"
        return bytes(super().render(data, accepted_media_type, renderer_context))


class JobsBrowsableRenderer(BrowsableAPIRenderer):
    """REST framework's pages."""

    def get_default_renderer(self, view: Any) -> BaseRenderer:
        """Show JSON, indented."""
        return JobsJSONRenderer()


class TextRenderer(BaseRenderer):
    """Text as it is; an error as JSON text."""

    media_type, format, charset = "text/plain", "txt", "utf-8"

    def render(self, data: Any, accepted_media_type: Any = None, renderer_context: Any = None) -> str | bytes:
        """Return `data`."""
        return data if isinstance(data, str) else bytes(JobsJSONRenderer().render(data))


class Negotiation(DefaultContentNegotiation):
    """REST framework's, but a `?format=` that does not exist is a 406, not an address that does not exist."""

    def filter_renderers(self, renderers: Iterable[BaseRenderer], format: str) -> list[BaseRenderer]:  # noqa: A002 - its name there
        """Return the renderers of this format."""
        known = list(renderers)
        found = [renderer for renderer in known if renderer.format == format]
        if not found:
            raise NotAcceptable(f"The formats are {', '.join(str(renderer.format) for renderer in known)}.")
        return found


def time_text(moment: datetime | None) -> str | None:
    """Return a time as RFC 3339, UTC, with microseconds: 2026-01-31T12:00:00.000000Z."""
    return None if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def renderers() -> list[BaseRenderer]:
    """Return JSON, which is the default, and the pages if their templates can be found."""
    return [JobsJSONRenderer(), *([JobsBrowsableRenderer()] if apps.is_installed("rest_framework") else [])]

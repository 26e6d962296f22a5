"""What `/schema/` answers where the package that makes one is not installed."""

from __future__ import annotations

from typing import ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from .base import JobsView
from .errors import ApiError


class NoSchemaView(JobsView):
    """Says what to install for a description of this API in OpenAPI."""

    verbs: ClassVar = {"GET": "view"}

    def get(self, request: Request) -> Response:
        """Raise 501."""
        raise ApiError(501, "not_installed", "For the schema install: pip install 'django-jobs-queue[openapi]'.")

"""The endpoints that are about the whole: the root, the version, the numbers."""

from __future__ import annotations

from typing import ClassVar

from django.urls import NoReverseMatch
from rest_framework.request import Request
from rest_framework.response import Response

from .. import __version__
from .base import JobsView

_LINKS = ("jobs", "jobs-timed-out", "queues", "workers", "info", "health", "metrics", "version", "schema")


class RootView(JobsView):
    """What there is."""

    verbs: ClassVar = {"GET": "view"}

    def get(self, request: Request) -> Response:
        """Return the addresses of the lists and of the service's own endpoints."""
        links = {}
        for name in _LINKS:
            try:
                links[name.replace("-", "_")] = self.url(name)
            except NoReverseMatch:
                continue
        return Response(links)


class VersionView(JobsView):
    """Which version of django_jobs answers."""

    verbs: ClassVar = {"GET": "view"}

    def get(self, request: Request) -> Response:
        """Return the version as JSON text."""
        return Response(__version__)

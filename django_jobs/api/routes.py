"""Routes with and without the slash at their end: clients written for other servers send none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.urls import URLPattern, path


def routes(route: str, view: Callable[..., Any], name: str) -> list[URLPattern]:
    """Return the pattern of `route`, which ends in a slash and has the name, and one without the slash."""
    return [path(route, view, name=name), path(route.removesuffix("/"), view)]

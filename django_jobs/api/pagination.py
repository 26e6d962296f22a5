"""Pages by keyset: `{"results": [...], "next": url, "previous": null}`, over one list or several one after the other.

A cursor holds the values by which its last row was sorted. So a page costs the same wherever it is, and rows that come and go
meanwhile make no other row be shown twice or be left out; one that moves is shown where it is then.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from django.core.exceptions import ValidationError
from django.db.models import Model, Q, QuerySet
from rest_framework.response import Response
from rest_framework.utils.urls import replace_query_param

from ..conf import jobs_settings
from ..models.selection import Segment
from .errors import ApiError, invalid
from .rendering import time_text

if TYPE_CHECKING:
    from .base import JobsView

_MAX_CURSOR_CHARS: Final = 1000
_WHOLE: Final = "whole"


def page(
    view: JobsView,
    rows: QuerySet[Any],
    *,
    parts: Sequence[Segment] = (),
    order: Sequence[str] = ("-id",),
    render: Callable[[Any], Any],
    prepare: Callable[[list[Any]], None] | None = None,
) -> Response:
    """Answer with the page of `rows` that the query's `cursor` and `page_size` ask for.

    `parts`: pieces of a list of jobs, each in its own order, shown one after the other. Without: the whole of `rows` in `order`,
    of columns without nulls, the last of them unique. `prepare` gets the page's rows before they are rendered. Raises
    `ApiError` for a cursor or a size that is none.
    """
    pieces = list(parts) or [Segment(_WHOLE, "", Q(), tuple(order))]
    size = page_size(view)
    index, last = _start(view, rows.model, pieces)
    found: list[tuple[int, Any]] = []
    while index < len(pieces) and len(found) <= size:
        piece = pieces[index]
        queryset: QuerySet[Any] = piece.of(rows)  # type: ignore[arg-type]
        if last is not None:
            queryset = queryset.filter(piece.after(last))
            last = None
        found += ((index, row) for row in queryset[: size + 1 - len(found)])
        index += 1
    shown = found[:size]
    if prepare is not None:
        prepare([row for _index, row in shown])
    following = None
    if len(found) > size:
        following = replace_query_param(
            view.request.build_absolute_uri(), "cursor", cursor_after(pieces[shown[-1][0]], shown[-1][1])
        )
    return Response({"results": [render(row) for _index, row in shown], "next": following, "previous": None})


def page_size(view: JobsView) -> int:
    """Return how many rows the query asks for, from 1 to the setting API_PAGE_SIZE_MAX. Raises 400."""
    settings = jobs_settings()
    text = view.request.query_params.get("page_size")
    if text is None:
        return min(settings.api_page_size, settings.api_page_size_max)
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and 1 <= int(text) <= settings.api_page_size_max):
        raise invalid("page_size", f"a whole number from 1 to {settings.api_page_size_max}.")
    return int(text)


def cursor_after(piece: Segment, row: Any) -> str:
    """Return the cursor of the page that begins behind `row` of `piece`."""
    values = [_plain(getattr(row, term.lstrip("-"))) for term in piece.order]
    return base64.urlsafe_b64encode(json.dumps([piece.name, *values]).encode()).decode().rstrip("=")


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return time_text(value)
    return str(value) if isinstance(value, UUID) else value


def _start(view: JobsView, model: type[Model], pieces: Sequence[Segment]) -> tuple[int, Any]:
    """Return in which piece the page begins, and after which row of it (None: at its front)."""
    text = view.request.query_params.get("cursor")
    if not text:
        return 0, None
    try:
        return _read(text, model, pieces)
    except (ValueError, TypeError, RecursionError, OverflowError, ValidationError):
        raise _bad() from None


def _read(text: str, model: type[Model], pieces: Sequence[Segment]) -> tuple[int, Any]:
    if len(text) > _MAX_CURSOR_CHARS:
        raise _bad()
    name, *values = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    index = [piece.name for piece in pieces].index(name)
    terms = [term.lstrip("-") for term in pieces[index].order]
    if len(values) != len(terms) or any(value is None or isinstance(value, bool | float | list | dict) for value in values):
        raise _bad()
    return index, model(**{term: _checked(model, term, value) for term, value in zip(terms, values, strict=True)})


def _checked(model: type[Model], name: str, value: Any) -> Any:
    field: Any = model._meta.get_field(name)
    read = field.to_python(value)
    if _plain(read) != value or (isinstance(read, str) and "\x00" in read) or (isinstance(read, int) and abs(read) >= 2**63):
        raise _bad()
    return read


def _bad() -> ApiError:
    return invalid("cursor", "not one that this list has given: begin again without.")

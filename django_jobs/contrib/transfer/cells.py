"""Values as cells of a CSV file."""

from __future__ import annotations

from typing import Any, Final

from django.db.models import Model

from .conf import transfer_settings

#: What makes a spreadsheet take a cell for a formula.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


def cell(row: Model, name: str) -> Any:
    """Return the value of a field, or of what a method without arguments returns, as a cell."""
    value = getattr(row, name, "")
    if callable(value):
        value = value()
    if value is None:
        return ""
    return safe(value if isinstance(value, int | float) and not isinstance(value, bool) else str(value))


def safe(value: Any) -> Any:
    """Return text that no spreadsheet runs: with an apostrophe before what begins like a formula. Numbers stay as they are."""
    if transfer_settings().formulas or not isinstance(value, str) or not value.startswith(_FORMULA):
        return value
    return f"'{value}"


def unsafe(value: str) -> str:
    """Return text without the apostrophe that `safe` has put before it."""
    return value[1:] if value.startswith("'") and value[1:].startswith(_FORMULA) else value

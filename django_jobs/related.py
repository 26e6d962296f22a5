"""The object that a job is about: kept with the job as the name of its model and its key, and shown as a link."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from .exceptions import InvalidOption
from .serializers import to_json

FIELDS: Final = ("model", "pk", "using")


def reference(value: Any, field: str = "related") -> dict[str, Any] | None:
    """Return `{"model": "shop.order", "pk": 7, "using": "default"}` for an object of a model, for such a dict, or None for None.

    A key that JSON can't hold is kept as text. Raises `InvalidOption` for what is neither, and for an object without a key.
    """
    if value is None:
        return None
    if isinstance(value, Mapping):
        if set(value) != set(FIELDS) or not isinstance(value["model"], str) or not isinstance(value["using"], str):
            raise InvalidOption(field, f"an object of a model, or a dict of {', '.join(FIELDS)}.")
        return {name: to_json(value[name], path=f"{field}.{name}") for name in FIELDS}
    meta = getattr(value, "_meta", None)
    if meta is None or isinstance(value, type):
        raise InvalidOption(field, f"an object of a model, or a function that returns one; not {type(value).__name__}.")
    if value.pk is None:
        raise InvalidOption(field, f"this {meta.label} has no key yet: save it first.")
    key = value.pk if isinstance(value.pk, int | str) and not isinstance(value.pk, bool) else str(value.pk)
    return {"model": meta.label_lower, "pk": key, "using": value._state.db or "default"}

"""`Idempotency-Key`: a request that is sent again gets the answer that it got, and does nothing a second time."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from django.db import IntegrityError

from ..lifecycle.recover import writing
from ..models import IdempotencyKey
from .errors import ApiError, invalid

if TYPE_CHECKING:
    from .base import JobsView

HEADER: Final = "Idempotency-Key"
MAX_KEY: Final = 255
_TRIES: Final = 3


def key_of(view: JobsView) -> str | None:
    """Return the request's key; None if it has none. Raises 400."""
    key = view.request.headers.get(HEADER)
    if key is None:
        return None
    key = key.strip()
    if not key or len(key) > MAX_KEY or not key.isascii() or not key.isprintable():
        raise invalid(HEADER, f"1 to {MAX_KEY} printable characters of ASCII.")
    return key


def once(view: JobsView, key: str, make: Callable[[], Any]) -> Any:
    """Return what `make` answers (JSON), made in one transaction with the note of it; or what was answered before to this key.

    Two of the same at once: one waits for the other. Raises 409 if the key came with another request.
    """
    scope, digest = view.caller.scope, _digest(view)
    rows = IdempotencyKey.objects.using(view.using).filter(scope=scope, key=key)
    for remaining in reversed(range(_TRIES)):
        if (known := rows.first()) is not None:
            if known.digest != digest:
                raise ApiError(409, "conflict", f"This {HEADER} came with another request before.", {HEADER: "is used already."})
            return json.loads(str(known.answer))
        try:
            with writing(view.using):
                row = IdempotencyKey(scope=scope, key=key, digest=digest)
                row.save(using=view.using, force_insert=True)
                answer = make()
                row.answer = json.dumps(answer)  # as text: what is sent again is in the same order
                row.save(using=view.using, update_fields=["answer"])
            return answer
        except IntegrityError:
            if not remaining or not rows.exists():
                raise
    raise AssertionError("the last try returns or raises")


def _digest(view: JobsView) -> str:
    request = view.request
    said = json.dumps([request.method, request.path, request.data], sort_keys=True)
    return hashlib.sha256(said.encode()).hexdigest()

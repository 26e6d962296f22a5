"""What a database error says, beneath Django's wrapping."""

from __future__ import annotations

from collections.abc import Iterator


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__


def sqlstate(error: BaseException) -> str | None:
    """Return the SQLSTATE of this error, wherever in its chain of causes; None for an error without (no session)."""
    for link in _chain(error):
        if (state := getattr(link, "sqlstate", None)) is not None:
            return str(state)
    return None


def errno(error: BaseException) -> int | None:
    """Return the number that a MySQL driver gave this error, wherever in its chain of causes."""
    for link in _chain(error):
        if link.args and isinstance(link.args[0], int):
            return link.args[0]
    return None

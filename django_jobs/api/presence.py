"""Whether the client of a request is still there: what waited for one that has gone must not claim jobs for it."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any, Final

#: Where servers keep a request's socket: gunicorn names it; that of `wsgiref`, so of `runserver`, is beneath the input.
_NAMED: Final = ("gunicorn.socket",)
_BENEATH: Final = ("raw", "_sock", "_stream", "stream")


def is_gone(environ: Mapping[str, Any]) -> bool:
    """Whether the client has closed its connection. False where the server doesn't let the socket be reached, and so with TLS."""
    found = _socket(environ)
    if found is None:
        return False
    try:
        return not found.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False  # nothing to read: it waits for the answer
    except ConnectionError:
        return True
    except (OSError, ValueError):  # a wrapped socket takes no flags
        return False


def _socket(environ: Mapping[str, Any]) -> socket.socket | None:
    for name in _NAMED:
        if isinstance(found := environ.get(name), socket.socket):
            return found
    part: Any = environ.get("wsgi.input")
    for _ in range(len(_BENEATH) + 1):
        if isinstance(part, socket.socket):
            return part
        # Django's own limited stream keeps the bound method of the one beneath.
        beneath = [getattr(part, name, None) for name in _BENEATH] + [getattr(getattr(part, "_read", None), "__self__", None)]
        part = next((value for value in beneath if value is not None), None)
    return None

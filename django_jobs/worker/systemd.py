"""Tell systemd how the worker is: `sd_notify` in a few lines, since the libraries for it are stale or need a compiler.

The protocol is a datagram to the socket that `NOTIFY_SOCKET` names, see the manual page sd_notify(3). Without that variable
nothing happens.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress

_last: dict[str, float] = {}


def notify(*lines: str, every: float = 0.0) -> bool:
    """Send `lines`, at most once in `every` seconds. Return whether they were sent; an unreachable socket is no error of ours."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return False
    now = time.monotonic()
    if every and now - _last.get(lines[0], float("-inf")) < every:
        return False
    _last[lines[0]] = now
    if address.startswith("@"):
        address = "\0" + address[1:]
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        sender.connect(address)
        sender.sendall("\n".join(lines).encode())
        return True
    return False

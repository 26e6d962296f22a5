"""Keep one database server as a child, and stop it when whoever started this is gone, for whatever reason.

Run as a program with one JSON argument: `command`, `folder` (removed at the end), `uid` and `gid` (None: as we are), `stop`
(the number of the signal for a quick, clean stop). The starter holds the other end of our standard input: when it dies, even
by SIGKILL, the pipe ends. One byte there stops the server and keeps the folder, the next byte starts it again. On Linux the
kernel also stops the server should this process be killed.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from types import FrameType
from typing import Any

POLL_SECONDS = 0.5
STOP_SECONDS = 10
PR_SET_PDEATHSIG = 1
# Loaded before it is needed: between fork and exec the child may no longer be able to read Python's own folder.
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def die_with_parent(number: int) -> None:
    """Ask the kernel to send this process `number` when its parent ends (Linux; elsewhere nothing)."""
    if LIBC:
        LIBC.prctl(PR_SET_PDEATHSIG, number)


def main() -> int:
    """Run the server until standard input ends or the server does."""
    task = json.loads(sys.argv[1])

    def stop(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    server = None
    try:
        server = start(task)
        while server.poll() is None:
            if not select.select([sys.stdin], [], [], POLL_SECONDS)[0]:
                continue
            if not os.read(0, 1):
                break
            end(server, task["stop"])
            if not os.read(0, 1):
                break
            server = start(task)
        return server.returncode or 0
    finally:
        if server is not None and server.poll() is None:
            end(server, task["stop"])
        shutil.rmtree(task["folder"], ignore_errors=True)


def start(task: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Start the server."""
    who = {} if task["uid"] is None else {"user": task["uid"], "group": task["gid"], "extra_groups": []}
    with open(os.path.join(task["folder"], "log"), "ab") as log:
        return subprocess.Popen(
            task["command"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
            preexec_fn=lambda: die_with_parent(task["stop"]),
            **who,
        )


def end(server: subprocess.Popen[bytes], number: int) -> None:
    """Stop the server in order; kill it if it does not stop."""
    server.send_signal(number)
    try:
        server.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait(STOP_SECONDS)


if __name__ == "__main__":
    sys.exit(main())

"""Keep one database server as a child, and stop it when whoever started this is gone, for whatever reason.

Run as a program with one JSON argument: `command`, `folder` (removed at the end), `uid` and `gid` (None: as we are), `stop`
(the number of the signal for a quick, clean stop). The starter holds the other end of our standard input: when it dies, even
by SIGKILL, the pipe ends. On Linux the kernel also stops the server should this process be killed.
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
    who = {} if task["uid"] is None else {"user": task["uid"], "group": task["gid"], "extra_groups": []}
    server = None
    try:
        with open(os.path.join(task["folder"], "log"), "ab") as log:
            server = subprocess.Popen(
                task["command"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
                preexec_fn=lambda: die_with_parent(task["stop"]),
                **who,
            )
        while server.poll() is None:
            if select.select([sys.stdin], [], [], POLL_SECONDS)[0] and not os.read(0, 1):
                break
        return server.returncode or 0
    finally:
        if server is not None and server.poll() is None:
            server.send_signal(task["stop"])
            try:
                server.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait(STOP_SECONDS)
        shutil.rmtree(task["folder"], ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())

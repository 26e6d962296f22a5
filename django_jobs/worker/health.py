"""A small HTTP server for probes:

`/live` (the supervisor's loop turns), `/ready` (processes work and reach the database), `/` (details).
"""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from django_jobs.worker import board

if TYPE_CHECKING:
    from django_jobs.worker.supervisor import Supervisor

#: Signs of life older than this do not count. Seconds.
STALE_SECONDS = 10.0


def report(supervisor: Supervisor) -> dict[str, Any]:
    """Return how the worker tree is, as JSON."""
    now = time.monotonic()
    processes = []
    is_working = False
    for child in list(supervisor.children):
        header = child.board.read_header()
        is_working = is_working or (header.state == board.WORKING and now - header.beat < STALE_SECONDS)
        processes.append(
            {
                "name": child.name,
                "pid": child.process.pid,
                "state": ("starting", "working", "draining", "stopped")[header.state],
                "running": header.running,
                "in_hand": header.in_hand,
                "done": header.done,
                "memory_mb": round(header.memory_mb, 1),
                "silent_seconds": round(now - header.beat, 1) if header.beat else None,
            }
        )
    is_live = now - supervisor.ticked < STALE_SECONDS
    return {
        "live": is_live,
        "ready": is_live and is_working and supervisor.recovery.is_connected,
        "name": supervisor.name,
        "database": "connected" if supervisor.recovery.is_connected else supervisor.recovery.last_error or "not connected yet",
        "maintenance": supervisor.maintenance.health() if supervisor.maintenance is not None else None,
        "processes": processes,
        "seconds_up": round(now - supervisor.started, 1),
    }


class HealthServer:
    """Serves `report` on a port, in threads of its own."""

    def __init__(self, supervisor: Supervisor, host: str, port: int) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                try:
                    body = report(supervisor)
                except Exception as error:
                    body = {"live": False, "ready": False, "error": f"{type(error).__name__}: {error}"}
                keys = {"/": "ready", "/ready": "ready", "/live": "live"}
                key = keys.get(self.path.split("?")[0].rstrip("/") or "/")
                status = 404 if key is None else 200 if body[key] else 503
                text = json.dumps({"error": "not found"} if key is None else body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *args: Any) -> None:
                """Probes are not news."""

        self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="health", daemon=True)

    def start(self) -> None:
        """Serve."""
        self._thread.start()

    def stop(self) -> None:
        """End serving."""
        self._server.shutdown()
        self.close()

    def close(self) -> None:
        """Close the port, also of one that was never started."""
        self._server.server_close()


assert board.STOPPED == 3  # the states' names above

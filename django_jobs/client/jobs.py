"""Jobs as the server tells them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

_UNITS: Final = {"w": 604_800.0, "d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|[wdhms])")


def seconds_of(value: Any) -> float | None:
    """Return a duration of the server's ("1h30m", or a number) in seconds; None if it is off: null, 0, or "0s"."""
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value) or None
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(str(value))) or None


def moment_of(value: Any) -> datetime | None:
    """Return a time of the server's (RFC 3339) as an aware datetime."""
    return datetime.fromisoformat(value) if isinstance(value, str) else None


class Job:
    """A job. The usual fields are attributes; `job["name"]` is any field, and `data` all of them, as the JSON that came.

    A field that was not asked for (`fields=`), or that this token may not see, is None as an attribute, and a KeyError by name.
    """

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.data = dict(data)

    def __getitem__(self, name: str) -> Any:
        return self.data[name]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.data.get('id')} {self.data.get('status') or ''}>"

    @property
    def id(self) -> str:
        """The job's UUID."""
        return str(self.data["id"])

    @property
    def queue(self) -> Any:
        """The name of its queue."""
        return self.data.get("queue")

    @property
    def status(self) -> Any:
        """One of waiting, scheduled, ready, running, succeeded, failed, timed_out, cancelled."""
        return self.data.get("status")

    @property
    def ended(self) -> Any:
        """Whether nothing more will happen to it by itself."""
        return self.data.get("ended")

    @property
    def task(self) -> Any:
        """The dotted path of its task; None for free input."""
        return self.data.get("task")

    @property
    def input(self) -> Any:
        """The free input; None for a job of a task."""
        return self.data.get("input")

    @property
    def args(self) -> Any:
        """The arguments of its task, a list."""
        return self.data.get("args")

    @property
    def kwargs(self) -> Any:
        """The keyword arguments of its task."""
        return self.data.get("kwargs")

    @property
    def output(self) -> Any:
        """The partial output while it runs; then its result."""
        return self.data.get("output")

    @property
    def error(self) -> Any:
        """The last error: {"class", "message"}, or None."""
        return self.data.get("error")

    @property
    def tags(self) -> Any:
        """Its tags, a list."""
        return self.data.get("tags")

    @property
    def timeout(self) -> float | None:
        """Seconds that an attempt may take; None = no limit."""
        return seconds_of(self.data.get("timeout"))

    @property
    def heartbeat_timeout(self) -> float | None:
        """Seconds that may pass without a sign of life; None = no limit."""
        return seconds_of(self.data.get("heartbeat_timeout"))


class ClaimedJob(Job):
    """A job that this client runs: it has a token, which every later call of the attempt names."""

    @property
    def token(self) -> str:
        """The token of the attempt. Whoever has it can end the job."""
        return str(self.data["token"])

    @property
    def attempt(self) -> int:
        """The number of the attempt, from 1, ever rising."""
        return int(self.data["attempt"])

    @property
    def lease_expires_at(self) -> datetime | None:
        """When the attempt times out, by the server's clock, if nothing is heard of it; None = never."""
        return moment_of(self.data.get("lease_expires_at"))

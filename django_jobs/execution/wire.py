"""Attempts and what becomes of them as lines of JSON, for the pipe between a worker and the process of an isolated job."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from ..outcomes import Attempt, Cancelled, ErrorInfo, Failed, Finished, HandedBack, Lost, Outcome, RetryAsked, Succeeded, TimedOut
from ..statuses import Status

_OUTCOMES: Final[dict[str, type[Outcome]]] = {
    cls.__name__: cls for cls in (Succeeded, Failed, RetryAsked, TimedOut, Cancelled, Lost, HandedBack)
}


def line(message: dict[str, Any]) -> bytes:
    """Return `message` as a line."""
    return json.dumps(message, default=_plain).encode() + b"\n"


def attempt_to_json(attempt: Attempt) -> dict[str, Any]:
    """Return the fields of an attempt, without copying its arguments."""
    return {field.name: getattr(attempt, field.name) for field in fields(attempt)}


def attempt_from_json(values: dict[str, Any]) -> Attempt:
    """Return the attempt that `attempt_to_json` was given."""
    for name in ("job_id", "token", "graph", "batch"):
        if values[name] is not None:
            values[name] = UUID(values[name])
    for name in ("run_after", "enqueued_at", "started_at"):
        if values[name] is not None:
            values[name] = datetime.fromisoformat(values[name])
    values["worker_ids"] = tuple(values["worker_ids"])
    return Attempt(**values)


def finished_to_json(finished: Finished) -> dict[str, Any]:
    """Return all of `finished` but its attempt, which the other side has."""
    outcome = asdict(finished.outcome)
    return {
        "outcome": type(finished.outcome).__name__,
        "values": outcome,
        "run_seconds": finished.run_seconds,
        "logs": finished.logs,
        "confirmed_by_task": finished.confirmed_by_task,
        "told": finished.told,
    }


def finished_from_json(attempt: Attempt, values: dict[str, Any]) -> Finished:
    """Return what `finished_to_json` was given, for the other side's `attempt`."""
    outcome = values["values"]
    if outcome.get("error") is not None:
        outcome["error"] = ErrorInfo(**outcome["error"])
    made = _OUTCOMES[values["outcome"]](**outcome)
    told = None if values["told"] is None else Status(values["told"])
    return Finished(attempt, made, values["run_seconds"], values["logs"], values["confirmed_by_task"], told)


def _plain(value: Any) -> Any:
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} can't go over the pipe")

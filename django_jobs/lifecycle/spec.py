"""New jobs before they are rows: what was asked for, and the columns that this comes to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from ..db import Dialect
from ..ids import uuid7
from ..options import UNSET, Unset
from ..serializers import dumps
from ..statuses import Status
from .inherit import Declared


@dataclass(slots=True, kw_only=True, eq=False)
class JobSpec:
    """What new jobs of one call have in common. All has been checked; what is JSON is JSON. Durations are seconds.

    What says nothing (None; `UNSET` for `max_attempts`) is taken from the queue, then from the settings; a limit of 0 is
    off. `run_after` and `start_by` are aware datetimes, or timedeltas from now by the database's clock.
    """

    task: str
    backend: str = "default"
    queue: str = "default"
    priority: int = 0
    description: str = ""
    serializer: str = "json"
    metadata: Mapping[str, Any] = field(default_factory=dict)
    tags: Sequence[str] = ()
    context: Mapping[str, Any] = field(default_factory=dict)
    created_by: str | None = None
    run_after: datetime | timedelta | None = None
    start_by: datetime | timedelta | None = None
    timeout: float | None = None
    timeout_grace: float | None = None
    heartbeat_timeout: float | None = None
    cpu_timeout: float | None = None
    max_attempts: int | Unset | None = UNSET
    backoff: Any = None
    max_deaths: int | None = None
    retention: Mapping[str, float | None] | None = None
    unique_until: str = ""
    related: Mapping[str, Any] | None = None
    graph: UUID | None = None
    batch: UUID | None = None
    on_parent_failure: str = ""
    on_parent_cancel: str = ""


@dataclass(slots=True, eq=False)
class NewJob:
    """A job to be stored, with arguments that are JSON. `insert` fills in the last three fields.

    `waits`: it is stored as waiting, for its parents or for its batch. `description`, `related`: where the spec's are not meant.
    """

    spec: JobSpec
    args: list[Any]
    kwargs: dict[str, Any]
    id: UUID = field(default_factory=uuid7)
    unique_key: str | None = None
    waits: bool = False
    description: str = ""
    related: Mapping[str, Any] | None = None

    status: Status = Status.READY
    enqueued_at: datetime | None = None
    run_after: datetime | None = None


#: Columns that are the same for each new job.
LITERALS: Final = {
    "parked": "''",
    "reason": "''",
    "starts": "0",
    "attempts_used": "0",
    "deaths": "0",
    "last_outcome": "''",
    "worker": "''",
    "error_class": "''",
    "error_message": "''",
    "fingerprint": "''",
    "is_http": "false",
}
#: Columns that are mostly the same, with the literal for it.
USUAL: Final = {
    "description": "''",
    "serializer": "'json'",
    "metadata": "'{}'",
    "tags": "'[]'",
    "context": "'{}'",
    "on_parent_failure": "''",
    "on_parent_cancel": "''",
    "unique_until": "''",
}
#: Columns left out where they are NULL, besides those of `optional_columns`.
_NULLABLE: Final = ("created_by", "timeout_grace", "cpu_timeout", "max_deaths")
JSON_COLUMNS: Final = frozenset({"args", "kwargs", "metadata", "tags", "context", "backoff", "retention", "related"})


def optional_columns(spec: JobSpec, queues: Declared, words: Dialect) -> dict[str, Any]:
    """Return the columns in which the jobs of `spec` differ from the usual, with what they inherit. A limit of 0 is NULL: off."""
    columns: dict[str, Any] = {}
    name: str
    value: Any
    from_queue = queues.options(spec.queue, spec.backend)
    retention = spec.retention
    if from_queue.retention:
        retention = {**from_queue.retention, **(retention or {})}
    backoff = from_queue.backoff if spec.backoff is None else spec.backoff
    for name, value in (
        ("timeout", from_queue.timeout if spec.timeout is None else spec.timeout),
        ("heartbeat_timeout", from_queue.heartbeat_timeout if spec.heartbeat_timeout is None else spec.heartbeat_timeout),
        ("max_attempts", from_queue.max_attempts if spec.max_attempts is UNSET else spec.max_attempts),
        ("description", spec.description),
        ("on_parent_failure", spec.on_parent_failure),
        ("on_parent_cancel", spec.on_parent_cancel),
        ("unique_until", spec.unique_until),
    ):
        if value:
            columns[name] = value
    if spec.serializer != "json":
        columns["serializer"] = spec.serializer
    if from_queue.is_http:
        columns["is_http"] = True
    for name, value in (
        ("metadata", spec.metadata),
        ("tags", spec.tags),
        ("context", spec.context),
        ("retention", retention),
        ("related", spec.related),
    ):
        if value:
            columns[name] = dumps(value)
    if backoff is not None:
        columns["backoff"] = dumps(backoff)
    for name, value in (("graph", spec.graph), ("batch_id", spec.batch)):
        if value is not None:
            columns[name] = words.uuid(value)
    for name in _NULLABLE:
        if (value := getattr(spec, name)) is not None:
            columns[name] = value
    return columns


#: A key that is there already is left alone.
LEAVE: Final = {
    "postgresql": " ON CONFLICT (id) DO NOTHING",
    "sqlite": " ON CONFLICT (id) DO NOTHING",
    "mysql": " ON DUPLICATE KEY UPDATE id = id",
}


def as_param(words: Dialect, value: datetime | timedelta) -> Any:
    """Return a moment, or the seconds of a delay, as a parameter."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if words.vendor == "postgresql":
        return value
    naive = value.astimezone(UTC).replace(tzinfo=None)
    return naive if words.vendor == "mysql" else naive.isoformat(" ", "microseconds")

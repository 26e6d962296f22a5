"""The pieces of the OpenAPI description: what jobs, queues, attempts and errors look like, in words of OpenAPI 3.0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from .. import options
from ..conf import jobs_settings
from ..durations import MAX_SECONDS
from ..models import AttemptOutcome
from ..queues import MAX_NAME_LENGTH
from ..statuses import FINAL, Status
from . import create, filters, values
from .job_actions import MAX_REASON
from .reports import ENDS
from .serializers import PAYLOAD

Part = dict[str, Any]
#: Before each component's name: a project's own API may have a `Job`, too.
PREFIX: Final = "DjangoJobs"

ANY: Final[Part] = {"description": "Any JSON."}
TEXT: Final[Part] = {"type": "string"}
FLAG: Final[Part] = {"type": "boolean"}
COUNT: Final[Part] = {"type": "integer", "minimum": 0}
TIME: Final[Part] = {"type": "string", "format": "date-time"}
UUID: Final[Part] = {"type": "string", "format": "uuid"}
URL: Final[Part] = {"type": "string", "format": "uri"}
DURATION: Final[Part] = {"type": "string", "description": "A duration in its normal form, such as 1h30m.", "example": "1h30m"}
QUEUE_NAME: Final[Part] = {
    "type": "string",
    "maxLength": MAX_NAME_LENGTH,
    "pattern": r"^[A-Za-z0-9_\-]+(\.[A-Za-z0-9_\-]+)*$",
    "example": "mail",
}
_FRACTION: Final = r"(\.[0-9]{1,6})?"
_UNITS: Final = "".join(f"([0-9]{{1,{most}}}{_FRACTION}{unit})?" for unit, most in zip("wdhms", (3, 4, 5, 6, 9), strict=True))
DURATION_IN: Final[Part] = {
    "description": "Seconds, or text such as 1h30m; at most a hundred years.",
    "anyOf": [
        {"type": "number", "minimum": 0, "maximum": MAX_SECONDS},
        {"type": "string", "minLength": 1, "pattern": rf"^([0-9]{{1,9}}|{_UNITS}([0-9]{{1,9}}ms)?)$", "example": "1h30m"},
    ],
}
MOMENT_IN: Final[Part] = {
    "description": "A time in RFC 3339, or a duration from now.",
    "anyOf": [TIME, *DURATION_IN["anyOf"]],
}


def ref(name: str) -> Part:
    """Return the reference to a component."""
    return {"$ref": f"#/components/schemas/{PREFIX}{name}"}


def nullable(part: Part) -> Part:
    """Return `part`, or null."""
    return {"allOf": [part], "nullable": True} if "$ref" in part else {**part, "nullable": True}


def array(part: Part, **more: Any) -> Part:
    """Return a list of `part`."""
    return {"type": "array", "items": part, **more}


def mapping(part: Part, **more: Any) -> Part:
    """Return an object whose values are `part`."""
    return {"type": "object", "additionalProperties": part, **more}


def known(properties: Mapping[str, Part], *, optional: bool | tuple[str, ...] = (), **more: Any) -> Part:
    """Return an object with these keys and no other; all are there, but for `optional` ones."""
    left_out = tuple(properties) if optional is True else optional or ()
    required = [name for name in properties if name not in left_out]
    said: Part = {"type": "object", "properties": dict(properties), "additionalProperties": False, **more}
    return said | ({"required": required} if required else {})


def page_of(part: Part) -> Part:
    """Return a page of a list."""
    return known(
        {"results": array(part), "next": nullable(URL), "previous": {"type": "string", "nullable": True, "enum": [None]}}
    )


def _by_status(part: Part, statuses: Any = Status) -> Part:
    return known({status.value: part for status in sorted(statuses)})


def _backoff_in() -> Part:
    step = {"anyOf": [*DURATION_IN["anyOf"]]}
    return {
        "description": "Pauses before the retries: one for all, a list of which the last repeats, or a pattern (see Tasks).",
        "anyOf": [*DURATION_IN["anyOf"], array(step, maxItems=1000), {"type": "object"}],
        "nullable": True,
    }


def _retention_in() -> Part:
    words = sorted({*(status.value for status in FINAL), "completed"})
    each = nullable(DURATION_IN)
    one_word = {"not": {"required": [Status.SUCCEEDED.value, "completed"]}}
    return {
        "description": "For how long a job is kept after its end: one duration, or one by status; null and 0: for ever.",
        "anyOf": [*DURATION_IN["anyOf"], known(dict.fromkeys(words, each), optional=True, **one_word)],
        "nullable": True,
    }


def limits_in() -> dict[str, Part]:
    """Return what a body may say of the options that jobs and queues share."""
    most = options.MAX_INTEGER
    return {
        "timeout": nullable(DURATION_IN),
        "heartbeat_timeout": nullable(DURATION_IN),
        "retries": {"type": "integer", "minimum": 0, "maximum": most - 1, "nullable": True},
        "max_attempts": {"type": "integer", "minimum": 1, "maximum": most, "nullable": True},
        "retry_delays": _backoff_in(),
        "backoff": _backoff_in(),
        "retention": _retention_in(),
        "expires_after": nullable(DURATION_IN),
    }


#: Two words for one thing are not said at once.
ONE_WORD: Final[Part] = {"not": {"anyOf": [{"required": list(names)} for names in values.SYNONYMS]}}


def description_in() -> dict[str, Part]:
    """Return what a body may say of a job besides its limits."""
    tag = {"type": "string", "minLength": 1, "maxLength": options.MAX_TAG, "pattern": r"\S"}
    return {
        "tags": array(tag, nullable=True),
        "priority": {"type": "integer", "minimum": options.PRIORITY_MIN, "maximum": options.PRIORITY_MAX},
        "description": {"type": "string", "maxLength": options.MAX_DESCRIPTION},
        "metadata": {"type": "object"},
        "run_after": nullable(MOMENT_IN),
        "start_by": nullable(MOMENT_IN),
    }


def _new_job() -> Part:
    return known(
        {
            "queue": nullable(QUEUE_NAME),
            "task": {"type": "string", "maxLength": 255, "nullable": True, "description": "A registered task's dotted name."},
            "args": array({}),
            "kwargs": {"type": "object"},
            "input": {"description": "Any JSON, for a queue that HTTP workers serve, in place of a task."},
            "unique_key": {"type": "string", "maxLength": values.MAX_UNIQUE_KEY, "pattern": r"\S", "nullable": True},
            "on_conflict": ref("OnConflict"),
            **limits_in(),
            **description_in(),
        },
        optional=True,
        **ONE_WORD,
    )


REASON: Final[Part] = {"type": "string", "maxLength": MAX_REASON}


def _change() -> Part:
    error = known({"class": TEXT, "message": TEXT, "traceback": TEXT}, optional=True)
    return known(
        {
            "queue": QUEUE_NAME,
            **limits_in(),
            **description_in(),
            "status": ref("NewStatus"),
            "reason": REASON,
            "token": {**UUID, "description": "Of the attempt: then its holder says what came of it."},
            "output": ANY,
            "error": {"anyOf": [error, TEXT], "nullable": True},
            "logs": TEXT,
            "progress": nullable(ref("Progress")),
            "final": {**FLAG, "description": "Of a failure: it is not retried."},
        },
        optional=True,
        **ONE_WORD,
    )


def _queue_settings() -> dict[str, Part]:
    return {
        "timeout": nullable(DURATION),
        "heartbeat_timeout": nullable(DURATION),
        "retries": nullable(COUNT),
        "max_attempts": nullable(COUNT),
        "retry_delays": ANY,
        "retention": mapping(nullable(DURATION), nullable=True),
        "expires_after": nullable(DURATION),
    }


def _queue() -> Part:
    paused = known({"at": TIME, "until": nullable(TIME), "by": TEXT, "reason": TEXT}, nullable=True)
    effective = {**_queue_settings(), "is_http": FLAG, "retention": ref("Retention")}
    return known(
        {
            "name": QUEUE_NAME,
            "description": TEXT,
            "is_http": nullable(FLAG),
            **_queue_settings(),
            "effective": known(effective, description="What a job of the queue gets that says nothing itself."),
            "paused": paused,
        }
    )


def queue_in(*more: str) -> Part:
    """Return the body that says what a queue says."""
    said = {
        "description": {"type": "string", "maxLength": options.MAX_DESCRIPTION},
        "is_http": nullable(FLAG),
        **limits_in(),
        "max_attempts": {"type": "integer", "minimum": 1, "maximum": options.MAX_INTEGER, "nullable": True},
    }
    extra = {"name": QUEUE_NAME} if "name" in more else {}
    part = known({**extra, **said}, optional=tuple(said), **ONE_WORD)
    return part


def _job() -> dict[str, Part]:
    error = known({"class": TEXT, "message": TEXT}, nullable=True)
    texts = {"id": UUID, "batch": nullable(UUID), "graph": nullable(UUID)}
    texts |= dict.fromkeys(("queue", "description", "reason"), TEXT)
    maybe = dict.fromkeys(("task", "last_outcome", "unique_key", "worker", "created_by", "parked"), nullable(TEXT))
    times = {"created_at": TIME}
    times |= dict.fromkeys(
        ("run_after", "due_at", "start_by", "started_at", "last_started_at", "ended_at", "last_heartbeat", "prune_at"),
        nullable(TIME),
    )
    durations = dict.fromkeys(("timeout", "heartbeat_timeout", "expires_after"), nullable(DURATION))
    numbers = {"retries": nullable(COUNT), "max_attempts": nullable(COUNT), "attempts_used": COUNT, "retries_attempted": COUNT}
    return {
        **(texts | maybe | times | durations | numbers),
        "status": ref("Status"),
        "ended": FLAG,
        "priority": {"type": "integer"},
        "tags": array(TEXT),
        "input": ANY,
        "args": array({}, nullable=True),
        "kwargs": {"type": "object", "nullable": True},
        "metadata": {"type": "object"},
        "related": {"type": "object", "nullable": True},
        "retry_delays": ANY,
        "retention": ref("Retention"),
        "output": ANY,
        "result": ANY,
        "progress": {"allOf": [ref("Progress")], "nullable": True},
        "error": error,
    }


def _claimed(job: dict[str, Part]) -> Part:
    return known({**job, "token": UUID, "attempt": COUNT, "lease_expires_at": nullable(TIME)})


def _attempt() -> Part:
    error = known({"class": TEXT, "message": TEXT, "traceback": TEXT}, nullable=True)
    return known(
        {
            "number": COUNT,
            "worker": nullable(TEXT),
            "started_at": nullable(TIME),
            "ended_at": TIME,
            "seconds": {"type": "number", "nullable": True},
            "outcome": ref("AttemptOutcome"),
            "counted": FLAG,
            "cause": TEXT,
            "error": error,
            "logs": TEXT,
        }
    )


def _worker() -> Part:
    job = {"id": UUID, "queue": TEXT, "task": TEXT, "attempt": COUNT, "claimed_at": TIME, "prefetched": FLAG}
    counts = dict.fromkeys(("slots", "running", "jobs_done"), COUNT)
    texts = dict.fromkeys(("kind", "name", "host", "version", "stop_reason"), TEXT)
    times = {"started_at": TIME, "seen_at": TIME, "stopped_at": nullable(TIME)}
    return known(
        {
            "id": UUID,
            "parent": nullable(UUID),
            **texts,
            "pid": {"type": "integer"},
            "queues": array(TEXT),
            **counts,
            "memory_mb": {"type": "number", "nullable": True},
            **times,
            "state": ref("WorkerState"),
            "jobs": array(known(job)),
        }
    )


def filter_in() -> dict[str, Part]:
    """Return the words by which jobs are chosen."""
    words = sorted({*filters._WORDS, *(status.value for status in Status), *values.STATUS_WORDS})
    text = {"type": "string", "minLength": 1, "maxLength": 255}
    return {
        "status": {"type": "string", "enum": words},
        "ended": FLAG,
        "queue": {
            "type": "string",
            "maxLength": MAX_NAME_LENGTH + len(".*"),
            "pattern": r"^[A-Za-z0-9_\-]+(\.[A-Za-z0-9_\-]+)*(\.\*)?$",
            "description": "A queue, or name.* for it and those below.",
        },
        "task": text,
        "tag": {"type": "string", "minLength": 1, "maxLength": options.MAX_TAG, "pattern": r"\S"},
        "since": {**TIME, "description": "Enqueued at that time or later."},
        "until": {**TIME, "description": "Enqueued before that time."},
        "unique_key": {"type": "string", "maxLength": values.MAX_UNIQUE_KEY, "pattern": r"\S"},
        "error": {**text, "description": "The class of the error."},
        "last_outcome": {"type": "string", "enum": list(AttemptOutcome.values)},
        "batch": UUID,
    }


def bulk_in(*extra: str) -> Part:
    """Return the body of a verb for many jobs."""
    chosen = filter_in()
    chosen["status"] = {"anyOf": [chosen["status"], array(chosen["status"], minItems=1)]}
    said = {
        "ids": array(UUID, minItems=1, maxItems=jobs_settings().api_bulk_max),
        "filter": known(chosen, optional=True, minProperties=1),
        "dry_run": {**FLAG, "default": False},
        "reason": REASON,
        **{name: {**FLAG, "default": False} for name in extra},
    }
    return known(said, optional=True, oneOf=[{"required": ["ids"]}, {"required": ["filter"]}])


def _words() -> dict[str, Part]:
    """Return the components that are one of some words. (Left inline, drf-spectacular would name them by itself.)"""
    ends = [*(status.value for status in ENDS), Status.READY.value, *values.STATUS_WORDS]
    chosen = {
        "Status": [status.value for status in Status],
        "NewStatus": ends,
        "OnConflict": [create.RETURN, create.RAISE],
        "AttemptOutcome": list(AttemptOutcome.values),
        "WorkerState": ["alive", "silent", "stopped"],
        "BulkOutcome": ["changed", "requested", "refused"],
    }
    return {name: {"type": "string", "enum": words} for name, words in chosen.items()}


def components() -> dict[str, Part]:
    """Return all components by their names without the prefix."""
    job = _job()
    number = {"type": "number", "nullable": True}
    error = {"code": TEXT, "message": TEXT, "fields": mapping(array(TEXT))}
    return {
        **_words(),
        "Error": known(
            {"error": {"type": "object", "properties": error, "required": ["code", "message"]}},
            description="The one shape of errors. `fields` says what is wrong with each; some errors have more beside it.",
        ),
        "Retention": _by_status(nullable(DURATION), FINAL),
        "Progress": known(
            {"done": number, "total": number, "message": {"type": "string", "maxLength": 500}},
            optional=True,
        ),
        "Job": known(job, optional=True, description="A job; without `payload` less " + ", ".join(sorted(PAYLOAD)) + "."),
        "ClaimedJob": _claimed(job),
        "NewJob": _new_job(),
        "JobChange": _change(),
        "JobAttempt": _attempt(),
        "Queue": _queue(),
        "Worker": _worker(),
        "BulkReport": known(
            {
                "dry_run": FLAG,
                **dict.fromkeys(("matched", "changed", "requested", "refused"), COUNT),
                "more": FLAG,
                "results": array(known({"id": UUID, "outcome": ref("BulkOutcome"), "message": TEXT}, optional=("message",))),
            }
        ),
        "CountsByStatus": _by_status(COUNT),
    }

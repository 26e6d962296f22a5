"""Jobs as text and as JSON for the command line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from django.forms.models import model_to_dict

from ..models import Job, JobAttempt, JobLock

#: What a line of `jobs list` needs: never arguments, results or tracebacks.
COLUMNS: Final = ["id", "status", "parked", "queue", "priority", "task", "attempts_used", "max_attempts", "due_at", "enqueued_at"]
COLUMNS_MORE: Final = ["finished_at", "run_seconds", "worker", "error_class", "reason"]
_HEADS: Final = ("ID", "STATUS", "QUEUE", "TASK", "ATTEMPTS", "WHEN", "NOTE")
_NOTE_CHARS: Final = 60


def as_dict(job: Job, names: Sequence[str]) -> dict[str, Any]:
    """Return a job's columns by name, ready for `json.dumps` with Django's encoder."""
    return {name: getattr(job, name) for name in names}


def table(jobs: Iterable[Job]) -> list[str]:
    """Return lines in columns, a head first."""
    return columns([_HEADS, *(_row(job) for job in jobs)])


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return lines whose cells are below each other. All rows have as many."""
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _row(job: Job) -> tuple[str, ...]:
    when = job.finished_at or job.due_at
    note = job.error_class.rpartition(".")[2] if job.error_class else job.reason
    return (
        str(job.pk),
        f"parked:{job.parked}" if job.parked else job.status,
        printable(job.queue),
        printable(job.task),
        f"{job.attempts_used}/{'-' if job.max_attempts is None else job.max_attempts}",
        f"{when:%Y-%m-%d %H:%M:%S}",
        printable(note)[:_NOTE_CHARS],
    )


def printable(text: str) -> str:
    """Return `text` on one line and without control characters: a terminal must not obey what a row says."""
    return "".join(char if char.isprintable() else " " for char in text)


def details(job: Job, attempts: Sequence[JobAttempt], lock: JobLock | None) -> dict[str, Any]:
    """Return everything about one job, its attempts and its lock row."""
    found = as_dict(job, [field.attname for field in job._meta.concrete_fields])
    found["attempts"] = [model_to_dict(attempt, exclude=["id", "job"]) for attempt in attempts]
    found["lock"] = lock and {**model_to_dict(lock, exclude=["job"]), "expires_at": lock.expires_at}
    return found


def detail_lines(found: dict[str, Any], dump: Any) -> list[str]:
    """Return the details as lines: what is empty is left out, tracebacks come last."""
    lines = []
    for name, value in found.items():
        if name in ("attempts", "lock") or value in (None, "", [], {}):
            continue
        text = value if isinstance(value, str) else dump(value).strip('"')
        lines.append(f"{name + ':':<20} {_multiline(text)}")
    if found["lock"]:
        lines.append(f"{'lock:':<20} {dump(found['lock'])}")
    for attempt in found["attempts"]:
        lines += ["", f"attempt {attempt['number']}: {attempt['outcome']} at {dump(attempt['ended_at']).strip(chr(34))}"]
        texts = (
            attempt["cause"],
            f"{attempt['error_class']}: {attempt['error_message']}".strip(": "),
            attempt["traceback"],
            attempt["logs"],
        )
        lines += [_multiline(text.rstrip()) for text in texts if text]
    return lines


def _multiline(text: str) -> str:
    return "\n".join(printable(line) for line in text.split("\n"))

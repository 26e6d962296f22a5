"""The page of one job: what it is, how it went, attempt by attempt, and what can be done with it now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django.http import HttpRequest
from django.utils import timezone
from django.utils.formats import number_format
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..conf import jobs_database
from ..models import AttemptOutcome, Batch, CancelRequest, Job, JobAttempt, JobLock, Worker
from ..registry import docline
from ..statuses import Status
from . import display, tracebacks
from .drawing import draw
from .related import related_link
from .verbs import VERBS

if TYPE_CHECKING:
    from .jobs import JobAdmin

#: The newest attempts that the page shows: a job without a bound on attempts may have thousands.
MAX_ATTEMPTS_SHOWN: Final = 20
#: An outcome of an attempt, and the badge of the status that looks like it.
_LOOK: Final = {
    AttemptOutcome.SUCCEEDED: "succeeded",
    AttemptOutcome.FAILED: "failed",
    AttemptOutcome.RETRY: "retry",
    AttemptOutcome.TIMED_OUT: "timed_out",
    AttemptOutcome.CANCELLED: "cancelled",
    AttemptOutcome.LOST: "lost",
    AttemptOutcome.HANDED_BACK: "waiting",
}
#: Fields in groups; what no group names is shown elsewhere on the page.
_GROUPS: Final = [
    (
        gettext_lazy("Place in the queue"),
        ["queue", "priority", "run_after", "due_at", "start_by", "unique_key", "unique_until", "parked"],
    ),
    (
        gettext_lazy("Times"),
        ["enqueued_at", "started_at", "last_started_at", "last_heartbeat_at", "finished_at", "run_seconds", "prune_at"],
    ),
    (
        gettext_lazy("Limits"),
        ["timeout", "timeout_grace", "heartbeat_timeout", "cpu_timeout", "max_attempts", "max_deaths", "backoff"],
    ),
    (gettext_lazy("Attempts so far"), ["starts", "attempts_used", "deaths", "last_outcome", "worker", "last_token"]),
    (gettext_lazy("Together with others"), ["graph", "on_parent_failure", "on_parent_cancel", "batch"]),
    (gettext_lazy("Origin"), ["backend", "created_by", "serializer", "tags", "metadata", "retention", "fingerprint"]),
]
_DURATIONS: Final = {"run_seconds", "timeout", "timeout_grace", "heartbeat_timeout", "cpu_timeout"}
_JSON: Final = {"tags", "metadata", "retention", "backoff"}


def page_context(admin: JobAdmin, request: HttpRequest, job: Job, *, shows_payload: bool) -> dict[str, Any]:
    """Return what the template shows. Four queries, however much the job has been through; for one of a graph a few more."""
    using = jobs_database()
    attempts = list(JobAttempt.objects.using(using).filter(job_id=job.pk).order_by("-number")[: MAX_ATTEMPTS_SHOWN + 1])
    lock = JobLock.objects.using(using).filter(job_id=job.pk).first()
    holder = Worker.objects.using(using).filter(pk=lock.worker).first() if lock and lock.worker else None
    return {
        "title": job.task.rpartition(".")[2],
        "subtitle": None,
        "opts": admin.opts,
        "media": admin.media,
        "original": job,
        "job": job,
        "has_view_permission": True,
        "change": True,
        "task": display.task_name(job.task),
        "badge": display.status_badge(job.status, job.parked),
        "description": job.description or docline(job.task),
        "facts": _facts(job),
        "related": related_link(admin.admin_site, request, job.related),
        "bar": display.fraction(job.progress),
        "progress_text": _progress_text(job),
        "groups": [(title, [_field(admin, job, name) for name in names]) for title, names in _GROUPS],
        "shows_payload": shows_payload,
        "payload": _payload(job) if shows_payload else [],
        "attempts": [_attempt(attempt) for attempt in attempts[:MAX_ATTEMPTS_SHOWN]],
        "has_more_attempts": len(attempts) > MAX_ATTEMPTS_SHOWN,
        "shown_attempts": MAX_ATTEMPTS_SHOWN,
        "lock": lock and _lock(admin, lock, holder),
        "graph": draw(admin, job, request.user),
        "requests": list(CancelRequest.objects.using(using).filter(job_id=job.pk).order_by("-pk")[:10]),
        "buttons": [
            {"verb": verb, "url": admin.url("act", verb.name)}
            for verb in VERBS.values()
            if verb.is_allowed(request.user) and (Status(job.status) in verb.accepts or verb.name == "delete")
        ],
        "here": request.get_full_path(),
        "history_url": admin.url("history", job.pk),
        "has_error": bool(job.error_class or job.error_message) and job.status != Status.SUCCEEDED,
    }


def _facts(job: Job) -> list[tuple[Any, Any]]:
    """Return the few lines that a person looks for first."""
    facts: list[tuple[Any, Any]] = [(_("queue"), job.queue), (_("attempts"), display.attempts(job))]
    match job.status:
        case Status.RUNNING:
            facts.append((_("running since"), display.ago(job.last_started_at)))
        case Status.SCHEDULED:
            facts.append((_("due"), display.ago(job.due_at)))
        case Status.READY | Status.WAITING:
            facts.append((_("waiting since"), display.ago(job.enqueued_at)))
        case _:
            facts.append((_("finished"), display.ago(job.finished_at)))
            facts.append((_("took"), display.seconds(job.run_seconds)))
    if job.started_at and job.started_at >= job.enqueued_at:
        facts.append((_("waited"), display.seconds((job.started_at - job.enqueued_at).total_seconds())))
    if job.worker:
        facts.append((_("worker"), format_html("<code>{}</code>", job.worker)))
    return facts


def _progress_text(job: Job) -> str:
    progress = job.progress
    if not isinstance(progress, dict):
        return "" if progress is None else display.pretty_json(progress)
    parts = []
    if bar := display.fraction(progress):
        parts.append(f"{number_format(bar[0])} / {number_format(bar[1])}")
    if message := progress.get("message"):
        parts.append(str(message)[:500])
    return " · ".join(parts)


def _field(admin: JobAdmin, job: Job, name: str) -> dict[str, Any]:
    """Return a field's label and its value as text; empty where there is nothing to say."""
    field: Any = Job._meta.get_field(name)
    value = getattr(job, field.attname)  # a batch may be gone by now
    if name in _DURATIONS:
        text: Any = display.seconds(value)
    elif name in _JSON:
        text = display.short_json(value) if value not in (None, {}, []) else ""
    elif name.endswith("_at") or name in ("run_after", "start_by"):
        text = display.exact(value)
    elif name == "batch" and value is not None:
        text = format_html('<a href="{}">{}</a>', admin.url_of(Batch, "change", value), value)
    elif name == "max_attempts" and value is None:
        text = "∞"
    else:
        text = "" if value is None else str(value)
    return {
        "name": name,
        "label": getattr(field, "verbose_name", name),
        "text": text or display.NOTHING,
        "is_code": name in _JSON,
    }


def _payload(job: Job) -> list[tuple[Any, str]]:
    """Return arguments and results as text, what is empty left out."""
    panes: list[tuple[Any, str]] = [(_("Arguments"), display.payload_json(job.args))]
    if job.kwargs:
        panes.append((_("Keyword arguments"), display.payload_json(job.kwargs)))
    if job.output is not None:
        panes.append((_("Output so far"), display.payload_json(job.output)))
    if job.result is not None or job.status == Status.SUCCEEDED:
        panes.append((_("Result"), display.payload_json(job.result)))
    if job.context:
        panes.append((_("Context"), display.payload_json(job.context)))
    return panes


def _attempt(attempt: JobAttempt) -> dict[str, Any]:
    outcome = attempt.outcome
    known = outcome in AttemptOutcome.values
    return {
        "row": attempt,
        "cause": "" if attempt.cause and attempt.cause in attempt.error_message else attempt.cause,
        "badge": display.badge(
            _LOOK.get(AttemptOutcome(outcome), "waiting") if known else "waiting", attempt.get_outcome_display()
        ),
        "ended": display.ago(attempt.ended_at),
        "started": display.exact(attempt.started_at),
        "took": display.seconds(attempt.run_seconds),
        "blocks": tracebacks.blocks(attempt.traceback) if attempt.traceback else [],
    }


def _lock(admin: JobAdmin, lock: JobLock, holder: Worker | None) -> dict[str, Any]:
    return {
        "row": lock,
        "is_expired": lock.expires_at < timezone.now(),
        "claimed": display.ago(lock.claimed_at),
        "expires": display.ago(lock.expires_at),
        "worker": holder,
        "worker_url": admin.url_of(Worker, "change", holder.pk) if holder else "",
    }

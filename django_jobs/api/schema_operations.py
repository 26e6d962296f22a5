"""The operations of the OpenAPI description, by view and method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rest_framework.views import APIView

from ..conf import jobs_settings
from ..durations import format_duration
from ..models import TOTALS
from ..options import MAX_TAG
from ..statuses import Status
from . import (
    batches,
    bulk,
    claims,
    health,
    idempotency,
    job_actions,
    jobs,
    metrics,
    one_job,
    queue_contents,
    queues,
    reports,
    serializers,
    service,
    tags,
    values,
)
from . import schema_parts as parts
from .schema_parts import ANY, COUNT, FLAG, QUEUE_NAME, REASON, TEXT, TIME, URL, UUID, Part, known, ref

#: What each operation may answer, whatever it does.
ALWAYS: Final = (400, 401, 403, 404, 406, 429, 503)
WITH_BODY: Final = (413, 415)
WHAT: Final[Mapping[int, str]] = {
    200: "What was asked for.",
    201: "Made.",
    202: "Asked for: it is done when its worker stops, or when it is asked for again.",
    204: "Done; nothing to say.",
    400: "What was sent is wrong; `fields` says where.",
    401: "Who asks is not known.",
    403: "Not for the caller.",
    404: "There is no such thing, or it is not for the caller.",
    406: "No such format.",
    409: "Can't be done now; the message says why.",
    413: "Too large, or too many.",
    415: "Not JSON in UTF-8.",
    429: "Too often.",
    501: "Not installed.",
    503: "The database does not answer.",
}


@dataclass(frozen=True)
class Operation:
    """One method of one endpoint. `answers` maps a status to what it holds (None: nothing)."""

    id: str
    answers: Mapping[int, Part | None]
    tag: str
    query: Mapping[str, Part] = field(default_factory=dict)
    body: Part | None = None
    needs_body: bool = True
    conflicts: bool = False
    header: Mapping[str, Part] = field(default_factory=dict)  # what a request may have
    gives: Mapping[str, Part] = field(default_factory=dict)  # headers that an answer may have
    media_type: str = "application/json"


def path_parameters() -> Mapping[str, Part]:
    """Return what the parts of addresses may be."""
    return {
        "id": UUID,
        "name": QUEUE_NAME,
        "tag": {"type": "string", "minLength": 1, "maxLength": MAX_TAG, "pattern": r"^[^/]*\S[^/]*$"},
    }


def _paging() -> dict[str, Part]:
    most = jobs_settings().api_page_size_max
    return {
        "cursor": {**TEXT, "description": "Where the page begins: take it from `next`."},
        "page_size": {"type": "integer", "minimum": 1, "maximum": most},
    }


def _fields() -> dict[str, Part]:
    names = list(serializers.FIELDS)
    return {
        "fields": {
            "type": "array",
            "items": {"type": "string", "enum": names},
            "minItems": 1,
            "description": "Only these fields, set apart by commas.",
        }
    }


def operations() -> dict[tuple[type[APIView], str], Operation]:
    """Return all operations."""
    return {**_of_service(), **_of_jobs(), **_of_one_job(), **_of_verbs(), **_of_batches(), **_of_queues(), **_of_http_workers()}


def _of_service() -> dict[tuple[type[APIView], str], Operation]:
    statistics = {f"total_jobs_{name.removeprefix('total_')}": COUNT for name in TOTALS}
    by_status = ref("CountsByStatus")
    info = known({"queues": parts.mapping(by_status), "jobs": by_status, "statistics": known(statistics)})
    check = known({"name": TEXT, "ok": FLAG, "message": TEXT})
    healthy = {"status": {"type": "string", "enum": ["healthy", "unhealthy"]}, "checks": parts.array(check)}
    unhealthy = known({**healthy, "error": {"type": "object"}})
    state = {"type": "string", "enum": ["alive", "stopped", "all"], "default": "alive"}
    links = known({name.replace("-", "_"): URL for name in service._LINKS})
    return {
        (service.RootView, "GET"): Operation("jobs_root", {200: links}, "service"),
        (service.InfoView, "GET"): Operation("jobs_info", {200: info}, "service"),
        (service.VersionView, "GET"): Operation("jobs_version", {200: TEXT}, "service"),
        (health.HealthView, "GET"): Operation(
            "jobs_health", {200: known(healthy), 503: {"anyOf": [unhealthy, ref("Error")]}}, "service"
        ),
        (metrics.MetricsView, "GET"): Operation("jobs_metrics", {200: TEXT}, "service", media_type="text/plain"),
        (service.WorkersView, "GET"): Operation(
            "jobs_workers", {200: parts.page_of(ref("Worker"))}, "service", {**_paging(), "state": state}
        ),
    }


def _of_jobs() -> dict[tuple[type[APIView], str], Operation]:
    chosen = parts.filter_in()
    # Several words, set apart by commas.
    chosen["status"] = {"type": "array", "items": chosen["status"], "minItems": 1}
    query = {**_paging(), **_fields(), **chosen}
    listed = parts.page_of(ref("Job"))
    most = jobs_settings().api_bulk_max
    many = known({"results": parts.array(known({"id": UUID, "created": FLAG}))})
    new = {"oneOf": [ref("NewJob"), parts.array(ref("NewJob"), minItems=1, maxItems=most)]}
    key = {"type": "string", "minLength": 1, "maxLength": idempotency.MAX_KEY, "pattern": r"^[!-~]+$"}
    without = {name: part for name, part in query.items() if name not in ("status", "ended")}
    return {
        (jobs.JobListView, "GET"): Operation("jobs_list", {200: listed}, "jobs", query),
        (jobs.JobListView, "POST"): Operation(
            "jobs_create",
            {200: ref("Job"), 201: {"anyOf": [ref("Job"), many]}},
            "jobs",
            body=new,
            conflicts=True,
            header={idempotency.HEADER: key},
            gives={"Location": URL},
        ),
        (jobs.TimedOutView, "GET"): Operation("jobs_timed_out", {200: listed}, "jobs", without),
        (tags.TagView, "GET"): Operation("jobs_by_tag", {200: parts.page_of(UUID)}, "jobs", _paging()),
    }


def _of_one_job() -> dict[tuple[type[APIView], str], Operation]:
    lease = {reports.LEASE_EXPIRES: TIME}
    token = {reports.TOKEN_HEADER: UUID}
    forced = {"force": {**FLAG, "default": False}}
    beat = known({"token": UUID, "progress": parts.nullable(ref("Progress"))}, optional=True)
    heartbeat: dict[str, Any] = {"body": beat, "needs_body": False, "conflicts": True, "header": token, "gives": lease}
    return {
        (one_job.JobView, "GET"): Operation("job_get", {200: ref("Job")}, "jobs", _fields()),
        (one_job.JobView, "PATCH"): Operation(
            "job_change", {204: None}, "jobs", body=ref("JobChange"), conflicts=True, header=token, gives=lease
        ),
        (one_job.JobView, "DELETE"): Operation("job_delete", {202: None, 204: None}, "jobs", forced, conflicts=True),
        (jobs.JobStatusView, "GET"): Operation("job_status", {200: ref("Status")}, "jobs"),
        (jobs.JobAttemptsView, "GET"): Operation("job_attempts", {200: parts.page_of(ref("JobAttempt"))}, "jobs", _paging()),
        (one_job.JobOutputView, "GET"): Operation("job_output", {200: ANY}, "jobs"),
        (one_job.JobOutputView, "PUT"): Operation(
            "job_put_output", {204: None}, "HTTP workers", body=ANY, conflicts=True, header=token, gives=lease
        ),
        (one_job.HeartbeatView, "PUT"): Operation("job_heartbeat", {204: None}, "HTTP workers", **heartbeat),
        (one_job.HeartbeatView, "POST"): Operation("job_heartbeat_post", {204: None}, "HTTP workers", **heartbeat),
    }


def _of_verbs() -> dict[tuple[type[APIView], str], Operation]:
    found: dict[tuple[type[APIView], str], Operation] = {}
    job = parts.nullable(ref("Job"))
    for name, view in (
        ("requeue", job_actions.RequeueView),
        ("cancel", job_actions.CancelView),
        ("done", job_actions.DoneView),
        ("run_now", job_actions.RunNowView),
    ):
        said = {"reason": REASON, **dict.fromkeys(view.extra, FLAG)}
        answers: dict[int, Part | None] = {200: job, 202: job}
        if name == "requeue":
            said |= {"keep_attempts": FLAG, "claim": FLAG, "worker": {"type": "string", "maxLength": 64}}
            answers = {200: {"anyOf": [ref("Job"), ref("ClaimedJob")], "nullable": True}}
        found[view, "POST"] = Operation(
            f"job_{name}", answers, "verbs", body=known(said, optional=True), needs_body=False, conflicts=True
        )
    for name, verb in bulk.VERBS.items():
        found[bulk.bulk_view(name), "POST"] = Operation(
            f"jobs_{name.replace('-', '_')}", {200: ref("BulkReport")}, "verbs", body=parts.bulk_in(*verb.extra)
        )
    return found


def _of_batches() -> dict[tuple[type[APIView], str], Operation]:
    batch, most = ref("Batch"), jobs_settings().api_bulk_max
    key = {"type": "string", "minLength": 1, "maxLength": idempotency.MAX_KEY, "pattern": r"^[!-~]+$"}
    header = {idempotency.HEADER: key}
    query = {**_paging(), **dict.fromkeys(batches._FLAGS, FLAG)}
    change = known({"sealed": {**FLAG, "enum": [True]}, "read": FLAG}, optional=True, minProperties=1)
    added = known({"results": parts.array(known({"id": UUID, "created": FLAG}))})
    new = parts.array(ref("NewJob"), minItems=1, maxItems=most)
    found: dict[tuple[type[APIView], str], Operation] = {
        (batches.BatchListView, "GET"): Operation("batches_list", {200: parts.page_of(batch)}, "batches", query),
        (batches.BatchListView, "POST"): Operation(
            "batches_create",
            {201: batch},
            "batches",
            body=ref("NewBatch"),
            conflicts=True,
            header=header,
            gives={"Location": URL},
        ),
        (batches.BatchView, "GET"): Operation("batch_get", {200: batch}, "batches"),
        (batches.BatchView, "PATCH"): Operation("batch_change", {200: batch}, "batches", body=change),
        (batches.BatchJobsView, "POST"): Operation("batch_add", {201: added}, "batches", body=new, conflicts=True, header=header),
    }
    for name, view in (("cancel", batches.BatchCancelView), ("requeue_failed", batches.BatchRequeueView)):
        said = known({"reason": REASON, **dict.fromkeys(view.extra, FLAG)}, optional=True)
        found[view, "POST"] = Operation(f"batch_{name}", {200: ref("BulkReport")}, "batches", body=said, needs_body=False)
    return found


def _of_queues() -> dict[tuple[type[APIView], str], Operation]:
    queue, location = ref("Queue"), {"Location": URL}
    ids = known({"results": parts.array(UUID), "next": parts.nullable(URL)})
    by_status = {"anyOf": [known({status.value: ids for status in Status}), parts.page_of(UUID)]}
    words = sorted({*(status.value for status in Status), *values.STATUS_WORDS})
    status = {"type": "string", "enum": words}
    more = known({"deleted": COUNT, "more": FLAG})
    pause = known({"reason": REASON, "until": parts.nullable(parts.MOMENT_IN)}, optional=True)
    reason = known({"reason": REASON}, optional=True)
    cascade = {"cascade": {**FLAG, "default": False}}
    return {
        (queues.QueueListView, "GET"): Operation("queues_list", {200: parts.page_of(queue)}, "queues", _paging()),
        (queues.QueueListView, "POST"): Operation(
            "queues_create", {201: queue}, "queues", body=parts.queue_in("name"), conflicts=True, gives=location
        ),
        (queues.QueueView, "GET"): Operation("queue_get", {200: queue}, "queues"),
        (queues.QueueView, "PUT"): Operation(
            "queue_put",
            {201: queue, 204: None},
            "queues",
            body=parts.queue_in(),
            needs_body=False,
            conflicts=True,
            gives=location,
        ),
        (queues.QueueView, "PATCH"): Operation(
            "queue_patch", {204: None}, "queues", body=parts.queue_in(), needs_body=False, conflicts=True
        ),
        (queues.QueueView, "DELETE"): Operation("queue_delete", {202: more, 204: None}, "queues", cascade, conflicts=True),
        (queues.PauseView, "POST"): Operation(
            "queue_pause", {200: queue}, "queues", body=pause, needs_body=False, conflicts=True
        ),
        (queues.ResumeView, "POST"): Operation(
            "queue_resume", {200: queue}, "queues", body=reason, needs_body=False, conflicts=True
        ),
        (queue_contents.SizeView, "GET"): Operation("queue_size", {200: COUNT}, "queues"),
        (queue_contents.JobIdsView, "GET"): Operation(
            "queue_job_ids", {200: by_status}, "queues", {**_paging(), "status": status}
        ),
    }


def _of_http_workers() -> dict[tuple[type[APIView], str], Operation]:
    settings = jobs_settings()
    wait = {
        "description": f"How long to wait for a job if there is none: at most {format_duration(settings.api_wait_max)}.",
        "anyOf": [
            {"type": "number", "minimum": 0, "maximum": settings.api_wait_max},
            {"type": "string", "pattern": r"^[0-9]{1,2}s$", "example": "30s"},
        ],
    }
    body = known(
        {
            "limit": {"type": "integer", "minimum": 1, "maximum": settings.api_claim_max},
            "wait": wait,
            "worker": {"type": "string", "maxLength": 64},
        },
        optional=True,
    )
    return {
        (claims.ClaimView, "POST"): Operation(
            "queue_claim",
            {200: known({"jobs": parts.array(ref("ClaimedJob"))}), 204: None},
            "HTTP workers",
            body=body,
            needs_body=False,
            conflicts=True,
            gives={"Retry-After": COUNT},
        ),
    }

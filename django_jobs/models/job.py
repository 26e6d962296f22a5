"""`Job`: one row, one request to run a task."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from django_jobs.ids import uuid7
from django_jobs.serializers import Encoder
from django_jobs.statuses import FINAL, LABELS, LIVE, PENDING, Status

from ..db import DatabaseNow
from .fields import PartialIndex, PartialUnique

PRIORITY_MIN, PRIORITY_MAX = -100, 100


def _values(statuses: frozenset[Status]) -> list[str]:
    return sorted(status.value for status in statuses)


#: Which jobs hold their unique keys.
HOLDS_ITS_KEY = (
    Q(status__in=_values(PENDING))
    | Q(status="running", unique_until__in=["", "pruned"])
    | Q(status="succeeded", unique_until="pruned")
)


class JobQuerySet(models.QuerySet["Job"]):
    """Jobs, with names for the predicates that the rest of the package asks about."""

    def claimable(self) -> JobQuerySet:
        """Jobs that a worker may claim now, in the order of the claim (index `django_jobs_claim`)."""
        return self.filter(status=Status.READY, parked="", is_http=False, priority__gte=PRIORITY_MIN).order_by(
            "-priority", "due_at", "id"
        )

    def final(self) -> JobQuerySet:
        """Jobs that nothing automatic moves any more."""
        return self.filter(status__in=_values(FINAL))

    def live(self) -> JobQuerySet:
        """Jobs that wait or run."""
        return self.filter(status__in=_values(LIVE))

    def due(self) -> JobQuerySet:
        """Scheduled jobs whose time has come by the database's clock (index `django_jobs_live`)."""
        return self.filter(status=Status.SCHEDULED, due_at__lte=DatabaseNow()).order_by("due_at", "id")


class Job(models.Model):
    """One request to run a task. Its status changes only in `django_jobs.lifecycle`."""

    id = models.UUIDField(_("id"), primary_key=True, default=uuid7, editable=False)
    backend = models.CharField(_("backend"), max_length=64, default="default")
    task = models.CharField(_("task"), max_length=255)
    description = models.CharField(_("description"), max_length=255, blank=True, default="")
    # `Encoder`: what the serializers accept comes back the same, whoever saves the row.
    args = models.JSONField(_("arguments"), encoder=Encoder, default=list, blank=True)
    kwargs = models.JSONField(_("keyword arguments"), encoder=Encoder, default=dict, blank=True)
    serializer = models.CharField(_("serializer"), max_length=16, default="json")
    metadata = models.JSONField(_("metadata"), encoder=Encoder, default=dict, blank=True)
    tags = models.JSONField(_("tags"), default=list, blank=True)
    context = models.JSONField(_("context"), encoder=Encoder, default=dict, blank=True)
    created_by = models.CharField(_("created by"), max_length=64, null=True, blank=True)

    queue = models.CharField(_("queue"), max_length=100, default="default")
    priority = models.SmallIntegerField(_("priority"), default=0)
    status = models.CharField(_("status"), max_length=10, choices=list(LABELS.items()), default=Status.READY)
    # For HTTP workers: workers of this package leave it alone. From the queue, when it is enqueued.
    is_http = models.BooleanField(_("for HTTP workers"), default=False)
    parked = models.CharField(_("parked"), max_length=32, blank=True, default="")
    reason = models.CharField(_("reason"), max_length=500, blank=True, default="")

    run_after = models.DateTimeField(_("run after"), null=True, blank=True)  # as asked
    due_at = models.DateTimeField(_("due at"))  # the order of the claim, by the database's clock
    start_by = models.DateTimeField(_("start by"), null=True, blank=True)

    timeout = models.FloatField(_("timeout"), null=True, blank=True)
    timeout_grace = models.FloatField(_("timeout grace"), null=True, blank=True)
    heartbeat_timeout = models.FloatField(_("heartbeat timeout"), null=True, blank=True)
    cpu_timeout = models.FloatField(_("CPU timeout"), null=True, blank=True)
    max_attempts = models.IntegerField(_("maximum attempts"), null=True, blank=True)
    backoff = models.JSONField(_("back-off"), null=True, blank=True)
    max_deaths = models.IntegerField(_("maximum deaths"), null=True, blank=True)
    retention = models.JSONField(_("retention"), null=True, blank=True)

    starts = models.IntegerField(_("starts"), default=0)
    attempts_used = models.IntegerField(_("attempts used"), default=0)
    deaths = models.IntegerField(_("deaths in a row"), default=0)
    last_token = models.UUIDField(null=True, editable=False)
    last_outcome = models.CharField(_("last outcome"), max_length=12, blank=True, default="")
    worker = models.CharField(_("worker"), max_length=64, blank=True, default="")

    unique_key = models.CharField(_("unique key"), max_length=128, null=True, blank=True)
    # Defaults in the database, too: processes of the version before may still insert rows.
    unique_until = models.CharField(_("unique until"), max_length=8, blank=True, default="", db_default="")  # empty: finished

    graph = models.UUIDField(_("graph"), null=True, blank=True, editable=False)
    on_parent_failure = models.CharField(_("when a parent fails"), max_length=6, blank=True, default="", db_default="")  # wait
    on_parent_cancel = models.CharField(
        _("when a parent is cancelled"), max_length=6, blank=True, default="", db_default=""
    )  # empty: cancel
    # No constraint in the database: a foreign key would make every insert lock the batch's row.
    batch = models.ForeignKey(
        "django_jobs.Batch",
        verbose_name=_("batch"),
        on_delete=models.DO_NOTHING,
        null=True,
        blank=True,
        db_constraint=False,
        db_index=False,
        related_name="jobs",
    )
    related = models.JSONField(_("related object"), null=True, blank=True)  # {"model": "app.model", "pk": ..., "using": alias}

    output = models.JSONField(_("output"), encoder=Encoder, null=True, blank=True)
    progress = models.JSONField(_("progress"), encoder=Encoder, null=True, blank=True)
    result = models.JSONField(_("result"), encoder=Encoder, null=True, blank=True)
    error_class = models.CharField(_("error class"), max_length=255, blank=True, default="")
    error_message = models.TextField(_("error message"), blank=True, default="")
    fingerprint = models.CharField(_("fingerprint"), max_length=32, blank=True, default="")

    enqueued_at = models.DateTimeField(_("enqueued at"))
    started_at = models.DateTimeField(_("started at"), null=True, blank=True)  # the first attempt's start
    last_started_at = models.DateTimeField(_("last started at"), null=True, blank=True)
    last_heartbeat_at = models.DateTimeField(_("last heartbeat at"), null=True, blank=True)
    finished_at = models.DateTimeField(_("finished at"), null=True, blank=True)
    run_seconds = models.FloatField(_("run time"), null=True, blank=True)
    prune_at = models.DateTimeField(_("prune at"), null=True, blank=True)

    objects = JobQuerySet.as_manager()

    class Meta:
        verbose_name = _("job")
        verbose_name_plural = _("jobs")
        permissions = [
            ("enqueue_job", "Can enqueue a job"),
            ("requeue_job", "Can requeue a job"),
            ("cancel_job", "Can cancel a job"),
            ("done_job", "Can mark a job done by hand"),
            ("run_job", "Can run a scheduled job now"),
            ("claim_job", "Can claim jobs over HTTP"),
            ("view_payload", "Can see arguments and results"),
        ]
        indexes = [
            PartialIndex(
                fields=["is_http", "-priority", "due_at", "id"],
                name="django_jobs_claim",
                # True of every job, and said by claims from all queues only: a claim from one queue can't be planned over this
                # index, past the jobs of all others.
                condition=Q(status="ready", parked="", priority__gte=PRIORITY_MIN),
                lead=("status", "parked"),
            ),
            PartialIndex(
                fields=["is_http", "queue", "-priority", "due_at", "id"],
                name="django_jobs_claim_queue",
                condition=Q(status="ready", parked=""),
                lead=("status", "parked"),
            ),
            # The stager, lists of what waits and runs, and the search for running jobs without a lock row.
            PartialIndex(
                fields=["status", "due_at", "id"],
                name="django_jobs_live",
                condition=Q(status__in=["running", "scheduled", "waiting"]),
            ),
            # Every final status newest first: the timed-out list opens at once among millions.
            PartialIndex(
                fields=["status", "-finished_at", "-id"],
                name="django_jobs_final",
                condition=Q(status__in=_values(FINAL)),
            ),
            # What needs somebody's eyes, by queue.
            PartialIndex(
                fields=["queue", "status", "-finished_at", "-id"],
                name="django_jobs_trouble",
                condition=Q(status__in=["failed", "timed_out"]),
            ),
            PartialIndex(fields=["prune_at", "id"], name="django_jobs_prune", condition=Q(prune_at__isnull=False)),
            PartialIndex(
                fields=["start_by", "id"],
                name="django_jobs_start_by",
                condition=Q(start_by__isnull=False, status__in=_values(PENDING)),
            ),
            PartialIndex(fields=["parked", "task", "id"], name="django_jobs_parked", condition=~Q(parked="")),
            PartialIndex(fields=["graph", "id"], name="django_jobs_in_graph", condition=Q(graph__isnull=False)),
            PartialIndex(fields=["batch", "id"], name="django_jobs_in_batch", condition=Q(batch__isnull=False)),
        ]
        constraints = [
            models.CheckConstraint(condition=Q(status__in=[status.value for status in Status]), name="django_jobs_job_status"),
            models.CheckConstraint(
                condition=Q(priority__gte=PRIORITY_MIN, priority__lte=PRIORITY_MAX), name="django_jobs_job_priority"
            ),
            models.CheckConstraint(
                condition=Q(max_attempts__isnull=True) | Q(max_attempts__gte=1), name="django_jobs_job_max_attempts"
            ),
            models.CheckConstraint(
                condition=Q(starts__gte=0, attempts_used__gte=0, deaths__gte=0), name="django_jobs_job_counters"
            ),
            models.CheckConstraint(
                condition=Q(status__in=_values(FINAL), finished_at__isnull=False)
                | Q(status__in=_values(LIVE), finished_at__isnull=True, prune_at__isnull=True),
                name="django_jobs_job_finished",
            ),
            models.CheckConstraint(condition=Q(parked="") | Q(status="ready"), name="django_jobs_job_parked"),
            models.CheckConstraint(
                condition=~Q(status="running") | Q(last_token__isnull=False), name="django_jobs_job_running_token"
            ),
            models.CheckConstraint(condition=~Q(queue="") & ~Q(task=""), name="django_jobs_job_names"),
            PartialUnique(fields=["unique_key"], condition=HOLDS_ITS_KEY, name="django_jobs_job_unique"),
        ]

    def __str__(self) -> str:
        return f"{self.task} ({self.id})"

    @property
    def is_final(self) -> bool:
        """Whether nothing automatic moves this job any more."""
        return self.status in FINAL


#: Newest first without a sort, since UUIDv7 rises with time.
NEWEST_FIRST: Any = (F("id").desc(),)

"""Lock rows in the admin: the attempts in hand. Only to look at: a look takes no lock, so it tells nothing of row locks."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..conf import jobs_database
from ..models import Job, JobLock, Worker
from ..models.visibility import is_narrowed, visible_jobs
from . import display
from .base import ReadOnlyAdmin


@admin.register(JobLock)
class JobLockAdmin(ReadOnlyAdmin[JobLock]):
    """One row for each attempt that runs."""

    list_display = ["held_job", "queue", "holder", "kind", "claimed", "expires"]
    list_display_links = None
    list_per_page = 100
    ordering = ["-job_id"]
    sortable_by = ()
    fields = ["held_job", "token", "holder", "kind", "queue", "limit_keys", "prefetched", "claimed", "expires"]
    readonly_fields = ["held_job", "holder", "claimed", "expires"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[JobLock]:
        """Narrow to the attempts of jobs that the user sees."""
        rows = super().get_queryset(request)
        return rows.filter(job__in=visible_jobs(request.user, Job.objects.using(rows.db))) if is_narrowed() else rows

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """Fetch the page's tasks and workers in one query each."""
        change_list = super().get_changelist_instance(request)
        rows = list(change_list.result_list)
        using = jobs_database()
        tasks = dict(Job.objects.using(using).filter(pk__in=[row.pk for row in rows]).values_list("pk", "task"))
        workers = Worker.objects.using(using).only("id", "name", "pid").in_bulk({row.worker for row in rows if row.worker})
        for row in rows:
            row.task_name, row.holder_row = tasks.get(row.pk, ""), workers.get(row.worker)
        change_list.result_list = rows
        return change_list

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> JobLock | None:
        """Fetch one row with the names that it shows."""
        row: Any = super().get_object(request, object_id, from_field)
        if row is not None:
            using = jobs_database()
            row.task_name = Job.objects.using(using).filter(pk=row.pk).values_list("task", flat=True).first() or ""
            row.holder_row = Worker.objects.using(using).filter(pk=row.worker).first() if row.worker else None
        return row  # type: ignore[no-any-return]

    @admin.display(description=gettext_lazy("job"))
    def held_job(self, row: Any) -> SafeString:
        """Link to the job."""
        return format_html(
            '<a class="dj-job" href="{}">{}<code>{}</code></a>',
            self.url_of(Job, "change", row.pk),
            display.task_name(row.task_name),
            row.pk,
        )

    @admin.display(description=gettext_lazy("worker"))
    def holder(self, row: Any) -> SafeString | str:
        """Link to the process that claimed it."""
        if row.holder_row is None:
            return str(row.worker or display.NOTHING)
        return format_html('<a href="{}">{}</a>', self.url_of(Worker, "change", row.holder_row.pk), row.holder_row)

    @admin.display(description=gettext_lazy("claimed"))
    def claimed(self, row: JobLock) -> SafeString | str:
        """Show when, and whether it has started."""
        text = display.ago(row.claimed_at)
        return format_html("{} {}", text, display.badge("waiting", _("prefetched"))) if row.prefetched else text

    @admin.display(description=gettext_lazy("expires"))
    def expires(self, row: JobLock) -> SafeString | str:
        """Show until when the row is held whatever happens; past that, its lock decides."""
        text = display.ago(row.expires_at)
        return format_html("{} {}", text, display.badge("lost", _("expired"))) if row.expires_at < timezone.now() else text

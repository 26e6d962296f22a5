"""Maintenance services in the admin: when each last swept, what it touched, what went wrong. Only to look at."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.db.models import Count, Max
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..conf import jobs_database, jobs_settings
from ..models import Leader, Worker, WorkerKind
from . import display
from .base import ReadOnlyAdmin

#: A service that is due for so long (seconds) has nobody who runs it.
OVERDUE_SECONDS = 60
DUE_NOW_SECONDS = 2


def _who_looks() -> dict[str, Any]:
    """Return how many worker trees look after all services, and when the last one said that it is there."""
    patience = timezone.now() - timedelta(seconds=OVERDUE_SECONDS)
    alive = Worker.objects.using(jobs_database()).filter(stopped_at__isnull=True, seen_at__gte=patience)
    found = alive.filter(kind=WorkerKind.SUPERVISOR).aggregate(number=Count("pk"), last=Max("seen_at"))
    return {"number": found["number"], "last": display.ago(found["last"])}


@admin.register(Leader)
class LeaderAdmin(ReadOnlyAdmin[Leader]):
    """One row for each service."""

    change_list_template = "admin/django_jobs/leader/change_list.html"
    list_display = ["name", "state", "last", "next", "rows", "by", "last_error"]
    ordering = ["name"]
    sortable_by = ()
    fields = ["name", "state", "ran_at", "next_at", "touched", "by", "last_error"]
    readonly_fields = ["state", "by", "last_error"]

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """Fetch the workers of the page in one query."""
        change_list: Any = super().get_changelist_instance(request)
        rows = list(change_list.result_list)
        workers = Worker.objects.using(jobs_database()).in_bulk({row.worker for row in rows if row.worker})
        for row in rows:
            row.runner = workers.get(row.worker)
        change_list.result_list = rows
        change_list.looking = _who_looks()
        return change_list

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Tell how often somebody looks, too: a service that has nothing to do sweeps only now and then."""
        context = {"interval": f"{jobs_settings().sweep_interval:g} s", **(extra_context or {})}
        return super().changelist_view(request, context)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Leader | None:
        """Fetch one row with its worker."""
        row: Any = super().get_object(request, object_id, from_field)
        if row is not None:
            row.runner = Worker.objects.using(jobs_database()).filter(pk=row.worker).first() if row.worker else None
        return row  # type: ignore[no-any-return]

    @admin.display(description=gettext_lazy("state"))
    def state(self, row: Leader) -> SafeString:
        """Show whether it works."""
        if row.error:
            return display.badge("failed", _("error"))
        if row.next_at < timezone.now() - timedelta(seconds=OVERDUE_SECONDS):
            return display.badge("lost", _("overdue: no worker runs it"))
        return display.badge("succeeded", _("works"))

    @admin.display(description=gettext_lazy("last sweep"))
    def last(self, row: Leader) -> SafeString | str:
        """Show when it last swept."""
        return format_html('<span class="dj-unit">{} </span>{}', _("last sweep"), display.ago(row.ran_at))

    @admin.display(description=gettext_lazy("next at the latest"))
    def next(self, row: Leader) -> SafeString | str:
        """Show when it is due; a moment past that, somebody is about to come."""
        is_now = abs((row.next_at - timezone.now()).total_seconds()) < DUE_NOW_SECONDS
        due = _("now") if is_now else display.ago(row.next_at)
        return format_html('<span class="dj-unit">{} </span>{}', _("next"), due)

    @admin.display(description=gettext_lazy("rows touched"))
    def rows(self, row: Leader) -> SafeString:
        """Show how many rows it has dealt with so far."""
        number = display.count(row.touched, row.touched)
        return format_html('{}<span class="dj-unit"> {}</span>', number, _("rows"))

    @admin.display(description=gettext_lazy("worker"))
    def by(self, row: Any) -> SafeString | str:
        """Link to the process that swept last."""
        if row.runner is None:
            return str(row.worker or display.NOTHING)
        return format_html('<a href="{}">{}</a>', self.url_of(Worker, "change", row.runner.pk), row.runner)

    @admin.display(description=gettext_lazy("last error"))
    def last_error(self, row: Leader) -> SafeString | str:
        """Show what went wrong."""
        return format_html('<span class="dj-note">{}</span>', row.error) if row.error else display.NOTHING

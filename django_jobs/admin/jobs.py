"""Jobs in the admin: the list, the page of one job, and the actions on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from django.contrib import admin
from django.contrib.admin import helpers
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..conf import jobs_database
from ..models import Job
from ..models.visibility import visible_jobs
from ..statuses import FINAL, Status
from . import display
from .base import ReadOnlyAdmin
from .job_actions import act_view, confirmation, parse_ids
from .job_list import (
    PARAMETERS,
    AttemptFilter,
    BatchFilter,
    BeforeFilter,
    JobChangeList,
    PeriodFilter,
    QueueFilter,
    StatusFilter,
    TaskFilter,
)
from .job_page import page_context
from .verbs import MAX_SELECTED, VERBS, Verb

if TYPE_CHECKING:
    from ..models.job import JobQuerySet

#: Between the parts of a queue's name: a line may be broken there.
_DOT: Final = SafeString(".<wbr>")


def _action(verb: Verb) -> Callable[[JobAdmin, HttpRequest, Any], HttpResponse]:
    """Return the list's action for `verb`: it asks, and changes nothing."""

    @admin.action(description=verb.action_label, permissions=[verb.name])
    def action(modeladmin: JobAdmin, request: HttpRequest, queryset: Any) -> HttpResponse:
        return confirmation(modeladmin, request, verb, modeladmin.selected(request))

    # Under this name it takes the place of Django's own, which knows nothing of running jobs.
    action.__name__ = "delete_selected" if verb.name == "delete" else f"{verb.name}_jobs"
    return action


@admin.register(Job)
class JobAdmin(ReadOnlyAdmin[Job]):
    """Nobody edits a job's row by hand: its status changes by verbs, each with a permission of its own."""

    list_display = ["job", "state", "in_queue", "moment"]
    list_display_links = None
    list_filter = [StatusFilter, BeforeFilter, BatchFilter, QueueFilter, TaskFilter, AttemptFilter, PeriodFilter]
    list_per_page = 50
    list_max_show_all = 0
    sortable_by = ()
    ordering = ["-id"]
    search_fields = ["id"]
    search_help_text = gettext_lazy("An id or its beginning, a unique key, or a part of a task’s name.")
    actions = [_action(verb) for verb in VERBS.values()]  # type: ignore[assignment]
    actions_selection_counter = True

    # Permissions: `@admin.action(permissions=["requeue"])` asks `has_requeue_permission`.

    def has_requeue_permission(self, request: HttpRequest) -> bool:
        """Whether the user may requeue jobs."""
        return VERBS["requeue"].is_allowed(request.user)

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        """Whether the user may cancel jobs."""
        return VERBS["cancel"].is_allowed(request.user)

    def has_done_permission(self, request: HttpRequest) -> bool:
        """Whether the user may mark jobs as done."""
        return VERBS["done"].is_allowed(request.user)

    def has_run_permission(self, request: HttpRequest) -> bool:
        """Whether the user may run scheduled jobs now."""
        return VERBS["run"].is_allowed(request.user)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Whether the user may delete jobs: by the verb, never by Django's own view, which knows nothing of running jobs."""
        return VERBS["delete"].is_allowed(request.user)

    def delete_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        """Refuse: jobs are deleted by `act/delete/`."""
        raise PermissionDenied

    # Pages.

    def get_urls(self) -> list[URLPattern]:
        """Add `act/<verb>/`."""
        act = path("act/<str:name>/", self.admin_site.admin_view(self.act), name="django_jobs_job_act")
        return [act, *super().get_urls()]

    def act(self, request: HttpRequest, name: str) -> HttpResponse:
        """Ask about, or do, one verb. POST only."""
        return act_view(self, request, name)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[JobChangeList]:
        """Return the list that reads segments."""
        return JobChangeList

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Allow the filters of the page and nothing else: `?args__contains=` would show what `view_payload` hides."""
        return lookup in PARAMETERS

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> tuple[Any, bool]:
        """Leave the search to the change list."""
        return queryset, False

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the list. Of what is ticked, only what is an id goes on."""
        if request.method == "POST":
            ids = [str(job_id) for job_id in parse_ids(request.POST.getlist(helpers.ACTION_CHECKBOX_NAME))]
            data = request.POST.copy()
            data.setlist(helpers.ACTION_CHECKBOX_NAME, ids)
            request.POST = data  # type: ignore[assignment]
        return super().changelist_view(request, extra_context)

    def selected(self, request: HttpRequest) -> list[Any]:
        """Return the ids ticked (gone ones too: the report tells), or all that the list shows, capped."""
        if request.POST.get("select_across") != "1":
            return parse_ids(request.POST.getlist(helpers.ACTION_CHECKBOX_NAME))
        change_list: Any = self.get_changelist_instance(request)
        return [pk for rows in change_list.rows.querysets.values() for pk in rows.values_list("pk", flat=True)[:MAX_SELECTED]][
            :MAX_SELECTED
        ]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show one job. A POST here is refused: changes go to `act/`."""
        if request.method not in ("GET", "HEAD") or not self.has_view_permission(request):
            raise PermissionDenied
        shows_payload = request.user.has_perm("django_jobs.view_payload")
        job = self.get_object(request, object_id)
        if job is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)  # type: ignore[attr-defined, no-any-return]
        context = {**self.admin_site.each_context(request), **page_context(self, request, job, shows_payload=shows_payload)}
        request.current_app = self.admin_site.name
        return TemplateResponse(request, "admin/django_jobs/job/change_form.html", {**context, **(extra_context or {})})

    def get_queryset(self, request: HttpRequest) -> JobQuerySet:
        """Narrow to the jobs that the user sees."""
        return visible_jobs(request.user, Job.objects.using(jobs_database()))

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Job | None:
        """Fetch one job; without `view_payload`, not the columns that hold it."""
        found = parse_ids([object_id])
        if not found:
            return None
        jobs = self.get_queryset(request).filter(pk=found[0])
        if not request.user.has_perm("django_jobs.view_payload"):
            jobs = jobs.defer("args", "kwargs", "result", "output", "context")
        return jobs.first()

    # Columns.

    @admin.display(description=gettext_lazy("job"))
    def job(self, job: Job) -> SafeString:
        """Name the task and the id; below, the progress, the error or the reason."""
        return format_html(
            '<a class="dj-job" href="{}">{}<code>{}</code></a>{}',
            self.url("change", job.pk),
            display.task_name(job.task),
            job.pk,
            _note(job),
        )

    @admin.display(description=gettext_lazy("status"))
    def state(self, job: Job) -> SafeString:
        """Show the status; that a job has failed before, too; attempts used, of how many."""
        again = job.status in (Status.SCHEDULED, Status.READY) and job.last_outcome
        return format_html(
            '{}{}<span class="dj-below">{} {}</span>',
            display.status_badge(job.status, job.parked),
            display.badge("retry", _("retry")) if again else "",
            _("attempt"),
            display.attempts(job),
        )

    @admin.display(description=gettext_lazy("queue"))
    def in_queue(self, job: Job) -> SafeString:
        """Show the queue, and the priority where it is not the usual one."""
        name = format_html_join(_DOT, "{}", ((part,) for part in job.queue.split(".")))
        if not job.priority:
            return name
        return format_html('{}<span class="dj-below">{} {}</span>', name, _("priority"), f"{job.priority:+d}")

    @admin.display(description=gettext_lazy("when"))
    def moment(self, job: Job) -> SafeString | str:
        """Show the time that matters in this status, and how long the last attempt took."""
        if job.status in FINAL:
            took = format_html('<span class="dj-below">{} {}</span>', _("took"), display.seconds(job.run_seconds))
            return format_html("{}{}", display.ago(job.finished_at), took if job.run_seconds is not None else "")
        if job.status == Status.RUNNING:
            return display.ago(job.last_started_at)
        return display.ago(job.due_at if job.status == Status.SCHEDULED else job.enqueued_at)


def _note(job: Job) -> SafeString:
    """Return progress, the error or the reason of a job, in a line or two."""
    if job.status == Status.RUNNING and (bar := display.fraction(job.progress)):
        percent = round(100 * bar[0] / bar[1])
        return format_html(
            '<span class="dj-note"><progress value="{}" max="{}" aria-label="{}"></progress> {} %</span>',
            *bar,
            _("Progress"),
            percent,
        )
    parts: list[tuple[Any, Any]] = []
    if job.error_class and job.status != Status.SUCCEEDED:
        parts.append((format_html("<b>{}</b>", job.error_class.rpartition(".")[2]), getattr(job, "error_snippet", "") or ""))
    if job.parked or job.reason:
        parts.append((format_html("<b>{}</b>", job.parked) if job.parked else "", job.reason))
    return format_html_join("", '<span class="dj-note">{} {}</span>', parts)

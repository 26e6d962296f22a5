"""Queues in the admin: their settings, how much is ready in each, pause and resume with who, why and until when."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.options import get_content_type_for_model
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .. import stats
from ..conf import jobs_database
from ..exceptions import InvalidOption
from ..lifecycle.pause import pause_queue, resume_queue
from ..models import Job, Queue
from ..models.visibility import sees_every_job
from ..queues import check_queue_name, lineage
from ..statuses import Status
from . import display
from .base import JobsModelAdmin
from .queue_forms import PauseForm, QueueForm
from .sources import queue_names

#: A page with more helps nobody.
MAX_UNDECLARED = 200


def is_paused(queue: Queue) -> bool:
    """Whether nothing may start in it: a row keeps the mark of a pause for a while after its end."""
    return queue.paused_at is not None and (queue.paused_until is None or queue.paused_until > timezone.now())


def _undeclared(counts: Mapping[str, Any]) -> list[Queue]:
    """Return queues without a row: those that have jobs, and those that settings and tasks name."""
    using = jobs_database()
    names = {*counts, *queue_names(using=using)}
    known = set(Queue.objects.using(using).values_list("name", flat=True))
    return [Queue(name=name) for name in sorted(names - known)[:MAX_UNDECLARED]]


def _named(name: str) -> Queue | None:
    """Return the row of a queue, else a new one that is not stored; None if no queue can be called so."""
    try:
        check_queue_name(name)
    except InvalidOption:
        return None
    return Queue.objects.using(jobs_database()).filter(name=name).first() or Queue(name=name)


@admin.register(Queue)
class QueueAdmin(JobsModelAdmin[Queue]):
    """Settings by Django's own permissions; pause and resume by `pause_queue`."""

    form = QueueForm
    change_form_template = "admin/django_jobs/queue/change_form.html"
    change_list_template = "admin/django_jobs/queue/change_list.html"
    list_display = ["name", "state", "ready", "running", "description", "switch"]
    list_per_page = 50
    show_full_result_count = True  # a table of a page or two
    sortable_by = ("name",)
    search_fields = ["name", "description"]
    readonly_fields = ["paused_at", "paused_until", "paused_by", "pause_reason"]
    fieldsets = [
        (None, {"fields": ["name", "description", "is_http"]}),
        (
            gettext_lazy("For jobs that say nothing themselves"),
            {
                "description": gettext_lazy(
                    "What is left empty is taken from the queue above, and from the settings in the end."
                ),
                "fields": ["timeout", "heartbeat_timeout", "max_attempts", "backoff", "retention"],
            },
        ),
        (gettext_lazy("Pause"), {"fields": ["paused_at", "paused_until", "paused_by", "pause_reason"]}),
    ]

    def get_readonly_fields(self, request: HttpRequest, obj: Queue | None = None) -> list[str]:
        """Keep the name of a queue that exists: jobs know it by its name."""
        return [*self.readonly_fields, *(["name"] if obj else [])]

    def save_model(self, request: HttpRequest, obj: Queue, form: Any, change: bool) -> None:
        """Save settings alone, where the jobs are: a pause that came meanwhile stays."""
        fields = [name for name in QueueForm.Meta.fields if name != "name"]
        obj.save(using=jobs_database(), update_fields=fields if change else None)

    def may_pause(self, request: HttpRequest) -> bool:
        """Whether the user may pause and resume queues."""
        return bool(request.user.has_perm("django_jobs.pause_queue"))

    # The list.

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """Count what is ready in the queues of the page, in one statement; look which are paused, or below a paused one."""
        change_list: Any = super().get_changelist_instance(request)
        queues = list(change_list.result_list)
        change_list.result_list = queues
        counts = stats.queue_counts(jobs_database()) if sees_every_job(request.user) else {}
        change_list.undeclared = [] if change_list.query else _undeclared(counts)
        every = [*queues, *change_list.undeclared]
        paused = {
            queue.name for queue in Queue.objects.using(jobs_database()).filter(paused_at__isnull=False) if is_paused(queue)
        }
        for queue in every:
            queue.paused_above = next((name for name in lineage(queue.name)[1:] if name in paused), "")
            queue.counts = counts.get(queue.name, {})
            queue.may_switch = self.may_pause(request)
        change_list.others = [
            {"name": queue.name, **{column: getattr(self, column)(queue) for column in ("state", "ready", "running", "switch")}}
            for queue in change_list.undeclared
        ]
        return change_list

    @admin.display(description=gettext_lazy("state"))
    def state(self, queue: Queue) -> SafeString:
        """Show whether jobs may start, else who stopped them, why and until when."""
        if not is_paused(queue):
            if above := getattr(queue, "paused_above", ""):
                return format_html(
                    '{} <span class="dj-note">{} {}</span>', display.badge("parked", _("paused")), _("with"), above
                )
            return display.badge("succeeded", _("open"))
        parts = [queue.paused_by and _("by %(who)s") % {"who": queue.paused_by}, queue.pause_reason]
        until = format_html(" · {} {}", _("until"), display.ago(queue.paused_until)) if queue.paused_until else ""
        text = ": ".join(part for part in parts if part)
        return format_html('{} <span class="dj-note">{}{}</span>', display.badge("parked", _("paused")), text, until)

    @admin.display(description=gettext_lazy("ready"))
    def ready(self, queue: Any) -> SafeString:
        """Link to the jobs that may start, or could but for a pause."""
        is_stopped = is_paused(queue) or queue.paused_above
        return self._number(queue, Status.READY, "parked" if is_stopped else "ready", _("ready"))

    @admin.display(description=gettext_lazy("running"))
    def running(self, queue: Any) -> SafeString:
        """Link to the jobs in hand."""
        return self._number(queue, Status.RUNNING, "running", _("running"))

    def _number(self, queue: Any, status: Status, tab: str, unit: str) -> SafeString:
        number = queue.counts.get(status.value, 0)
        return format_html(
            '<a href="{}?status={}&amp;queue={}">{}<span class="dj-unit"> {}</span></a>',
            self.url_of(Job, "changelist"),
            tab,
            queue.name,
            display.count(number, number),
            unit,
        )

    @admin.display(description="")
    def switch(self, queue: Any) -> SafeString | str:
        """Link to the form that pauses or resumes."""
        if not queue.may_switch:
            return ""
        name = _("Resume…") if is_paused(queue) else _("Pause…")
        return format_html(
            '<a class="button dj-small" href="{}" aria-label="{} {}">{}</a>', self._pause_url(queue), name, queue.name, name
        )

    # Pause and resume.

    def get_urls(self) -> list[URLPattern]:
        """Add `<id>/pause/`, and `pause/<name>/` for a queue without a row."""
        view = self.admin_site.admin_view(self.pause_view)
        pause = path("<int:pk>/pause/", view, name="django_jobs_queue_pause")
        by_name = path("pause/<str:name>/", view, name="django_jobs_queue_pause_name")
        return [pause, by_name, *super().get_urls()]

    def _pause_url(self, queue: Queue) -> str:
        return self.url("pause", queue.pk) if queue.pk else self.url("pause_name", queue.name)

    def pause_view(self, request: HttpRequest, pk: int | None = None, name: str = "") -> HttpResponse:
        """GET asks; POST pauses a queue that is open (`act=pause`) or resumes one (`act=resume`). A pause makes the row."""
        if not (self.has_view_permission(request) and self.may_pause(request)):
            raise PermissionDenied
        queue = self.get_object(request, str(pk)) if pk is not None else _named(name)
        if queue is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, str(pk or name))  # type: ignore[attr-defined, no-any-return]
        form = PauseForm(request.POST or None)
        if request.method == "POST" and form.is_valid():
            self._switch(request, queue, form.cleaned_data["reason"].strip(), form.cleaned_data["duration"])
            return HttpResponseRedirect(self.url("changelist"))
        request.current_app = self.admin_site.name
        paused = is_paused(queue)
        context = {
            **self.admin_site.each_context(request),
            "is_paused": paused,
            "title": _("Resume %(queue)s") % {"queue": queue} if paused else _("Pause %(queue)s") % {"queue": queue},
            "opts": self.opts,
            "media": self.media,
            "original": queue,
            "change": True,
            "has_view_permission": True,
            "form": form,
            "state": self.state(queue),
            "back": self.url("changelist"),
        }
        return TemplateResponse(request, "admin/django_jobs/queue/pause.html", context)

    def _switch(self, request: HttpRequest, queue: Queue, reason: str, until: datetime | None) -> None:
        who = request.user.get_username()[:64]
        if request.POST.get("act") == "resume":
            resume_queue(queue.name, by=who, reason=reason, using=jobs_database())
            said, done = _("Resumed"), _("The queue %(queue)s is open again.")
        else:
            queue = pause_queue(queue.name, by=who, reason=reason, until=until, using=jobs_database())
            said, done = _("Paused"), _("The queue %(queue)s is paused: what runs goes on, nothing new starts.")
        if until:
            said = f"{said} {_('until')} {display.exact(until)}"
        LogEntry.objects.create(
            user_id=request.user.pk,  # type: ignore[misc]
            content_type_id=get_content_type_for_model(queue).pk,
            object_id=str(queue.pk),
            object_repr=str(queue)[:200],
            action_flag=CHANGE,
            change_message=f"{said}: {reason}" if reason else said,
        )
        messages.success(request, done % {"queue": queue.name})

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any) -> HttpResponse:
        """Tell the template where to pause."""
        queue = kwargs.get("obj")
        if queue is not None and self.may_pause(request):
            context |= {"pause_url": self.url("pause", queue.pk), "is_paused": is_paused(queue)}
        return super().render_change_form(request, context, *args, **kwargs)

"""Batches in the admin: how far each is, what failed, cancel and requeue-failed for all of its jobs, read and unread."""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.options import get_content_type_for_model
from django.core.exceptions import PermissionDenied
from django.db import connections
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.formats import number_format
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from ..batches import State, state_of
from ..conf import jobs_database
from ..lifecycle import batch as lifecycle
from ..lifecycle.batch_look import numbers_of
from ..models import Batch, Job
from ..models.visibility import sees_every_job
from ..statuses import LABELS, Status
from . import display
from .base import ReadOnlyAdmin
from .batch_forms import FinishedFilter, ReadFilter, ReasonForm
from .job_list import BATCH, STATUS
from .verbs import MAX_SELECTED, VERBS

#: A state, its label, and the badge of the status that looks like it.
_LOOK: Final = {
    "pending": (gettext_lazy("open"), "scheduled"),
    "enqueued": (gettext_lazy("enqueued"), "ready"),
    "progress": (gettext_lazy("in progress"), "running"),
    "finished": (gettext_lazy("finished"), "succeeded"),
}
#: The verbs about all jobs of a batch, by those about jobs whose permissions they need.
_VERBS: Final = {"cancel": VERBS["cancel"], "requeue-failed": VERBS["requeue"]}
_CALLBACKS: Final = {
    "on_success": gettext_lazy("when all have succeeded"),
    "on_failure": gettext_lazy("at the first that does not"),
    "on_finish": gettext_lazy("when all have ended"),
}
#: The statuses in the order in which a person asks for them.
_ORDER: Final = (
    Status.FAILED,
    Status.TIMED_OUT,
    Status.CANCELLED,
    Status.RUNNING,
    Status.READY,
    Status.SCHEDULED,
    Status.WAITING,
    Status.SUCCEEDED,
)


@admin.action(description=gettext_lazy("Mark the selected batches as read"))
def mark_read(modeladmin: BatchAdmin, request: HttpRequest, queryset: QuerySet[Batch]) -> None:
    """Note that somebody has seen how they ended."""
    modeladmin.mark(request, list(queryset.values_list("pk", flat=True)), read=True)


@admin.action(description=gettext_lazy("Mark the selected batches as unread"))
def mark_unread(modeladmin: BatchAdmin, request: HttpRequest, queryset: QuerySet[Batch]) -> None:
    """Take that back."""
    modeladmin.mark(request, list(queryset.values_list("pk", flat=True)), read=False)


@admin.register(Batch)
class BatchAdmin(ReadOnlyAdmin[Batch]):
    """For those who see every job, since the numbers count them all. Verbs need the permissions of those about jobs."""

    list_display = ["batch", "state", "bar", "numbers", "moment"]
    list_display_links = None
    list_filter = [FinishedFilter, ReadFilter]
    list_per_page = 50
    sortable_by = ()
    ordering = ["-id"]
    search_fields = ["name"]
    actions = [mark_read, mark_unread]  # type: ignore[assignment]

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Whether the user may look at batches, and nothing is hidden from the user."""
        return super().has_view_permission(request, obj) and sees_every_job(request.user)

    # The list.

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """Read the numbers of the page's batches in one statement."""
        change_list: Any = super().get_changelist_instance(request)
        change_list.result_list = list(change_list.result_list)
        using = jobs_database()
        numbers = numbers_of(connections[using], [row.pk for row in change_list.result_list])
        for row in change_list.result_list:
            row.known = state_of(row, numbers[row.pk])
        return change_list

    @admin.display(description=gettext_lazy("batch"))
    def batch(self, row: Batch) -> SafeString:
        """Name it; bold as long as nobody has read its end."""
        is_unread = row.finished_at is not None and row.read_at is None
        mark = format_html(' <span class="dj-unread">{}</span>', _("unread")) if is_unread else ""
        tag = SafeString("b" if is_unread else "span")
        name = row.name or _("(no name)")
        return format_html(
            '<a class="dj-job" href="{}"><{}>{}</{}>{}<code>{}</code></a>',
            self.url("change", row.pk),
            tag,
            name,
            tag,
            mark,
            row.pk,
        )

    @admin.display(description=gettext_lazy("state"))
    def state(self, row: Any) -> SafeString:
        """Show in which state it is."""
        label, look = _LOOK[row.known.status]
        bad = row.known.progress.total - row.known.progress.succeeded
        if row.known.status == "finished" and bad:
            look = "failed" if row.known.progress.failed else "cancelled"
        return display.badge(look, label)

    @admin.display(description=gettext_lazy("progress"))
    def bar(self, row: Any) -> SafeString:
        """Show how much has ended."""
        return _bar(row.known)

    @admin.display(description=gettext_lazy("jobs"))
    def numbers(self, row: Any) -> SafeString:
        """Show how many jobs there are, and how many are in each status, as links."""
        return format_html(
            '{}<span class="dj-below">{}</span>',
            ngettext("%(n)s job", "%(n)s jobs", row.known.progress.total)
            % {"n": number_format(row.known.progress.total, force_grouping=True)},
            format_html_join(" · ", '<a href="{}">{} {}</a>', self._links(row, row.known)),
        )

    @admin.display(description=gettext_lazy("when"))
    def moment(self, row: Batch) -> SafeString:
        """Show when it was made, and when it finished."""
        if row.finished_at:
            return format_html(
                '{}<span class="dj-below">{} {}</span>', display.ago(row.finished_at), _("made"), display.ago(row.created_at)
            )
        return format_html("{}", display.ago(row.created_at))

    def _links(self, row: Batch, known: State) -> list[tuple[str, str, Any]]:
        """Return (address, number, status) for each status in which it has jobs."""
        jobs = self.url_of(Job, "changelist")
        return [
            (
                f"{jobs}?{STATUS}={status.value}&{BATCH}={row.pk}",
                number_format(known.counts[status], force_grouping=True),
                LABELS[status],
            )
            for status in _ORDER
            if known.counts[status]
        ]

    # One batch.

    def get_urls(self) -> list[URLPattern]:
        """Add `<id>/act/<verb>/` and `<id>/read/`."""
        view = self.admin_site.admin_view
        act = path("<uuid:pk>/act/<str:name>/", view(self.act_view), name="django_jobs_batch_act")
        read = path("<uuid:pk>/read/", view(self.read_view), name="django_jobs_batch_read")
        return [act, read, *super().get_urls()]

    def _row(self, request: HttpRequest, pk: UUID) -> Batch | None:
        if not self.has_view_permission(request):
            raise PermissionDenied
        return self.get_queryset(request).filter(pk=pk).first()

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show one batch. A POST here is refused: changes go to `act/` and `read/`."""
        if request.method not in ("GET", "HEAD") or not self.has_view_permission(request):
            raise PermissionDenied
        row = self.get_object(request, object_id)
        if row is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)  # type: ignore[attr-defined, no-any-return]
        known = _known(row)
        row.known = known  # type: ignore[attr-defined]
        has_failed = known.counts[Status.FAILED] + known.counts[Status.TIMED_OUT]
        can = {"cancel": known.status != "finished", "requeue-failed": bool(has_failed)}
        context = {
            **self._context(request, row, row.name or _("Batch")),
            "badge": self.state(row),
            "bar": _bar(known),
            "facts": _facts(row, known),
            "links": self._links(row, known),
            "all_url": f"{self.url_of(Job, 'changelist')}?{STATUS}=all&{BATCH}={row.pk}",
            "callbacks": self._callbacks(row),
            "metadata": display.pretty_json(row.metadata)
            if row.metadata and request.user.has_perm("django_jobs.view_payload")
            else "",
            "buttons": [
                {"name": name, "label": _label(name), "url": self.url("act", row.pk, name)}
                for name, verb in _VERBS.items()
                if can[name] and verb.is_allowed(request.user)
            ],
            "read_url": self.url("read", row.pk) if row.finished_at else "",
            "is_read": row.read_at is not None,
            "history_url": self.url("history", row.pk),
            **(extra_context or {}),
        }
        return TemplateResponse(request, "admin/django_jobs/batch/change_form.html", context)

    def _context(self, request: HttpRequest, row: Batch, title: str) -> dict[str, Any]:
        request.current_app = self.admin_site.name
        return {
            **self.admin_site.each_context(request),
            "title": title,
            "subtitle": None,
            "opts": self.opts,
            "media": self.media,
            "original": row,
            "has_view_permission": True,
            "change": True,
        }

    def _callbacks(self, row: Batch) -> list[dict[str, Any]]:
        """Return the callbacks with what has become of each."""
        ids = {name: job for name in _CALLBACKS if (job := getattr(row, f"{name}_id"))}
        jobs = Job.objects.using(row._state.db).only("task", "status", "parked", "reason").in_bulk(list(ids.values()))
        return [
            {
                "when": _CALLBACKS[name],
                "job": jobs.get(job),
                "task": display.task_name(jobs[job].task) if job in jobs else "",
                "badge": display.status_badge(jobs[job].status, jobs[job].parked) if job in jobs else "",
                "url": self.url_of(Job, "change", job),
            }
            for name, job in ids.items()
        ]

    # What can be done.

    def act_view(self, request: HttpRequest, pk: UUID, name: str) -> HttpResponse:
        """GET asks; POST cancels all jobs (`cancel`) or requeues the failed ones (`requeue-failed`)."""
        row = self._row(request, pk)
        verb = _VERBS.get(name)
        if verb is None or not verb.is_allowed(request.user):
            raise PermissionDenied
        if row is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, str(pk))  # type: ignore[attr-defined, no-any-return]
        form = ReasonForm(request.POST or None)
        form.fields["flag"].label = verb.force_help if name == "cancel" else _("Also those that were cancelled")
        if request.method == "POST" and form.is_valid():
            self._act(request, row, name, form.cleaned_data["reason"].strip(), form.cleaned_data["flag"])
            return HttpResponseRedirect(self.url("change", pk))
        known = _known(row)
        context = {
            **self._context(request, row, f"{_label(name)}: {row.name or row.pk}"),
            "form": form,
            "verb": _label(name),
            "help": _("All jobs that have not ended are cancelled; running ones are asked to stop. The batch takes no more.")
            if name == "cancel"
            else _("They run again with fresh attempts, and the batch is open again. Callbacks that ran do not run again."),
            "links": self._links(row, known),
            "is_danger": name == "cancel",
            "back": self.url("change", pk),
        }
        return TemplateResponse(request, "admin/django_jobs/batch/confirm.html", context)

    def _act(self, request: HttpRequest, row: Batch, name: str, reason: str, flag: bool) -> None:
        said: dict[str, Any] = {"by": request.user.get_username()[:64], "reason": reason, "limit": MAX_SELECTED}
        if name == "cancel":
            report = lifecycle.cancel(row.pk, force=flag, using=jobs_database(), **said)
        else:
            report = lifecycle.requeue_failed(row.pk, with_cancelled=flag, using=jobs_database(), **said)
        self._log(request, [row], f"{_label(name)}: {reason}" if reason else str(_label(name)))
        done = len(report.changed) - len(report.requested)
        text = ngettext("%(n)d job was changed.", "%(n)d jobs were changed.", done) % {"n": done}
        if report.requested:
            asked = len(report.requested)
            text += " " + ngettext("%(n)d was asked to stop.", "%(n)d were asked to stop.", asked) % {"n": asked}
        messages.success(request, text)
        if report.refused:
            number = len(report.refused)
            refused = ngettext("%(n)d job was refused", "%(n)d jobs were refused", number) % {"n": number}
            messages.warning(request, f"{refused}: {next(iter(report.refused.values()))}")
        if len(report.changed) + len(report.refused) >= MAX_SELECTED:
            messages.warning(request, _("There may be more: do it again."))

    def read_view(self, request: HttpRequest, pk: UUID) -> HttpResponse:
        """POST marks a batch as read, or with `unread` as unread."""
        row = self._row(request, pk)
        if request.method != "POST":
            raise PermissionDenied
        if row is not None:
            self.mark(request, [row.pk], read="unread" not in request.POST)
        return HttpResponseRedirect(self.url("change", pk))

    def mark(self, request: HttpRequest, ids: list[UUID], *, read: bool) -> None:
        """Mark batches as read or unread, and say so."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        number = lifecycle.mark_read(ids, read=read, using=jobs_database())
        word = _("read") if read else _("unread")
        text = ngettext("%(n)d batch is marked as %(word)s.", "%(n)d batches are marked as %(word)s.", number)
        messages.success(request, text % {"n": number, "word": word})

    def _log(self, request: HttpRequest, rows: list[Batch], text: str) -> None:
        LogEntry.objects.bulk_create(
            LogEntry(
                user_id=request.user.pk,  # type: ignore[misc]
                content_type_id=get_content_type_for_model(Batch).pk,
                object_id=str(row.pk),
                object_repr=str(row)[:200],
                action_flag=CHANGE,
                change_message=text,
            )
            for row in rows
        )


def _label(name: str) -> Any:
    return _("Cancel all jobs") if name == "cancel" else _("Requeue failed jobs")


def _known(row: Batch) -> State:
    return state_of(row, numbers_of(connections[jobs_database()], [row.pk])[row.pk])


def _bar(known: State) -> SafeString:
    progress = known.progress
    failed = (
        format_html(' <span class="dj-bad">{}</span>', _("%(n)s %% failed") % {"n": _percent(progress.percent_failed)})
        if progress.failed
        else ""
    )
    if not progress.total:
        return format_html('<span class="dj-quiet">{}</span>', _("no jobs"))
    return format_html(
        '<span class="dj-bar"><progress value="{}" max="{}" aria-label="{}"></progress> <span>{} %{}</span></span>',
        progress.ended,
        progress.total,
        _("Progress"),
        _percent(progress.percent_complete),
        failed,
    )


def _percent(value: float) -> str:
    """Return a percentage: 100 only when all is done, 0 only when nothing is."""
    rounded = min(99.0, max(1.0, round(value))) if 0 < value < 100 else value
    return number_format(rounded, 0)


def _facts(row: Batch, known: State) -> list[tuple[Any, Any]]:
    """Return the few lines that a person looks for first."""
    facts: list[tuple[Any, Any]] = [
        (_("jobs"), number_format(known.progress.total, force_grouping=True)),
        (_("made"), display.ago(row.created_at)),
    ]
    if row.created_by:
        facts.append((_("by"), row.created_by))
    facts.append((_("sealed"), display.ago(row.sealed_at) if row.sealed_at else _("not yet: jobs are still added")))
    if row.finished_at:
        facts.append((_("finished"), display.ago(row.finished_at)))
        facts.append((_("took"), display.seconds((row.finished_at - row.created_at).total_seconds())))
    return facts

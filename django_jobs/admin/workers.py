"""Workers in the admin: which processes there are, grouped in trees of a supervisor and its processes, and what each runs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from django.contrib import admin
from django.db.models import F, OuterRef, QuerySet, Subquery, Sum, Value
from django.db.models.functions import Coalesce
from django.http import HttpRequest
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from ..conf import jobs_database, jobs_settings
from ..models import Job, JobLock, Worker, WorkerKind
from ..models.visibility import visible_jobs
from . import display
from .base import ReadOnlyAdmin

#: Graces after which a process that was not seen is called silent.
SILENT_GRACES: Final = 3
MAX_JOBS_SHOWN: Final = 50


class LifeFilter(admin.SimpleListFilter):
    """Alive by default."""

    title, parameter_name = gettext_lazy("state"), "life"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return what there is besides the default."""
        return [("stopped", gettext_lazy("stopped")), ("any", gettext_lazy("all"))]

    def choices(self, changelist: Any) -> Any:
        """Call the default by its name."""
        choices = list(super().choices(changelist))
        choices[0]["display"] = _("alive")
        return choices

    def queryset(self, request: HttpRequest, queryset: QuerySet[Worker]) -> QuerySet[Worker]:
        """Narrow by `stopped_at`."""
        if self.value() == "any":
            return queryset
        return queryset.filter(stopped_at__isnull=self.value() != "stopped")


@admin.register(Worker)
class WorkerAdmin(ReadOnlyAdmin[Worker]):
    """The registry that workers keep of themselves."""

    list_display = ["process", "life", "slots_used", "done_so_far", "seen"]
    list_display_links = None
    list_filter = [LifeFilter]
    list_per_page = 100
    show_full_result_count = True  # a table of a page or two
    sortable_by = ()
    search_fields = ["name", "host"]
    fields = [
        "id", "process", "kind", "host", "pid", "version", "life", "serves", "slots_used", "done_so_far", "memory",
        "started_at", "seen_at", "stopped_at", "stop_reason", "jobs_now",
    ]  # fmt: skip
    readonly_fields = ["process", "life", "serves", "slots_used", "done_so_far", "memory", "jobs_now"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Worker]:
        """Put each supervisor before its processes; the table holds a few hundred rows at most."""
        workers = Worker.objects.using(jobs_database())
        head = workers.filter(pk=OuterRef("tree")).values("started_at")[:1]
        queryset = workers.annotate(tree=Coalesce("parent", "pk"))
        queryset = queryset.annotate(head_started=Coalesce(Subquery(head), F("started_at")))
        # A supervisor's own row counts the jobs of processes that have ended: those of the living are on their rows.
        living = workers.filter(parent=OuterRef("pk"), stopped_at__isnull=True).order_by().values("parent")
        for name in ("jobs_done", "running", "slots"):
            total = Coalesce(Subquery(living.annotate(total=Sum(name)).values("total")), Value(0))
            queryset = queryset.annotate(**{f"tree_{name}": F(name) + total})
        return queryset.order_by("-head_started", "tree", "-kind", "started_at", "pk")

    def get_ordering(self, request: HttpRequest) -> list[Any]:
        """Order trees by the start of their supervisor, newest first; in a tree, the supervisor first."""
        return ["-head_started", "tree", "-kind", "started_at", "pk"]

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Worker | None:
        """Fetch one row, and note who looks."""
        worker: Any = super().get_object(request, object_id, from_field)
        if worker is not None:
            worker.viewer = request.user
        return worker  # type: ignore[no-any-return]

    @admin.display(description=gettext_lazy("process"))
    def process(self, worker: Worker) -> SafeString:
        """Show the name, indented below its supervisor."""
        facts = [worker.get_kind_display(), f"pid {worker.pid}", *([self.memory(worker)] if worker.memory_mb else [])]
        css = "dj-supervisor" if worker.kind == WorkerKind.SUPERVISOR else "dj-child" if worker.parent else "dj-supervisor"
        return format_html(
            '<a class="dj-job {}" href="{}"><b>{}</b><small>{}</small><small>{}</small></a>',
            css,
            self.url("change", worker.pk),
            worker.name,
            " · ".join(map(str, facts)),
            self.serves(worker),
        )

    @admin.display(description=gettext_lazy("state"))
    def life(self, worker: Any) -> SafeString:
        """Show whether it works, was not seen for long, or has stopped and why."""
        if worker.stopped_at:
            return format_html('{} <span class="dj-note">{}</span>', display.badge("cancelled", _("stopped")), worker.stop_reason)
        patience = timedelta(seconds=SILENT_GRACES * jobs_settings().grace)
        if worker.seen_at < timezone.now() - patience:
            return display.badge("lost", _("silent"))
        busy = worker.tree_running
        return display.badge("running" if busy else "succeeded", _("busy") if busy else _("idle"))

    @admin.display(description=gettext_lazy("slots"))
    def slots_used(self, worker: Any) -> SafeString | str:
        """Show slots in use of how many; of a supervisor, those of its processes."""
        used, slots = worker.tree_running, worker.tree_slots
        if not slots or worker.stopped_at:
            return display.NOTHING
        return format_html(
            '<meter value="{}" max="{}"></meter> {} / {}<span class="dj-unit"> {}</span>', used, slots, used, slots, _("slots")
        )

    @admin.display(description=gettext_lazy("jobs done"))
    def done_so_far(self, worker: Any) -> SafeString:
        """Show how many jobs this process has ended; a supervisor, how many its processes have, the bygone ones too."""
        number = display.count(worker.tree_jobs_done, worker.tree_jobs_done)
        unit = ngettext("job done", "jobs done", worker.tree_jobs_done)
        return format_html('{}<span class="dj-unit"> {}</span>', number, unit)

    @admin.display(description=gettext_lazy("memory"))
    def memory(self, worker: Worker) -> str:
        """Show megabytes; nothing where nobody has measured."""
        return display.NOTHING if not worker.memory_mb else f"{worker.memory_mb:.0f} MB"

    @admin.display(description=gettext_lazy("queues"))
    def serves(self, worker: Worker) -> str:
        """Show which queues it serves."""
        names = worker.queues if isinstance(worker.queues, list) else [worker.queues]
        served = ", ".join(str(name) for name in names if not str(name).startswith("!"))
        said = _("all queues") if served in ("", "all", "*") else served
        left_out = ", ".join(str(name)[1:] for name in names if str(name).startswith("!"))
        return _("%(queues)s without %(excluded)s") % {"queues": said, "excluded": left_out} if left_out else said

    @admin.display(description=gettext_lazy("last seen"))
    def seen(self, worker: Worker) -> SafeString | str:
        """Show when it last said that it is there, and when it started."""
        started = format_html('<span class="dj-note">{} {}</span>', _("started"), display.ago(worker.started_at))
        return format_html("{}{}", display.ago(worker.stopped_at or worker.seen_at), started)

    @admin.display(description=gettext_lazy("runs now"))
    def jobs_now(self, worker: Worker) -> SafeString | str:
        """List the attempts that it has in hand."""
        using = worker._state.db
        locks = dict(JobLock.objects.using(using).filter(worker=worker.pk).values_list("pk", "claimed_at")[:MAX_JOBS_SHOWN])
        visible = visible_jobs(worker.viewer, Job.objects.using(using))  # type: ignore[attr-defined]
        jobs = visible.filter(pk__in=locks).only("id", "task")
        lines = ((self.url_of(Job, "change", job.pk), job.task, job.pk, display.ago(locks[job.pk])) for job in jobs)
        return format_html_join("", '<p><a href="{}">{}</a> <code>{}</code> {}</p>', lines) or display.NOTHING

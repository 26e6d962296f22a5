"""The list of jobs: tabs by status, filters from static sources, pages that never count or sort the table.

The open jobs are not one range of any index, so the list is a chain of segments: what runs, what starts next, what is parked,
what is due later, what waits for other jobs. Each is counted up to a cap and read in the order of its index.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from django.contrib.admin import SimpleListFilter
from django.contrib.admin.views.main import PAGE_VAR, ChangeList
from django.core.paginator import Paginator
from django.db.models import Q
from django.db.models.functions import Left
from django.http import HttpRequest
from django.utils import timezone
from django.utils.functional import cached_property
from django.utils.translation import gettext_lazy as _

from .. import stats
from ..conf import jobs_database
from ..exceptions import InvalidOption
from ..models import AttemptOutcome, Job, JobAttempt
from ..models.selection import ALL, EVERYTHING, OPEN, SEGMENTS, Segment, id_range, in_queue, segments
from ..models.visibility import visible_jobs
from . import display
from .sources import queue_names, task_names

if TYPE_CHECKING:
    from ..models.job import JobQuerySet

STATUS, QUEUE, TASK, PERIOD, BEFORE, ATTEMPT, BATCH = "status", "queue", "task", "period", "before", "attempt", "batch"
#: The only parameters that narrow the list: any other lookup could read the table whole, or guess at hidden arguments.
PARAMETERS: Final = frozenset({STATUS, QUEUE, TASK, PERIOD, BEFORE, ATTEMPT, BATCH})
PERIODS: Final = {"hour": timedelta(hours=1), "day": timedelta(days=1), "week": timedelta(days=7), "month": timedelta(days=30)}
#: A filter that no index serves looks at so many jobs of each segment, from its front.
WINDOW: Final = 50_000
#: So many of the newest attempts that ended in a certain way are followed to their jobs.
ATTEMPTS: Final = 1_000
#: No job has this id: a condition that nothing fulfils, where an empty list would be no SQL.
NO_JOB: Final = UUID(int=0)
#: So much of an error's text fits a line.
SNIPPET_CHARS: Final = 160
#: What a line shows, and nothing else: arguments, results and tracebacks can be megabytes.
COLUMNS: Final = [
    "id",
    "task",
    "description",
    "queue",
    "priority",
    "status",
    "parked",
    "reason",
    "due_at",
    "attempts_used",
    "max_attempts",
    "starts",
    "last_outcome",
    "worker",
    "progress",
    "error_class",
    "enqueued_at",
    "last_started_at",
    "finished_at",
    "run_seconds",
]


class _Choice(SimpleListFilter):
    """A filter whose value the change list reads: it touches no queryset itself."""

    def queryset(self, request: HttpRequest, queryset: JobQuerySet) -> None:  # type: ignore[override]
        """Leave the queryset alone: see `JobChangeList`."""


class StatusFilter(_Choice):
    """Shown as tabs above the list, not in the sidebar."""

    title, parameter_name = _("status"), STATUS

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the lists there are."""
        return [(name, segment.label) for name, segment in SEGMENTS.items()]

    def has_output(self) -> bool:
        """Keep it out of the sidebar."""
        return False


class BeforeFilter(StatusFilter):
    """The job after which the list starts: the way past the last page that is numbered."""

    title, parameter_name = _("older than"), BEFORE


class BatchFilter(StatusFilter):
    """The batch whose jobs are listed: its page leads here."""

    title, parameter_name = _("batch"), BATCH


class QueueFilter(_Choice):
    """By queue: those declared anywhere, and the one that is chosen."""

    title, parameter_name = _("queue"), QUEUE

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the declared queues, never a DISTINCT over jobs."""
        return [(name, name) for name in _with(queue_names(using=jobs_database()), request.GET.get(QUEUE))]


class TaskFilter(_Choice):
    """By task: those registered in this process, and the one that is chosen."""

    title, parameter_name = _("task"), TASK

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the registered tasks, never a DISTINCT over jobs."""
        return [(name, name.rpartition(".")[2] or name) for name in _with(task_names(), request.GET.get(TASK))]


class PeriodFilter(_Choice):
    """By time: when final jobs finished; when others were enqueued."""

    title, parameter_name = _("time"), PERIOD

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the periods."""
        return [("hour", _("last hour")), ("day", _("last day")), ("week", _("last 7 days")), ("month", _("last 30 days"))]


class AttemptFilter(_Choice):
    """By how some attempt ended: a job that succeeded at last may have lost a worker before."""

    title, parameter_name = _("an attempt that"), ATTEMPT

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the ends of attempts that leave a record."""
        return [
            (AttemptOutcome.LOST, _("was lost: its worker died")),
            (AttemptOutcome.HANDED_BACK, _("was handed back")),
            (AttemptOutcome.FAILED, _("failed")),
            (AttemptOutcome.TIMED_OUT, _("timed out")),
            (AttemptOutcome.RETRY, _("asked for a retry")),
        ]


def _with(names: Sequence[str], chosen: str | None) -> list[str]:
    return sorted({*names, chosen}) if chosen else list(names)


class Chain:
    """Querysets one after the other, as a paginator wants to see them; at most `stats.COUNT_CAP` rows of them."""

    def __init__(self, querysets: dict[str, JobQuerySet], counts: dict[str, int]) -> None:
        self.querysets, self.counts = querysets, counts

    @property
    def is_capped(self) -> bool:
        """Whether there is more than is shown."""
        return sum(self.counts.values()) > stats.COUNT_CAP

    def count(self) -> int:
        """Return how many rows can be reached."""
        return min(sum(self.counts.values()), stats.COUNT_CAP)

    def __getitem__(self, part: slice) -> list[Job]:
        start, stop = part.start or 0, min(part.stop, self.count())
        rows: list[Job] = []
        for name, queryset in self.querysets.items():
            here = self.counts[name]
            if start < here and stop > 0:
                rows += queryset[start : min(stop, here)]
            start, stop = max(start - here, 0), stop - here
        return rows


class JobChangeList(ChangeList):
    """Django's change list, over a chain of segments instead of one queryset."""

    def get_queryset(self, request: HttpRequest, **kwargs: Any) -> JobQuerySet:  # type: ignore[override]
        """Read the parameters; return every job: only the ids of a page, or of the rows ticked, are ever asked of it."""
        queryset = super().get_queryset(request, **kwargs)
        self.jobs = visible_jobs(request.user, Job.objects.using(jobs_database()))
        # PostgreSQL takes no NUL in a text.
        self.params = {name: value.replace("\x00", "") for name, value in self.params.items()}
        self.search = self.query.strip()
        self.status = self.params.get(STATUS) or (ALL if self.search else OPEN)
        try:
            self.segments = segments(self.status)
        except InvalidOption:
            self.status, self.segments = OPEN, segments(OPEN)
        return queryset  # type: ignore[return-value]

    def apply_select_related(self, qs: Any) -> Any:
        """Join nothing."""
        return qs

    def get_results(self, request: HttpRequest) -> None:
        """Count up to the cap, and read one page."""
        self.totals = stats.status_counts(using=jobs_database(), jobs=self.jobs)
        querysets = {segment.name: self._narrow(segment) for segment in self.segments}
        if self._is_narrowed or self.status == ALL:
            counts = stats.capped_counts(querysets, using=jobs_database())
        else:
            counts = {name: self.totals[name] for name in querysets}
        self.rows = Chain({name: self._columns(queryset) for name, queryset in querysets.items()}, counts)
        self.paginator = Paginator(self.rows, self.list_per_page)  # type: ignore[arg-type]
        page = self.paginator.get_page(self.page_num)
        self.page_num = page.number
        self.result_list = page.object_list
        self.result_count = self.paginator.count
        self.show_full_result_count, self.full_result_count = True, self.result_count  # no second number beside the search box
        self.show_admin_actions = True
        self.can_show_all, self.multi_page = False, self.result_count > self.list_per_page
        self.show_all = False

    @cached_property
    def _is_narrowed(self) -> bool:
        return bool(self.search or any(self.params.get(name) for name in (QUEUE, TASK, PERIOD, BEFORE, ATTEMPT, BATCH)))

    def _columns(self, queryset: JobQuerySet) -> JobQuerySet:
        return queryset.only(*COLUMNS).annotate(error_snippet=Left("error_message", SNIPPET_CHARS))

    def _narrow(self, segment: Segment) -> JobQuerySet:
        """Return the jobs of `segment` that the parameters ask for, looking at a bounded number of rows."""
        jobs = segment.of(self.jobs)
        if before := self._before:
            jobs = jobs.filter(segment.after(before))
        if since := self._since:
            jobs = jobs.filter(segment.since(since))
        condition, is_indexed = self._search(segment)
        if self.params.get(BATCH):
            # Index django_jobs_in_batch: nothing else has to be bounded.
            batch = _uuid(self.params[BATCH])
            return jobs.filter(condition & self._plain, batch=batch)
        if (had := self._had_attempt) is not None:
            condition, is_indexed = condition & Q(pk__in=had or [NO_JOB]), True
        if queue := self.params.get(QUEUE):
            condition &= in_queue(queue)
            is_ready = segment.name == "ready" and not queue.endswith(".*")
            is_indexed = is_indexed and (is_ready or had is not None)
        if task := self.params.get(TASK):
            condition &= Q(task=task)
            is_indexed = had is not None
        return jobs.filter(condition) if is_indexed else _front(jobs, segment).filter(condition)

    def _search(self, segment: Segment) -> tuple[Q, bool]:
        """Return the condition that the search box asks for, and whether an index serves it."""
        if not self.search:
            return Q(), True
        if found := id_range(self.search):
            return Q(id__range=found), True
        if len(self.search) < 2:
            return Q(task=self.search), False
        return Q(task__icontains=self.search) | Q(unique_key=self.search), False

    @property
    def _plain(self) -> Q:
        """The conditions on columns of the job alone."""
        condition = Q()
        if (had := self._had_attempt) is not None:
            condition &= Q(pk__in=had or [NO_JOB])
        if queue := self.params.get(QUEUE):
            condition &= in_queue(queue)
        if task := self.params.get(TASK):
            condition &= Q(task=task)
        return condition

    @cached_property
    def _since(self) -> datetime | None:
        period = PERIODS.get(self.params.get(PERIOD, ""))
        return timezone.now() - period if period else None

    @cached_property
    def _had_attempt(self) -> list[Any] | None:
        """The jobs of the newest attempts that ended as the filter says, None without one. Reads no table of jobs."""
        outcome = self.params.get(ATTEMPT)
        if outcome not in AttemptOutcome.values:
            return None
        attempts = JobAttempt.objects.using(jobs_database()).order_by("-pk")
        cut = next(iter(attempts.values_list("pk", flat=True)[WINDOW : WINDOW + 1]), 0)
        newest = attempts.filter(pk__gt=cut, outcome=outcome)[:ATTEMPTS]
        return list(dict.fromkeys(newest.values_list("job_id", flat=True)))

    @cached_property
    def _before(self) -> Job | None:
        """The job after which the list starts. Only a list of one segment can be entered in the middle."""
        found = id_range(self.params.get(BEFORE, ""))
        if not found or len(self.segments) != 1:
            return None
        return self.jobs.filter(pk=found[0]).only(*COLUMNS).first()

    # For the template.

    @property
    def tabs(self) -> list[dict[str, Any]]:
        """Return the tabs: open and all first, then each status with its capped count."""
        cap = stats.COUNT_CAP
        open_jobs = sum(self.totals[segment.name] for segment in segments(OPEN))
        names = [(OPEN, _("open"), display.count(open_jobs, cap)), (ALL, EVERYTHING.label, "")]
        names += [(name, segment.label, display.count(self.totals[name], cap)) for name, segment in SEGMENTS.items()]
        return [
            {
                "name": name,
                "label": label,
                "count": number,
                "is_empty": number == "0",
                "selected": name == self.status,
                "url": self.get_query_string({STATUS: name}, [PAGE_VAR, BEFORE]),
            }
            for name, label, number in names
            if name not in ("parked", "waiting") or number != "0" or name == self.status
        ]

    @property
    def older(self) -> str:
        """Return the query string of what lies beyond the last page, empty if nothing does or there is no way."""
        is_last = self.page_num == self.paginator.num_pages
        if not (self.rows.is_capped and is_last and len(self.segments) == 1 and self.result_list):
            return ""
        return self.get_query_string({BEFORE: str(list(self.result_list)[-1].pk)}, [PAGE_VAR])

    @property
    def reachable(self) -> str:
        """Return the number of jobs that can be reached by page, for people."""
        return display.count(self.result_count, self.result_count)

    @property
    def window(self) -> int:
        """Return how many jobs of each segment were looked at, 0 if all of them."""
        is_indexed = not self.search or id_range(self.search) is not None
        narrows = self.params.get(TASK) or self.params.get(QUEUE)
        return 0 if self._had_attempt is not None or (is_indexed and not narrows) else WINDOW

    @property
    def attempts_window(self) -> int:
        """Return how many attempts were followed to their jobs, 0 if there was no need to stop."""
        return ATTEMPTS if len(self._had_attempt or ()) >= ATTEMPTS else 0


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        return NO_JOB


def _front(jobs: JobQuerySet, segment: Segment) -> JobQuerySet:
    """Cut `jobs` after `WINDOW` rows of its order: the value at the cut is read from the index, then bounds the same index."""
    values = jobs.values_list(segment.leading, flat=True)[WINDOW : WINDOW + 1]
    cut = next(iter(values), None)
    if cut is None:
        return jobs
    return jobs.filter(**{f"{segment.leading}__{'gte' if segment.order[0].startswith('-') else 'lte'}": cut})

"""What a person can do to jobs: each verb with its permission, its words and the function of `lifecycle.control` that does it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.contrib.admin.options import get_content_type_for_model
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext_lazy

from ..lifecycle import control
from ..lifecycle.report import NOT_FOUND
from ..models import Job
from ..models.visibility import visible_ids
from ..statuses import FINAL, PENDING, Status

#: Jobs handed to one call of a verb: a transaction's worth.
BATCH: Final = 500
#: What "select all" may take at once.
MAX_SELECTED: Final = 10_000


@dataclass(frozen=True)
class Verb:
    """One thing to do to jobs."""

    name: str
    label: Any
    action_label: Any  # in the list's menu
    permission: str
    help: Any
    accepts: frozenset[Status]  # for the preview and the buttons; `control` decides
    has_force: bool = False
    force_help: Any = ""
    flag: int = CHANGE

    def is_allowed(self, user: Any) -> bool:
        """Whether `user` has this verb's permission."""
        return bool(user.is_active and user.has_perm(self.permission))

    @property
    def function(self) -> Callable[..., Any]:
        """Return the function that does it."""
        return getattr(control, _FUNCTIONS[self.name])  # type: ignore[no-any-return]


_FUNCTIONS: Final = {"requeue": "requeue", "cancel": "cancel", "done": "done", "delete": "delete", "run": "run_now"}

VERBS: Final[Mapping[str, Verb]] = MappingProxyType(
    {
        verb.name: verb
        for verb in (
            Verb(
                "requeue",
                gettext_lazy("Requeue"),
                gettext_lazy("Requeue the selected jobs"),
                "django_jobs.requeue_job",
                gettext_lazy(
                    "They run again, with fresh attempts, at the back of their queues. Results and errors so far are cleared."
                ),
                FINAL,
            ),
            Verb(
                "run",
                gettext_lazy("Run now"),
                gettext_lazy("Run the selected scheduled jobs now"),
                "django_jobs.run_job",
                gettext_lazy("They become ready at once, whatever time they were planned for."),
                frozenset({Status.SCHEDULED}),
            ),
            Verb(
                "cancel",
                pgettext_lazy("stop a job", "Cancel"),
                gettext_lazy("Cancel the selected jobs"),
                "django_jobs.cancel_job",
                gettext_lazy("Jobs that have not started are cancelled at once; running ones are asked to stop."),
                PENDING | {Status.RUNNING, Status.FAILED, Status.TIMED_OUT},
                has_force=True,
                force_help=gettext_lazy("Kill the process of a running job that does not stop"),
            ),
            Verb(
                "done",
                gettext_lazy("Mark as done"),
                gettext_lazy("Mark the selected jobs as done by hand"),
                "django_jobs.done_job",
                gettext_lazy("They count as succeeded without having run."),
                PENDING | {Status.FAILED, Status.TIMED_OUT},
            ),
            Verb(
                "delete",
                gettext_lazy("Delete"),
                gettext_lazy("Delete the selected jobs"),
                "django_jobs.delete_job",
                gettext_lazy("They are removed with their attempts and results. This can’t be undone."),
                FINAL | PENDING,
                has_force=True,
                force_help=gettext_lazy("Also running jobs: they are cancelled, and deleted when they end"),
                flag=DELETION,
            ),
        )
    }
)


@dataclass
class Outcome:
    """What became of a selection: per job, so that the number told is the number that changed."""

    changed: list[UUID] = field(default_factory=list)
    requested: list[UUID] = field(default_factory=list)  # running jobs that were asked to stop
    refused: dict[UUID, str] = field(default_factory=dict)


def perform(verb: Verb, ids: Sequence[UUID], *, user: Any, reason: str, force: bool, using: str) -> Outcome:
    """Do `verb` to the jobs `ids` in batches, and write Django's log: an entry for each job that changed or was asked to stop."""
    outcome = Outcome()
    options = {"force": force} if verb.has_force else {}
    for batch in batched(ids):
        seen = visible_ids(user, batch, using=using)
        names = dict(Job.objects.using(using).filter(pk__in=seen).values_list("pk", "task"))
        report = verb.function(seen, by=user.get_username()[:64], reason=reason, using=using, **options)
        requested = set(report.requested)
        outcome.changed += [job_id for job_id in report.changed if job_id not in requested]
        outcome.requested += report.requested
        outcome.refused |= report.refused | {job_id: NOT_FOUND for job_id in batch if job_id not in seen}
        touched = {job_id: f"{names.get(job_id, '')} ({job_id})" for job_id in {*report.changed, *requested}}
        write_log(verb, touched, user=user, reason=reason, force=force)
    return outcome


def write_log(verb: Verb, jobs: Mapping[UUID, str], *, user: Any, reason: str, force: bool) -> None:
    """Write one entry of Django's admin log for each of `jobs` (id -> how it is called)."""
    what = str(verb.label) + (" " + _("(by force)") if force else "")
    content_type = get_content_type_for_model(Job)
    LogEntry.objects.bulk_create(
        LogEntry(
            user_id=user.pk,
            content_type_id=content_type.pk,
            object_id=str(job_id),
            object_repr=name[:200],
            action_flag=verb.flag,
            change_message=f"{what}: {reason}" if reason else what,
        )
        for job_id, name in jobs.items()
    )


def batched(ids: Iterable[UUID], size: int = BATCH) -> Iterator[list[UUID]]:
    """Cut `ids` into lists of at most `size`."""
    iterator = iter(ids)
    while batch := list(islice(iterator, size)):
        yield batch

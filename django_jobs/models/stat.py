"""Roll-ups: numbers that many transactions change, as append-only deltas that a service folds. No row is hot.

What is asked for is the number of jobs in each status now, and how often each of `TOTALS` has happened since the beginning
(deletion takes nothing away). What is written is the *move*, since one row says all of it: `ready>running` takes from one status
and gives to another, `>ready` creates, `succeeded>` deletes. A row may also name a number itself. A number is what all `Count`
rows and all `Delta` rows together say of it (`spelled_out`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_jobs.statuses import FINAL, PENDING

#: Series that only rise.
TOTALS: Final = (
    "total_created",
    "total_succeeded",
    "total_failed",
    "total_timed_out",
    "total_cancelled",
    "total_retried",
    "total_requeued",
)
RETRIED: Final = "total_retried"  # an attempt ended in a retry: the move does not say so


def move_name(source: str, target: str) -> str:
    """Return the name of a move between statuses. An empty `source`: created; an empty `target`: deleted."""
    return f"{source}>{target}"


def spelled_out(name: str, value: int) -> Iterator[tuple[str, int]]:
    """Yield the numbers that a row of this name and value changes, and by how much."""
    source, arrow, target = name.partition(">")
    if not arrow:
        yield name, value
        return
    if source:
        yield source, -value
    if target:
        yield target, value
    if not source:
        yield "total_created", value
    elif target in FINAL:
        yield f"total_{target}", value
    elif source in FINAL and target in PENDING:
        yield "total_requeued", value


class Count(models.Model):
    """The sum of the deltas of one name and queue that have been folded."""

    queue = models.CharField(_("queue"), max_length=100)
    name = models.CharField(_("name"), max_length=20)
    value = models.BigIntegerField(_("value"), default=0)

    class Meta:
        verbose_name = _("count")
        verbose_name_plural = _("counts")
        constraints = [models.UniqueConstraint(fields=["queue", "name"], name="django_jobs_count_name")]

    def __str__(self) -> str:
        return f"{self.queue} {self.name}: {self.value}"


class Delta(models.Model):
    """A change, written in the transaction that made it."""

    id = models.BigAutoField(primary_key=True)
    queue = models.CharField(_("queue"), max_length=100)
    name = models.CharField(_("name"), max_length=20)
    value = models.BigIntegerField(_("value"))
    batch_id = models.UUIDField(_("batch"), null=True)

    class Meta:
        verbose_name = _("change of a count")
        verbose_name_plural = _("changes of counts")

    def __str__(self) -> str:
        return f"{self.queue} {self.name}: {self.value:+d}"


class JobTag(models.Model):
    """A tag of a job, for finding jobs by it. The job's own row has its tags, too."""

    # No constraint in the database: a foreign key would make every insert lock the job's row.
    job = models.ForeignKey("django_jobs.Job", on_delete=models.CASCADE, db_constraint=False, related_name="+")
    tag = models.CharField(_("tag"), max_length=100)

    class Meta:
        verbose_name = _("tag")
        verbose_name_plural = _("tags")
        # Also the order of a tag's list: ids rise with time.
        constraints = [models.UniqueConstraint(fields=["tag", "job"], name="django_jobs_tag_job")]

    def __str__(self) -> str:
        return self.tag

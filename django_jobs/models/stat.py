"""Roll-ups: numbers that many transactions change, as append-only deltas that a service folds. No row is hot.

The value of a number is its `Count` row plus its `Delta` rows. Names: a status (how many jobs are in it now), or one of
`TOTALS` (how often that has happened since the beginning; deletion takes nothing away).
"""

from __future__ import annotations

from typing import Final

from django.db import models
from django.utils.translation import gettext_lazy as _

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


class Count(models.Model):
    """A number of a queue, as it was when the deltas were last folded."""

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
    """A change of a number, written in the transaction that caused it."""

    id = models.BigAutoField(primary_key=True)
    queue = models.CharField(_("queue"), max_length=100)
    name = models.CharField(_("name"), max_length=20)
    value = models.BigIntegerField(_("value"))

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

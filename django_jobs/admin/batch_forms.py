"""What the pages of batches ask: filters of the list, and why a verb is done."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy

from ..models import Batch


class _NullFilter(admin.SimpleListFilter):
    """By whether a date is there."""

    column = ""
    words: tuple[Any, Any] = ("", "")  # there, not there

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return both."""
        return [("yes", self.words[0]), ("no", self.words[1])]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Batch]) -> QuerySet[Batch]:
        """Narrow by the column."""
        if self.value() not in ("yes", "no"):
            return queryset
        return queryset.filter(**{f"{self.column}__isnull": self.value() == "no"})


class FinishedFilter(_NullFilter):
    """Finished or not."""

    title, parameter_name, column = gettext_lazy("state"), "finished", "finished_at"
    words = (gettext_lazy("finished"), gettext_lazy("not finished"))


class ReadFilter(_NullFilter):
    """Seen by somebody or not."""

    title, parameter_name, column = gettext_lazy("read"), "read", "read_at"
    words = (gettext_lazy("read"), gettext_lazy("unread"))


class ReasonForm(forms.Form):
    """Why, and whether also those that were cancelled."""

    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        required=False,
        max_length=500,
        widget=forms.Textarea(attrs={"rows": 2, "class": "vLargeTextField"}),
        help_text=gettext_lazy("Kept with each job, and in the history."),
    )
    flag = forms.BooleanField(required=False)

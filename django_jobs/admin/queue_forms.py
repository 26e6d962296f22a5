"""The forms about queues: the settings of one, and why and for how long it is paused."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..conf import readers
from ..durations import parse_duration
from ..exceptions import InvalidOption
from ..models import Queue
from ..queues import check_queue_name


class OptionalJSONField(forms.JSONField):
    """JSON or nothing: an empty box where nothing is said, not the word "null"."""

    def prepare_value(self, value: Any) -> Any:
        """Show nothing for None."""
        return "" if value is None else super().prepare_value(value)


class QueueForm(forms.ModelForm):  # not generic at run time
    """A queue's settings, each checked as the setting QUEUES is."""

    class Meta:
        model = Queue
        fields = ["name", "description", "is_http", "timeout", "heartbeat_timeout", "max_attempts", "backoff", "retention"]
        field_classes = {"backoff": OptionalJSONField, "retention": OptionalJSONField}
        widgets = dict.fromkeys(("backoff", "retention"), forms.Textarea(attrs={"rows": 3, "class": "vLargeTextField"}))
        help_texts = {
            "name": gettext_lazy(
                "As jobs name it. “billing.invoices” is below “billing”, and takes from it what it does not say itself."
            ),
            "is_http": gettext_lazy(
                "Whether its jobs are claimed over HTTP, and not by the site's own workers; unknown: as the queue above."
                " Such a queue should have a limit: nothing else ends the attempt of a worker that is lost."
            ),
            "timeout": gettext_lazy("Seconds that an attempt may take; 0: no limit."),
            "heartbeat_timeout": gettext_lazy("Seconds that a task which reports its progress may be silent; 0: no limit."),
            "max_attempts": gettext_lazy("How often a job is started at most, the first time included."),
            "backoff": gettext_lazy(
                'The pause before a retry: seconds, or a list such as [10, "1m", "10m"], the last one repeats.'
            ),
            "retention": gettext_lazy(
                'How long jobs are kept, by how they ended: {"succeeded": "1d", "failed": null}; null: for ever.'
            ),
        }

    def clean_name(self) -> str:
        """Refuse a name that no job's queue can have."""
        return _checked(check_queue_name, self.cleaned_data["name"])  # type: ignore[no-any-return]

    def clean_timeout(self) -> Any:
        """Refuse what is no duration."""
        return self._duration("timeout")

    def clean_heartbeat_timeout(self) -> Any:
        """Refuse what is no duration."""
        return self._duration("heartbeat_timeout")

    def clean_backoff(self) -> Any:
        """Refuse a back-off that no retry could read."""
        value = self.cleaned_data["backoff"]
        return value if value is None else _checked(readers.backoff, value, "backoff")

    def clean_retention(self) -> Any:
        """Refuse a status or a duration that does not exist."""
        value = self.cleaned_data["retention"]
        return value if value is None else _checked(readers.retention, value, "retention")

    def _duration(self, name: str) -> float | None:
        value = self.cleaned_data[name]
        return value if value is None else _checked(parse_duration, value)


def _checked(check: Any, *args: Any) -> Any:
    """Return what `check` does; what it raises is told below the field, whose label says already which one it is."""
    try:
        return check(*args)
    except InvalidOption as error:
        raise forms.ValidationError([_message(each) for each in readers.all_of(error)]) from error


def _message(error: InvalidOption) -> str:
    """Return what is wrong; where in the value, too, but not the name in code of the whole field."""
    name, bracket, _rest = error.field.partition("[")
    text = str(error).removeprefix(name if bracket else f"{name}: ")
    return text[:1].upper() + text[1:]


class PauseForm(forms.Form):
    """Why, and for how long."""

    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        required=False,
        max_length=500,
        widget=forms.Textarea(attrs={"rows": 2, "class": "vLargeTextField"}),
        help_text=gettext_lazy("Shown with the queue, and kept in the history."),
    )
    duration = forms.CharField(
        label=gettext_lazy("For how long"),
        required=False,
        max_length=20,
        help_text=gettext_lazy("Such as 15m, 2h or 1d. Empty: until somebody resumes it."),
    )

    def clean_duration(self) -> datetime | None:
        """Return when the pause ends, None for never by itself."""
        text = self.cleaned_data["duration"].strip()
        if not text:
            return None
        seconds: float = _checked(parse_duration, text)
        if seconds <= 0:
            raise forms.ValidationError(_("A pause lasts longer than nothing."))
        return timezone.now() + timedelta(seconds=seconds)

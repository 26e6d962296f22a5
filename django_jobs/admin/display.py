"""How values look on the pages: badges, times, durations, JSON. Everything that comes from a row is escaped."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any, Final

from django.utils import timezone
from django.utils.formats import date_format, number_format
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.timesince import timesince, timeuntil
from django.utils.translation import gettext as _

from ..models import Job
from ..models.selection import PARKED, SEGMENTS
from ..statuses import LABELS, Status

#: What a page shows of one JSON value; the command `jobs show` has it all.
MAX_JSON_CHARS: Final = 100_000
SHORT_JSON_CHARS: Final = 60
NOTHING: Final = "–"
#: What is nearer than this has no age: a column of zeros says nothing.
NOW_SECONDS: Final = 1.0


def badge(name: str, label: Any = "") -> SafeString:
    """Return a coloured label. Colour is never the only sign: the word is there, too."""
    return format_html('<span class="dj-badge dj-{}">{}</span>', name, label or name)


def status_badge(status: str, parked: str = "") -> SafeString:
    """Return the badge of a job's status; a parked job says so instead of "ready"."""
    if parked:
        return badge(PARKED, SEGMENTS[PARKED].label)
    return badge(status, LABELS[Status(status)] if status in LABELS else status)


def ago(moment: datetime | None) -> SafeString | str:
    """Return how long ago, or in how long, with the date itself on hover and for machines."""
    if moment is None:
        return NOTHING
    now = timezone.now()
    distance = abs((now - moment).total_seconds())
    if distance < NOW_SECONDS:
        text = _("just now") if moment <= now else _("now")
    elif distance < 60:
        text = _("%(seconds)d s ago") if moment <= now else _("in %(seconds)d s")
        text %= {"seconds": distance}
    elif moment <= now:
        text = _("%(time)s ago") % {"time": timesince(moment, now, depth=1)}
    else:
        text = _("in %(time)s") % {"time": timeuntil(moment, now, depth=1)}
    return format_html('<time datetime="{}" title="{}">{}</time>', moment.isoformat(), exact(moment), text)


def exact(moment: datetime | None) -> str:
    """Return the date and the time to the second, in the current time zone."""
    return f"{date_format(timezone.localtime(moment), 'Y-m-d H:i:s T')}" if moment else NOTHING


def seconds(value: float | None) -> str:
    """Return a duration as a person would say it: 840 ms, 3.2 s, 4 min 5 s, 2 h 10 min, 3 d 4 h."""
    if value is None:
        return NOTHING
    if value < 0.9995:
        return f"{number_format(value * 1000, 1 if value < 0.01 else 0)} ms"
    if value < 59.95:
        return f"{number_format(value, 1)} s"
    whole = timedelta(seconds=round(value))
    hours, rest = divmod(whole.seconds, 3600)
    minutes, secs = divmod(rest, 60)
    parts = [(whole.days, "d"), (hours, "h"), (minutes, "min"), (secs, "s")]
    first = next((index for index, (number, _unit) in enumerate(parts) if number), len(parts) - 1)
    return " ".join(f"{number} {unit}" for number, unit in parts[first : first + 2] if number)


def count(number: int, cap: int) -> str:
    """Return a count that stopped at `cap`: "10,000+" for more."""
    return f"{number_format(cap, force_grouping=True)}+" if number > cap else number_format(number, force_grouping=True)


def task_name(task: str) -> SafeString:
    """Return a dotted name with its last part first in the eye."""
    module, dot, name = task.rpartition(".")
    return format_html('<span class="dj-task"><b>{}</b>{}</span>', name, format_html("<small>{}</small>", module) if dot else "")


def attempts(job: Job) -> str:
    """Return attempts used of how many: "2 / 5"."""
    return f"{job.attempts_used} / {'∞' if job.max_attempts is None else job.max_attempts}"


def pretty_json(value: Any) -> str:
    """Return a JSON value as indented text, each digit of each number, cut at `MAX_JSON_CHARS`. Not escaped."""
    try:
        text = json.dumps(value, indent=2, ensure_ascii=False)
    except ValueError as error:  # an int of more digits than Python prints
        return str(error)
    if len(text) <= MAX_JSON_CHARS:
        return text
    rest = number_format(len(text) - MAX_JSON_CHARS, force_grouping=True)
    return text[:MAX_JSON_CHARS] + "\n" + _("… %(rest)s more characters") % {"rest": rest}


def payload_json(value: Any) -> str:
    """Return a JSON value in one line if it is short, else as `pretty_json`; with all its marks either way."""
    text = pretty_json(value)
    if len(text) > 2 * SHORT_JSON_CHARS:
        return text
    line = json.dumps(value, ensure_ascii=False)
    return line if len(line) <= SHORT_JSON_CHARS else text


def short_json(value: Any) -> str:
    """Return a JSON value in one line if it is short, a list of texts without its marks; else as `pretty_json`."""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ", ".join(value)
    text = pretty_json(value)
    line = " ".join(part.strip() for part in text.split("\n"))
    return line if len(line) <= SHORT_JSON_CHARS else text


def fraction(progress: Any) -> tuple[float, float] | None:
    """Return (done, total) of a job's progress, None if it has no total that a bar could show."""
    if not isinstance(progress, dict):
        return None
    done, total = progress.get("done"), progress.get("total")
    if isinstance(done, bool) or isinstance(total, bool):
        return None
    if isinstance(done, int | float) and isinstance(total, int | float) and total > 0:
        return min(max(done, 0), total), total
    return None

"""From a selection to its outcome: the confirmation with a preview and a reason, then the verb, then a report of each refusal.

Only a POST that carries the confirmation changes anything. What is confirmed is what was shown: the ids travel in the form.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db.models import Count
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.html import format_html, format_html_join
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from ..conf import jobs_database
from ..statuses import Status
from . import display
from .verbs import MAX_SELECTED, VERBS, Outcome, Verb, batched, perform

if TYPE_CHECKING:
    from ..models.job import JobQuerySet
    from .jobs import JobAdmin

#: So many jobs, and so many refusals, are told one by one.
SHOWN: Final = 20
#: Ids in one query of the preview.
PREVIEW_BATCH: Final = 2000


class ConfirmForm(forms.Form):
    """The ids that the preview showed, the reason, and whether to use force."""

    ids = forms.CharField(widget=forms.HiddenInput)
    next = forms.CharField(widget=forms.HiddenInput, required=False)
    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        required=False,
        max_length=500,
        widget=forms.Textarea(attrs={"rows": 2, "class": "vLargeTextField"}),
        help_text=gettext_lazy("Kept with the jobs and in the history."),
    )
    force = forms.BooleanField(required=False)

    def clean_ids(self) -> list[UUID]:
        """Return the ids, each once."""
        return parse_ids(self.cleaned_data["ids"].split(","))


def parse_ids(texts: Sequence[str]) -> list[UUID]:
    """Return the ids among `texts`, each once, at most `MAX_SELECTED`; what is none is left out."""
    found: dict[UUID, None] = {}
    for text in texts:
        try:
            found[UUID(text.strip())] = None
        except ValueError:
            continue
    return list(found)[:MAX_SELECTED]


def act_view(admin: JobAdmin, request: HttpRequest, name: str) -> HttpResponse:
    """Answer a POST to `act/<verb>/`: with `confirmed`, do it; without, ask."""
    verb = VERBS.get(name)
    if verb is None:
        raise Http404
    if request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    if not (admin.has_view_permission(request) and verb.is_allowed(request.user)):
        raise PermissionDenied
    form = ConfirmForm(request.POST)
    if not form.is_valid():
        if "ids" in form.errors:
            return HttpResponseRedirect(admin.url("changelist"))
        return confirmation(admin, request, verb, parse_ids(request.POST.get("ids", "").split(",")), form=form)
    ids, after = form.cleaned_data["ids"], _safe_next(admin, request, form.cleaned_data["next"])
    if "confirmed" not in request.POST:
        return confirmation(admin, request, verb, ids, after=after)
    force = verb.has_force and form.cleaned_data["force"]
    outcome = perform(
        verb, ids, user=request.user, reason=form.cleaned_data["reason"].strip(), force=force, using=jobs_database()
    )
    _report(admin, request, verb, outcome)
    if verb.name == "delete" and len(ids) == 1 and outcome.changed:
        after = admin.url("changelist")  # its page is gone, or soon will be
    return HttpResponseRedirect(after)


def confirmation(
    admin: JobAdmin, request: HttpRequest, verb: Verb, ids: list[UUID], *, after: str = "", form: ConfirmForm | None = None
) -> HttpResponse:
    """Show what the verb would do to the jobs `ids`, and ask for a reason. Changes nothing."""
    after = after or request.get_full_path()
    initial = {"ids": ",".join(map(str, ids)), "next": after}
    jobs = admin.get_queryset(request)
    rows = jobs.filter(pk__in=ids[:SHOWN]).only("id", "task", "queue", "status", "parked")
    by_id = {job.pk: job for job in rows}
    statuses = _count_statuses(ids, jobs)
    accepted = sum(number for status, number in statuses.items() if status in verb.accepts)
    context = {
        **admin.admin_site.each_context(request),
        "title": _("%(verb)s: are you sure?") % {"verb": verb.label},
        "opts": admin.opts,
        "media": admin.media,
        "original": str(verb.label),  # the breadcrumb's last part
        "has_view_permission": True,
        "verb": verb,
        "form": form or ConfirmForm(initial=initial),
        "jobs": [
            {
                "job": job,
                "url": admin.url("change", job.pk),
                "badge": display.status_badge(job.status, job.parked),
                "accepts": Status(job.status) in verb.accepts,
            }
            for job_id in ids[:SHOWN]
            if (job := by_id.get(job_id))
        ],
        "statuses": [(display.status_badge(status), number, status in verb.accepts) for status, number in statuses.items()],
        "total": len(ids),
        "accepted": accepted,
        "refused": len(ids) - accepted,
        "gone": len(ids) - sum(statuses.values()),
        "more": max(len(ids) - SHOWN, 0),
        "after": after,
    }
    request.current_app = admin.admin_site.name
    return TemplateResponse(request, "admin/django_jobs/job/confirm.html", context)


def _count_statuses(ids: list[UUID], jobs: JobQuerySet) -> dict[Status, int]:
    found: Counter[Status] = Counter()
    for batch in batched(ids, PREVIEW_BATCH):
        rows = jobs.filter(pk__in=batch).values_list("status").annotate(number=Count("pk"))
        found.update({Status(status): number for status, number in rows.order_by("status")})
    return dict(found)


def _safe_next(admin: JobAdmin, request: HttpRequest, target: str) -> str:
    """Return `target` if it leads back into this site, else the list of jobs."""
    is_safe = url_has_allowed_host_and_scheme(target, allowed_hosts={request.get_host()}, require_https=request.is_secure())
    return target if target and is_safe else admin.url("changelist")


def _report(admin: JobAdmin, request: HttpRequest, verb: Verb, outcome: Outcome) -> None:
    """Tell what changed and, one by one, what did not and why."""
    changed, requested, refused = outcome.changed, outcome.requested, outcome.refused
    if changed:
        done = ngettext("%(verb)s: %(number)d job.", "%(verb)s: %(number)d jobs.", len(changed))
        messages.success(request, done % {"verb": verb.label, "number": len(changed)})
    if requested:
        asked = ngettext(
            "%(number)d running job was asked to stop.", "%(number)d running jobs were asked to stop.", len(requested)
        )
        messages.success(request, asked % {"number": len(requested)})
    if refused:
        said = ngettext("%(number)d job was left as it is:", "%(number)d jobs were left as they are:", len(refused))
        messages.warning(request, format_html("{} {}", said % {"number": len(refused)}, _lines(admin, refused)))


def _lines(admin: JobAdmin, refused: dict[UUID, str]) -> SafeString:
    shown: list[tuple[Any, ...]] = [(admin.url("change", job_id), job_id, why) for job_id, why in list(refused.items())[:SHOWN]]
    lines = format_html_join("", '<span class="dj-refusal"><a href="{}"><code>{}</code></a> {}</span>', shown)
    if len(refused) > SHOWN:
        reasons = Counter(refused.values()).most_common(5)
        lines = format_html('{}<span class="dj-refusal">{}</span>', lines, _("… and more; by reason:"))
        lines += format_html_join("", '<span class="dj-refusal">{} × {}</span>', ((number, why) for why, number in reasons))
    return lines  # no list: Django's messages are one, and style all items within

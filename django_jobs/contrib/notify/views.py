"""Pages for users: their notices, and whether they want mails."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from .models import Notice, Preference

PAGE_SIZE = 50


class PreferenceForm(forms.ModelForm):  # type: ignore[type-arg]  # generic in its stubs only
    """How to be told."""

    class Meta:
        model = Preference
        fields = ["by_mail", "on_site"]


@login_required
def notices(request: HttpRequest) -> HttpResponse:
    """List the user's notices, the newest first."""
    found = Notice.objects.filter(user=request.user.pk).select_related("group")
    page = Paginator(found, PAGE_SIZE).get_page(request.GET.get("page"))
    return render(request, "django_jobs_notify/notices.html", {"page": page, "title": _("Failed jobs")})


@login_required
@require_POST
def mark_read(request: HttpRequest) -> HttpResponseRedirect:
    """Mark notices as read: those whose ids are posted as `notice`, without any all of the user's."""
    found = Notice.objects.filter(user=request.user.pk).unread()
    if ids := [value for value in request.POST.getlist("notice") if value.isdecimal()]:
        found = found.filter(pk__in=ids)
    found.update(read_at=timezone.now())
    target: Any = request.POST.get("next", "")
    if not url_has_allowed_host_and_scheme(target, {request.get_host()}, require_https=request.is_secure()):
        target = "django_jobs_notify:notices"
    return redirect(target)


@login_required
def preferences(request: HttpRequest) -> HttpResponse:
    """Let the user choose how to be told."""
    mine = Preference.objects.filter(user=request.user.pk).first() or Preference(user_id=request.user.pk)  # type: ignore[misc]  # somebody is logged in
    form = PreferenceForm(request.POST if request.method == "POST" else None, instance=mine)
    if form.is_bound and form.is_valid():
        form.save()
        messages.success(request, _("Saved."))
        return redirect("django_jobs_notify:preferences")
    return render(request, "django_jobs_notify/preferences.html", {"form": form, "title": _("How to be told of failed jobs")})

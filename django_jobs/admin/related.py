"""A link to the object that a job is about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.apps import apps
from django.contrib.admin import AdminSite
from django.core.exceptions import ObjectDoesNotExist, ValidationError
from django.db import DatabaseError
from django.db.models import Model
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils.connection import ConnectionDoesNotExist
from django.utils.html import format_html
from django.utils.translation import gettext as _


def related_link(site: AdminSite, request: HttpRequest, said: Mapping[str, Any] | None) -> Any:
    """Return the object by its name, as a link where the reader may follow one; what is gone is told. None if there is none."""
    if not isinstance(said, Mapping) or not {"model", "pk"} <= said.keys():
        return None
    name = f"{said['model']} {said['pk']}"
    try:
        model = apps.get_model(str(said["model"]))
        found = model._base_manager.using(str(said.get("using") or "default")).get(pk=said["pk"])
    except (ObjectDoesNotExist, LookupError, ValueError, TypeError, ValidationError, ConnectionDoesNotExist, DatabaseError):
        return format_html('{} <span class="dj-quiet">{}</span>', name, _("not there (any more)"))
    kind = str(model._meta.verbose_name)
    registered = site._registry.get(model)
    if registered is not None:
        if not registered.has_view_permission(request, found):
            return name
        url = reverse(f"{site.name}:{model._meta.app_label}_{model._meta.model_name}_change", args=[found.pk])
        return format_html('{} <a href="{}">{}</a>', kind, url, found)
    return _public(found, kind, name)


def _public(found: Model, kind: str, name: str) -> Any:
    try:
        url = found.get_absolute_url()  # type: ignore[attr-defined]
    except (AttributeError, NoReverseMatch):
        return name
    return format_html('{} <a href="{}">{}</a>', kind, url, found)

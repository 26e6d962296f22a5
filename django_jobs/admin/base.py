"""What the pages share: the database that holds the jobs, read-only pages, links with the site's own prefix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from django.contrib import admin
from django.db import models
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.text import capfirst

from ..conf import jobs_database

ModelT = TypeVar("ModelT", bound=models.Model)

if TYPE_CHECKING:

    class _ModelAdmin(admin.ModelAdmin[ModelT]):
        pass

else:

    class _ModelAdmin(admin.ModelAdmin, Generic[ModelT]):
        """Django's ModelAdmin, which takes no type parameter at run time."""


class JobsModelAdmin(_ModelAdmin[ModelT]):
    """A page of this package: reads the database that holds the jobs, and counts rows once at most."""

    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER  # each would be a COUNT

    class Media:
        css = {"all": ["django_jobs/admin.css"]}

    def get_queryset(self, request: HttpRequest) -> models.QuerySet[ModelT]:
        """Read where the jobs are, whatever a router says about reads."""
        return super().get_queryset(request).using(jobs_database())

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Call the list by what it lists, not "Select ... to view"."""
        title = capfirst(self.opts.verbose_name_plural)
        return super().changelist_view(request, {"title": title, **(extra_context or {})})

    def url(self, name: str, *args: Any) -> str:
        """Return the address of this model's page `name` ("changelist", "change", ...) on this very admin site."""
        return self.url_of(self.model, name, *args)

    def url_of(self, model: type[models.Model], name: str, *args: Any) -> str:
        """Return the address of a page of another model of this package."""
        options = model._meta
        return reverse(f"admin:{options.app_label}_{options.model_name}_{name}", args=args, current_app=self.admin_site.name)


class ReadOnlyAdmin(JobsModelAdmin[ModelT]):
    """Rows that the workers write, and people only look at."""

    actions = None

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Nobody adds by hand what workers keep."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nobody changes by hand what workers keep."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nobody deletes by hand what workers keep."""
        return False

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Whoever may view or change the model may look."""
        return super().has_view_permission(request, obj)

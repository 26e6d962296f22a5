"""Pages: send a file and see what becomes of it; get what was exported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.core.signing import BadSignature, SignatureExpired, TimestampSigner
from django.http import FileResponse, Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.template.defaultfilters import filesizeformat
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .conf import transfer_settings
from .importers import importers
from .models import Export, Import, State
from .starting import cancel_import, max_bytes, may_download, start_export, start_import

if TYPE_CHECKING:
    _Admin = admin.ModelAdmin[Any]
else:
    _Admin = admin.ModelAdmin

_SIGNER = TimestampSigner(salt="django_jobs.contrib.transfer")


_OF_IMPORT: list[str] = [
    "name",
    "importer",
    "shown_state",
    "error",
    "progress",
    "bad_rows",
    "created_by",
    "created_at",
    "finished_at",
    "jobs",
    "cancel",
]


_OF_EXPORT: list[str] = ["model", "shown_state", "error", "rows", "download", "created_by", "created_at", "expires_at"]


class ImportForm(forms.Form):
    """Which importer, and the file."""

    importer = forms.ChoiceField(label=gettext_lazy("What it is"))
    file = forms.FileField(
        label=gettext_lazy("File"), help_text=gettext_lazy("CSV, with the names of the columns in its first line.")
    )

    def __init__(self, *args: Any, user: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        allowed = {name: cls for name, cls in importers().items() if not cls.permission or user.has_perm(cls.permission)}
        field: Any = self.fields["importer"]
        field.choices = [(name, (cls.__doc__ or name).strip().partition("\n")[0]) for name, cls in sorted(allowed.items())]

    def clean_file(self) -> Any:
        """Refuse what is too large or empty before it is stored."""
        file = self.cleaned_data["file"]
        if file.size > max_bytes():
            raise forms.ValidationError(_("At most %(size)s.") % {"size": filesizeformat(max_bytes())})
        return file


class _ReadOnly(_Admin):
    """Rows that jobs write: they can be looked at."""

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nobody changes them by hand."""
        return False

    def _named(self, name: str) -> str:
        return f"{self.opts.app_label}_{self.opts.model_name}_{name}"

    @admin.display(description=gettext_lazy("state"), ordering="state")
    def shown_state(self, found: Any) -> Any:
        """Show the state as a badge."""
        look = {State.FINISHED: "succeeded", State.FAILED: "failed", State.CANCELLED: "waiting", State.RUNNING: "running"}
        return format_html('<span class="dj-badge dj-{}">{}</span>', look.get(found.state, "ready"), found.get_state_display())

    class Media:
        css: ClassVar = {"all": ["django_jobs/admin.css"]}


@admin.register(Import)
class ImportAdmin(_ReadOnly):
    """Imports: each user sees all, since who may add imports sees what they did."""

    list_display = ["name", "importer", "shown_state", "progress", "created_by", "created_at"]
    list_filter = ["state", "importer"]
    fields = [*_OF_IMPORT]
    readonly_fields = _OF_IMPORT

    def get_urls(self) -> list[URLPattern]:
        """Add the pages that Django has not."""
        return [
            path("<int:pk>/errors/", self.admin_site.admin_view(self.errors), name=self._named("errors")),
            path("<int:pk>/cancel/", self.admin_site.admin_view(self.stop), name=self._named("cancel")),
            *super().get_urls(),
        ]

    def add_view(self, request: HttpRequest, form_url: str = "", extra_context: Any = None) -> HttpResponse:
        """Take a file."""
        if not self.has_add_permission(request):
            raise PermissionDenied
        form = ImportForm(request.POST or None, request.FILES or None, user=request.user)
        if request.method == "POST" and form.is_valid():
            found = start_import(form.cleaned_data["importer"], form.cleaned_data["file"], user=request.user)
            return HttpResponseRedirect(reverse(f"{self.admin_site.name}:{self._named('change')}", args=[found.pk]))
        context = {
            **self.admin_site.each_context(request),
            "title": _("Import a file"),
            "form": form,
            "opts": self.opts,
            "media": self.media + form.media,
        }
        return self._page(request, "add.html", context)

    def _page(self, request: HttpRequest, name: str, context: dict[str, Any]) -> HttpResponse:
        from django.template.response import TemplateResponse

        return TemplateResponse(request, f"admin/django_jobs_transfer/{name}", context)

    def errors(self, request: HttpRequest, pk: int) -> HttpResponseBase:
        """Answer with the file of rows with errors."""
        found = self.get_object(request, str(pk))
        if found is None or not self.has_view_permission(request, found):
            raise PermissionDenied
        if not found.errors:
            raise Http404
        return FileResponse(found.errors.open("rb"), as_attachment=True, filename=f"errors-{pk}.csv")

    def stop(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Cancel an import (POST)."""
        found = self.get_object(request, str(pk))
        if request.method != "POST" or found is None or not self.has_add_permission(request):
            raise PermissionDenied
        if cancel_import(found, by=request.user.get_username()):
            messages.success(request, _("The import is cancelled. Rows that were imported stay."))
        return HttpResponseRedirect(reverse(f"{self.admin_site.name}:{self._named('change')}", args=[pk]))

    def change_view(self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None) -> HttpResponse:
        """Show an import; while it runs the page comes again by itself."""
        response = super().change_view(request, object_id, form_url, extra_context)
        found = self.get_object(request, object_id)
        if found is not None and not found.has_ended:
            response.headers["Refresh"] = "3"
        return response

    @admin.display(description=gettext_lazy("progress"))
    def progress(self, found: Import) -> Any:
        """Show how many rows are imported."""
        if not found.total:
            return "–"
        good, bad = found.good, found.bad
        if not found.has_ended:
            done = found.chunks.filter(is_done=True)
            good = sum(done.values_list("good", flat=True))
            bad = sum(len(rows) for rows in done.values_list("bad_rows", flat=True))
        text = _("%(good)d of %(total)d rows, %(bad)d with errors") % {"good": good, "total": found.total, "bad": bad}
        return format_html('<progress value="{}" max="{}"></progress> {}', good + bad, found.total, text)

    @admin.display(description=gettext_lazy("rows with errors"))
    def bad_rows(self, found: Import) -> Any:
        """Link to the file of rows with errors."""
        if not found.errors:
            return "–"
        url = reverse(f"{self.admin_site.name}:{self._named('errors')}", args=[found.pk])
        return format_html('<a href="{}" download>{}</a>', url, _("Download, to be mended and imported again"))

    @admin.display(description=gettext_lazy("jobs"))
    def jobs(self, found: Import) -> Any:
        """Link to the job that split the file."""
        if found.job_id is None:
            return "–"
        url = reverse(f"{self.admin_site.name}:django_jobs_job_change", args=[found.job_id])
        return format_html('<a href="{}">{}</a>', url, found.job_id)

    @admin.display(description="")
    def cancel(self, found: Import) -> Any:
        """Offer to stop it."""
        if found.has_ended:
            return ""
        url = reverse(f"{self.admin_site.name}:{self._named('cancel')}", args=[found.pk])
        return format_html('<button type="submit" class="button" formmethod="post" formaction="{}">{}</button>', url, _("Cancel"))

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Delete what has ended."""
        return super().has_delete_permission(request, obj) and (obj is None or obj.has_ended)


@admin.register(Export)
class ExportAdmin(_ReadOnly):
    """A user's own exports; a superuser's are all."""

    list_display = ["model", "shown_state", "rows", "download", "created_by", "created_at", "expires_at"]
    fields = [*_OF_EXPORT]
    readonly_fields = _OF_EXPORT

    def has_add_permission(self, request: HttpRequest) -> bool:
        """They are made by the action of another model."""
        return False

    def get_queryset(self, request: HttpRequest) -> Any:
        """Show a user what is the user's."""
        rows = super().get_queryset(request)
        return rows if request.user.is_superuser else rows.filter(created_by=request.user.pk)

    def get_urls(self) -> list[URLPattern]:
        """Add the download."""
        return [
            path("download/<str:token>/", self.admin_site.admin_view(self.file), name=self._named("download")),
            *super().get_urls(),
        ]

    @admin.display(description=gettext_lazy("file"))
    def download(self, found: Export) -> Any:
        """Link to the file, as long as there is one."""
        if not found.file or found.expires_at is None or found.expires_at <= timezone.now():
            return "–"
        url = reverse(f"{self.admin_site.name}:{self._named('download')}", args=[_SIGNER.sign(str(found.pk))])
        return format_html('<a href="{}" download>{}</a>', url, _("Download"))

    def file(self, request: HttpRequest, token: str) -> HttpResponseBase:
        """Answer with the file: the link is right and young, and the user may still see what is in it."""
        try:
            key = int(_SIGNER.unsign(token, max_age=transfer_settings().keep))
        except SignatureExpired:
            raise Http404(_("This link has expired.")) from None
        except (BadSignature, ValueError):
            raise Http404(_("This is no link to an export.")) from None
        found = Export.objects.filter(pk=key).first()
        if found is None or not found.file or found.expires_at is None or found.expires_at <= timezone.now():
            raise Http404(_("This export has expired."))
        if not may_download(found, request.user):
            raise PermissionDenied
        name = f"{found.model.replace('.', '-')}-{found.created_at:%Y%m%d-%H%M}.csv"
        return FileResponse(found.file.open("rb"), as_attachment=True, filename=name, content_type="text/csv; charset=utf-8")


class ExportAsJob(_Admin if TYPE_CHECKING else object):  # type: ignore[misc]
    """For a ModelAdmin: an action that exports the selection by a job.

    `export_fields`: which fields; left out, the key and those columns of `list_display` that the model has itself.
    """

    export_fields: ClassVar[tuple[str, ...] | list[str]] = ()

    def get_actions(self, request: HttpRequest) -> Any:
        """Offer the action to who may see the rows."""
        actions = super().get_actions(request)
        if self.has_view_permission(request):
            actions["export_as_job"] = (ExportAsJob.export_as_job, "export_as_job", _("Export the selected rows as a job"))
        return actions

    def export_as_job(self: Any, request: HttpRequest, queryset: Any) -> None:
        """Begin the export, and say where it will be."""
        shown = [name for name in self.list_display if name != "__str__" and hasattr(queryset.model, str(name))]
        found = start_export(queryset, self.export_fields or ["pk", *shown], user=request.user)
        url = reverse(f"{self.admin_site.name}:django_jobs_transfer_export_changelist")
        text = _("The export of %(count)d rows has begun.") % {"count": len(found.keys)}
        messages.success(request, format_html('{} <a href="{}">{}</a>', text, url, _("Your exports")))

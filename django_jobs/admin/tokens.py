"""Tokens of the HTTP API: made, with the secret shown once, and revoked. Nobody gives more than they have themselves."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.options import get_content_type_for_model
from django.contrib.auth import get_user_model
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..conf import jobs_database, parse_duration
from ..exceptions import InvalidOption
from ..lifecycle.tokens import PERMISSIONS, VERBS, check_patterns, make_token, revoke_token
from ..models import ApiToken
from . import display
from .base import JobsModelAdmin


def verbs_of(user: Any) -> list[str]:
    """Return the verbs that a user may give to a token: those of whose permissions the user has every one."""
    return [verb for verb, permissions in PERMISSIONS.items() if user.has_perms(permissions)]


class TokenForm(forms.Form):
    """What a new token is for. The choices are the maker's own."""

    name = forms.CharField(
        label=gettext_lazy("Name"),
        max_length=100,
        widget=forms.TextInput(attrs={"class": "vTextField"}),
        help_text=gettext_lazy("What uses it, such as “worker on host 7”."),
    )
    verbs = forms.MultipleChoiceField(
        label=gettext_lazy("May"),
        widget=forms.CheckboxSelectMultiple,
        help_text=gettext_lazy("Only what you may do yourself can be chosen."),
    )
    queues = forms.CharField(
        label=gettext_lazy("Queues"),
        required=False,
        widget=forms.TextInput(attrs={"class": "vTextField"}),
        help_text=gettext_lazy("Names with commas between them; “mail.*” is mail and all below it. Empty: every queue."),
    )
    duration = forms.CharField(
        label=gettext_lazy("For how long"),
        required=False,
        max_length=20,
        help_text=gettext_lazy("Such as 12h, 90d or 52w. Empty: until somebody revokes it."),
    )
    user_id = forms.CharField(
        label=gettext_lazy("User"),
        required=False,
        help_text=gettext_lazy("Named with what the token does. The token stops working when this user may not log in any more."),
    )

    def __init__(self, maker: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.maker = maker
        verbs: Any = self.fields["verbs"]
        verbs.choices = [(verb, f"{verb}: {VERBS[verb]}") for verb in verbs_of(maker)]
        self.fields["user_id"].initial = maker.get_username()
        # Else one could act under another name, and see what that user sees.
        self.fields["user_id"].disabled = not maker.is_superuser

    def clean_queues(self) -> list[str]:
        """Return the names and patterns."""
        try:
            return check_patterns(name for part in self.cleaned_data["queues"].split(",") if (name := part.strip()))
        except InvalidOption as error:
            raise forms.ValidationError(str(error)) from error

    def clean_duration(self) -> datetime | None:
        """Return when the token ends, None for never by itself."""
        text = self.cleaned_data["duration"].strip()
        if not text:
            return None
        try:
            seconds = parse_duration(text)
            ends = timezone.now() + timedelta(seconds=seconds)
        except (InvalidOption, OverflowError) as error:
            raise forms.ValidationError(str(error)) from error
        if seconds <= 0:
            raise forms.ValidationError(_("A token lasts longer than nothing."))
        return ends

    def clean_user_id(self) -> Any:
        """Return the user's key."""
        name = self.cleaned_data["user_id"].strip()
        if not name:
            return None
        users = get_user_model()
        try:
            return users._default_manager.get_by_natural_key(name).pk
        except users.DoesNotExist:
            raise forms.ValidationError(_("There is no such user.")) from None


@admin.register(ApiToken)
class ApiTokenAdmin(JobsModelAdmin[ApiToken]):
    """A list of who may use the API. A token is never changed: it is revoked, and another one made."""

    actions = None
    list_display = ["name", "state", "may", "where", "who", "used"]
    list_per_page = 50
    sortable_by = ("name",)
    search_fields = ["name", "prefix"]
    search_help_text = gettext_lazy("A name, or the beginning of a secret.")
    fields = [
        "name", "begins", "state", "may", "where", "who", "created_at", "created_by", "expires_at", "revoked_at", "used",
    ]  # fmt: skip
    readonly_fields = ["begins", "state", "may", "where", "who", "used"]
    change_form_template = "admin/django_jobs/apitoken/change_form.html"

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nobody: what a token may is what it was made for."""
        return False

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Whoever may view or change the model may look."""
        return super().has_view_permission(request, obj) or self.may_revoke(request)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Delete only what works no more: else nothing would tell what it was."""
        return super().has_delete_permission(request, obj) and (obj is None or _state(obj) != "works")

    def may_revoke(self, request: HttpRequest) -> bool:
        """Whether the user may revoke tokens."""
        return bool(request.user.has_perm("django_jobs.change_apitoken"))

    # What is shown.

    @admin.display(description=gettext_lazy("state"))
    def state(self, token: ApiToken) -> SafeString:
        """Show whether it works."""
        state = _state(token)
        if state == "works" and token.expires_at:
            return format_html(
                '{} <span class="dj-note">{} {}</span>',
                display.badge("succeeded", _("works")),
                _("expires"),
                display.ago(token.expires_at),
            )
        labels = {"works": ("succeeded", _("works")), "expired": ("lost", _("expired")), "revoked": ("cancelled", _("revoked"))}
        return display.badge(*labels[state])

    @admin.display(description=gettext_lazy("begins with"))
    def begins(self, token: ApiToken) -> SafeString:
        """Show what tells its secret from others."""
        return format_html("<code>{}…</code>", token.prefix)

    @admin.display(description=gettext_lazy("may"))
    def may(self, token: ApiToken) -> str:
        """Show its verbs."""
        return _("all") if set(token.verbs) == set(VERBS) else ", ".join(token.verbs)

    @admin.display(description=gettext_lazy("queues"))
    def where(self, token: ApiToken) -> str:
        """Show its queues."""
        return ", ".join(token.queues) or _("all")

    @admin.display(description=gettext_lazy("user"))
    def who(self, token: ApiToken) -> str:
        """Show its user."""
        if not token.user_id:
            return display.NOTHING
        names = getattr(token, "user_names", None)
        return (_names({token.user_id}) if names is None else names).get(token.user_id, _("gone"))

    @admin.display(description=gettext_lazy("last used"))
    def used(self, token: ApiToken) -> SafeString | str:
        """Show when it was used last, to the minute."""
        return display.ago(token.last_used_at) if token.last_used_at else _("never")

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """Fetch the users of the page in one query."""
        change_list = super().get_changelist_instance(request)
        tokens: list[Any] = list(change_list.result_list)
        names = _names({token.user_id for token in tokens if token.user_id})
        for token in tokens:
            token.user_names = names
        change_list.result_list = tokens
        return change_list

    # Make one.

    def add_view(self, request: HttpRequest, form_url: str = "", extra_context: Any = None) -> HttpResponse:
        """GET shows the form; POST makes the token and shows its secret, this once."""
        if not self.has_add_permission(request):
            raise PermissionDenied
        form = TokenForm(request.user, request.POST or None)
        if request.method == "POST" and form.is_valid():
            said = form.cleaned_data
            token, secret = make_token(
                said["name"],
                verbs=said["verbs"],
                queues=said["queues"],
                user_id=said["user_id"],
                expires_at=said["duration"],
                by=request.user.get_username(),
                using=jobs_database(),
            )
            self.log_addition(request, token, [{"added": {}}])
            context = {"title": _("The secret of %(token)s") % {"token": token.name}, "secret": secret, "original": token}
            return self._page(request, "secret", context)
        return self._page(request, "add", {"title": _("Make a token"), "form": form, "add": True})

    def _page(self, request: HttpRequest, name: str, context: dict[str, Any]) -> HttpResponse:
        request.current_app = self.admin_site.name
        return TemplateResponse(
            request,
            f"admin/django_jobs/apitoken/{name}.html",
            {
                **self.admin_site.each_context(request),
                "opts": self.opts,
                "media": self.media,
                "change": "original" in context,
                "has_view_permission": True,
                "back": self.url("changelist"),
                **context,
            },
        )

    # Revoke one.

    def get_urls(self) -> list[URLPattern]:
        """Add `<id>/revoke/`."""
        revoke = path("<int:pk>/revoke/", self.admin_site.admin_view(self.revoke_view), name="django_jobs_apitoken_revoke")
        return [revoke, *super().get_urls()]

    def revoke_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """GET asks; POST revokes."""
        if not self.may_revoke(request):
            raise PermissionDenied
        token = self.get_object(request, str(pk))
        if token is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, str(pk))  # type: ignore[attr-defined, no-any-return]
        if request.method != "POST":
            context = {"title": _("Revoke %(token)s") % {"token": token.name}, "original": token, "used": self.used(token)}
            return self._page(request, "revoke", context)
        if revoke_token(token.pk, using=jobs_database()):
            LogEntry.objects.create(
                user_id=request.user.pk,  # type: ignore[misc]
                content_type_id=get_content_type_for_model(token).pk,
                object_id=str(token.pk),
                object_repr=str(token)[:200],
                action_flag=CHANGE,
                change_message=capfirst(_("revoked")),
            )
        messages.success(request, _("The token %(token)s works no more.") % {"token": token.name})
        return HttpResponseRedirect(self.url("changelist"))

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any) -> HttpResponse:
        """Tell the template where to revoke."""
        token = kwargs.get("obj")
        if token is not None and token.revoked_at is None and self.may_revoke(request):
            context["revoke_url"] = self.url("revoke", token.pk)
        return super().render_change_form(request, context, *args, **kwargs)


def _state(token: ApiToken) -> str:
    if token.revoked_at:
        return "revoked"
    return "expired" if token.expires_at and token.expires_at <= timezone.now() else "works"


def _names(keys: set[str]) -> dict[str, str]:
    """Return the names of users by their keys as text; those that are gone are left out."""
    users = get_user_model()
    read = []
    for key in keys:
        try:
            read.append(users._meta.pk.to_python(key))
        except ValidationError:  # users have keys of another kind by now
            continue
    return {str(pk): str(user) for pk, user in users._default_manager.in_bulk(read).items()}

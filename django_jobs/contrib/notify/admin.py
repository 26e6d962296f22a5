"""Admin pages: subscriptions and preferences to be edited, groups and notices to be looked at."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from .models import FailureGroup, Notice, Preference, Subscription


class _ReadOnly(admin.ModelAdmin):  # type: ignore[type-arg]  # generic in its stubs only
    def has_add_permission(self, request: HttpRequest) -> bool:
        """Nobody adds what is counted."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nobody changes what is counted."""
        return False


@admin.register(FailureGroup)
class FailureGroupAdmin(_ReadOnly):
    """Groups of failures."""

    list_display = ["task", "error_class", "queue", "count", "first_at", "last_at"]
    list_filter = ["status"]
    search_fields = ["task", "error_class", "error_message"]


@admin.register(Notice)
class NoticeAdmin(_ReadOnly):
    """What was told to whom."""

    list_display = ["user", "group", "count", "last_at", "mailed_at", "read_at"]
    list_select_related = ["user", "group"]
    list_filter = [("read_at", admin.EmptyFieldListFilter)]
    search_fields = ["group__task"]


@admin.register(Subscription)
class SubscriptionAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Who wants to hear of which failures."""

    list_display = ["user", "task", "queue"]
    list_select_related = ["user"]
    search_fields = ["task", "queue"]
    raw_id_fields = ["user"]


@admin.register(Preference)
class PreferenceAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Who wants to be told how."""

    list_display = ["user", "by_mail", "on_site"]
    list_select_related = ["user"]
    raw_id_fields = ["user"]

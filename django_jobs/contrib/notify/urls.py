"""Addresses: `path("notices/", include("django_jobs.contrib.notify.urls"))`."""

from __future__ import annotations

from django.urls import path

from . import views

app_name = "django_jobs_notify"
urlpatterns = [
    path("", views.notices, name="notices"),
    path("read/", views.mark_read, name="mark_read"),
    path("preferences/", views.preferences, name="preferences"),
]

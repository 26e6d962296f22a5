"""The addresses of the API: `path("api/jobs/", include("django_jobs.api.urls"))`."""

from __future__ import annotations

from django.urls import path, re_path

from .base import NotFoundView
from .job_urls import urlpatterns as job_urlpatterns
from .routes import routes
from .service import RootView, VersionView

app_name = "django_jobs_api"
urlpatterns = [
    path("", RootView.as_view(), name="root"),
    *routes("version/", VersionView.as_view(), "version"),
    *routes("info/version/", VersionView.as_view(), "info-version"),  # where ocypod has it
    *job_urlpatterns,
    re_path(r"^.*\Z", NotFoundView.as_view()),
]

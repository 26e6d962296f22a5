"""The addresses of the API: `path("api/jobs/", include("django_jobs.api.urls"))`."""

from __future__ import annotations

from typing import Any

from django.urls import path, re_path

from .base import NotFoundView
from .health import HealthView
from .job_urls import urlpatterns as job_urlpatterns
from .metrics import MetricsView
from .routes import routes
from .service import InfoView, RootView, VersionView, WorkersView


def _schema_view() -> Any:
    try:
        from .schema import SchemaView
    except ImportError:
        from .no_schema import NoSchemaView

        return NoSchemaView.as_view()
    return SchemaView.as_view()


app_name = "django_jobs_api"
urlpatterns = [
    path("", RootView.as_view(), name="root"),
    *routes("info/", InfoView.as_view(), "info"),
    *routes("version/", VersionView.as_view(), "version"),
    *routes("info/version/", VersionView.as_view(), "info-version"),  # where ocypod has it
    *routes("health/", HealthView.as_view(), "health"),
    *routes("metrics/", MetricsView.as_view(), "metrics"),
    *routes("schema/", _schema_view(), "schema"),
    *routes("workers/", WorkersView.as_view(), "workers"),
    *job_urlpatterns,
    re_path(r"^[\s\S]*\Z", NotFoundView.as_view()),
]

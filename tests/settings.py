"""Settings of the test project. `DATABASE_URL` names the database; SQLite in a file without it."""

from __future__ import annotations

import os
import tempfile

from tests.support.databases import from_url

SECRET_KEY = "not-a-secret: the test project is never served"
DEBUG = False
USE_TZ = True
TIME_ZONE = "UTC"
ROOT_URLCONF = "tests.urls"
ALLOWED_HOSTS = ["*"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
STATIC_URL = "/static/"
MEDIA_ROOT = os.path.join(tempfile.gettempdir(), f"django_jobs_test_{os.getuid()}_media")

_default = "sqlite:///" + os.path.join(tempfile.gettempdir(), f"django_jobs_test_{os.getuid()}.sqlite3")
DATABASES = {"default": from_url(os.environ.get("DATABASE_URL", _default))}

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_jobs",
    "django_jobs.contrib.mail",
    "django_jobs.contrib.notify",
    "django_jobs.contrib.transfer",
    "tests.project",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
# It would enqueue a job of its own for each failure of a test.
DJANGO_JOBS_NOTIFY = {"ENABLED": False}
_LOCMEM = "django.core.mail.backends.locmem.EmailBackend"
MAILERS = {"default": {"BACKEND": _LOCMEM}}  # from Django 6.1 on
DJANGO_JOBS_MAIL = {"BACKEND": _LOCMEM}  # before
TASKS = {"default": {"BACKEND": "django_jobs.backend.JobsBackend", "QUEUES": []}}

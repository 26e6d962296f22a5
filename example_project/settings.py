"""Settings of the example site. Two of them make background jobs: the app in INSTALLED_APPS, and TASKS.

Read from the environment: `DATABASE_URL`, `SECRET_KEY`, `DEBUG`, `ATLAS_MIN_POPULATION`, `ATLAS_REPORT_TO`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

BASE_DIR = Path(__file__).resolve().parent


def database(url: str) -> dict[str, Any]:
    """Return the entry of DATABASES for `postgres://user:password@host:port/name?option=value`, `mysql://...` or `sqlite:///path`."""
    parts = urlsplit(url)
    options: dict[str, Any] = dict(parse_qsl(parts.query))
    if parts.scheme == "sqlite":
        # Write-ahead log and IMMEDIATE transactions: several processes may write, and wait for each other instead of failing.
        pragmas = "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;"
        return {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": unquote(parts.path)[1:],
            "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20, "init_command": pragmas},
        }
    entry: dict[str, Any] = {
        "NAME": unquote(parts.path)[1:],
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": options.pop("host", "") or parts.hostname or "",
        "PORT": str(parts.port or ""),
    }
    if parts.scheme in ("postgres", "postgresql"):
        return entry | {"ENGINE": "django.db.backends.postgresql", "OPTIONS": options}
    if parts.scheme in ("mysql", "mariadb"):
        import pymysql

        pymysql.install_as_MySQLdb()
        entry["HOST"] = options.pop("unix_socket", "") or entry["HOST"]
        return entry | {"ENGINE": "django.db.backends.mysql", "OPTIONS": {"charset": "utf8mb4", **options}}
    raise ValueError(f"DATABASE_URL: unknown scheme {parts.scheme!r}: use postgres, mysql or sqlite")


# --- background jobs --------------------------------------------------------------------------------------------------
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.humanize",
    "django_jobs",
    "django_jobs.contrib.transfer",
    "example_project.atlas",
]
TASKS = {"default": {"BACKEND": "django_jobs.backend.JobsBackend", "QUEUES": []}}  # []: any queue name will do

# --- the atlas --------------------------------------------------------------------------------------------------------
ATLAS_MIN_POPULATION = int(os.environ.get("ATLAS_MIN_POPULATION", "20000"))  # 27,000 cities; 0: the whole data set, 34,000
ATLAS_REPORT_TO = os.environ.get("ATLAS_REPORT_TO", "editor@example.com")
EMAIL_BACKEND = "django.core.mail.backends.console.EmailBackend"  # mails are printed by the worker
DEFAULT_FROM_EMAIL = "atlas@example.com"

# --- a plain Django site ----------------------------------------------------------------------------------------------
SECRET_KEY = os.environ.get("SECRET_KEY", "for the example only: set SECRET_KEY wherever others can reach the site")
DEBUG = os.environ.get("DEBUG", "1") == "1"
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
ROOT_URLCONF = "example_project.urls"
DATABASES = {"default": database(os.environ.get("DATABASE_URL") or f"sqlite:///{BASE_DIR / 'db.sqlite3'}")}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
TIME_ZONE = "UTC"
STATIC_URL = "/static/"
MEDIA_ROOT = os.environ.get("MEDIA_ROOT", str(BASE_DIR / "var" / "media"))  # files of imports and exports
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
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

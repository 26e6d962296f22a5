"""The Django app."""

from django.apps import AppConfig


class AtlasConfig(AppConfig):
    """Its module `jobs` is found by django_jobs: nothing to register."""

    name = "example_project.atlas"
    default_auto_field = "django.db.models.BigAutoField"

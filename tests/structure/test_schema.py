"""Models and migrations agree, and the tables are known to Django, so that tools that clean up keep them."""

from __future__ import annotations

from io import StringIO

import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import connection


@pytest.mark.django_db
def test_no_migration_is_missing() -> None:
    out = StringIO()
    try:
        call_command("makemigrations", "django_jobs", "django_jobs_notify", check=True, dry_run=True, verbosity=3, stdout=out)
    except SystemExit:
        pytest.fail(f"models and migrations differ on this Django:\n{out.getvalue()}")
    assert "No changes detected" in out.getvalue()


@pytest.mark.django_db
def test_every_table_is_a_managed_model_and_known_to_introspection() -> None:
    """A lock table that only SQL knew would be dropped by a clean-up of unknown tables, and not flushed by tests."""
    configs = [config for config in apps.get_app_configs() if config.name.partition(".")[0] == "django_jobs"]
    models = [model for config in configs for model in config.get_models(include_auto_created=True)]
    known = connection.introspection.django_table_names(only_existing=True, include_views=False)
    assert "django_jobs_joblock" in {model._meta.db_table for model in models}
    assert {model._meta.db_table for model in models} <= set(known)
    assert all(model._meta.managed for model in models)
    on_disk = {name for name in connection.introspection.table_names() if name.startswith("django_jobs_")}
    assert on_disk == {model._meta.db_table for model in models}


@pytest.mark.django_db
def test_the_lock_table_has_its_foreign_key() -> None:
    from django_jobs.models import Job, JobLock

    keys = [field for field in JobLock._meta.get_fields() if field.is_relation and field.related_model is Job]
    assert keys
    with connection.cursor() as cursor:
        relations = connection.introspection.get_relations(cursor, JobLock._meta.db_table)
    assert Job._meta.db_table in {relation[1] for relation in relations.values()}


@pytest.mark.django_db
def test_system_checks_are_silent_on_the_test_project() -> None:
    from django.core.checks import run_checks

    ours = [problem for problem in run_checks(include_deployment_checks=False, databases=["default"]) if problem.id]
    # MariaDB has no conditional indexes: what Django says of that is known, and answered by other means.
    known = set() if connection.vendor in ("postgresql", "sqlite") else {"models.W036", "models.W037"}
    assert [problem for problem in ours if problem.id not in known] == []

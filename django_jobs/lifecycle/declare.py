"""Queues declared in the settings, as rows: a queue gets one, so that lists show it and people can pause and change it.

A new row says nothing itself, so the setting `QUEUES` holds on, and so does every change of it. What somebody sets in the row
stands before the setting. No row is ever deleted for want of a declaration.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

from django.db import connections

from ..conf import jobs_aliases, jobs_settings, routed_database
from ..conf.backends import backend_options
from ..models import Queue
from ..queues import OF_ROWS

logger = logging.getLogger("django_jobs")


@dataclass(slots=True)
class Synced:
    """What became of the declared queues."""

    created: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)  # had a row before
    #: (queue, option) -> (what the row says and holds, what the setting says in vain)
    overridden: dict[tuple[str, str], tuple[Any, Any]] = field(default_factory=dict)
    undeclared: list[str] = field(default_factory=list)  # rows that the setting does not name: left alone


def sync_queues(*, using: str) -> Synced:
    """Make a row for each queue of the setting `QUEUES` that has none; tell where rows say something else than the setting."""
    declared = jobs_settings().queues
    synced = Synced(created=_create(sorted(declared), Queue, using))
    for row in Queue.objects.using(using).order_by("name"):
        if row.name not in declared:
            synced.undeclared.append(row.name)
            continue
        if row.name not in synced.created:
            synced.kept.append(row.name)
        for option in OF_ROWS:
            of_row, of_setting = getattr(row, option), getattr(declared[row.name], option)
            if of_row is not None and of_setting is not None and of_row != of_setting:
                synced.overridden[row.name, option] = (of_row, of_setting)
    return synced


def _create(names: list[str], model: Any, using: str) -> list[str]:
    queues = model._default_manager.using(using)
    there = set(queues.filter(name__in=names).values_list("name", flat=True))
    missing = [name for name in names if name not in there]
    queues.bulk_create([model(name=name) for name in missing], ignore_conflicts=True)
    return missing


def after_migrate(*, using: str, apps: Any = None, **kwargs: Any) -> None:
    """Make the rows that are missing in a database that was migrated or flushed just now and holds jobs."""
    try:
        # As the migrations have left it; a flush does not say, and leaves it as it is.
        model = Queue if apps is None else apps.get_model("django_jobs", "Queue")
        names = sorted(jobs_settings().queues)
        holding = {backend_options(alias).database for alias in jobs_aliases()} or {routed_database()}
    except Exception as error:  # migrated away, or settings that the system checks tell: no reason to fail a migration
        logger.debug("No queues were declared on %s: %s", using, error)
        return
    if names and using in holding and model._meta.db_table in connections[using].introspection.table_names():
        _create(names, model, using)

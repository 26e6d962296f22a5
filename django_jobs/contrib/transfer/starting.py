"""Begin an import or an export: what a page, a command or a schedule calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.apps import apps
from django.core.files import File
from django.db import transaction
from django.db.models import QuerySet

from ... import job
from ...exceptions import InvalidOption
from .conf import transfer_settings
from .importers import find_importer
from .models import Export, Import, State
from .tasks import split_import, write_export


def start_import(importer: str, file: File[Any], *, user: Any = None) -> Import:
    """Store a file and a job that imports it, in the caller's transaction. Raises `ImportFailed` for an unknown importer.

    What is wrong with the file is told by the import: `state`, `error`, and for rows the file `errors`.
    """
    find_importer(importer)
    name = (file.name or "file").replace("\\", "/").rpartition("/")[2][:255].replace("\x00", "")
    with transaction.atomic():
        found = Import(importer=importer, name=name or "file", created_by=user)
        found.file.save("import.csv", file, save=False)
        found.save()
        found.job_id = split_import.enqueue(found.pk).job_id
        found.save(update_fields=["job_id"])
    return found


def cancel_import(found: Import, *, by: str = "") -> bool:
    """Stop an import; rows that are imported stay. Return whether there was something to stop."""
    from ... import Batch

    with transaction.atomic():
        found = Import.objects.select_for_update().get(pk=found.pk)
        if found.has_ended:
            return False
        found.state = State.CANCELLED
        found.save(update_fields=["state"])
    if found.batch_id is not None:
        Batch.get(found.batch_id).cancel("the import was cancelled", by=by)
    return True


def start_export(rows: QuerySet[Any], fields: Sequence[str], *, user: Any = None) -> Export:
    """Store a job that writes these rows, as they are when it runs, into a file. Raises `InvalidOption` for an unknown field.

    `fields`: names of fields, or of methods without arguments. They have to be said: a model may have a column for nobody's eyes.
    """
    model = rows.model
    known = [field.attname for field in model._meta.concrete_fields]
    if isinstance(fields, str) or not fields:
        raise InvalidOption("fields", "say which: a list of names.")
    for name in fields:
        if not hasattr(model, name) and name not in known:
            raise InvalidOption("fields", f"{model._meta.label} has no {name!r}.")
    keys = [key if isinstance(key, int) else str(key) for key in rows.order_by("pk").values_list("pk", flat=True)]
    with transaction.atomic():
        found = Export.objects.create(model=model._meta.label_lower, fields=list(fields), keys=keys, created_by=user)
        found.job_id = write_export.enqueue(found.pk).job_id
        found.save(update_fields=["job_id"])
    return found


@job(description="Begin an export")
def export_model(model: str, fields: Sequence[str]) -> int:
    """Export these fields of all rows of a model, such as "shop.order": for schedules. Return the key of the export."""
    return int(start_export(apps.get_model(model)._default_manager.all(), fields).pk)


def may_download(found: Export, user: Any) -> bool:
    """Whether `user` may have the file now: who made it, or a superuser, and only with the permission to see the model."""
    model = apps.get_model(found.model)
    may_view = user.has_perm(f"{model._meta.app_label}.view_{model._meta.model_name}")
    return bool(user.is_active and may_view and (user.is_superuser or found.created_by_id == user.pk))


def max_bytes() -> int:
    """Return the size of the largest file that is taken."""
    return transfer_settings().max_bytes

"""The jobs: split a file, import a chunk, finish; write an export, remove it."""

from __future__ import annotations

import csv
import io
import logging
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any
from uuid import UUID

from django.apps import apps
from django.core.exceptions import ValidationError
from django.core.files import File
from django.db import DataError, IntegrityError, router, transaction
from django.db.models import Sum
from django.utils import timezone

from ... import Batch, current_job, job
from .cells import cell, safe
from .conf import transfer_settings
from .importers import TOLD, Importer, ImportFailed, find_importer
from .models import Export, Import, ImportChunk, State
from .reading import read_rows

logger = logging.getLogger("django_jobs.contrib.transfer")


@job(atomic=True, max_attempts=3, description="Split a file into chunks", related=lambda pk: Import.objects.filter(pk=pk).first())
def split_import(pk: int) -> int:
    """Cut the file of an import into chunks, with a job for each; all of that or nothing."""
    found = Import.objects.select_for_update().get(pk=pk)
    if found.state != State.WAITING:
        return 0
    try:
        with transaction.atomic(), found.file.open("rb") as file:
            total, batch = _split(found, file)
    except ImportFailed as error:
        _end(found, State.FAILED, str(error))
        return 0
    found.state, found.total, found.batch_id = State.RUNNING, total, batch
    found.save(update_fields=["state", "total", "batch_id"])
    return total


def _split(found: Import, file: Any) -> tuple[int, UUID]:
    importer = find_importer(found.importer)
    _fields, rows = read_rows(file, importer)
    total = 0
    finish = finish_import.s(found.pk)
    # On success, too: when chunks that failed were requeued and have succeeded.
    with Batch(f"import {found.pk}: {found.name}"[:255], on_finish=finish, on_success=finish_import.s(found.pk)) as batch:
        for number, part in enumerate(_parts(rows, importer.chunk_rows)):
            total += len(part)
            chunk = ImportChunk.objects.create(parent=found, number=number, rows=part)
            batch.add(import_chunk.using(queue_name=importer.queue_name), chunk.pk)
    if not total:
        raise ImportFailed("The file has a header and no rows.")
    return total, batch.id


def _parts(rows: Iterable[tuple[int, list[str]]], size: int) -> Iterator[list[Any]]:
    part: list[Any] = []
    for line, cells in rows:
        part.append([line, cells])
        if len(part) >= size:
            yield part
            part = []
    if part:
        yield part


@job(atomic=True, max_attempts=5, description="Import a chunk")
def import_chunk(pk: int) -> int:
    """Import the rows of a chunk. A good row is saved and a bad one is told; all of it is committed with the end of the job."""
    chunk = ImportChunk.objects.select_related("parent").get(pk=pk)
    if chunk.is_done:
        return chunk.good
    importer = find_importer(chunk.parent.importer)
    with chunk.parent.file.open("rb") as file:
        fields, _rows = read_rows(file, importer)
    context = current_job()
    rows = chunk.rows or []
    for index, (line, cells) in enumerate(rows):
        if error := _import_row(importer, {field: each for field, each in zip(fields, cells, strict=True) if field}):
            chunk.bad_rows.append([line, cells, error])
        else:
            chunk.good += 1
        if context is not None and index % 50 == 49:
            context.progress(index + 1, len(rows))
    chunk.is_done, chunk.rows = True, None
    chunk.save()
    return chunk.good


def _import_row(importer: Importer, data: dict[str, str]) -> str:
    """Save a row; return what is wrong with it, empty if nothing is."""
    form = importer.form(data)
    try:
        with transaction.atomic(using=router.db_for_write(ImportChunk)):
            if not form.is_valid():
                return "; ".join(
                    " ".join([*([] if name == "__all__" else [f"{name}:"]), *map(str, errors)])
                    for name, errors in form.errors.items()
                )
            importer.save(form)
    except (ValidationError, IntegrityError, DataError, ValueError) as error:
        # What the form could not know: a constraint, a value that the importer refuses. A lost race is no fault of the row.
        return f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]
    return ""


@job(atomic=True, max_attempts=5, description="Finish an import", related=lambda pk: Import.objects.filter(pk=pk).first())
def finish_import(pk: int) -> None:
    """Count what the chunks have done, and put the rows with errors into a file."""
    found = Import.objects.select_for_update().get(pk=pk)
    if found.state in (State.FINISHED, State.CANCELLED):
        return
    chunks = found.chunks.order_by("number")
    found.good = chunks.aggregate(good=Sum("good"))["good"] or 0
    try:
        found.bad = _write_errors(found)
    except ImportFailed as error:  # the importer is gone meanwhile
        _end(found, State.FAILED, str(error))
        return
    lost = chunks.filter(is_done=False).count()
    if lost:
        _end(
            found,
            State.FAILED,
            f"{lost} of {chunks.count()} chunks were not imported: see the jobs of its batch, and requeue them.",
        )
    else:
        _end(found, State.FINISHED)


def _write_errors(found: Import) -> int:
    """Write the rows with errors as a file that can be mended and imported again, with two columns more."""
    bad = 0
    with tempfile.TemporaryFile("w+", newline="", encoding="utf-8") as text:
        writer = csv.writer(text)
        importer = find_importer(found.importer)
        with found.file.open("rb") as file:
            fields, _rows = read_rows(file, importer)
        headers = {field: header for header, field in importer.fields().items()}
        writer.writerow([*(headers[field] for field in fields if field), *TOLD])
        for chunk in found.chunks.order_by("number").iterator(chunk_size=20):
            for line, cells, error in chunk.bad_rows:
                own = [each for field, each in zip(fields, cells, strict=True) if field]
                writer.writerow([safe(each) for each in [*own, line, error]])
                bad += 1
        if bad:
            text.seek(0)
            found.errors.save("errors.csv", File(io.BytesIO(text.read().encode())), save=False)
    return bad


def _end(found: Import | Export, state: State, error: str = "") -> None:
    found.state, found.error, found.finished_at = state, error, timezone.now()
    found.save()


@job(max_attempts=3, description="Export rows", related=lambda pk: Export.objects.filter(pk=pk).first())
def write_export(pk: int) -> int:
    """Write the rows of an export into its file, a piece at a time, and have it removed when it expires."""
    found = Export.objects.get(pk=pk)
    if found.has_ended:
        return found.rows
    Export.objects.filter(pk=pk, state=State.WAITING).update(state=State.RUNNING)
    try:
        model = apps.get_model(found.model)
    except LookupError:
        _end(found, State.FAILED, f"There is no model {found.model} (any more).")
        return 0
    context, count = current_job(), 0
    with tempfile.NamedTemporaryFile("w+", newline="", encoding="utf-8", suffix=".csv") as text:
        writer = csv.writer(text)
        writer.writerow(found.fields)
        for start in range(0, len(found.keys), 500):
            rows = model._base_manager.filter(pk__in=found.keys[start : start + 500]).order_by("pk")
            for row in rows:
                writer.writerow([cell(row, name) for name in found.fields])
                count += 1
            if context is not None:
                context.progress(start + len(found.keys[start : start + 500]), len(found.keys))
        text.flush()
        with open(text.name, "rb") as file:
            found.file.save("export.csv", File(file), save=False)
    found.rows, found.expires_at = count, timezone.now() + transfer_settings().keep
    _end(found, State.FINISHED)
    remove_export.using(run_after=found.expires_at).enqueue(found.pk)
    return count


@job(max_attempts=None, backoff=3600, retry_for=OSError, description="Remove an export that has expired")
def remove_export(pk: int) -> None:
    """Delete an export and its file."""
    for found in Export.objects.filter(pk=pk):
        if found.file:
            found.file.delete(save=False)
        found.delete()

"""Registry: mark worker rows whose process has gone without a word, and delete old ones. Nothing decides about jobs by them."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from django.db import connections

from .. import db
from ..conf import jobs_settings
from ..lifecycle.sweep import Swept
from ..models import Worker

#: A process that has not been seen for so many graces, and at least `MIN_SILENCE` seconds, is shown as gone.
SILENT_GRACES: Final = 3
MIN_SILENCE: Final = 30.0


def sweep(using: str, limit: int) -> Swept:
    """Mark up to `limit` silent workers as stopped, and delete as many that are old. Index django_jobs_worker_seen."""
    settings = jobs_settings()
    now = db.server_now(connections[using])
    workers = Worker.objects.using(using)
    silent = now - timedelta(seconds=max(SILENT_GRACES * settings.grace, MIN_SILENCE))
    gone = list(workers.filter(stopped_at__isnull=True, seen_at__lt=silent).values_list("id", flat=True)[:limit])
    touched = workers.filter(id__in=gone, stopped_at__isnull=True, seen_at__lt=silent).update(
        stopped_at=now, running=0, stop_reason="vanished without a word"
    )
    old = now - timedelta(seconds=settings.worker_retention)
    ids = list(workers.filter(stopped_at__lt=old).values_list("id", flat=True)[:limit])
    deleted, _by_model = workers.filter(id__in=ids).delete()
    return Swept(max(touched, deleted))

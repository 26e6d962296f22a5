"""The pieces of the OpenAPI description that are about batches."""

from __future__ import annotations

from ..batches import MAX_NAME
from ..conf import jobs_settings
from ..lifecycle.batch import CALLBACKS
from .schema_parts import COUNT, FLAG, TEXT, TIME, UUID, Part, array, known, nullable, ref

_STATUSES = ("pending", "enqueued", "progress", "finished")


def _batch() -> Part:
    percent: Part = {"type": "number", "minimum": 0, "maximum": 100}
    numbers = dict.fromkeys(("total", "ended", "succeeded", "failed"), COUNT)
    return known(
        {
            "id": UUID,
            "name": TEXT,
            "status": ref("BatchStatus"),
            "counts": ref("CountsByStatus"),
            "progress": known({**numbers, "percent_complete": percent, "percent_failed": percent}),
            "metadata": {"type": "object"},
            "created_by": nullable(TEXT),
            "created_at": TIME,
            **dict.fromkeys(("sealed_at", "finished_at", "read_at"), nullable(TIME)),
            **dict.fromkeys(CALLBACKS, nullable(UUID)),
        },
        optional=("metadata",),
        description="A batch; without `payload` less metadata.",
    )


def _new_batch() -> Part:
    most = jobs_settings().api_bulk_max
    return known(
        {
            "name": {"type": "string", "maxLength": MAX_NAME},
            "metadata": {"type": "object"},
            **dict.fromkeys(CALLBACKS, nullable(ref("NewJob"))),
            "jobs": array(ref("NewJob"), maxItems=most),
            "seal": {**FLAG, "default": True},
        },
        optional=True,
    )


def batch_components() -> dict[str, Part]:
    """Return the components about batches by their names without the prefix."""
    return {
        "BatchStatus": {"type": "string", "enum": list(_STATUSES)},
        "Batch": _batch(),
        "NewBatch": _new_batch(),
    }

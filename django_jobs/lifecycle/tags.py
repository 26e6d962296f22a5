"""Tags as rows, by which jobs are found. They are written and deleted with their job; a job without tags costs nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

from django.db.backends.base.base import BaseDatabaseWrapper

from ..db import TAG, batches, dialect

#: Rows in one statement, at most.
_ROWS: Final = 1_000
#: What is there already is left alone, which a database that takes two spellings for the same tag needs, too.
_LEAVE: Final = {
    "postgresql": " ON CONFLICT DO NOTHING",
    "sqlite": " ON CONFLICT DO NOTHING",
    "mysql": " ON DUPLICATE KEY UPDATE job_id = job_id",
}


def write_tags(connection: BaseDatabaseWrapper, tags: Mapping[UUID, Sequence[str]]) -> None:
    """Store the tags of jobs (by id) that have no rows of tags yet, in the open transaction."""
    rows = [(job_id, tag) for job_id, names in tags.items() for tag in names]
    if not rows:
        return
    words = dialect(connection)
    with connection.cursor() as cursor:
        for part in batches(rows, min(_ROWS, words.max_params // 2)):
            marks = ", ".join(["(%s, %s)"] * len(part))
            params = [value for job_id, tag in part for value in (words.uuid(job_id), tag)]
            cursor.execute(f"INSERT INTO {TAG} (job_id, tag) VALUES {marks}{_LEAVE[connection.vendor]}", params)


def replace_tags(connection: BaseDatabaseWrapper, job_ids: Sequence[UUID], tags: Sequence[str]) -> None:
    """Give all these jobs, whose rows the open transaction has locked, these tags and no others."""
    delete_tags(connection, job_ids)
    write_tags(connection, dict.fromkeys(job_ids, tags))


def delete_tags(connection: BaseDatabaseWrapper, job_ids: Sequence[UUID]) -> None:
    """Delete the tags of these jobs."""
    words = dialect(connection)
    with connection.cursor() as cursor:
        for part in batches(job_ids, min(_ROWS, words.max_params)):
            cursor.execute(*words.delete_by_key(TAG, "job_id", part))


#: PostgreSQL: store the tags of the rows of the CTE `stored`, which has `id` and `tags`, in the same statement.
TAGGING: Final = (
    f"INSERT INTO {TAG} (job_id, tag) SELECT s.id, t.tag FROM stored s, jsonb_array_elements_text(s.tags) t(tag)"
    f"{_LEAVE['postgresql']}"
)

"""Tags: the ids of the jobs that have one."""

from __future__ import annotations

from typing import ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from ..models.selection import JobFilter
from ..options import MAX_TAG
from . import values
from .base import PAGE_QUERY, JobsView
from .errors import not_found
from .pagination import page


class TagView(JobsView):
    """The jobs with a tag, in every queue."""

    verbs: ClassVar = {"GET": "view"}
    query: ClassVar = PAGE_QUERY

    def get(self, request: Request, tag: str) -> Response:
        """Return a page of their ids, the newest first; none if nothing has the tag. Index django_jobs_tag_job."""
        if not tag.strip():
            raise not_found("An empty tag is none.")
        values.text(tag, "tag", MAX_TAG)
        jobs = JobFilter(tag=tag).apply(self.jobs()).only("id")
        return page(self, jobs, order=("-id",), render=lambda job: str(job.pk))

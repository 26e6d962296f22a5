"""Our back end, made to behave as Django's immediate one: what is enqueued has been run when `enqueue` returns."""

from __future__ import annotations

from typing import Any

from asgiref.sync import sync_to_async

from django_jobs.backend import JobsBackend
from django_jobs.testing import arun_jobs, run_jobs


class DrainingBackend(JobsBackend):
    """Enqueues, drains, and looks the result up again."""

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        result = super().enqueue(task, args, kwargs)
        run_jobs(using=self.using)
        result.refresh()
        return result

    async def aenqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        result = await sync_to_async(super().enqueue)(task, args, kwargs)
        await arun_jobs(using=self.using)
        await result.arefresh()
        return result

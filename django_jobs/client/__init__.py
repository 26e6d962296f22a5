"""Use queues over HTTP from a Python program without Django: `Client` enqueues and reads jobs, `Worker` runs them.

Nothing here imports Django or the rest of this package: it needs `httpx` (the extra `client`), the address of a site that
serves `django_jobs.api`, and a token.

    client = Client("https://example.com/api/jobs/", token="dj_...")
    job = client.enqueue(queue="resize", input={"image": 7})

    Worker(client, "resize", lambda job, context: resize(job.input["image"])).run()
"""

from __future__ import annotations

from .api import Client
from .context import Context
from .errors import ApiError, Conflict, Fail, Forbidden, Invalid, LeaseLost, NotFound, Throttled, Unauthorized, Unavailable
from .jobs import ClaimedJob, Job
from .worker import Worker

__all__ = [
    "ApiError",
    "ClaimedJob",
    "Client",
    "Conflict",
    "Context",
    "Fail",
    "Forbidden",
    "Invalid",
    "Job",
    "LeaseLost",
    "NotFound",
    "Throttled",
    "Unauthorized",
    "Unavailable",
    "Worker",
]

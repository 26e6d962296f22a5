"""For a project's tests: look at what was enqueued, run it in the test, run it at once, try it twice."""

from __future__ import annotations

from .draining import JobFailed, arun_jobs, run_jobs
from .eager import eager_jobs
from .idempotent import assert_idempotent
from .trap import Trap, trap_jobs

__all__ = ["JobFailed", "Trap", "arun_jobs", "assert_idempotent", "eager_jobs", "run_jobs", "trap_jobs"]

"""Free input: jobs that name no task, for HTTP workers in any language."""

from __future__ import annotations

from typing import Final

#: The task of a job that is a free input: nothing is registered under this name, and no worker of this package claims such
#: jobs. The input is the one positional argument.
INPUT_TASK: Final = "django_jobs.input"

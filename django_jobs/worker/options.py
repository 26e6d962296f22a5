"""What `runjobs` was asked to do, and how it is handed to a child process."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

#: The environment variable that carries the options of a child. An environment, not an argument list: `ps` stays readable.
VARIABLE = "DJANGO_JOBS_PROCESS"


@dataclass(slots=True)
class WorkerOptions:
    """Options of a worker tree. Durations in seconds, memory in MB."""

    database: str = "default"
    direct_database: str = "default"
    name: str = ""
    queues: list[str] = field(default_factory=list)
    exclude: list[str] = field(default_factory=list)
    processes: int = 1
    threads: int = 4
    async_jobs: int = 20
    drain: bool = False
    max_jobs: int | None = None
    max_memory_mb: float | None = None
    max_age: float | None = None
    stop_timeout: float = 30.0
    maintenance: bool = True
    listen: bool = True
    health_port: int | None = None
    health_host: str = "127.0.0.1"
    log_json: bool = False
    verbosity: int = 1


@dataclass(slots=True)
class ProcessOptions:
    """What one child process is told by its supervisor."""

    worker: str  # the incarnation's id
    supervisor: str
    name: str
    board: int  # file descriptor
    slots: int
    max_jobs: int | None
    options: WorkerOptions

    def dump(self) -> str:
        """Return the text that `load` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, text: str) -> ProcessOptions:
        """Read what `dump` wrote."""
        values: dict[str, Any] = json.loads(text)
        return cls(**{**values, "options": WorkerOptions(**values["options"])})


@dataclass(slots=True)
class ControlOptions:
    """What the loop needs to know of the worker's options. Seconds."""

    alias: str
    grace: float
    slice: float
    poll: float
    max_jobs: int | None = None


@dataclass(slots=True)
class Counters:
    """Since the start of the process."""

    done: int = 0
    fenced: int = 0
    handed_back: int = 0
    cycles: int = 0

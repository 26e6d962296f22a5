"""Whether a worker's choice of queues makes sense: told before it starts, not by jobs that nobody takes."""

from __future__ import annotations

from collections.abc import Sequence

from django_jobs.exceptions import InvalidOption
from django_jobs.queues import check_queue_name
from django_jobs.worker.queues import matches


def check_choice(include: Sequence[str], exclude: Sequence[str]) -> None:
    """Raise `InvalidOption` for a name that can't be a queue's, and where what is excluded leaves nothing."""
    for field, names in (("--queue", include), ("--exclude", exclude)):
        for name in names:
            if name == "*":
                continue
            check_queue_name(name.removesuffix(".*"), field=field)
    if "*" in exclude:
        raise InvalidOption("--exclude", "'*' leaves nothing to do.")
    left = [name for name in include if not any(_covers(without, name) for without in exclude)]
    if include and not left:
        raise InvalidOption("--exclude", f"{', '.join(map(repr, exclude))} leaves nothing of {', '.join(map(repr, include))}.")


def _covers(exclude: str, include: str) -> bool:
    """Whether `exclude`, which stands for its subtree, takes all that `include` means."""
    return include != "*" and matches(exclude.removesuffix(".*") + ".*", include.removesuffix(".*"))

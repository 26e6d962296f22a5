"""What graphs promise, in a few lines: which status each job has after a run, a cancel, a requeue, a deletion."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

FINAL = {"succeeded", "failed", "cancelled"}


@dataclass
class GraphModel:
    """Jobs are numbers; `parents` of each are smaller ones. Policies as given, empty for none."""

    parents: list[list[int]]
    on_failure: Sequence[str]
    on_cancel: Sequence[str]
    status: dict[int, str] = field(default_factory=dict)
    runs: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.parents = [list(parents) for parents in self.parents]
        self.status = {job: "waiting" if parents else "ready" for job, parents in enumerate(self.parents)}

    def children(self, parent: int) -> list[int]:
        """Return the jobs that come after `parent`."""
        return [job for job in self.status if parent in self.parents[job]]

    def blocked(self, job: int) -> bool:
        """Whether a parent is in the way of `job`."""
        passes = {"succeeded": True, "failed": self.on_failure[job] == "run", "cancelled": self.on_cancel[job] == "run"}
        return any(not passes.get(self.status[parent], False) for parent in self.parents[job])

    def run(self, job: int, outcome: str) -> None:
        """`job` was run."""
        assert self.status[job] == "ready", f"{job} was run when it was {self.status[job]}"
        assert not self.blocked(job), f"{job} was run before its parents"
        self.runs.append(job)
        self.status[job] = outcome
        self.follow([job])

    def cancel(self, jobs: Iterable[int]) -> None:
        """`jobs` were cancelled, those that had not ended well."""
        hit = [job for job in jobs if self.status.get(job) in ("waiting", "ready", "failed")]
        self.status |= dict.fromkeys(hit, "cancelled")
        self.follow(hit)

    def mark_done(self, job: int) -> None:
        """`job` was marked done by hand."""
        if self.status.get(job) in ("waiting", "ready", "failed"):
            self.status[job] = "succeeded"
            self.follow([job])

    def requeue(self, jobs: Iterable[int]) -> None:
        """`jobs` were put back together, those that had ended."""
        hit = [job for job in jobs if self.status.get(job) in FINAL]
        for child in {child for job in hit for child in self.children(job) if self.status[child] == "ready"}:
            self.status[child] = "waiting"
        self.status |= dict.fromkeys(hit, "ready")
        self.status |= {job: "waiting" for job in hit if self.blocked(job)}

    def delete(self, job: int) -> None:
        """`job` was deleted: for what waited for it that is as if it had been cancelled, unless it had succeeded."""
        if (was := self.status.get(job)) is None:
            return
        waiting = [child for child in self.children(job) if self.status[child] == "waiting"]
        for child in self.children(job):
            self.parents[child].remove(job)
        del self.status[job]
        if was == "succeeded":
            return
        lost = [child for child in waiting if self.on_cancel[child] in ("", "cancel")]
        self.status |= dict.fromkeys(lost, "cancelled")
        self._release(set(waiting) - set(lost))
        self.follow(lost)

    def follow(self, ended: Collection[int]) -> None:
        """Deal with the children of jobs that have ended, and with theirs."""
        while ended:
            lost: set[int] = set()
            others: set[int] = set()
            for parent in ended:
                for child in self.children(parent):
                    if self.status[child] != "waiting":
                        continue
                    now = self.status[parent]
                    policy = {"failed": self.on_failure[child] or "wait", "cancelled": self.on_cancel[child] or "cancel"}.get(now)
                    (lost if policy == "cancel" else others).add(child)
            self.status |= dict.fromkeys(lost, "cancelled")
            self._release(others - lost)
            ended = lost

    def _release(self, jobs: Iterable[int]) -> None:
        self.status |= {job: "ready" for job in jobs if not self.blocked(job)}

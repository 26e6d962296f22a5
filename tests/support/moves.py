"""Everything that moves jobs, as steps that a test may take in any order; each picks its jobs by a number."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from django.db import connection, transaction

from django_jobs import db
from django_jobs.exceptions import AttemptLost
from django_jobs.lifecycle import control, lease, rollup, sweep
from django_jobs.lifecycle.claim import QueueFilter, claim
from django_jobs.lifecycle.enqueue import JobSpec, NewJob, insert
from django_jobs.lifecycle.fence import fence_success
from django_jobs.lifecycle.inherit import forget_queues
from django_jobs.lifecycle.record import record
from django_jobs.lifecycle.recover import lock_free, recover, unclaim, writing
from django_jobs.models import CancelRequest, Count, Delta, IdempotencyKey, Job, JobAttempt, JobLock, JobTag, Leader, Queue
from django_jobs.outcomes import (
    Attempt,
    Cancelled,
    ErrorInfo,
    Failed,
    Finished,
    HandedBack,
    Lost,
    Outcome,
    RetryAsked,
    Succeeded,
    TimedOut,
)
from django_jobs.statuses import Parked, Status

ERROR: Final = ErrorInfo("app.Oops", "it broke")
QUEUES: Final = ("a", "b", "web")
TAGS: Final[tuple[tuple[str, ...], ...]] = ((), ("x",), ("x", "y"), ("z",))
WORKER: Final = uuid.UUID(int=7)


def clear() -> None:
    """Begin with empty tables and one queue for HTTP workers."""
    for model in (JobTag, CancelRequest, JobAttempt, JobLock, Job, Delta, Count, Leader, IdempotencyKey, Queue):
        model.objects.all().delete()
    Queue.objects.create(name="web", is_http=True)
    forget_queues()


class World:
    """Jobs and the attempts that workers have in hand."""

    def __init__(self) -> None:
        self.hand: list[Attempt] = []

    def some(self, number: int, **filters: Any) -> list[UUID]:
        """Return up to three ids of the jobs."""
        ids = list(Job.objects.filter(**filters).order_by("id").values_list("id", flat=True))
        return [ids[(number + step) % len(ids)] for step in range(min(3, len(ids)))]

    def take(self, number: int) -> list[Attempt]:
        """Take up to two attempts out of the hand."""
        return [self.hand.pop(number % len(self.hand)) for _ in range(min(2, len(self.hand)))]


def _spec(number: int) -> JobSpec:
    delay = timedelta(days=1) if number % 4 == 3 else None
    attempts = 1 if number % 5 == 0 else 3
    return JobSpec(task="t", queue=QUEUES[number % 3], tags=TAGS[number % 4], run_after=delay, max_attempts=attempts)


def enqueue_one(world: World, number: int) -> None:
    insert([NewJob(_spec(number), [], {})], using="default")


def enqueue_many(world: World, number: int) -> None:
    jobs = [NewJob(_spec(number + step // 2), [step], {}) for step in range(4)]
    insert(jobs, using="default")
    insert(jobs[:2], using="default")  # stored already: nothing happens
    insert(jobs[:1], using="default")


def claim_some(world: World, number: int) -> None:
    is_http = number % 3 == 2
    world.hand += claim(
        connection,
        worker=None if is_http else WORKER,
        worker_name="w",
        tokens=[uuid.uuid4() for _ in range(3)],
        free=number % 4,
        grace=10.0,
        queues=QueueFilter(names=("web",), is_http=True) if is_http else QueueFilter(),
    )


def _finish(*outcomes: Callable[[], Outcome]) -> Callable[[World, int], None]:
    def step(world: World, number: int) -> None:
        finished = [Finished(attempt, outcomes[number % len(outcomes)](), run_seconds=0.1) for attempt in world.take(number)]
        record(connection, finished, worker_name="w")
        if number % 3 == 0:
            record(connection, finished, worker_name="w")  # fenced

    return step


def fence(world: World, number: int) -> None:
    for attempt in world.take(number):
        try:
            with transaction.atomic():
                fence_success(attempt, 1, using="default")
        except AttemptLost:
            continue
        record(connection, [Finished(attempt, Succeeded(1), confirmed_by_task=True)], worker_name="w")


def die(world: World, number: int) -> None:
    rows = lock_free("default", world.some(number, status=Status.RUNNING))
    JobLock.objects.filter(job_id__in=[row.job_id for row in rows]).update(expires_at=db.server_now(connection))
    recover(rows, using="default", cause="killed")


def lapse(world: World, number: int) -> None:
    JobLock.objects.filter(kind="http").update(expires_at=db.server_now(connection) - timedelta(seconds=1))
    lease.lapse(using="default", limit=2)


def give_back(world: World, number: int) -> None:
    with writing("default"):
        unclaim(connection, WORKER, keep={attempt.token for attempt in world.hand[::2]})


def control_step(world: World, number: int) -> None:
    ids = world.some(number)
    verbs: Sequence[Callable[[], Any]] = (
        lambda: control.cancel(ids),
        lambda: control.requeue(ids),
        lambda: control.done(ids),
        lambda: control.run_now(ids),
        lambda: control.delete(ids),
        lambda: control.delete(ids, force=True),
        lambda: control.edit(ids, queue=QUEUES[number % 3]),
        lambda: control.edit(ids, tags=TAGS[number % 4]),
        lambda: control.edit(ids, run_after=db.server_now(connection) + timedelta(days=number % 3 - 1)),
        lambda: control.edit(ids, queue="b", run_after=db.server_now(connection) + timedelta(days=number % 3 - 1)),
    )
    verbs[(number // 7) % len(verbs)]()


def clock(world: World, number: int) -> None:
    """The moves that the clock makes, for some of the jobs that they are for."""
    now = db.server_now(connection)
    ids = world.some(number)
    Job.objects.filter(id__in=ids, status=Status.SCHEDULED).update(due_at=now)
    Job.objects.filter(id__in=ids, finished_at__isnull=False).update(prune_at=now)
    sweep.stage_due(using="default", limit=2)
    sweep.prune(using="default", limit=2)
    sweep.apply_requests(using="default", limit=5)


def too_late(world: World, number: int) -> None:
    now = db.server_now(connection)
    Job.objects.filter(id__in=world.some(number), started_at__isnull=True).update(start_by=now)
    sweep.cancel_late(using="default", limit=2)


def give_up(world: World, number: int) -> None:
    long_ago = db.server_now(connection) - timedelta(days=1)
    jobs = Job.objects.filter(id__in=world.some(number), status=Status.READY)
    jobs.update(parked=Parked.UNKNOWN_TASK, last_started_at=long_ago)
    sweep.give_up_unknown(using="default", grace=1.0, limit=2)


def fold(world: World, number: int) -> None:
    rollup.fold(using="default", limit=1 + number % 5)


STEPS: Final[dict[str, Callable[[World, int], None]]] = {
    "enqueue one": enqueue_one,
    "enqueue many": enqueue_many,
    "claim": claim_some,
    "claim more": claim_some,
    "succeed": _finish(Succeeded, lambda: Succeeded({"a": 1}, note="skipped")),
    "fail": _finish(lambda: Failed(ERROR), lambda: Failed(ERROR, final=False), lambda: RetryAsked(ERROR, delay=0.0)),
    "end": _finish(lambda: TimedOut(ERROR), lambda: Cancelled("enough"), lambda: Lost("killed"), lambda: Lost("killed", False)),
    "hand back": _finish(lambda: HandedBack("stop"), lambda: HandedBack("stop", started=True)),
    "fence": fence,
    "die": die,
    "lapse": lapse,
    "give back": give_back,
    "control": control_step,
    "control more": control_step,
    "clock": clock,
    "too late": too_late,
    "give up": give_up,
    "fold": fold,
}


def real_counts() -> dict[tuple[str, str], int]:
    """Count the jobs by queue and status."""
    return dict(Counter(Job.objects.values_list("queue", "status")))


def real_tags() -> set[tuple[UUID, str]]:
    """Return what the rows of the jobs say about their tags."""
    return {(job_id, tag) for job_id, tags in Job.objects.values_list("id", "tags") for tag in tags}

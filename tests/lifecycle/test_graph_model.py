"""Random graphs with random outcomes, cancels, requeues and deletions do what a small model says."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import transaction
from hypothesis import given, note, settings
from hypothesis import strategies as st

from django_jobs import graph, job
from django_jobs.lifecycle import control
from django_jobs.lifecycle.graph import follow_rest
from django_jobs.models import Job
from django_jobs.testing import run_jobs
from tests.support.graph_model import GraphModel

LEDGER: list[tuple[int, str]] = []
OUTCOMES: list[str] = []


@job
def member(number: int) -> int:
    """End as the next of `OUTCOMES` says, well when there is none."""
    outcome = OUTCOMES.pop(0) if OUTCOMES else "succeeded"
    LEDGER.append((number, outcome))
    if outcome == "failed":
        raise ValueError(number)
    return number


MOST = 8
policies = st.sampled_from(["", "wait", "cancel", "run"])
shapes = st.lists(st.tuples(st.sets(st.integers(0, MOST)), policies, policies), min_size=1, max_size=MOST)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("run"), st.lists(st.sampled_from(["succeeded", "failed"]), min_size=1, max_size=4)),
        st.tuples(st.sampled_from(["cancel", "requeue", "done", "delete"]), st.integers(0, MOST)),
        st.tuples(st.sampled_from(["cancel_all", "requeue_failed", "requeue_all", "drain"]), st.none()),
    ),
    max_size=12,
)


class Pair:
    """A graph in the database, and the model of it."""

    def __init__(self, shape: list[tuple[set[int], str, str]]) -> None:
        parents = [sorted(parent for parent in named if parent < number) for number, (named, _, _) in enumerate(shape)]
        self.model = GraphModel(parents, [failure for _, failure, _ in shape], [cancel for _, _, cancel in shape])
        made = graph()
        nodes: list[Any] = []
        for number, (_, failure, cancel) in enumerate(shape):
            node: Any = member.s(number).using(on_parent_failure=failure or None, on_parent_cancel=cancel or None)  # type: ignore[arg-type]
            nodes.append(made.add(node, after=[nodes[parent] for parent in parents[number]]))
        self.result = made.enqueue()
        self.ids = [one.job_id for one in self.result]

    def step(self, name: str, value: Any) -> None:
        """Do one thing to both."""
        model, ids = self.model, self.ids
        number = value % len(ids) if isinstance(value, int) else 0
        match name:
            case "run" | "drain":
                self.run(value or [], None if name == "drain" else len(value))
            case "cancel":
                control.cancel([ids[number]])
                model.cancel([number])
            case "requeue":
                control.requeue([ids[number]])
                model.requeue([number])
            case "done":
                control.done([ids[number]])
                model.mark_done(number)
            case "delete":
                control.delete([ids[number]])
                model.delete(number)
            case "cancel_all":
                self.result.cancel()
                model.cancel([job for job, status in model.status.items() if status in ("waiting", "ready")])
            case "requeue_failed":
                self.result.requeue_failed()
                model.requeue([job for job, status in model.status.items() if status == "failed"])
            case "requeue_all":
                self.result.requeue_failed(with_cancelled=True)
                model.requeue([job for job, status in model.status.items() if status in ("failed", "cancelled")])
        follow_rest(using="default")  # as the commit of a verb does
        self.compare()

    def run(self, outcomes: list[str], limit: int | None) -> None:
        """Run jobs; the model says whether each was to be run then."""
        LEDGER.clear()
        OUTCOMES[:] = outcomes
        assert run_jobs(limit=limit) == len(LEDGER)
        for number, outcome in LEDGER:
            self.model.run(number, outcome)
        assert limit is not None or "ready" not in self.model.status.values()

    def compare(self) -> None:
        statuses = dict(Job.objects.filter(pk__in=self.ids).values_list("pk", "status"))
        assert {number: statuses[job] for number, job in enumerate(self.ids) if job in statuses} == self.model.status


@pytest.mark.django_db
@settings(max_examples=80)
@given(shapes, steps)
def test_a_graph_does_what_the_model_says(shape: list[tuple[set[int], str, str]], todo: list[tuple[str, Any]]) -> None:
    note(f"{shape} {todo}")
    with transaction.atomic():
        pair = Pair(shape)
        pair.compare()
        for name, value in [*todo, ("drain", None), ("requeue_all", None), ("drain", None)]:
            pair.step(name, value)
        transaction.set_rollback(True)

"""Turns: one process at a time, none after a death, and a failure that rests."""

from __future__ import annotations

import threading
import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from django_jobs import db
from django_jobs.lifecycle.sweep import Swept
from django_jobs.maintenance.turns import Service, due_names, ensure_rows, take_turn
from django_jobs.models import Leader
from tests.support.jobs import in_threads, other_connection

pytestmark = pytest.mark.django_db(transaction=True)
needs_row_locks = pytest.mark.skipif(
    not connection.features.has_select_for_update_skip_locked, reason="this database has no row locks"
)


def service(sweep: Any = None, **values: Any) -> Service:
    values = {"limit": 10, "interval": 60.0, "rest": 0.0} | values
    return Service("pruner", sweep or (lambda using, limit: Swept(1)), **values)


def turn(service: Service, *, force: bool = False, worker: uuid.UUID | None = None) -> Swept | None:
    return take_turn(service, using="default", worker=worker or uuid.uuid4(), force=force)


def due_in() -> float:
    return (Leader.objects.get().next_at - db.server_now(connection)).total_seconds()


def test_a_turn_is_taken_when_it_is_due_and_moves_on_by_the_interval() -> None:
    ensure_rows([service()], using="default")
    ensure_rows([service()], using="default")
    assert due_names(using="default") == {"pruner"}
    worker = uuid.uuid4()
    assert turn(service(), worker=worker) == Swept(1)
    row = Leader.objects.get()
    assert (row.worker, row.touched, row.error) == (worker, 1, "")
    assert row.ran_at is not None
    assert 50 < due_in() <= 60
    assert due_names(using="default") == set()
    assert turn(service()) is None
    assert turn(service(), force=True) == Swept(1)
    assert Leader.objects.get().touched == 2


def test_a_full_sweep_comes_again_after_its_rest() -> None:
    ensure_rows([service()], using="default")
    turn(service(lambda using, limit: Swept(limit)))
    assert due_in() <= 0
    turn(service(lambda using, limit: Swept(limit), rest=30.0))
    assert 20 < due_in() <= 30


def test_two_at_once_get_one_turn() -> None:
    ensure_rows([service()], using="default")
    ran = []

    def sweep(using: str, limit: int) -> Swept:
        ran.append(threading.get_ident())
        return Swept(1)

    found = in_threads(*[lambda: turn(service(sweep))] * 4)
    assert len(ran) == 1
    assert sum(swept is not None for swept in found) == 1


@needs_row_locks
def test_the_turn_of_one_that_died_is_free_at_once() -> None:
    ensure_rows([service()], using="default")
    with other_connection() as other:
        with other.cursor() as cursor:
            cursor.execute(db.dialect(other).begin_sql)
            cursor.execute(f"SELECT 1 FROM {db.LEADER} WHERE name = 'pruner' FOR UPDATE")
        assert turn(service()) is None
        other.close()
    deadline = threading.Event()
    for _ in range(100):
        if turn(service()) is not None:
            break
        deadline.wait(0.05)
    assert Leader.objects.get().ran_at is not None


def test_a_sweep_that_fails_is_undone_noted_and_rests() -> None:
    ensure_rows([service()], using="default")

    def sweep(using: str, limit: int) -> Swept:
        Leader.objects.filter(name="pruner").update(touched=99)
        raise ValueError("a bad row")

    with pytest.raises(ValueError, match="a bad row"):
        turn(service(sweep))
    row = Leader.objects.get()
    assert (row.touched, row.error) == (0, "ValueError: a bad row")
    assert due_in() > 50
    turn(service(), force=True)
    assert Leader.objects.get().error == ""


def test_a_turn_overdue_for_long_is_one_turn() -> None:
    ensure_rows([service()], using="default")
    Leader.objects.update(next_at=db.server_now(connection) - timedelta(days=30))
    assert turn(service()) is not None
    assert turn(service()) is None

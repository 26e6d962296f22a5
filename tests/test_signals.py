"""Events reach every listener; what one of them breaks reaches neither the next one nor the caller."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import Group
from django.db import DatabaseError, connection, transaction
from django.dispatch import Signal

from django_jobs import signals
from django_jobs.outcomes import Event
from django_jobs.signals import EVENTS, dispatch, has_listeners, job_enqueued, job_failed, job_succeeded
from django_jobs.statuses import Status

JOB_ID = UUID("0190a0b0-0000-7000-8000-000000000001")
EVENT = Event("job_succeeded", JOB_ID, "shop.tasks.pay", "default", Status.SUCCEEDED)

Connect = Callable[[Signal, Callable[..., Any]], None]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Connect listeners, and take them away again."""
    connected: list[tuple[Signal, Callable[..., Any]]] = []

    def add(signal: Signal, listener: Callable[..., Any]) -> None:
        signal.connect(listener, weak=False)
        connected.append((signal, listener))

    yield add
    for signal, listener in connected:
        signal.disconnect(listener)


@pytest.fixture
def heard() -> list[Any]:
    return []


def break_the_transaction(**kwargs: Any) -> None:
    """Do as a careless listener does: run bad SQL and swallow the error."""
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT nothing FROM nowhere")
    except DatabaseError:
        pass


def raise_value_error(**kwargs: Any) -> None:
    raise ValueError("a listener's own fault")


def test_the_catalogue_is_the_contracts() -> None:
    assert list(EVENTS) == [
        "job_enqueued",
        "job_started",
        "job_succeeded",
        "job_retrying",
        "job_failed",
        "job_timed_out",
        "job_cancelled",
        "job_requeued",
        "worker_started",
        "worker_stopped",
        "schedule_fired",
    ]
    assert all(getattr(signals, name) is signal for name, signal in EVENTS.items())
    assert len({id(signal) for signal in EVENTS.values()}) == len(EVENTS)


def test_a_listener_gets_the_event(connect: Connect, heard: list[Any]) -> None:
    connect(job_succeeded, lambda **kwargs: heard.append(kwargs))
    dispatch([EVENT], sender=Event)
    assert heard == [{"signal": job_succeeded, "sender": Event, "event": EVENT, "job_id": JOB_ID}]


def test_only_its_own_events_reach_a_listener(connect: Connect, heard: list[Any]) -> None:
    connect(job_failed, lambda **kwargs: heard.append(kwargs))
    dispatch([EVENT])
    assert heard == []
    assert has_listeners("job_failed")
    assert not has_listeners("job_succeeded")


def test_an_unknown_event_is_an_error() -> None:
    with pytest.raises(KeyError):
        signals.send("job_exploded")


@pytest.mark.parametrize("name", EVENTS)
@pytest.mark.django_db(transaction=True)
def test_b20_every_listener_is_called_whatever_the_ones_before_it_did(
    name: str, connect: Connect, heard: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    connect(EVENTS[name], raise_value_error)
    connect(EVENTS[name], break_the_transaction)

    def third(**kwargs: Any) -> None:
        heard.append(Group.objects.count())

    connect(EVENTS[name], third)
    with caplog.at_level(logging.ERROR, "django_jobs.signals"):
        signals.send(name, job_id=JOB_ID)
        with transaction.atomic():
            Group.objects.create(name="the caller's own")
            signals.send(name, job_id=JOB_ID)
            assert Group.objects.count() == 1
    assert heard == [0, 1]
    assert Group.objects.count() == 1
    failures = [record for record in caplog.records if "raise_value_error" in record.getMessage()]
    assert len(failures) == 2
    assert all(str(JOB_ID) in record.getMessage() and record.exc_info for record in failures)
    assert all(name in record.getMessage() for record in failures)


@pytest.mark.django_db(transaction=True)
def test_b20_what_a_failed_listener_wrote_is_rolled_back_and_what_a_good_one_wrote_is_kept(connect: Connect) -> None:
    def write_and_raise(**kwargs: Any) -> None:
        Group.objects.create(name="half done")
        raise ValueError

    connect(job_enqueued, write_and_raise)
    connect(job_enqueued, lambda **kwargs: Group.objects.create(name="done"))
    with transaction.atomic():
        signals.send("job_enqueued", job_id=JOB_ID)
    assert [group.name for group in Group.objects.all()] == ["done"]


@pytest.mark.django_db(transaction=True)
def test_b20_a_listener_can_not_doom_the_callers_transaction(connect: Connect) -> None:
    connect(job_enqueued, lambda **kwargs: transaction.set_rollback(True))
    with transaction.atomic():
        Group.objects.create(name="kept")
        signals.send("job_enqueued", job_id=JOB_ID)
    assert Group.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_b20_a_transaction_that_a_listener_left_open_is_taken_back(connect: Connect, heard: list[Any]) -> None:
    def leave_open(**kwargs: Any) -> None:
        transaction.set_autocommit(False)
        Group.objects.create(name="never committed")

    connect(job_succeeded, leave_open)
    connect(job_succeeded, lambda **kwargs: heard.append(transaction.get_autocommit()))
    Group.objects.count()  # so that there is a connection
    dispatch([EVENT])
    assert heard == [True]
    assert transaction.get_autocommit()
    assert Group.objects.count() == 0


@pytest.mark.django_db(transaction=True)
def test_a_transaction_that_is_lost_already_does_not_keep_listeners_from_being_called(connect: Connect, heard: list[Any]) -> None:
    connect(job_succeeded, lambda **kwargs: heard.append(1))
    with transaction.atomic():
        break_the_transaction()
        dispatch([EVENT])
        transaction.set_rollback(True)
    assert heard == [1]
    assert Group.objects.count() == 0


@pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit(), TimeoutError(), StopIteration()])
def test_b17_a_listener_can_not_end_the_worker(error: BaseException, connect: Connect, heard: list[Any]) -> None:
    def exit_(**kwargs: Any) -> None:
        raise error

    connect(job_succeeded, exit_)
    connect(job_succeeded, lambda **kwargs: heard.append(1))
    dispatch([EVENT])
    assert heard == [1]


def test_a_person_can_interrupt_a_listener(connect: Connect) -> None:
    def interrupt(**kwargs: Any) -> None:
        raise KeyboardInterrupt

    connect(job_succeeded, interrupt)
    with pytest.raises(KeyboardInterrupt):
        dispatch([EVENT])


def test_b19_an_error_that_can_not_be_printed_is_no_trouble(connect: Connect, heard: list[Any]) -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise RuntimeError

        __repr__ = __str__

    def fail(**kwargs: Any) -> None:
        raise Unprintable

    connect(job_succeeded, fail)
    connect(job_succeeded, lambda **kwargs: heard.append(1))
    dispatch([EVENT])
    assert heard == [1]


def test_a_log_handler_that_raises_is_no_trouble(connect: Connect, heard: list[Any]) -> None:
    class Broken(logging.Handler):
        def handle(self, record: logging.LogRecord) -> bool:
            heard.append("logged")
            raise RuntimeError

    handler = Broken()
    signals.logger.addHandler(handler)
    try:
        connect(job_succeeded, raise_value_error)
        connect(job_succeeded, lambda **kwargs: heard.append("called"))
        dispatch([EVENT])
    finally:
        signals.logger.removeHandler(handler)
    assert heard == ["logged", "called"]


def test_coroutines_can_listen_and_fail(connect: Connect, heard: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    async def listen(event: Event, **kwargs: Any) -> None:
        await asyncio.sleep(0)
        heard.append(event.job_id)

    async def fail(**kwargs: Any) -> None:
        raise ValueError

    connect(job_succeeded, fail)
    connect(job_succeeded, listen)
    dispatch([EVENT])
    assert heard == [JOB_ID]
    assert "fail" in caplog.text
    assert str(JOB_ID) in caplog.text


def test_other_signals_are_told_the_same_way(connect: Connect, heard: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    foreign = Signal()
    connect(foreign, raise_value_error)
    connect(foreign, lambda **kwargs: heard.append(kwargs["task_result"]))
    signals.call_listeners(foreign, None, "task_finished", task_result=5)
    assert heard == [5]
    assert "task_finished" in caplog.text


@pytest.mark.django_db
def test_without_listeners_nothing_is_done(django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(0), transaction.atomic(savepoint=False):
        dispatch([EVENT] * 100)
        for name in EVENTS:
            signals.send(name)

"""The catalogue of events, and how listeners are told.

Events are told after the commit that made them true (`job_enqueued`: within the caller's transaction). Telling is robust: every
listener is called, whatever the one before it did. An error is logged with the job's id and goes no further; what a listener
broke in a database transaction that was open around it is rolled back to where that listener began.

A listener takes `(sender, **kwargs)`. For a job's events `kwargs` has `event` (an `outcomes.Event`) and `job_id`; `sender` is the
class of the backend, as with Django's own task signals.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from asgiref.sync import async_to_sync
from django.db import DatabaseError, InterfaceError, connections, transaction
from django.dispatch import Signal

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from .outcomes import Event

logger = logging.getLogger("django_jobs.signals")

#: A job was stored. Sent inside the caller's transaction, which may still roll back.
job_enqueued = Signal()
#: An attempt began.
job_started = Signal()
#: A job ended well.
job_succeeded = Signal()
#: An attempt ended and there will be another.
job_retrying = Signal()
#: A job failed for good.
job_failed = Signal()
#: A job's last attempt ran out of time.
job_timed_out = Signal()
#: A job was cancelled.
job_cancelled = Signal()
#: A final job was put back.
job_requeued = Signal()
#: A worker process began to work (`worker`: its id, `name`).
worker_started = Signal()
#: A worker process ended in order (`worker`, `name`, `reason`).
worker_stopped = Signal()
#: A schedule enqueued its job (`schedule`, `fire_at`, `job_id`).
schedule_fired = Signal()

#: Every event by name: the only place where these names are written.
EVENTS: Final[Mapping[str, Signal]] = MappingProxyType(
    {
        "job_enqueued": job_enqueued,
        "job_started": job_started,
        "job_succeeded": job_succeeded,
        "job_retrying": job_retrying,
        "job_failed": job_failed,
        "job_timed_out": job_timed_out,
        "job_cancelled": job_cancelled,
        "job_requeued": job_requeued,
        "worker_started": worker_started,
        "worker_stopped": worker_stopped,
        "schedule_fired": schedule_fired,
    }
)


_tell_end: Callable[[Event], None] | None = None


def tell_ends_by(function: Callable[[Event], None]) -> None:
    """Have `function` called, after the listeners, with each event of an end that no executor has told a task's hooks of."""
    global _tell_end
    _tell_end = function


def has_listeners(name: str) -> bool:
    """Whether anybody may be listening to this event: lets callers skip building what nobody reads."""
    return bool(EVENTS[name].receivers)


def dispatch(events: Iterable[Event], *, sender: Any = None) -> None:
    """Tell the listeners of each event, in order, and the task's hooks where nobody has. Never raises an `Exception`."""
    for event in events:
        if EVENTS[event.name].receivers:
            send(event.name, sender, event=event, job_id=event.job_id)
        if event.is_untold_end and _tell_end is not None:
            _tell_end(event)


def send(name: str, sender: Any = None, /, **kwargs: Any) -> None:
    """Tell every listener of the event `name`; log what they raise. Costs a lookup when nobody listens.

    KeyboardInterrupt and the worker's own interruptions pass: they are not the listener's.
    """
    signal = EVENTS[name]
    if signal.receivers:
        call_listeners(signal, sender, name, **kwargs)


def call_listeners(signal: Signal, sender: Any, name: str, /, **kwargs: Any) -> None:
    """Do what `send` does for any Django signal, for example those of Django's tasks; `name` is for the log."""
    # Private in Django, but the one way to put a savepoint around each listener; the same from Django 5.0 to 6.1.
    plain, coroutines = signal._live_receivers(sender)
    for receiver in plain:
        _call(receiver, name, signal, sender, kwargs)
    for receiver in coroutines:
        _call(async_to_sync(receiver), name, signal, sender, kwargs, shown=receiver)


def _call(
    receiver: Callable[..., Any], name: str, signal: Signal, sender: Any, kwargs: dict[str, Any], *, shown: Any = None
) -> None:
    error = guarded(partial(receiver, signal=signal, sender=sender, **kwargs))
    if error is not None:
        _log(name, shown or receiver, kwargs, error)


def guarded(function: Callable[[], Any]) -> BaseException | None:
    """Call `function`, code of the site; return what it raised, None if nothing.

    What it broke in a database transaction that was open is rolled back; one that it opened and left is taken back.
    """
    before = [(connection, connection.autocommit) for connection in connections.all(initialized_only=True)]
    raised: BaseException | None = None
    try:
        with ExitStack() as stack:
            for connection, autocommit in before:
                if connection.in_atomic_block or (connection.connection is not None and not autocommit):
                    _guard(connection, stack)
            function()
    except (Exception, SystemExit, GeneratorExit) as error:
        raised = error
    for connection, autocommit in before:
        _tidy(connection, autocommit)
    return raised


def _guard(connection: BaseDatabaseWrapper, stack: ExitStack) -> None:
    """Put a savepoint around the listener; where the transaction is beyond that already, there is nothing to protect."""
    with suppress(DatabaseError, InterfaceError):
        stack.enter_context(transaction.atomic(using=connection.alias))


def _tidy(connection: BaseDatabaseWrapper, autocommit: bool) -> None:
    """Take back a transaction that the listener opened by hand and left open."""
    try:
        if autocommit and connection.connection is not None and not connection.in_atomic_block and not connection.autocommit:
            connection.rollback()
            connection.set_autocommit(True)
    except Exception:  # the connection is beyond repair: the next use opens another
        connection.close()


def _log(name: str, receiver: Any, kwargs: Mapping[str, Any], error: BaseException) -> None:
    shown = getattr(receiver, "__qualname__", None) or type(receiver).__qualname__
    job_id = kwargs.get("job_id")
    about = f" of job {job_id}" if job_id else ""
    what = f"A listener ({shown}) of {name}{about} failed: {type(error).__qualname__}"
    with suppress(Exception):  # a log handler that raises must not change a job's outcome either
        logger.error(what, exc_info=error, extra={"job_id": job_id})

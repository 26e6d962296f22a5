"""Who enqueues: the user of a request, or of the job that enqueues another one. Recorded and shown; never a permission.

A context variable says who it is, so it is safe in threads and coroutines. The name goes into `Job.created_by`, for people; the
primary key travels with the job, so that `current_user()` finds the user again, whatever the name is by then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, NamedTuple

from asgiref.sync import sync_to_async
from django.contrib.auth import get_user_model
from django.core.exceptions import ImproperlyConfigured, ObjectDoesNotExist, ValidationError

#: The key of Job.context under which the user's primary key travels.
USER: Final = "user"
#: Characters of `Job.created_by`.
MAX_NAME: Final = 64


class Identity(NamedTuple):
    """A user as a job keeps it. `key`: the primary key as text, None for somebody who is no row (an API token)."""

    name: str
    key: str | None


class Enqueuer:
    """Somebody who enqueues. Looked at when it is first asked for: a request's user may cost a query."""

    __slots__ = ("_find", "_identity", "_is_found", "_user")

    def __init__(self, find: Callable[[], Any], identity: Identity | None = None) -> None:
        self._find, self._identity = find, identity
        self._is_found = False
        self._user: Any = None

    @property
    def user(self) -> Any:
        """The user; None for nobody, and for one that is gone. May query the database."""
        if not self._is_found:
            user = self._find()
            self._user = user if user is not None and getattr(user, "is_authenticated", False) else None
            self._is_found = True
        return self._user

    @property
    def identity(self) -> Identity | None:
        """What a job keeps; None for nobody."""
        if self._identity is None and self.user is not None:
            self._identity = _identity_of(self.user)
        return self._identity


def _identity_of(user: Any) -> Identity:
    name = user.get_username() if hasattr(user, "get_username") else str(user)
    has_key = getattr(user, "pk", None) is not None and hasattr(user, "_meta")
    return Identity(str(name)[:MAX_NAME], user._meta.pk.value_to_string(user) if has_key else None)


_enqueuer: ContextVar[Enqueuer | None] = ContextVar("django_jobs_enqueuer", default=None)


@contextmanager
def enqueuing_as(find: Callable[[], Any]) -> Iterator[None]:
    """Record whom `find()` returns as the user of jobs enqueued within. It is called at the first enqueue, if there is one."""
    token = _enqueuer.set(Enqueuer(find))
    try:
        yield
    finally:
        _enqueuer.reset(token)


@contextmanager
def as_user(user: Any) -> Iterator[None]:
    """Record `user` as the user of jobs enqueued within; None for nobody."""
    with enqueuing_as(lambda: user):
        yield


def current_identity() -> Identity | None:
    """Return what a job that is enqueued now is to keep; None for nobody."""
    enqueuer = _enqueuer.get()
    return None if enqueuer is None else enqueuer.identity


def current_name() -> str | None:
    """Return the name of who enqueues, for people; None for nobody."""
    identity = current_identity()
    return None if identity is None else identity.name


def carried_user() -> dict[str, Any]:
    """Return what `Job.context` carries of who enqueues; empty for nobody, and for somebody who is no row."""
    identity = current_identity()
    return {} if identity is None or identity.key is None else {USER: identity.key}


def current_user() -> Any:
    """Return the user who enqueued the job that this code runs in, in a request the request's user; None for nobody.

    Also None if the user is deleted by now. Read from the database when first asked for; in coroutines use `acurrent_user`. The
    user may have been deactivated or lost permissions since the enqueue: check what matters anew.
    """
    enqueuer = _enqueuer.get()
    return None if enqueuer is None else enqueuer.user


async def acurrent_user() -> Any:
    """See `current_user`."""
    return await sync_to_async(current_user)()


def restore(key: str | None, name: str | None) -> None:
    """In the context of a job: bring back the user with this primary key, recorded under `name`."""
    if key is None and not name:
        return
    _enqueuer.set(Enqueuer(lambda: find_user(key), Identity(name or "", key)))


def forget() -> None:
    """Take the user of this context away."""
    _enqueuer.set(None)


def find_user(key: str | None) -> Any:
    """Return the user with this primary key; None if there is none (any more)."""
    if key is None:
        return None
    try:
        return get_user_model()._base_manager.get(pk=key)
    except (ObjectDoesNotExist, ValueError, ValidationError, ImproperlyConfigured, LookupError):
        return None  # gone; or the project has another user model by now, or none

"""Who calls, and what they may: tokens by their verbs and queues, users by Django's permissions. Closed by default."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from django.db.models import Q, QuerySet
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from ..lifecycle.tokens import PERMISSIONS
from ..models import ApiToken
from ..models.selection import in_queue
from ..models.visibility import sees_every_job, visible_jobs
from .errors import ApiError

if TYPE_CHECKING:
    from ..models.job import JobQuerySet

#: Verb (add_queue, change_queue and delete_queue apart) -> (the verb that a token needs, the permission that a user needs).
VERBS: Final[dict[str, tuple[str, str]]] = {
    permission.removeprefix("django_jobs.") if verb == "queues" else verb: (verb, permission)
    for verb, permissions in PERMISSIONS.items()
    for permission in permissions
}
#: Of `Job.created_by`, `Queue.paused_by` and the like.
MAX_NAME: Final = 64


class TokenUser:
    """Stands for a token without a user: authenticated, and without any permission of Django's."""

    is_authenticated = is_active = True
    is_anonymous = is_staff = is_superuser = False

    def __init__(self, token: ApiToken) -> None:
        self.token = token
        self.pk = self.id = f"token:{token.pk}"  # what throttles count by
        self.username = f"token {token.name}"

    def __str__(self) -> str:
        return self.username

    def get_username(self) -> str:
        """Return what to call it."""
        return self.username

    def has_perm(self, perm: str, obj: Any = None) -> bool:
        """Say no: a token's grant is its verbs."""
        return False

    def has_perms(self, perms: Any, obj: Any = None) -> bool:
        """Say no: a token's grant is its verbs."""
        return False


class Caller:
    """Who makes a request: a token (`token`), or a user without one."""

    def __init__(self, user: Any, token: ApiToken | None) -> None:
        self.user, self.token = user, token

    @cached_property
    def name(self) -> str:
        """Text for "by": at most 64 characters."""
        if self.token is None:
            return str(self.user.get_username())[:MAX_NAME]
        if isinstance(self.user, TokenUser):
            return str(self.user)[:MAX_NAME]
        return f"{self.user.get_username()} (token {self.token.name})"[:MAX_NAME]

    @property
    def scope(self) -> str:
        """Whose idempotency keys are meant: "token:7" or "user:3"."""
        return f"token:{self.token.pk}" if self.token is not None else f"user:{self.user.pk}"[:64]

    def may(self, verb: str) -> bool:
        """Whether the caller may do `verb`, one of `VERBS`."""
        of_token, permission = VERBS[verb]
        if self.token is not None:
            return of_token in self.token.verbs
        return bool(self.user.has_perm(permission))

    @property
    def queues(self) -> tuple[str, ...]:
        """The names and subtrees (`name.*`) that bound the caller; empty: no bound."""
        return tuple(self.token.queues) if self.token is not None else ()

    @property
    def sees_every_job(self) -> bool:
        """Whether the project's `VISIBLE_TO` hides nothing: else no number that was counted for everybody is for the caller."""
        return sees_every_job(self.user)

    def sees(self, queue: str) -> bool:
        """Whether the caller's bounds take in the queue `queue`."""
        return not self.queues or any(
            queue == pattern.removesuffix(".*") or (pattern.endswith(".*") and queue.startswith(pattern[:-1]))
            for pattern in self.queues
        )

    def in_queues(self, column: str = "queue") -> Q:
        """Return the condition that keeps rows in the caller's bounds, by the column that names their queue."""
        condition = Q()
        for pattern in self.queues:
            condition |= in_queue(pattern, column)
        return condition

    def narrow(self, jobs: JobQuerySet) -> JobQuerySet:
        """Return the jobs of `jobs` that the caller sees."""
        return visible_jobs(self.user, jobs.filter(self.in_queues()) if self.queues else jobs)

    def narrow_by_name(self, rows: QuerySet[Any], column: str) -> QuerySet[Any]:
        """Return the rows of something else (queues, counts) in the caller's bounds."""
        return rows.filter(self.in_queues(column)) if self.queues else rows


class HasVerb(BasePermission):
    """Asks the view's `verbs` for the request's method. Several, joined by `|`: any of them opens the door, the view looks on."""

    def has_permission(self, request: Request, view: Any) -> bool:
        """Raise 403 naming the verb. Whoever is nobody gets 401, from REST framework."""
        if not getattr(request.user, "is_authenticated", False):
            return False
        method = request.method or ""
        if method == "OPTIONS":
            asked = sorted({verb for verbs in view.verbs.values() for verb in verbs.split("|")})
        else:
            verbs = view.verbs.get("GET" if method == "HEAD" else method)
            if verbs is None:
                # No such method: 405. A method that a view forgot to name is nobody's.
                return method.lower() not in view.http_method_names or not hasattr(view, method.lower())
            asked = verbs.split("|")
        if asked and not any(view.caller_of(request).may(verb) for verb in asked):
            raise forbidden(*asked)
        return True


def forbidden(*verbs: str) -> ApiError:
    """Return the 403 of somebody who has none of `verbs`."""
    either = " or ".join(f"{VERBS[verb][0]!r}" for verb in verbs)
    permissions = " or ".join(VERBS[verb][1] for verb in verbs)
    return ApiError(
        403,
        "forbidden",
        f"A token needs the verb {either} for this, a user the permission {permissions}.",
        verbs=[VERBS[verb][0] for verb in verbs],
    )

"""Tokens of the HTTP API: made, found again by their secret, revoked. The secret itself is kept nowhere."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from django.db import connections

from .. import db
from ..conf import readers
from ..exceptions import InvalidOption
from ..models import ApiToken
from ..queues import check_queue_name

#: What a token may be allowed to do, and what each verb opens.
VERBS: Final[Mapping[str, str]] = {
    "view": "see jobs, queues, workers and numbers",
    "payload": "see arguments, input, output and results, too",
    "enqueue": "enqueue jobs",
    "claim": "claim jobs, and report about the claimed ones",
    "change": "change jobs that wait",
    "requeue": "put jobs back that have ended",
    "cancel": "cancel jobs",
    "done": "mark jobs as done by hand",
    "run": "make scheduled jobs ready at once",
    "delete": "delete jobs",
    "pause": "pause and resume queues",
    "queues": "make, change and delete queues",
}
#: Verb -> the permissions by which a user may do the same.
PERMISSIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "view": ("django_jobs.view_job",),
    "payload": ("django_jobs.view_payload",),
    "enqueue": ("django_jobs.enqueue_job",),
    "claim": ("django_jobs.claim_job",),
    "change": ("django_jobs.change_job",),
    "requeue": ("django_jobs.requeue_job",),
    "cancel": ("django_jobs.cancel_job",),
    "done": ("django_jobs.done_job",),
    "run": ("django_jobs.run_job",),
    "delete": ("django_jobs.delete_job",),
    "pause": ("django_jobs.pause_queue",),
    "queues": ("django_jobs.add_queue", "django_jobs.change_queue", "django_jobs.delete_queue"),
}
SECRET_PREFIX: Final = "dj_"  # noqa: S105 - begins each secret, is none
SECRET_BYTES: Final = 32
#: So much of a secret is kept to tell it from others: eight of its 43 random characters.
SHOWN_CHARS: Final = len(SECRET_PREFIX) + 8
#: No secret is this long: what is longer is not even hashed.
_MAX_SECRET_CHARS: Final = 200


def digest(secret: str) -> str:
    """Return the hash by which a secret is found. It needs no salt and no slowness: the secret is 256 random bits."""
    return hashlib.sha256(secret.encode()).hexdigest()


def check_verbs(verbs: Iterable[Any], *, field: str = "verbs") -> list[str]:
    """Return the verbs in their usual order, each once; raise `InvalidOption` for none, or one that does not exist."""
    asked = list(verbs)
    for verb in asked:
        if verb not in VERBS:
            raise InvalidOption(field, f"{verb!r} is none of {', '.join(VERBS)}{readers.nearest(verb, VERBS)}")
    if not asked:
        raise InvalidOption(field, f"a token needs at least one of {', '.join(VERBS)}.")
    return [verb for verb in VERBS if verb in asked]


def check_patterns(queues: Iterable[Any], *, field: str = "queues") -> list[str]:
    """Return names of queues, or `name.*` for subtrees, sorted, each once; raise `InvalidOption` for what can't be one."""
    patterns = set()
    for pattern in queues:
        check_queue_name(pattern.removesuffix(".*") if isinstance(pattern, str) else pattern, field=field)
        patterns.add(pattern)
    return sorted(patterns)


def make_token(
    name: str,
    *,
    verbs: Iterable[str],
    queues: Iterable[str] = (),
    user_id: Any = None,
    expires_at: datetime | None = None,
    by: str = "",
    using: str,
) -> tuple[ApiToken, str]:
    """Store a new token and return it with its secret, which nothing can tell again. No `queues`: every queue.

    Raises `InvalidOption`.
    """
    name = name.strip()
    if not name or len(name) > 100 or "\x00" in name:
        raise InvalidOption("name", "a token's name has from 1 to 100 characters.")
    if expires_at is not None and expires_at <= db.server_now(connections[using]):
        raise InvalidOption("expires_at", "it would have expired already.")
    secret = SECRET_PREFIX + secrets.token_urlsafe(SECRET_BYTES)
    token = ApiToken(
        name=name,
        user_id="" if user_id is None else str(user_id),
        prefix=secret[:SHOWN_CHARS],
        digest=digest(secret),
        verbs=check_verbs(verbs),
        queues=check_patterns(queues),
        created_at=db.server_now(connections[using]),
        created_by=by[:64],
        expires_at=expires_at,
    )
    token.save(using=using, force_insert=True)
    return token, secret


def revoke_token(token_id: int, *, using: str) -> bool:
    """End a token for good, and return whether it was not revoked before."""
    live = ApiToken.objects.using(using).filter(pk=token_id, revoked_at__isnull=True)
    return bool(live.update(revoked_at=db.server_now(connections[using])))


def find_token(secret: str, *, using: str) -> ApiToken | None:
    """Return the token with this secret, whatever its state; None if there is none."""
    if not secret.startswith(SECRET_PREFIX) or len(secret) > _MAX_SECRET_CHARS or not secret.isascii():
        return None
    wanted = digest(secret)
    token = ApiToken.objects.using(using).filter(digest=wanted).first()
    # The index was asked for the hash, of which an attacker controls nothing; compared again for a database that ignores case.
    return token if token is not None and hmac.compare_digest(token.digest, wanted) else None

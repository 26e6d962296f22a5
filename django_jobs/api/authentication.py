"""Tokens as REST framework's authentication: `Authorization: Bearer dj_...`, or `Token dj_...`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.db import connections
from django.db.models import Q
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from .. import db
from ..conf import jobs_database
from ..lifecycle.tokens import find_token
from ..models import ApiToken
from .permissions import TokenUser

_KEYWORDS: Final = ("bearer", "token")
#: How exactly the last use of a token is known: a write for every request would cost more than the request.
LAST_USE_EVERY: Final = timedelta(minutes=1)


class TokenAuthentication(BaseAuthentication):
    """`request.auth` is the `ApiToken`, `request.user` its user, or a `TokenUser` where it has none."""

    def authenticate(self, request: Request) -> tuple[Any, ApiToken] | None:
        """Return who shows a token; None if nobody does. Raises `AuthenticationFailed`."""
        parts = get_authorization_header(request).split()
        if not parts or parts[0].lower() not in (keyword.encode() for keyword in _KEYWORDS):
            return None
        if len(parts) != 2:
            raise AuthenticationFailed("The header is: Authorization: Bearer TOKEN.")
        using = jobs_database()
        token = find_token(parts[1].decode("latin-1"), using=using)
        if token is None:
            raise AuthenticationFailed("There is no such token.")
        now = db.server_now(connections[using])
        if token.revoked_at is not None:
            raise AuthenticationFailed("This token has been revoked.")
        if token.expires_at is not None and token.expires_at <= now:
            raise AuthenticationFailed("This token has expired.")
        user = self._user(token)
        if token.last_used_at is None or token.last_used_at <= now - LAST_USE_EVERY:
            stale = Q(last_used_at__isnull=True) | Q(last_used_at__lte=now - LAST_USE_EVERY)
            ApiToken.objects.using(using).filter(stale, pk=token.pk).update(last_used_at=now)
        return user, token

    def _user(self, token: ApiToken) -> Any:
        if not token.user_id:
            return TokenUser(token)
        users = get_user_model()._default_manager
        try:
            user = users.filter(pk=token.user_id).first()
        except (ValueError, ValidationError):  # the project's users have keys of another kind by now
            user = None
        if user is None or not user.is_active:
            raise AuthenticationFailed("The user of this token may not come in any more.")
        return user

    def authenticate_header(self, request: Request) -> str:
        """Return the challenge of a 401."""
        return 'Bearer realm="django_jobs"'

"""For the setting TEMPLATES: `job_notice_count`, the number of the user's unread notices, asked for when a template uses it."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject

from .models import Notice


def notices(request: HttpRequest) -> dict[str, Any]:
    """Return the variable."""

    def count() -> int:
        user = getattr(request, "user", None)
        if user is None or not user.is_authenticated:
            return 0
        return Notice.objects.filter(user=user).shown().unread().count()

    return {"job_notice_count": SimpleLazyObject(count)}

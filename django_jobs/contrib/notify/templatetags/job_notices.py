"""`{% job_notices %}`: the user's unread notices, to be put anywhere in a site's pages."""

from __future__ import annotations

from typing import Any

from django import template

from ..models import Notice

register = template.Library()

#: Notices shown at most.
SHOWN = 5


@register.inclusion_tag("django_jobs_notify/box.html", takes_context=True)
def job_notices(context: dict[str, Any], limit: int = SHOWN) -> dict[str, Any]:
    """Show up to `limit` unread notices of the request's user, with a button that marks them as read; nothing for nobody."""
    request = context.get("request")
    user = getattr(request, "user", None)
    if user is None or not user.is_authenticated:
        return {"notices": []}
    unread = Notice.objects.filter(user=user).shown().unread().select_related("group")
    found = list(unread[: limit + 1])
    return {
        "notices": found[:limit],
        "has_more": len(found) > limit,
        "next": request.get_full_path() if request is not None else "",
        "csrf_token": context.get("csrf_token"),
    }

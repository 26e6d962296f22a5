"""`manage.py jobs token` and `jobs sync-queues`: who may use the HTTP API, and the declared queues as rows."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from django.contrib.auth import get_user_model
from django.core.management.base import CommandError, CommandParser
from django.db import connections

from .. import db
from ..conf import format_duration, parse_duration
from ..exceptions import InvalidOption
from ..lifecycle.declare import sync_queues
from ..lifecycle.tokens import VERBS, make_token, revoke_token
from ..models import ApiToken
from .listing import columns, printable

Write = Callable[[str], Any]

_HEADS: Final = ("ID", "NAME", "BEGINS", "STATE", "VERBS", "QUEUES", "USER", "LAST USED")


def add_token_arguments(parser: CommandParser, add_common: Callable[[CommandParser], None]) -> None:
    """Declare `token add`, `token list` and `token revoke`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    found = actions.add_parser("add", help="make a token; its secret is shown once, and never again")
    found.add_argument("name", metavar="NAME", help="what it is for")
    verbs = "; ".join(f"{verb}: {text}" for verb, text in VERBS.items())
    found.add_argument("--verb", action="append", default=[], choices=list(VERBS), dest="verbs", help=f"may be repeated. {verbs}")
    found.add_argument("--queue", action="append", default=[], dest="queues", help="a queue, or NAME.*; repeatable (every queue)")
    found.add_argument("--as-user", default="", metavar="USER", help="a user for the record; without whom the token ends")
    found.add_argument("--expires", default="", metavar="TIME", help="how long it lasts: 12h, 90d (for ever)")
    add_common(found)
    found = actions.add_parser("list", help="list the tokens that work")
    found.add_argument("--all", action="store_true", dest="everything", help="those that are revoked or have expired, too")
    add_common(found)
    found = actions.add_parser("revoke", help="end a token for good")
    found.add_argument("id", type=int, metavar="ID", help="its number, as the list shows it")
    add_common(found)


def find_user(name: str) -> Any:
    """Return the user who logs in as `name`. Raises `CommandError`."""
    users = get_user_model()
    try:
        return users._default_manager.get_by_natural_key(name)
    except users.DoesNotExist:
        raise CommandError(f"There is no user {name!r}.", returncode=2) from None


def add_token(options: dict[str, Any], by: str, using: str) -> tuple[dict[str, Any], str]:
    """Make a token; return it as JSON, and as text for people."""
    try:
        expires_at = None
        if options["expires"]:
            seconds = parse_duration(options["expires"], field="--expires")
            expires_at = db.server_now(connections[using]) + timedelta(seconds=seconds)
        token, secret = make_token(
            options["name"],
            verbs=options["verbs"],
            queues=options["queues"],
            user_id=find_user(options["as_user"]).pk if options["as_user"] else None,
            expires_at=expires_at,
            by=by,
            using=using,
        )
    except InvalidOption as error:
        raise CommandError(str(error), returncode=2) from error
    except OverflowError:
        raise CommandError("--expires: too long.", returncode=2) from None
    text = f"{secret}\n\nToken {token.pk}, {printable(token.name)}. Keep it: nothing can show it again."
    return _as_dict(token, "works") | {"secret": secret}, text


def list_tokens(everything: bool, using: str) -> tuple[list[dict[str, Any]], str]:
    """Return the tokens as JSON, and as a table."""
    now = db.server_now(connections[using])
    rows = []
    for token in ApiToken.objects.using(using).order_by("id"):
        state = "revoked" if token.revoked_at else "expired" if token.expires_at and token.expires_at <= now else "works"
        if everything or state == "works":
            rows.append(_as_dict(token, state))
    lines = [
        (
            str(row["id"]),
            printable(row["name"]),
            row["prefix"],
            row["state"],
            ",".join(row["verbs"]),
            ",".join(row["queues"]) or "all",
            row["user_id"] or "-",
            f"{row['last_used_at']:%Y-%m-%d %H:%M}" if row["last_used_at"] else "never",
        )
        for row in rows
    ]
    return rows, "\n".join(columns([_HEADS, *lines]))


def end_token(token_id: int, using: str) -> tuple[dict[str, Any], str]:
    """Revoke a token. Raises `CommandError` if there is none; one that was revoked before stays so."""
    token = ApiToken.objects.using(using).filter(pk=token_id).first()
    if token is None:
        raise CommandError(f"There is no token {token_id}.")
    is_new = revoke_token(token_id, using=using)
    text = f"Token {token_id}, {printable(token.name)}, {'is revoked' if is_new else 'was revoked before'}."
    return {"id": token_id, "revoked": is_new}, text


def _as_dict(token: ApiToken, state: str) -> dict[str, Any]:
    names = ("id", "name", "prefix", "verbs", "queues", "user_id", "created_at", "created_by", "expires_at", "revoked_at")
    return {name: getattr(token, name) for name in (*names, "last_used_at")} | {"state": state}


def sync(using: str) -> tuple[dict[str, Any], str]:
    """Make the rows of declared queues; return what was done as JSON, and as text for people."""
    synced = sync_queues(using=using)
    lines = [f"Created: {', '.join(synced.created) or 'none'}. There before: {', '.join(synced.kept) or 'none'}."]
    for (queue, option), (of_row, of_setting) in synced.overridden.items():
        lines.append(
            f"  {queue}: {option} is {_shown(option, of_row)}, as the row says; QUEUES says {_shown(option, of_setting)}."
        )
    if synced.overridden:
        lines.append("What a row says stands before the setting: empty it in the admin, or over HTTP, to have the setting hold.")
    if synced.undeclared:
        lines.append(f"Not in QUEUES, and left alone: {', '.join(synced.undeclared)}.")
    overridden = [
        {"queue": queue, "option": option, "row": of_row, "setting": of_setting}
        for (queue, option), (of_row, of_setting) in synced.overridden.items()
    ]
    answer = {"created": synced.created, "kept": synced.kept, "overridden": overridden, "undeclared": synced.undeclared}
    return answer, "\n".join(lines)


def _shown(option: str, value: Any) -> str:
    return format_duration(value) if option in ("timeout", "heartbeat_timeout") else str(value)

"""What to say where the database can't be used at all: its tables are not there, or nobody answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from django.apps import apps
from django.db import DatabaseError, connections

from .errors import errno, sqlstate

#: PostgreSQL's states and MySQL's numbers for a table or a column that does not exist; SQLite has words alone.
_STATES: Final = frozenset({"42P01", "42703"})
_NUMBERS: Final = frozenset({1146, 1054})
_WORDS: Final = ("no such table", "no such column", "has no column named")


def is_without_tables(error: BaseException) -> bool:
    """Whether a statement of ours failed because a table or a column is missing."""
    if not isinstance(error, DatabaseError):
        return False
    return sqlstate(error) in _STATES or errno(error) in _NUMBERS or any(words in str(error) for words in _WORDS)


def without_tables(alias: str) -> str:
    """Return what to do about that."""
    return f"The database {alias!r} has no tables of django_jobs, or old ones: run manage.py migrate."


def has_tables(alias: str) -> bool:
    """Whether every table and column of ours is there. Raises a database error where that can't be asked."""
    connection = connections[alias]
    quote = connection.ops.quote_name
    try:
        with connection.cursor() as cursor:
            for model in apps.get_app_config("django_jobs").get_models():
                table = quote(model._meta.db_table)
                # With the table's name before it: alone, SQLite takes the quoted name of a missing column for a text.
                columns = ", ".join(f"{table}.{quote(str(field.column))}" for field in model._meta.local_concrete_fields)
                cursor.execute(f"SELECT {columns} FROM {table} WHERE 1 = 0")
    except DatabaseError as error:
        if is_without_tables(error):
            return False
        raise
    return True


def unreachable(alias: str, error: BaseException) -> str:
    """Return one line that says which database can't be reached, and why."""
    return f"The database {alias!r} ({_place(connections.settings[alias])}) can't be reached: {one_line(error)}"


def one_line(error: BaseException) -> str:
    """Return what an error says, without the line breaks of some drivers."""
    return " ".join(str(error).split())


def _place(settings: Mapping[str, Any]) -> str:
    host, port = str(settings.get("HOST") or ""), str(settings.get("PORT") or "")
    if settings["ENGINE"].endswith("sqlite3"):
        return str(settings["NAME"])
    return f"{host or 'localhost'}{f':{port}' if port else ''}, {settings['NAME']}"

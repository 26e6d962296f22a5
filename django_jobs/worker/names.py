"""The names of workers: short enough, with the number of a process behind them, for every column that keeps one."""

from __future__ import annotations

import os
import platform
from typing import Final

from django_jobs.exceptions import InvalidOption

#: Of a worker tree. Its processes are called `name/1` and so on: 64 characters are kept with each job and attempt.
MAX_NAME: Final = 56
#: How much of the beginning of a long host name is kept; where many hosts have one name, they differ at its end.
_HEAD: Final = 16


def check_name(name: str, *, field: str = "--name") -> str:
    """Return `name` if a worker may be called so; else raise `InvalidOption`. An empty one stands for the default."""
    if len(name) > MAX_NAME:
        raise InvalidOption(field, f"a worker's name has at most {MAX_NAME} characters, not {len(name)}.")
    if not name.isprintable():
        raise InvalidOption(field, f"{name!r} has characters that can't be shown.")
    return name


def default_name(host: str = "", pid: int = 0) -> str:
    """Return the host's name and the process id; of a long host name the middle is left out."""
    tail = f":{pid or os.getpid()}"
    host = "".join(character if character.isprintable() else "?" for character in host or platform.node())
    room = MAX_NAME - len(tail)
    if len(host) > room:
        host = f"{host[:_HEAD]}~{host[_HEAD + 1 - room :]}"
    return host + tail

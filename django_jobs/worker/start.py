"""`python -m django_jobs.worker.start`: set Django up in a child process, and be that worker process until the end."""

from __future__ import annotations

import atexit
import os
import sys
import traceback
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import django
from django.db import connections

from django_jobs.worker.logs import configure
from django_jobs.worker.options import VARIABLE, ProcessOptions


def main() -> None:
    """Start from the environment that the supervisor has made."""
    options = ProcessOptions.load(os.environ.pop(VARIABLE))
    code = 70
    try:
        django.setup()
        # Only now: models and tasks can be imported.
        from django_jobs.worker.process import Process

        configure(options.name, as_json=options.options.log_json, verbosity=options.options.verbosity)
        code = Process(options).run()
    except BaseException:
        traceback.print_exc()
    finally:
        close_everything()
    os._exit(code)


def close_everything(streams: Iterable[Any] = (sys.stdout, sys.stderr)) -> None:
    """Do what the interpreter does at its end, without waiting for threads that jobs have left behind."""
    with suppress(Exception):
        connections.close_all()
    with suppress(BaseException):
        atexit._run_exitfuncs()
    for stream in streams:
        with suppress(Exception):
            stream.flush()


if __name__ == "__main__":
    main()

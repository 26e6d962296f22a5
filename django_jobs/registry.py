"""The registry: the tasks that this process knows, by dotted name.

A worker runs registered tasks only: nothing is ever imported because a row or a request names it. A task is registered when it is
declared, so the module that declares it has to be imported: `tasks` and `jobs` modules of installed apps are, at start-up.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType, ModuleType
from typing import Any

from django.utils.module_loading import module_has_submodule

from . import conf
from .compat import InvalidTask, Task
from .durations import format_duration
from .exceptions import UnknownTask

logger = logging.getLogger("django_jobs.task")

_tasks: dict[str, Task[..., Any]] = {}
#: Modules of tasks that could not be imported, with what they raised.
_import_errors: dict[str, str] = {}

#: The modules of an installed app in which tasks are looked for.
MODULES = ("tasks", "jobs")


def register(task: Task[..., Any]) -> None:
    """Make `task` known to this process under its dotted name. What `using` made of a registered task changes nothing."""
    name = task.module_path
    known = _tasks.get(name)
    if (known is None or known.func is not task.func) and not getattr(task.func, "is_placeholder", False):
        _tasks[name] = task


def registered() -> Mapping[str, Task[..., Any]]:
    """Return every task that this process knows, by dotted name."""
    return MappingProxyType(_tasks)


def import_errors() -> Mapping[str, str]:
    """Return the modules of tasks that could not be imported at start-up, with the error of each."""
    return MappingProxyType(_import_errors)


def find_task(name: str) -> Task[..., Any]:
    """Return the registered task of this dotted name, or of the name that `TASK_ALIASES` gives for it. Never imports anything.

    Raises `UnknownTask`, which says so if the module that the name begins with could not be imported.
    """
    if (task := _tasks.get(name)) is not None:
        return task
    aliases = conf.jobs_settings().task_aliases
    seen, alias = {name}, name
    while (alias := aliases.get(alias, "")) and alias not in seen:
        seen.add(alias)
        if (task := _tasks.get(alias)) is not None:
            return task
    for module, error in _import_errors.items():
        if name.startswith(f"{module}."):
            raise UnknownTask(f"The task {name!r} is unknown: its module {module!r} could not be imported: {error}")
    raise UnknownTask(f"The task {name!r} is unknown here: its module was not imported, or has no task of this name (any more).")


def docline(name: str) -> str:
    """Return the first line of the docstring of a task that this process knows; empty if it knows none, or the task has none."""
    text = getattr(getattr(_tasks.get(name), "func", None), "__doc__", None) or ""
    return text.strip().partition("\n")[0].strip()


def unknown_note() -> str:
    """Return what a job is told that is parked because the worker that looked does not know its task."""
    grace = conf.jobs_settings().unknown_task_grace
    return (
        "The worker that looked knows no task of this name. If none comes to know it, the job fails"
        f" {format_duration(grace)} after it was parked. A task that was renamed is to be named in TASK_ALIASES."
    )


def check_is_findable(task: Task[..., Any]) -> None:
    """Raise `InvalidTask` unless a worker, which imports modules and nothing else, comes to know this task, too."""
    func = task.func
    if func.__module__ == "__main__":
        raise InvalidTask(
            f"{task.module_path}: a worker can't import the script that this process runs. Move the task to a module."
        )
    found: Any = sys.modules.get(func.__module__)
    for part in func.__qualname__.split("."):
        found = getattr(found, part, None)
    if found is func or getattr(found, "func", None) is func:
        return
    if any(value is task or getattr(value, "func", None) is func for value in vars(sys.modules[func.__module__]).values()):
        return
    raise InvalidTask(
        f"{task.module_path}: nothing in its module leads to this task, so no worker can find it. Declare it at module level."
    )


def autodiscover() -> None:
    """Import the modules `tasks` and `jobs` of every installed app and register the tasks in them, Django's plain ones, too.

    A module that can't be imported is logged and kept in `import_errors` (a system check reports it): the other apps' tasks
    still run.
    """
    from django.apps import apps

    for config in apps.get_app_configs():
        for name in MODULES:
            if config.module is not None and module_has_submodule(config.module, name):
                _discover(f"{config.name}.{name}")


def _discover(name: str) -> None:
    try:
        import_module(name)
    except (Exception, SystemExit) as error:
        _import_errors[name] = f"{type(error).__name__}: {error}"
        logger.exception("The module %s could not be imported: its tasks are unknown to this process.", name)
        return
    _import_errors.pop(name, None)
    for module_name, module in list(sys.modules.items()):
        if module_name == name or module_name.startswith(f"{name}."):
            _register_tasks(module)


def _register_tasks(module: ModuleType) -> None:
    for value in list(vars(module).values()):
        if isinstance(value, Task):
            register(value)

"""The package's own task: it calls methods of models, for `later`."""

from __future__ import annotations

import inspect
from contextlib import suppress
from types import MethodType
from typing import Any, Literal

from asgiref.sync import async_to_sync
from django.apps import apps
from django.db.models import Model

from .conf import jobs_aliases
from .exceptions import UnknownMethod
from .execution.running import retry_also
from .methods import find_method, method_of
from .task import job


def _call(function: Any, *args: Any, **kwargs: Any) -> Any:
    return (async_to_sync(function) if inspect.iscoroutinefunction(function) else function)(*args, **kwargs)


def _call_hook(name: Literal["on_success", "on_failure"], result: Any) -> None:
    target, method = result.args[:2]
    with suppress(UnknownMethod):  # the job has said so
        if hook := method_of(target if isinstance(target, str) else target["model"], method).options.get(name):
            _call(hook, result)


def _succeeded(result: Any) -> None:
    _call_hook("on_success", result)


def _failed(result: Any) -> None:
    _call_hook("on_failure", result)


@job(backend=next(iter(jobs_aliases()), "default"), serializer="typed", on_success=_succeeded, on_failure=_failed)
def call_method(target: Model | str, method: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Call a model's method that is marked with `allow_later`. `target`: the object, or for a classmethod the model's label.

    Raises `UnknownMethod` for anything that is not marked.
    """
    if isinstance(target, str):
        marked = method_of(target, method)
        owner: Any = apps.get_model(target)
    else:
        marked = find_method(type(target), method)
        owner = target
    if marked.is_classmethod:
        owner = owner if isinstance(owner, type) else type(owner)
    elif isinstance(owner, type):
        raise UnknownMethod(f"{target}.{method} is a method of an object, and no object is named.")
    retry_also(marked.options.get("retry_for", ()))
    return _call(MethodType(marked.function, owner), *args, **kwargs)

"""Any method later: `later(invoice).recalculate(1)` runs a model's method as a job, where the method is marked as allowed.

One task, `django_jobs.tasks.call_method`, does the work. It calls what is marked in the classes of installed models, and nothing
else: a row that names another method, or another model, ends as failed. The first definition of a name in the order of
inheritance decides, so a subclass that overrides a marked method says again that it is allowed.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, ParamSpec, TypeVar, Unpack, cast, overload

from django.apps import apps
from django.db.models import Model

from . import options
from .exceptions import InvalidArguments, InvalidOption, UnknownMethod
from .queues import check_queue_name
from .task import JobOptions, JobTask, Moment

if TYPE_CHECKING:
    from .graphs.nodes import Signature
    from .results import JobResult

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound="Callable[..., Any] | classmethod[Any, Any, Any]")


class LaterOptions(JobOptions, total=False):
    """What `later` takes: what a job carries."""

    priority: int
    queue_name: str
    run_after: Moment
    backend: str


class MethodOptions(LaterOptions, total=False):
    """What `allow_later` takes: the defaults of `later` for this method, and what belongs to the method as such."""

    retry_for: tuple[type[BaseException], ...] | type[BaseException]
    on_success: Callable[..., Any]
    on_failure: Callable[..., Any]


#: The attribute of a marked function.
_MARK: Final = "_django_jobs_later"
#: Methods that were marked from outside: (class, name) -> options.
_allowed: dict[tuple[type, str], MethodOptions] = {}
#: Options of the task that are not a method's to say.
_REFUSED: Final = {
    "atomic": "use transaction.atomic in the method, or write a task.",
    "isolate": "write a task for it.",
    "serializer": "it is always 'typed'.",
}
#: Options that no job carries: they are looked up with the method.
_OF_THE_METHOD: Final = ("retry_for", "on_success", "on_failure")


class Marked(NamedTuple):
    """A method that may be called later."""

    function: Callable[..., Any]
    is_classmethod: bool
    options: MethodOptions


@overload
def allow_later(method: F, /) -> F: ...
@overload
def allow_later(**method_options: Unpack[MethodOptions]) -> Callable[[F], F]: ...
@overload
def allow_later(model: type[Model], name: str, /, **method_options: Unpack[MethodOptions]) -> None: ...


def allow_later(method: Any = None, name: str = "", /, **method_options: Any) -> Any:
    """Mark a model's method, or classmethod, as one that `later` may call: `@allow_later`, `@allow_later(queue_name="billing")`.

    The options are those of `@job` that a job carries, and `retry_for`, `on_success`, `on_failure`: the defaults for this method.
    A method of somebody else's model is marked by `allow_later(TheModel, "its_method", **options)` in `AppConfig.ready`.

    Raises `InvalidOption` for a bad value, TypeError for an unknown option and for what is no method.
    """
    checked = _checked(method_options)
    if name:
        found = inspect.getattr_static(method, name, None)
        if not inspect.isfunction(found) and not isinstance(found, classmethod):
            raise TypeError(f"allow_later(): {method.__qualname__} has no method {name!r}.")
        _allowed[method, name] = checked
        return None

    def mark(function: F) -> F:
        target = function.__func__ if isinstance(function, classmethod) else function
        if not inspect.isfunction(target):
            raise TypeError(f"allow_later() marks methods and classmethods of models, and not {function!r}.")
        setattr(target, _MARK, checked)
        return function

    return mark if method is None else mark(method)


def _checked(given: Mapping[str, Any]) -> MethodOptions:
    known = [*options.CHECKS, "priority", "queue_name", "run_after", "backend"]
    for name, value in given.items():
        if name in _REFUSED:
            raise InvalidOption(name, f"can't be said of a method: {_REFUSED[name]}")
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            raise TypeError(f"{name!r} is no option of a method." + (f" Did you mean {near[0]!r}?" if near else ""))
        if name == "backoff" and callable(value):
            raise InvalidOption(name, "for a method use seconds, a list or a dict.")
        if name in options.CHECKS:
            options.CHECKS[name](value, name)
        elif name == "queue_name":
            check_queue_name(value)
    checked = dict(given)
    if "retry_for" in checked:
        checked["retry_for"] = options.CHECKS["retry_for"](checked["retry_for"], "retry_for")
    return cast(MethodOptions, checked)


def find_method(model: type[Model], name: str) -> Marked:
    """Return the marked method of this name. Raises `UnknownMethod` if there is none, or if it is not marked."""
    for cls in model.__mro__:
        if (cls, name) in _allowed or name in vars(cls):
            found = inspect.getattr_static(model, name)
            function = found.__func__ if isinstance(found, classmethod) else found
            mark = _allowed.get((cls, name), getattr(function, _MARK, None))
            if mark is None:
                break
            return Marked(function, isinstance(found, classmethod), mark)
    else:
        raise UnknownMethod(f"{model._meta.label} has no method {name!r}.")
    raise UnknownMethod(f"{model._meta.label}.{name} is not marked with allow_later: it can't be called as a job.")


def method_of(label: str, name: str) -> Marked:
    """Return the marked method of the installed model with this label. Raises `UnknownMethod`."""
    try:
        model = apps.get_model(label)
    except (LookupError, ValueError):
        raise UnknownMethod(f"There is no model {label!r} (any more).") from None
    return find_method(model, name)


class LaterMethod(Generic[P, R]):
    """A method of an object, to be called by a job: calling it enqueues. `enqueue` is the same; `aenqueue` is for coroutines."""

    __slots__ = ("_marked", "_model", "_name", "_options", "_target")

    def __init__(self, target: Any, name: str, given: Mapping[str, Any]) -> None:
        self._model: type[Model] = target if isinstance(target, type) else type(target)
        self._marked = find_method(self._model, name)
        if isinstance(target, type) and not self._marked.is_classmethod:
            raise UnknownMethod(f"{self._model.__name__}.{name} is a method of an object: use later(object).{name}(...).")
        if "serializer" in given:
            raise InvalidOption("serializer", f"can't be said of a method: {_REFUSED['serializer']}")
        self._target, self._name, self._options = target, name, given

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> JobResult[Any, R]:
        """Store a job that calls the method with these arguments, and return its result. Raises `InvalidArguments`."""
        return self._task().enqueue(*self._arguments(args, kwargs))

    enqueue = __call__

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> JobResult[Any, R]:
        """See `enqueue`."""
        return await self._task().aenqueue(*self._arguments(args, kwargs))

    def s(self, /, *args: P.args, **kwargs: P.kwargs) -> Signature:
        """Return the job to be, for `chain`, `group` and `graph`."""
        return self._task().s(*self._arguments(args, kwargs))

    def _arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, str, list[Any], dict[str, Any]]:
        """Return the arguments of the task. Raises `InvalidArguments` if the method can't be called so."""
        try:
            inspect.signature(self._marked.function).bind(self._target, *args, **kwargs)
        except TypeError as error:
            raise InvalidArguments(f"{self._model.__name__}.{self._name}(): {error}.") from None
        owner = self._model._meta.label if self._marked.is_classmethod else self._target
        return owner, self._name, list(args), kwargs

    def _task(self) -> JobTask[..., Any]:
        from .tasks import call_method

        defaults = {name: value for name, value in self._marked.options.items() if name not in _OF_THE_METHOD}
        given: dict[str, Any] = {**defaults, **self._options}
        key = "" if self._marked.is_classmethod else self._target.pk
        given.setdefault("description", f"{self._model.__name__}.{self._name}({key})"[: options.MAX_DESCRIPTION])
        if not self._marked.is_classmethod and not self._target._state.adding:
            given.setdefault("related", self._target)
        return call_method.using(**given)


class Later:
    """An object, or a model, whose marked methods are called by jobs."""

    __slots__ = ("_make",)

    def __init__(self, target: Model | type[Model], given: LaterOptions) -> None:
        self._make = partial(LaterMethod[..., Any], target, given=given)

    def __getattr__(self, name: str) -> LaterMethod[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._make(name)


@overload
def later(target: Model | type[Model], /, **later_options: Unpack[LaterOptions]) -> Later: ...  # type: ignore[overload-overlap]  # a model is callable, too
@overload
def later(target: Callable[P, R], /, **later_options: Unpack[LaterOptions]) -> LaterMethod[P, R]: ...


def later(target: Any, /, **later_options: Any) -> Any:
    """Call a method of a model as a job: `later(invoice, priority=5).recalculate(1, x=2)`; `later(Invoice).rebuild_all()`.

    The method must be marked with `allow_later`, whose options are the defaults of those given here. The object travels as its
    primary key and is read when the job starts; one that is gone by then is a final failure (`RelatedObjectGone`). Returns
    what enqueues when it is called, and returns the job's result then. `later(invoice.recalculate)(1, x=2)` is the same with
    types that a checker sees.

    Raises `UnknownMethod` for a method that is not marked, `InvalidOption` for an option that no job carries.
    """
    if isinstance(target, Model) or (isinstance(target, type) and issubclass(target, Model)):
        return Later(target, cast(LaterOptions, later_options))
    if isinstance(target, MethodType):
        return LaterMethod(target.__self__, target.__name__, later_options)
    raise TypeError(f"later() takes a model instance, a model, or a method of one, and not {target!r}.")

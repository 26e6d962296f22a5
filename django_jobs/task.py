"""Tasks: the `job` decorator, and the task object that it makes."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from types import FunctionType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, TypedDict, TypeVar, Unpack, overload

from asgiref.sync import sync_to_async
from django.utils import timezone
from django.utils.module_loading import import_string

from . import options
from .compat import DEFAULT_TASK_BACKEND_ALIAS, DEFAULT_TASK_QUEUE_NAME, Task, task_backends
from .exceptions import InvalidArguments, UnknownTask
from .options import UNSET, Unset
from .registry import autodiscover, find_task, import_errors, register, registered
from .unique import UniqueBy

if TYPE_CHECKING:
    from .graphs.nodes import Signature
    from .outcomes import Attempt
    from .results import JobResult

P = ParamSpec("P")
R = TypeVar("R")

if TYPE_CHECKING:
    _TaskBase = Task
else:

    class _TaskBase(Task, Generic[P, R]):
        """Django's Task, which is generic in its type stubs and in the back-port only."""

        __slots__ = ()


#: A moment: an aware datetime, a timedelta or number of seconds from now (by the database's clock), or a string such as "1h30m".
Moment = datetime | timedelta | int | float | str
#: A duration: a number of seconds, a timedelta, or a string such as "10m".
Duration = timedelta | int | float | str
#: Pauses between attempts; see `TaskOptions`.
Backoff = int | float | list[float] | tuple[float, ...] | Mapping[int, float | tuple[float, float]] | Callable[..., float | None]


class JobOptions(TypedDict, total=False):
    """What `job` and `using` take beside Django's own arguments: what a job carries. See `TaskOptions`."""

    max_attempts: int | Unset | None
    backoff: Backoff | None
    timeout: Duration | None
    timeout_grace: Duration | None
    heartbeat_timeout: Duration | None
    cpu_timeout: Duration | None
    start_by: Moment | None
    max_deaths: int | None
    retention: Duration | Mapping[str, Duration | None] | None
    tags: Iterable[str]
    metadata: Mapping[str, Any]
    serializer: options.SerializerName
    enqueue_on_commit: bool | str
    description: str
    related: Any
    unique: str | UniqueBy | Callable[..., str | None] | None
    unique_until: Literal["started", "finished", "pruned"]
    on_conflict: Literal["return", "raise", "replace"]


class TaskOptions(JobOptions, total=False):
    """What `job` takes beside Django's own arguments. Where it says nothing, the queue does, else the settings.

    * `max_attempts`: starts at most, whatever ends them; None for no bound.
    * `backoff`: the pause before the next attempt: seconds; a list of them, whose last one repeats; a dict from attempt to
      seconds or to a range `(low, high)`; a function of the exception and the task result that returns seconds, or None for
      the default.
    * `retry_for`: exception classes that are retried; any other is final, except `Retry`, database conflicts, time-outs and
      deaths.
    * `timeout`, `timeout_grace`, `heartbeat_timeout`, `cpu_timeout`: durations for each attempt; 0 is no limit.
    * `start_by`: a job that has not started by then is cancelled; a duration counts from the enqueue.
    * `max_deaths`: a job under which the worker died this many times in a row has failed.
    * `retention`: how long finished jobs are kept: a duration, or a dict from final status to duration, None for ever.
    * `tags`, `metadata`, `description`: for people and filters; strings, a dict of JSON, a text.
    * `related`: the object of a model that the job is about, or a function of its arguments that returns one (or None).
    * `unique`: no two live jobs are the same: "args" for the same arguments, `unique_by(...)` for some of them or a period, a
      function of the arguments that returns a key, or a key. `unique_until`: how long a job holds its key: until it is "started",
      until it has "finished" (the default), or until it is "pruned", if it succeeded. `on_conflict`: what an enqueue does that
      finds its key held: "return" that job (the default), "raise" `JobExists`, or "replace" its arguments and start time if it
      has not started.
    * `serializer`: "json", or "typed" for dates, decimals, UUIDs, model instances and more.
    * `atomic`: run the task and record its success in one database transaction.
    * `isolate`: run each attempt in a process of its own.
    * `on_success`, `on_failure`: functions called after the final outcome, which they can't change.
    * `enqueue_on_commit`: enqueue only when the open transaction of the default database (or of the alias given) commits:
      for jobs that live in another database than the data that they are about.

    `retry_for`, `atomic`, `isolate`, the hooks and a `backoff` that is a function belong to the function: no job carries them,
    so `using` refuses them.
    """

    retry_for: Iterable[type[BaseException]] | type[BaseException]
    atomic: bool
    isolate: bool
    on_success: Callable[..., Any] | None
    on_failure: Callable[..., Any] | None


class Arguments:
    """The arguments of one call, for `enqueue_many` where positional and keyword arguments come together."""

    __slots__ = ("args", "kwargs")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args, self.kwargs = args, kwargs

    def __repr__(self) -> str:
        parts = [repr(value) for value in self.args] + [f"{name}={value!r}" for name, value in self.kwargs.items()]
        return f"Arguments({', '.join(parts)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTask(_TaskBase[P, R]):
    """A task of Django's, with the options of django_jobs. Made by `job`; immutable, hashable, and importable by its name.

    `enqueue(...)` and `aenqueue(...)` store a job in the caller's transaction and return a `JobResult`; they raise
    `InvalidArguments` (a TypeError) for arguments that do not fit the function or that JSON can't hold, before any SQL.
    `call(...)` runs the function here and now.
    """

    max_attempts: int | Unset | None = UNSET
    backoff: Any = None
    retry_for: tuple[type[BaseException], ...] = ()
    timeout: float | None = None
    timeout_grace: float | None = None
    heartbeat_timeout: float | None = None
    cpu_timeout: float | None = None
    start_by: datetime | timedelta | None = None
    max_deaths: int | None = None
    retention: options.FrozenDict | None = None
    tags: tuple[str, ...] = ()
    metadata: options.FrozenDict = options.NOTHING
    serializer: str = "json"
    atomic: bool = False
    isolate: bool = False
    on_success: Callable[..., Any] | None = None
    on_failure: Callable[..., Any] | None = None
    enqueue_on_commit: bool | str = False
    description: str = ""
    related: Any = None
    unique: Any = None
    unique_until: str = "finished"
    on_conflict: str = "return"
    #: Seconds from the enqueue, by the database's clock, to the earliest start. Set by `using(run_after=<timedelta>)`.
    delay: float | None = None
    # The back end's: what the jobs of this task have in common, made at the first enqueue.
    _template: Any = field(init=False, default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name, check in options.CHECKS.items():
            value = getattr(self, name)
            if value is not _DEFAULTS[name]:
                object.__setattr__(self, name, check(value, name))
        start: Any = self.run_after
        if start is not None and not isinstance(start, datetime):
            object.__setattr__(self, "delay", options.seconds(start, "run_after"))
            object.__setattr__(self, "run_after", None)
        # No zero-argument super() in a dataclass with slots: the class was made twice.
        Task.__post_init__(self)
        register(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the path of the declared task, and what `using` changed."""
        declared = registered().get(self.module_path, self)
        names = [item.name for item in fields(self) if item.init and item.name != "func"]
        changes = {name: getattr(self, name) for name in names if getattr(self, name) != getattr(declared, name, None)}
        return (_unpickle, (self.module_path, changes))

    def using(
        self,
        *,
        priority: int | None = None,
        queue_name: str | None = None,
        run_after: Moment | None = None,
        backend: str | None = None,
        **changes: Unpack[JobOptions],
    ) -> JobTask[P, R]:
        """Return this task with other options; this one stays as it is.

        `run_after` takes an aware datetime, or a timedelta, a number of seconds or a string such as "1h30m", which count
        from the enqueue by the database's clock; 0 takes a start time off again. As in Django, None for these four leaves
        them as they are. Any option of `JobOptions` may be given; there None has its meaning. Raises `InvalidTask` or
        `InvalidOption`, the latter also for options that belong to the function (see `TaskOptions`).
        """
        _check_names(changes)
        options.refuse_declared(changes)
        new: dict[str, Any] = dict(changes)
        for name, value in (("priority", priority), ("queue_name", queue_name), ("backend", backend)):
            if value is not None:
                new[name] = value
        if run_after is not None:
            new["run_after"], new["delay"] = _start(run_after, task_backends[backend or self.backend])
        return replace(self, **new)

    # Django's own take `self` by name as well, and so no argument of the function's that is called so.
    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> JobResult[P, R]:
        """Store a job in the caller's transaction, with these arguments for the function, and return its result."""
        backend: Any = self.get_backend()
        result: JobResult[P, R] = backend.enqueue(self, args, kwargs)
        return result

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> JobResult[P, R]:
        """See `enqueue`."""
        backend: Any = self.get_backend()
        result: JobResult[P, R] = await backend.aenqueue(self, args, kwargs)
        return result

    def enqueue_many(self, calls: Iterable[Iterable[Any] | Mapping[str, Any] | Arguments]) -> list[JobResult[P, R]]:
        """Store a job for each of `calls`, all or none, in one statement for each thousand. Return the results in the same order.

        A call is a tuple (or list) of positional arguments, a dict of keyword arguments, or `Arguments(1, lang="de")` for
        both. Raises `InvalidArguments`, whose `index` says which call, and whatever the iterable raises; nothing is stored
        then.
        """
        backend: Any = self.get_backend()
        if hasattr(backend, "enqueue_many"):
            results: list[JobResult[P, R]] = backend.enqueue_many(self, calls)
            return results
        return [backend.enqueue(self, *split_call(call, index)) for index, call in enumerate(calls)]

    async def aenqueue_many(self, calls: Iterable[Iterable[Any] | Mapping[str, Any] | Arguments]) -> list[JobResult[P, R]]:
        """See `enqueue_many`."""
        return await sync_to_async(self.enqueue_many, thread_sensitive=True)(calls)

    def s(self, /, *args: P.args, **kwargs: P.kwargs) -> Signature:
        """Return a job to be, with these arguments: what `chain`, `group` and `graph` are made of. Nothing is stored yet."""
        from .graphs.nodes import Signature

        return Signature(self, args, kwargs)

    def _result_for(self, attempt: Attempt) -> JobResult[P, R]:
        """Return the result object of a running attempt, from what the attempt says: no query."""
        from .results import for_attempt

        return for_attempt(self, attempt)


_DEFAULTS = {item.name: item.default for item in fields(JobTask)}


def _start(value: Moment, backend: Any) -> tuple[datetime | None, float | None]:
    """Return (run_after, delay) for what `using` was given as run_after."""
    if isinstance(value, datetime):
        return value, None
    delay = options.seconds(value, "run_after")
    if delay <= 0:
        return None, None
    if getattr(backend, "supports_delay", False):
        return None, delay
    return timezone.now() + timedelta(seconds=delay), None  # a back end of Django's own, in a test


def _check_names(changes: Mapping[str, Any]) -> None:
    for name in changes:
        if name not in options.CHECKS:
            near = difflib.get_close_matches(name, [*options.CHECKS, "queue_name", "priority", "run_after", "backend"], 1)
            raise TypeError(f"{name!r} is no option of a task." + (f" Did you mean {near[0]!r}?" if near else ""))


def _unpickle(path: str, changes: dict[str, Any]) -> Task[..., Any]:
    """Find the task that `path` names, importing its module, and apply `changes`."""
    if (declared := registered().get(path)) is None:
        try:
            found = import_string(path)
        except ImportError as error:
            raise ValueError(f"Expected {path!r} to point to a Task instance.") from error
        declared = registered().get(path, found)
    if not isinstance(declared, Task):
        raise ValueError(f"Expected {path!r} to point to a Task instance.")
    return replace(declared, **changes) if changes else declared


@overload
def job(function: Callable[P, R], /) -> JobTask[P, R]: ...
@overload
def job(
    *,
    takes_context: Literal[True],
    priority: int = 0,
    queue_name: str = ...,
    backend: str = ...,
    **task_options: Unpack[TaskOptions],
) -> Callable[[Callable[Concatenate[Any, P], R]], JobTask[P, R]]: ...
@overload
def job(
    *,
    takes_context: Literal[False] = False,
    priority: int = 0,
    queue_name: str = ...,
    backend: str = ...,
    **task_options: Unpack[TaskOptions],
) -> Callable[[Callable[P, R]], JobTask[P, R]]: ...


def job(
    function: Any = None,
    /,
    *,
    priority: int = 0,
    queue_name: str = DEFAULT_TASK_QUEUE_NAME,
    backend: str = DEFAULT_TASK_BACKEND_ALIAS,
    takes_context: bool = False,
    **task_options: Any,
) -> Any:
    """Make a function of a module a task that can be enqueued: `@job`, or `@job(queue_name="mail", timeout=30)`.

    `priority` is a whole number from -100 to 100, the higher the sooner; `queue_name` may be dotted (`billing.invoices` is
    below `billing`); `backend` is an alias of the setting TASKS; with `takes_context` the function's first parameter is
    called `context` and gets the `JobContext`. For all else see `TaskOptions`. Works with any back end in TASKS, so that
    tests may use Django's own dummy or immediate one.

    Raises `InvalidTask` for a function that no worker could find (a lambda, a nested function), `InvalidOption` for a bad
    value, and TypeError for an unknown option.
    """
    if "run_after" in task_options:
        raise TypeError("run_after can't be given where a task is declared: use .using(run_after=...).")
    _check_names(task_options)

    def make(func: Callable[..., Any]) -> JobTask[..., Any]:
        made_by: type[Any] = task_backends[backend].task_class
        cls = made_by if issubclass(made_by, JobTask) else JobTask
        task: JobTask[..., Any] = cls(
            func=func,
            priority=priority,
            queue_name=queue_name,
            backend=backend,
            takes_context=takes_context,
            run_after=None,  # Django 6.0 has no default for it
            **task_options,
        )
        return task

    if function is None:
        return make
    if not callable(function):
        raise TypeError(f"job() decorates a function, and takes its options by name; it was given {function!r}.")
    return make(function)


def split_call(call: Any, index: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and keyword arguments of an item of `enqueue_many`. Raises `InvalidArguments` with `index`."""
    if isinstance(call, tuple):
        return call, {}
    if isinstance(call, Arguments):
        return call.args, call.kwargs
    if isinstance(call, Mapping):
        return (), dict(call)
    if isinstance(call, list):
        return tuple(call), {}
    raise InvalidArguments(
        f"{call!r} is no call: use a tuple of positional arguments, such as ({call!r},), a dict of keyword arguments,"
        " or Arguments(...).",
        index=index,
    )


def placeholder(name: str, backend: str) -> JobTask[..., Any]:
    """Return a stand-in for a task that is unknown here, so that the results of its jobs can still be read. It can't be run."""

    def run(*args: Any, **kwargs: Any) -> None:
        raise UnknownTask(f"The task {name!r} is unknown here: it can't be run.")

    func = FunctionType(run.__code__, run.__globals__, name.rpartition(".")[2], None, run.__closure__)
    func.__module__, _, func.__qualname__ = name.rpartition(".")
    func.is_placeholder = True  # type: ignore[attr-defined]
    return JobTask(func=func, priority=0, queue_name=DEFAULT_TASK_QUEUE_NAME, backend=backend, run_after=None)


__all__ = [
    "Arguments",
    "JobTask",
    "TaskOptions",
    "autodiscover",
    "find_task",
    "import_errors",
    "job",
    "register",
    "registered",
]

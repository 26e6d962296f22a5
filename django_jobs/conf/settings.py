"""`JobsSettings`: the names, defaults and checks of the dict `DJANGO_JOBS`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache
from typing import Any, Final, NamedTuple

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from ..durations import format_duration
from ..exceptions import InvalidOption
from ..queues import QueueOptions, lineage
from ..retry import EXPONENTIAL
from . import readers

SETTING: Final = "DJANGO_JOBS"
ENVIRONMENT_PREFIX: Final = "DJANGO_JOBS_"

_DAY: Final = 86_400.0
_MEGABYTE: Final = 1_048_576
_DEFAULT_GRACE: Final = 10.0
_MIN_GRACE: Final = 1.0  # below it a busy server, and not a dead worker, decides
_MIN_INTERVAL: Final = 0.05  # a loop that turns faster is a loop that burns
_SLICE_SHARE: Final = 0.3  # of the grace, where SLICE is not set: three refreshes fit, so one may be lost


def _setting(read: readers.Reader, default: Any = MISSING, *, factory: Callable[[], Any] | None = None) -> Any:
    if factory is not None:
        return field(default_factory=factory, metadata={"read": read})
    return field(default=default, metadata={"read": read})


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsSettings:
    """The settings as they are used: durations in seconds, patterns in normal form. `DJANGO_JOBS` has the names in capitals."""

    grace: float = _setting(readers.duration(_MIN_GRACE), _DEFAULT_GRACE)  # how long a lock row outlives its last refresh
    slice: float = _setting(readers.duration(_MIN_INTERVAL), _DEFAULT_GRACE * _SLICE_SHARE)  # of a holding transaction
    poll_interval: float = _setting(readers.duration(_MIN_INTERVAL), 1.0)  # of an idle worker that nothing wakes
    sweep_interval: float = _setting(readers.duration(_MIN_INTERVAL), 1.0)  # of maintenance
    max_attempts: int | None = _setting(readers.whole(1, can_be_off=True), 5)  # starts per job; None: no bound
    backoff: Any = _setting(readers.backoff, factory=lambda: dict(EXPONENTIAL))  # noqa: RUF009 - a field
    timeout: float | None = _setting(readers.duration(can_be_off=True), None)  # per attempt
    timeout_grace: float = _setting(readers.duration(), 5.0)  # from the soft stop to the end of the process
    heartbeat_timeout: float | None = _setting(readers.duration(can_be_off=True), None)  # the longest silence of a task
    retention: Mapping[str, float | None] = _setting(readers.full_retention, factory=readers.default_retention)  # None: for ever
    stop_timeout: float = _setting(readers.duration(), 30.0)  # for running jobs, when a worker is told to stop
    unknown_task_grace: float = _setting(readers.duration(), 3_600.0)  # for a job of a task that no worker knows
    max_traceback_chars: int = _setting(readers.whole(100), 100_000)
    max_message_chars: int = _setting(readers.whole(100), 10_000)
    max_log_chars: int = _setting(readers.whole(0), 64_000)  # of one attempt
    max_argument_bytes: int = _setting(readers.whole(100), 10 * _MEGABYTE)  # as JSON
    max_result_bytes: int = _setting(readers.whole(100), 10 * _MEGABYTE)  # as JSON
    context: tuple[tuple[Any, Any], ...] = _setting(readers.context, ())  # (capture, restore) pairs, see `context_pairs`
    worker_retention: float = _setting(readers.duration(), _DAY)  # of a stopped worker in the list
    prune_batch: int = _setting(readers.whole(1), 1_000)  # rows per transaction
    sweep_batch: int = _setting(readers.whole(1), 500)  # rows per transaction
    listen: bool = _setting(readers.flag, True)  # LISTEN/NOTIFY, where the database has it
    task_aliases: Mapping[str, str] = _setting(readers.aliases, factory=dict)  # old dotted name -> new one
    queues: Mapping[str, QueueOptions] = _setting(readers.declared_queues, factory=dict)  # declared in code
    visible_to: Any = _setting(readers.function, None)  # noqa: RUF009 - (user, jobs) -> jobs: what a user sees
    api_authentication: tuple[str, ...] = _setting(readers.paths, ())  # classes of REST framework; empty: tokens and sessions
    api_throttles: tuple[str, ...] = _setting(readers.paths, ())  # classes of REST framework
    api_max_body_bytes: int = _setting(readers.whole(100), _MEGABYTE)
    api_page_size: int = _setting(readers.whole(1), 50)
    api_page_size_max: int = _setting(readers.whole(1), 500)
    api_claim_max: int = _setting(readers.whole(1), 100)  # jobs in one claim
    api_wait_max: float = _setting(readers.duration(), 60.0)  # of a claim that finds nothing
    api_waiting_max: int = _setting(readers.whole(0), 100)  # claims that wait at once, in one process
    api_bulk_max: int = _setting(readers.whole(1), 1_000)  # jobs in one request
    api_open_health: bool = _setting(readers.flag, False)  # whether anybody may ask /health/
    idempotency_retention: float = _setting(readers.duration(), _DAY)  # of an answer to an Idempotency-Key


_FIELDS: Final[Mapping[str, Field[Any]]] = {each.name.upper(): each for each in fields(JobsSettings)}


class Problem(NamedTuple):
    """One thing that is wrong with the settings. `kind`: "unknown", "invalid", or "variable" (unknown, in the environment).

    `source`: where it was read, "DJANGO_JOBS" or the name of an environment variable.
    """

    kind: str
    setting: str
    message: str
    source: str = SETTING


def load(raw: Any, environment: Mapping[str, str]) -> tuple[JobsSettings, list[Problem]]:
    """Read the dict `raw` and the environment; return the settings and everything that is wrong with them.

    A setting that can't be read keeps its default.
    """
    found: list[Problem] = []
    if not isinstance(raw, Mapping):
        found.append(Problem("invalid", "DJANGO_JOBS", f"DJANGO_JOBS: a dict, not {readers.shown(raw)}."))
        raw = {}
    given, sources = dict(raw), dict.fromkeys(raw, SETTING)
    for variable in sorted(environment):
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        name = variable.removeprefix(ENVIRONMENT_PREFIX)
        if name in _FIELDS:
            given[name], sources[name] = environment[variable], variable
        else:
            message = f"{variable}: there is no setting {name}{readers.nearest(name, _FIELDS)}"
            found.append(Problem("variable", variable, message, variable))
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in _FIELDS:
            hint = readers.nearest(str(name).upper(), _FIELDS)
            found.append(Problem("unknown", str(name), f"{name}: there is no such setting{hint}"))
            continue
        source = sources[name]
        try:
            values[name.lower()] = readers.read_value(
                _FIELDS[name].metadata["read"], value, name if source == SETTING else source
            )
        except InvalidOption as error:
            found += [Problem("invalid", name, str(each), source) for each in readers.all_of(error)]
    if problem := _settle_slice(values):
        found.append(problem._replace(source=sources.get("SLICE", SETTING)))
    return JobsSettings(**values), found


def _settle_slice(values: dict[str, Any]) -> Problem | None:
    """See to it that two slices fit into the grace: a share of it by default, a problem if set too long."""
    grace = values.get("grace", _DEFAULT_GRACE)
    asked = values.get("slice")
    if asked is not None and asked < grace / 2:
        return None
    values["slice"] = grace * _SLICE_SHARE
    if asked is None:
        return None
    half = f"less than half of GRACE, which is {format_duration(grace)}; not {format_duration(asked)}."
    return Problem("invalid", "SLICE", f"SLICE: {half}")


_current: JobsSettings | None = None


def jobs_settings() -> JobsSettings:
    """Return the settings, read once. Raises `ImproperlyConfigured`, listing everything that is wrong with them."""
    global _current
    if _current is None:
        read, found = load(getattr(settings, "DJANGO_JOBS", {}), os.environ)
        if wrong := [problem.message for problem in found if problem.kind != "variable"]:
            raise ImproperlyConfigured("DJANGO_JOBS: " + " ".join(wrong))
        _current = read
    return _current


def readable_settings() -> JobsSettings:
    """Return the settings, with the default for each that can't be read: for checks, which tell everything at once."""
    return load(getattr(settings, "DJANGO_JOBS", {}), os.environ)[0]


def problems() -> list[Problem]:
    """Return everything that is wrong with `DJANGO_JOBS` and its environment variables."""
    return load(getattr(settings, "DJANGO_JOBS", {}), os.environ)[1]


@cache
def context_pairs() -> tuple[tuple[Callable[..., Any], Callable[..., Any]], ...]:
    """Return the (capture, restore) functions of `CONTEXT`, imported where they are given as dotted paths."""

    def found(half: Any) -> Any:
        return import_string(half) if isinstance(half, str) else half

    return tuple((found(capture), found(restore)) for capture, restore in jobs_settings().context)


@cache
def visible_to() -> Callable[[Any, Any], Any] | None:
    """Return the function of `VISIBLE_TO`, imported where it is given as a dotted path; None if there is none."""
    hook: Callable[[Any, Any], Any] | str | None = jobs_settings().visible_to
    return import_string(hook) if isinstance(hook, str) else hook


@cache
def queue_retry_for(queue: str) -> tuple[type[BaseException], ...]:
    """Return the exceptions that are retried in `queue` where the task names none: the nearest declared queue's `retry_for`."""
    declared = jobs_settings().queues
    for name in lineage(queue):
        if name in declared and (paths := declared[name].retry_for) is not None:
            return tuple(import_string(path) for path in paths)
    return ()


def forget() -> None:
    """Forget what was read: the next caller reads the settings and the environment again."""
    global _current
    _current = None
    context_pairs.cache_clear()
    visible_to.cache_clear()
    queue_retry_for.cache_clear()

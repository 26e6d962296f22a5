"""Which backends of `TASKS` are ours, on which database their jobs are, and what a job takes from there when it is enqueued."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from django.apps import apps
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, router
from django.utils.module_loading import import_string

from ..exceptions import InvalidOption
from ..queues import JobOptions, QueueOptions, resolve
from . import readers
from .settings import jobs_settings

BACKEND_MODULE: Final = "django_jobs.backend"
BACKEND_PATH: Final = f"{BACKEND_MODULE}.JobsBackend"
DEFAULT_BACKEND: Final = "default"


def _alias(value: Any, name: str) -> str:
    if not isinstance(value, str) or value not in settings.DATABASES:
        raise InvalidOption(name, f"{value!r} is not a database of DATABASES{readers.nearest(value, settings.DATABASES)}")
    return value


_READERS: Final[Mapping[str, readers.Reader]] = {
    "database": _alias,
    "direct_database": _alias,
    "max_attempts": readers.whole(1, can_be_off=True),
    "backoff": readers.backoff,
}
#: As the documentation spells them; capitals will do, too.
OPTION_NAMES: Final = tuple(_READERS)


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """The `OPTIONS` of one backend. `database` holds the jobs; `direct_database` reaches the same one past any pooler."""

    database: str
    direct_database: str
    max_attempts: int | None
    backoff: Any = None


def read_options(options: Any) -> tuple[dict[str, Any], list[InvalidOption]]:
    """Return what could be read of a backend's `OPTIONS`, by lower-case name, and everything that is wrong with them."""
    read: dict[str, Any] = {}
    wrong: list[InvalidOption] = []
    if not isinstance(options, Mapping):
        return read, [InvalidOption("OPTIONS", f"a dict, not {readers.shown(options)}.")]
    for key, value in options.items():
        name = str(key).lower()
        if name not in _READERS:
            wrong.append(InvalidOption(str(key), f"there is no such option{readers.nearest(name, _READERS)}"))
        elif value is not None or name == "max_attempts":
            try:
                read[name] = readers.read_value(_READERS[name], value, str(key))
            except InvalidOption as error:
                wrong += readers.all_of(error)
    return read, wrong


@cache
def _options(alias: str) -> Mapping[str, Any]:
    backend = getattr(settings, "TASKS", {}).get(alias)
    if backend is None:
        return {}
    read, wrong = read_options(backend.get("OPTIONS") or {})
    if wrong:
        raise ImproperlyConfigured(f"TASKS['{alias}']['OPTIONS']: " + " ".join(map(str, wrong)))
    return read


def backend_options(alias: str = DEFAULT_BACKEND) -> BackendOptions:
    """Return the options of the backend `alias`; of one that `TASKS` does not have, the defaults.

    Where `database` is not set, the routers are asked for the jobs' table each time: a router may change its mind.
    """
    read = _options(alias)
    database = read.get("database") or routed_database()
    return BackendOptions(
        database=database,
        direct_database=read.get("direct_database") or database,
        max_attempts=read["max_attempts"] if "max_attempts" in read else jobs_settings().max_attempts,
        backoff=read.get("backoff"),
    )


def routed_database() -> str:
    """Return the database to which the routers send the jobs' table."""
    if not apps.models_ready:
        return DEFAULT_DB_ALIAS
    return router.db_for_write(apps.get_model("django_jobs", "Job"))


@cache
def jobs_aliases() -> tuple[str, ...]:
    """Return the aliases in `TASKS` whose backend is ours or a subclass of it, "default" first."""
    backends = getattr(settings, "TASKS", {})
    ours = [alias for alias, backend in backends.items() if _is_ours(backend.get("BACKEND", ""))]
    return tuple(sorted(ours, key=lambda alias: (alias != DEFAULT_BACKEND, list(backends).index(alias))))


def _is_ours(path: str) -> bool:
    if path == BACKEND_PATH:
        return True
    try:
        backend = import_string(path)
    except ImportError:
        return False
    return any(base.__module__ == BACKEND_MODULE for base in getattr(backend, "__mro__", ()))


def jobs_database() -> str:
    """Return the database that holds the jobs of the first backend of ours; without one, where the routers send the table."""
    ours = jobs_aliases()
    return backend_options(ours[0]).database if ours else routed_database()


def direct_database(database: str) -> str:
    """Return the alias that reaches the database `database` past any pooler, as a backend's OPTIONS say; else itself."""
    every = (backend_options(alias) for alias in jobs_aliases())
    return next((each.direct_database for each in every if each.database == database != each.direct_database), database)


def job_options(
    queue: str,
    said: Mapping[str, Any],
    *,
    backend: str = DEFAULT_BACKEND,
    rows: Mapping[str, QueueOptions] | None = None,
) -> JobOptions:
    """Return the options that a new job's row gets: the task's word, else the queue's, the backend's, the settings'.

    `said` has only what the task or the caller said (None in it means "off"), in normal form; `rows` what queue rows say, by
    name. A row's word stands before that of the same queue in `QUEUES`; a nearer queue's before a farther one's.
    """
    options, defaults = backend_options(backend), jobs_settings()
    declared = dict(defaults.queues)
    for name, row in (rows or {}).items():
        declared[name] = row.over(declared[name]) if name in declared else row
    return resolve(
        queue,
        said,
        declared,
        JobOptions(
            timeout=defaults.timeout,
            heartbeat_timeout=defaults.heartbeat_timeout,
            max_attempts=options.max_attempts,
            backoff=options.backoff,
        ),
    )


def retention_seconds(status: str, own: Mapping[str, float | None] | None) -> float | None:
    """Return for how many seconds a job that ended as `status` is kept: by its own word, else the settings'. None: for ever."""
    if own and status in own:
        return own[status]
    return jobs_settings().retention.get(status)


def forget() -> None:
    """Forget what was read of `TASKS`."""
    _options.cache_clear()
    jobs_aliases.cache_clear()

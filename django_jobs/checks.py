"""System checks: what would break a promise is told before a job is lost, all at once, each with what to do.

Errors (`django_jobs.E...`) break a promise; warnings (`W...`) weaken one. What is meant is silenced by its id, in
`SILENCED_SYSTEM_CHECKS`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Final

from django.apps import AppConfig, apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register  # noqa: A004 - Django's name for it
from django.db import DEFAULT_DB_ALIAS, connections, router
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.module_loading import import_string

from . import conf
from .registry import import_errors

APP_LABEL: Final = "django_jobs"
#: The oldest versions that have what the claim and the lock rows need, by vendor (MariaDB apart from MySQL).
MINIMUM_VERSIONS: Final = {"postgresql": (14,), "sqlite": (3, 35), "mariadb": (10, 6), "mysql": (8, 0, 11)}
PGBOUNCER_PORT: Final = "6432"
#: Options of a backend that say nothing of where its jobs are.
_NOT_OF_DATABASES: Final = frozenset({"max_attempts", "backoff"})

Check = Callable[..., Iterable[CheckMessage]]


def _own(check: Check) -> Check:
    """Register a check that runs when the whole project is checked, or this app."""

    def run(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> list[CheckMessage]:
        if app_configs is not None and all(app.label != APP_LABEL for app in app_configs):
            return []
        return list(check())

    register(run, APP_LABEL)
    return check


@_own
def check_settings() -> Iterator[CheckMessage]:
    """Tell every setting that is unknown or can't be read."""
    for problem in conf.problems():
        if problem.kind == "unknown":
            yield Error(problem.message, hint="Mend the name in DJANGO_JOBS, or take it out.", id="django_jobs.E001")
        elif problem.kind == "invalid":
            yield Error(problem.message, hint=_where_to_mend(problem), id="django_jobs.E002")
        else:
            yield Warning(problem.message, hint="Mend the variable's name, or take it out.", id="django_jobs.W001")
    if not settings.USE_TZ:
        yield Error(
            "USE_TZ is False: due times and leases are UTC by the database's clock, and could not be told from local times.",
            hint="Set USE_TZ = True.",
            id="django_jobs.E003",
        )


def _where_to_mend(problem: conf.Problem) -> str:
    """Name the one place that was read: a variable stands in for the setting, which then says nothing."""
    if problem.source != "DJANGO_JOBS":
        return f"Mend the environment variable {problem.source}: it is read instead of {problem.setting} in DJANGO_JOBS."
    if problem.setting == "DJANGO_JOBS":
        return 'Make it a dict from names of settings to values, such as {"GRACE": "20s"}, or leave it out.'
    return f"Mend {problem.setting} in DJANGO_JOBS."


@_own
def check_context() -> Iterator[CheckMessage]:
    """Tell the functions of CONTEXT that can't be imported: every enqueue would fail with them."""
    for index, pair in enumerate(conf.readable_settings().context):
        for path in pair:
            try:
                found = import_string(path) if isinstance(path, str) else path
            except ImportError as error:
                found = error
            if not callable(found):
                yield Error(
                    f"CONTEXT[{index}]: {path!r} can't be imported as a function.",
                    hint="Name a function by its dotted path.",
                    id="django_jobs.E004",
                )


@_own
def check_paths() -> Iterator[CheckMessage]:
    """Tell what VISIBLE_TO, the settings of the API and queues' `retry_for` name and can't be imported."""
    settings_read = conf.readable_settings()
    named = [("VISIBLE_TO", path) for path in [settings_read.visible_to] if isinstance(path, str)]
    named += [("API_AUTHENTICATION", path) for path in settings_read.api_authentication]
    named += [("API_THROTTLES", path) for path in settings_read.api_throttles]
    for queue, options in settings_read.queues.items():
        named += [(f"QUEUES['{queue}']['retry_for']", path) for path in options.retry_for or ()]
    for setting, path in named:
        try:
            found = import_string(path)
        except ImportError:
            found = None
        if not callable(found):
            yield Error(
                f"{setting}: {path!r} can't be imported.",
                hint="Name a function by its dotted path." if setting == "VISIBLE_TO" else "Name a class by its dotted path.",
                id="django_jobs.E012",
            )


@_own
def check_http_queues() -> Iterator[CheckMessage]:
    """Tell queues for HTTP workers, declared in QUEUES, whose jobs have no limit: nothing would end the lease of a lost claim."""
    aliases = conf.jobs_aliases()
    for queue in conf.readable_settings().queues if aliases else ():
        options = conf.job_options(queue, {}, backend=aliases[0], rows={})
        if options.is_http and not (options.timeout or options.heartbeat_timeout):
            yield Warning(
                f"QUEUES['{queue}'] is for HTTP workers and its jobs have no limit: one whose worker is lost stays running.",
                hint="Give it a heartbeat_timeout or a timeout.",
                id="django_jobs.W009",
            )


@_own
def check_backends() -> Iterator[CheckMessage]:
    """Tell options of our backends that are unknown or can't be read, and that there is no backend of ours."""
    backends = getattr(settings, "TASKS", {})
    ours = conf.jobs_aliases()
    if not ours:
        yield Warning(
            f"No backend of TASKS is {conf.BACKEND_PATH}: nothing can be enqueued here.",
            hint=f'Set TASKS = {{"default": {{"BACKEND": "{conf.BACKEND_PATH}"}}}}.',
            id="django_jobs.W002",
        )
    for alias in ours:
        for wrong in conf.read_options(backends[alias].get("OPTIONS") or {})[1]:
            yield Error(
                f"TASKS['{alias}']['OPTIONS']: {wrong}",
                hint=f"The options are {', '.join(conf.OPTION_NAMES)}.",
                id="django_jobs.E005",
            )


@_own
def check_tasks() -> Iterator[CheckMessage]:
    """Tell modules of tasks that could not be imported: only a warning, since the tasks of the other apps still run."""
    for module, error in import_errors().items():
        yield Warning(
            f"The module {module!r} could not be imported, so nobody here knows its tasks: {error}",
            hint="Mend the module, and start anew what runs: tasks are looked for once, at the start.",
            id="django_jobs.W008",
        )


def missing_app() -> list[CheckMessage]:
    """Return an error if a backend of ours is used without the app: its tables would not exist. For the backend's own check."""
    if apps.is_installed("django_jobs"):
        return []
    hint = 'Add "django_jobs" to INSTALLED_APPS and run migrate.'
    return [Error("django_jobs is not among INSTALLED_APPS, but TASKS uses its backend.", hint=hint, id="django_jobs.E006")]


@_own
def check_databases() -> Iterator[CheckMessage]:
    """Tell databases, routes and poolers with which the promises can't be kept. Connects to nothing."""
    chosen = _databases_of_backends()
    for database in dict.fromkeys(database for database, _direct in chosen.values()):
        yield from _check_vendor(connections[database])
        yield from _check_route(database)
    for alias, (database, direct) in chosen.items():
        yield from _check_pooler(alias, database, direct)


def _databases_of_backends() -> dict[str, tuple[str, str]]:
    """Return `database` and `direct_database` by backend of ours; those left out whose OPTIONS don't tell them for certain."""
    found = {}
    for alias in conf.jobs_aliases():
        read, wrong = conf.read_options(settings.TASKS[alias].get("OPTIONS") or {})
        if all(error.field.lower() in _NOT_OF_DATABASES for error in wrong):
            database = read.get("database") or conf.routed_database()
            found[alias] = database, read.get("direct_database") or database
    return found


def _check_vendor(connection: BaseDatabaseWrapper) -> Iterator[CheckMessage]:
    alias, vendor = connection.alias, connection.vendor
    if vendor not in ("postgresql", "sqlite", "mysql"):
        yield Error(
            f"The database {alias!r} holds jobs, but {vendor} is not supported.",
            hint="Keep jobs on PostgreSQL, MariaDB, MySQL or SQLite; the option 'database' of the backend names another one.",
            id="django_jobs.E007",
        )
    if vendor == "postgresql" and not _is_psycopg3():
        yield Warning(
            f"The database {alias!r} is used through psycopg2: workers poll for jobs, they are not woken.",
            hint="Install psycopg 3: pip install 'psycopg[binary]'.",
            id="django_jobs.W003",
        )
    if vendor == "sqlite" and connection.settings_dict["OPTIONS"].get("transaction_mode") != "IMMEDIATE":
        yield Warning(
            f"The SQLite database {alias!r} begins transactions in deferred mode: an enqueue may fail with 'database is locked'.",
            hint='Set "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20}.',
            id="django_jobs.W004",
        )


def _is_psycopg3() -> bool:
    from django.db.backends.postgresql.psycopg_any import is_psycopg3

    return is_psycopg3


def _check_route(database: str) -> Iterator[CheckMessage]:
    job = apps.get_model(APP_LABEL, "Job")
    if not router.allow_migrate_model(database, job):
        yield Error(
            f"The database {database!r} shall hold the jobs, but the routers don't let the tables be made there.",
            hint="Let allow_migrate() say yes for the app 'django_jobs' on this database.",
            id="django_jobs.E008",
        )
    if (routed := router.db_for_write(job)) != database and len(conf.jobs_aliases()) == 1:
        yield Warning(
            f"The backend keeps jobs on {database!r}, but the routers send their table to {routed!r}: the admin shows that.",
            hint="Let db_for_read() and db_for_write() name the database of the backend, for the app 'django_jobs'.",
            id="django_jobs.W005",
        )
    if database != DEFAULT_DB_ALIAS and connections[DEFAULT_DB_ALIAS].settings_dict["ENGINE"] != "django.db.backends.dummy":
        yield Warning(
            f"Jobs are on the database {database!r}: an enqueue is not rolled back with a transaction on {DEFAULT_DB_ALIAS!r}.",
            hint="Keep jobs beside the data that they are about, or enqueue in transaction.on_commit(), and silence this.",
            id="django_jobs.W006",
        )


def _check_pooler(alias: str, database: str, direct_database: str) -> Iterator[CheckMessage]:
    """A worker holds its jobs by row locks of one session, and LISTENs: behind a transaction pooler it can do neither."""
    direct = connections[direct_database]
    if direct.vendor != "postgresql":
        return
    where = f"TASKS['{alias}']: the database {direct.alias!r}"
    hint = 'Name an alias that connects to the same database past the pooler: "OPTIONS": {"direct_database": ...}.'
    host, port = str(direct.settings_dict["HOST"]), str(direct.settings_dict["PORT"])
    if direct.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS"):
        yield Error(
            f"{where} is set up for a transaction pooler (DISABLE_SERVER_SIDE_CURSORS), which workers can't be behind.",
            hint=hint,
            id="django_jobs.E009",
        )
    elif port == PGBOUNCER_PORT or "pooler" in host or "pgbouncer" in host:
        yield Warning(
            f"{where} looks like a pooler ({host}:{port}).", hint=f"If it pools by transaction: {hint}", id="django_jobs.W007"
        )
    jobs = connections[database].settings_dict
    if direct.settings_dict["NAME"] != jobs["NAME"]:
        yield Error(
            f"{where} is another database than {database!r}, which it shall reach directly.",
            hint="direct_database is the same database on another way, with the same NAME.",
            id="django_jobs.E010",
        )


@register(Tags.database)
def check_versions(databases: Collection[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """Tell databases that are too old. Connects, so Django runs it with `migrate` and `check --database` only."""
    found: list[CheckMessage] = []
    holding = {database for database, _direct in _databases_of_backends().values()}
    for alias in sorted(holding.intersection(databases or ())):
        connection = connections[alias]
        product = "mariadb" if getattr(connection, "mysql_is_mariadb", False) else connection.vendor
        minimum = MINIMUM_VERSIONS.get(product)
        version = connection.get_database_version()
        if minimum and version < minimum:
            shown, needed = (".".join(map(str, each)) for each in (version, minimum))
            message = f"The database {alias!r} is {product} {shown}: django_jobs needs {needed} or newer."
            found.append(Error(message, hint="Upgrade the server.", id="django_jobs.E011"))
    return found

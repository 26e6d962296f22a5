"""The back end for `TASKS`: jobs are rows in the project's own database, written in the caller's transaction.

Imported before any model can be, since tasks are declared while Django starts: so rows and verbs are imported where they are
used.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar
from uuid import UUID

from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connections
from django.utils import timezone, translation

from . import conf, retry, serializers
from .calls import call_of
from .compat import BaseTaskBackend, InvalidTask, Task, TaskResultDoesNotExist
from .exceptions import InvalidArguments, InvalidOption, JobDoesNotExist
from .ids import uuid7s
from .insertion import store, tell_new
from .options import PRIORITY_MAX, PRIORITY_MIN, check_moment
from .queues import check_queue_name
from .registry import register
from .related import reference
from .results import DJANGO_STATUS, JobResult, from_row
from .task import JobTask, split_call
from .unique import UniqueBy, check_key
from .users import carried_user, current_identity, current_name

if TYPE_CHECKING:
    from django.core.checks import CheckMessage

    from .lifecycle.enqueue import JobSpec, NewJob

P = ParamSpec("P")
R = TypeVar("R")

#: The longest dotted name of a task that its column holds.
MAX_TASK_NAME = 255


class JobsBackend(BaseTaskBackend):
    """Django's Tasks, kept in the project's own database and run by `manage.py runjobs`.

    `TASKS = {"default": {"BACKEND": "django_jobs.backend.JobsBackend"}}` is all the set-up there is. `QUEUES`: the names
    that are allowed; left out, any name is. `OPTIONS`: `database`, the alias that holds the jobs; `direct_database`, an
    alias that reaches the same one past a pooler; `MAX_ATTEMPTS` and `BACKOFF`, defaults for the jobs of this back end.
    """

    task_class = JobTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True
    #: Whether a start time may be given as a delay, to be counted from the enqueue by the database's clock.
    supports_delay = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, {"QUEUES": [], **params})

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        """Tell that the app is missing: its own checks, which tell everything else, are not there then."""
        from .checks import missing_app

        return missing_app()

    @property
    def using(self) -> str:
        """The alias of the database that holds the jobs of this back end."""
        return conf.backend_options(self.alias).database

    def validate_task(self, task: Task[..., Any]) -> None:
        """Raise `InvalidTask` unless this back end can store jobs of `task`; the message names the field."""
        if not inspect.isroutine(task.func):
            raise InvalidTask("Task function must be defined at a module level.")
        priority: Any = task.priority
        if isinstance(priority, bool) or not isinstance(priority, int | float) or priority != priority:
            raise InvalidTask(f"priority must be a whole number between {PRIORITY_MIN} and {PRIORITY_MAX}.")
        try:
            check_queue_name(task.queue_name)
        except InvalidOption as error:
            raise InvalidTask(str(error)) from error
        super().validate_task(task)
        if len(task.module_path) > MAX_TASK_NAME:
            raise InvalidTask(f"The name {task.module_path!r} is longer than {MAX_TASK_NAME} characters.")
        if task.run_after is not None:
            try:
                check_moment(_aware(task.run_after), "run_after")
            except InvalidOption as error:
                raise InvalidTask(str(error)) from error

    def enqueue(
        self, task: Task[P, R], args: Sequence[Any], kwargs: Mapping[str, Any], *, batch: UUID | None = None
    ) -> JobResult[P, R]:
        """Store a job in the transaction that is open on the jobs' database, and return its result.

        A rollback removes the job; nothing starts before the commit; the wake-up goes out with it. Raises `InvalidTask`, and
        `InvalidArguments` (a TypeError) that says where, before any SQL. A listener that raises is logged and disturbs
        nobody. `batch`: that of the job, which the caller has joined.
        """
        template = self.template(task, batch=batch)
        result: JobResult[P, R] = self._store(template, [(tuple(args), kwargs, template.arguments(tuple(args), kwargs))])[0]
        return result

    async def aenqueue(self, task: Task[P, R], args: Sequence[Any], kwargs: Mapping[str, Any]) -> JobResult[P, R]:
        """See `enqueue`. The work on the database is done in the thread of synchronous code, within its transaction."""
        return await sync_to_async(self.enqueue, thread_sensitive=True)(task, args, kwargs)

    def enqueue_many(self, task: Task[P, R], calls: Iterable[Any], *, batch: UUID | None = None) -> list[JobResult[P, R]]:
        """Store a job for each of `calls` (see `JobTask.enqueue_many`), all or none; return the results in the same order."""
        template = self.template(task, batch=batch)
        arguments = []
        for index, call in enumerate(calls):
            args, kwargs = split_call(call, index)
            try:
                arguments.append((args, kwargs, template.arguments(args, kwargs)))
            except InvalidArguments as error:
                raise InvalidArguments(str(error), path=error.path, index=index) from None
        return self._store(template, arguments)

    async def aenqueue_many(self, task: Task[P, R], calls: Iterable[Any]) -> list[JobResult[P, R]]:
        """See `enqueue_many`."""
        return await sync_to_async(self.enqueue_many, thread_sensitive=True)(task, calls)

    def template(self, task: Task[..., Any], *, batch: UUID | None = None) -> Template:
        """Return what jobs of `task` have in common, of those in `batch`; kept with the task if nothing travels with the job.

        Raises `InvalidTask`, and `InvalidOption` for jobs of a batch that would have to wait for another database's commit.
        """
        if batch is not None:
            return self.template(task).in_batch(batch)
        self.validate_task(task)
        using, context = self.using, captured_context()
        is_plain = not context and current_identity() is None
        kept: Template | None = getattr(task, "_template", None)
        if kept is not None and kept.using == using and kept.spec.backend == self.alias and is_plain:
            return kept
        template = Template(task, self.alias, using, context)
        if isinstance(task, JobTask) and is_plain:
            object.__setattr__(task, "_template", template)
        return template

    def _store(self, template: Template, calls: Sequence[tuple[tuple[Any, ...], Mapping[str, Any], Any]]) -> list[Any]:
        """Insert a job for each of `calls` (its positional and keyword arguments, and both as JSON); tell the listeners.

        Now or when the other database's transaction commits. Where a live job has the unique key it is the answer.
        """
        from .lifecycle import unique

        ids = uuid7s(len(calls))
        jobs = [template.new_job(job_id, *stored) for job_id, (_, _, stored) in zip(ids, calls, strict=True)]
        if template.unique is not None or template.related is not None:
            for index, (job, (args, kwargs, _)) in enumerate(zip(jobs, calls, strict=True)):
                template.complete(job, args, kwargs, index=index if len(jobs) > 1 else None)

        def insert() -> Mapping[UUID, UUID]:
            return unique.insert_or_find(jobs, using=template.using, on_conflict=template.on_conflict)

        return store(type(self), [(template, job) for job in jobs], insert, template.using)

    def store_graph(
        self, jobs: Sequence[tuple[Template, NewJob]], edges: Sequence[tuple[UUID, UUID]]
    ) -> list[JobResult[..., Any]]:
        """Insert the jobs of a graph with its edges (parent, child), all or none, as `enqueue` does; tell the listeners.

        A parent may be stored already. Return the results of the jobs, whose specs have the graph's id from then on; where
        another live job has the unique key of one, the result of that job. Raises `JobDoesNotExist` for a parent that is nowhere.
        """
        from .lifecycle import twins
        from .models import Job

        new = [job for _, job in jobs]
        on_conflict = {job.id: template.on_conflict for template, job in jobs if template.on_conflict != "return"}

        def insert() -> dict[UUID, UUID]:
            try:
                return twins.insert_graph_or_find(new, edges, using=self.using, on_conflict=on_conflict)[1]
            except Job.DoesNotExist as error:
                raise JobDoesNotExist(str(error)) from None

        return store(type(self), jobs, insert, self.using)

    def tell(self, template: Template, jobs: Sequence[NewJob]) -> None:
        """Send Django's signal for jobs of `template` that somebody else has stored."""
        tell_new(type(self), [template.result(job) for job in jobs])

    def get_result(self, result_id: str) -> JobResult[..., Any]:
        """Return the result of the job with this id. Raises `TaskResultDoesNotExist` if this back end has none."""
        from .models import Job, JobAttempt

        try:
            job = Job.objects.using(self.using).get(pk=UUID(str(result_id)), backend=self.alias)
        except (Job.DoesNotExist, ValueError):
            raise TaskResultDoesNotExist(result_id) from None
        return from_row(job, JobAttempt.objects.using(self.using).filter(job=job.pk).order_by("number") if job.starts else ())


class Template:
    """What the jobs of one call of `enqueue` or `enqueue_many` have in common."""

    __slots__ = ("call", "commit_alias", "on_conflict", "related", "serializer", "spec", "task", "unique", "using")

    def __init__(self, task: Task[..., Any], backend: str, using: str, context: dict[str, Any]) -> None:
        from .lifecycle.enqueue import JobSpec

        register(task)
        self.task, self.using = task, using
        self.call = call_of(task)
        self.serializer = "json"
        self.commit_alias, self.on_conflict = "", "return"
        self.unique: Any = None
        self.related: Any = None
        self.spec = JobSpec(
            task=task.module_path,
            backend=backend,
            queue=task.queue_name,
            priority=int(task.priority),
            run_after=None if task.run_after is None else _aware(task.run_after),
            context=context,
            created_by=current_name(),
        )
        if isinstance(task, JobTask):
            self._take_options(task)

    def _take_options(self, task: JobTask[..., Any]) -> None:
        self.serializer = task.serializer
        self.unique, self.on_conflict = task.unique, task.on_conflict
        if isinstance(task.unique, UniqueBy):
            task.unique.check(self.call.signature)
        if callable(task.related):
            self.related = task.related
        else:
            self.spec.related = task.related
        if task.unique_until != "finished":
            self.spec.unique_until = task.unique_until
        if task.enqueue_on_commit:
            self.commit_alias = task.enqueue_on_commit if isinstance(task.enqueue_on_commit, str) else DEFAULT_DB_ALIAS
        if task.delay is not None:
            self.spec.run_after = timedelta(seconds=task.delay)
        for name in _COPIED:
            setattr(self.spec, name, getattr(task, name))
        if task.backoff is not None:
            self.spec.backoff = retry.normalise_backoff(task.backoff)

    def in_batch(self, batch: UUID) -> Template:
        """Return the same for jobs of `batch`, which are stored at once: it counts them, and can't end before them."""
        alias = self.commit_alias
        if alias and alias != self.using and connections[alias].in_atomic_block:
            raise InvalidOption(
                "enqueue_on_commit",
                f"a job of a batch can't wait for the commit on {alias!r}: make the batch in transaction.on_commit(...).",
            )
        mine = copy(self)
        mine.commit_alias, mine.spec = "", replace(self.spec, batch=batch)
        return mine

    def arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return these arguments as JSON, copied. Raises `InvalidArguments`."""
        self.call.check(args, kwargs)
        return (
            serializers.to_json(args, serializer=self.serializer, path="args") if args else [],
            serializers.to_json(dict(kwargs), serializer=self.serializer, path="kwargs") if kwargs else {},
        )

    def new_job(
        self,
        job_id: UUID,
        args: list[Any],
        kwargs: dict[str, Any],
        spec: JobSpec | None = None,
        description: str = "",
    ) -> NewJob:
        """Make a job of these arguments, which are JSON; each new one is made here. `spec`: where it is not the template's."""
        from .lifecycle.enqueue import NewJob

        return NewJob(spec or self.spec, args, kwargs, job_id, description=description)

    def complete(self, job: NewJob, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, index: int | None = None) -> NewJob:
        """Give a job what depends on its arguments, as the caller has said them: its unique key and its related object.

        Raises `InvalidArguments`, with the `index` of the job, and what functions of the site raise.
        """
        try:
            job.unique_key = self._unique_key(args, kwargs)
            if self.related is not None:
                job.related = reference(self.related(*args, **kwargs))
        except (InvalidArguments, InvalidOption) as error:
            path = getattr(error, "path", "") or getattr(error, "field", "")
            raise InvalidArguments(f"{self.task.name}(): {error}", path=path, index=index) from None
        return job

    def _unique_key(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
        if isinstance(self.unique, UniqueBy):
            return self.unique.key(self.spec.task, self.call.signature, args, kwargs, self.serializer)
        key = self.unique(*args, **kwargs) if callable(self.unique) else self.unique
        return None if key is None else check_key(key)

    def result(self, job: NewJob) -> JobResult[..., Any]:
        """Return the result of a job just stored, the same that a look-up would give."""
        task = self.task
        if job.run_after is not None and isinstance(task, JobTask) and task.delay is not None:
            task = replace(task, run_after=job.run_after, delay=None)
        return JobResult(
            task=task,
            id=str(job.id),
            status=DJANGO_STATUS[job.status],
            job_status=job.status,
            enqueued_at=job.enqueued_at,
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=job.args,
            kwargs=job.kwargs,
            backend=self.spec.backend,
            errors=[],
            worker_ids=[],
            using=self.using,
        )


#: Options of a task that are columns of its jobs under the same name.
_COPIED = (
    "start_by",
    "timeout",
    "timeout_grace",
    "heartbeat_timeout",
    "cpu_timeout",
    "max_attempts",
    "max_deaths",
    "retention",
    "tags",
    "metadata",
    "serializer",
    "description",
)


def _aware(moment: datetime) -> datetime:
    """With USE_TZ off, Django takes naive times, in the time zone of the settings."""
    return timezone.make_aware(moment, timezone.get_default_timezone()) if timezone.is_naive(moment) else moment


def captured_context() -> dict[str, Any]:
    """Return what travels with a job: user, language and time zone where not the settings', and the project's own `CONTEXT`.

    The project's values are kept under the dotted name of the capturing function.
    """
    context: dict[str, Any] = {}
    if (language := translation.get_language()) and language != settings.LANGUAGE_CODE:
        context["language"] = language
    zone = timezone.get_current_timezone()
    if zone is not timezone.get_default_timezone() and (key := getattr(zone, "key", None)):
        context["timezone"] = key
    context |= carried_user()
    for capture, _ in conf.context_pairs():
        name = f"{capture.__module__}.{capture.__qualname__}"
        context[name] = serializers.to_json(capture(), path=f"CONTEXT: {name}()")
    return context

"""New jobs from a request: of registered tasks, or free input for queues that HTTP workers serve. All are stored, or none."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NoReturn
from uuid import UUID

from .. import conf, serializers
from ..compat import DEFAULT_TASK_QUEUE_NAME, InvalidTask
from ..conf import readers
from ..exceptions import InvalidArguments, InvalidOption, JobsError
from ..inputs import INPUT_TASK
from ..lifecycle.inherit import declared
from ..lifecycle.spec import JobSpec, NewJob
from ..lifecycle.unique import insert_or_find
from ..queues import check_queue_name
from ..registry import find_task
from ..task import JobTask
from ..users import as_user, carried_user
from . import values
from .errors import ApiError, as_api_error, invalid

if TYPE_CHECKING:
    from .base import JobsView

RETURN, RAISE = "return", "raise"
FIELDS: Final = ("queue", "task", "args", "kwargs", "input", "unique_key", "on_conflict", *values.LIMITS, *values.DESCRIPTION)
#: Options under the names that a task's `using` has for them.
_USING: Final = {"queue": "queue_name"}


@dataclass(slots=True)
class Asked:
    """A job as one item of a request asks for it."""

    job: NewJob
    on_conflict: str
    template: Any = None  # the task's, for its back end's signal; None for free input
    backend: Any = None


@dataclass(slots=True, frozen=True)
class Created:
    """What became of an item: the job stored for it, or the one that has its unique key."""

    id: UUID
    is_new: bool


class Reader:
    """Reads the items of one request. Items that say the same but for their arguments share what is made of it."""

    def __init__(self, view: JobsView) -> None:
        self.view = view
        self._templates: dict[str, tuple[Any, Any, JobSpec]] = {}
        self._inputs: dict[str, JobSpec] = {}

    def read(self, item: Any) -> Asked:
        """Return what `item` asks for. Raises `ApiError` or an error that `as_api_error` knows."""
        if not isinstance(item, dict):
            raise ApiError(400, "invalid", "A job is a JSON object.")
        for name in item:
            if name not in FIELDS:
                raise invalid(name[:100], f"there is no such field{readers.nearest(name, FIELDS)}")
        on_conflict = item.get("on_conflict", RETURN)
        if on_conflict not in (RETURN, RAISE):
            raise InvalidOption("on_conflict", f"{RETURN!r} or {RAISE!r}.")
        asked = self._of_task(item) if item.get("task") is not None else self._of_input(item)
        asked.on_conflict = on_conflict
        if item.get("unique_key") is not None:
            asked.job.unique_key = values.unique_key(item["unique_key"])
        return asked

    def _of_task(self, item: Mapping[str, Any]) -> Asked:
        if "input" in item:
            raise InvalidOption("input", "is for jobs that name no task; this one has args and kwargs.")
        args, kwargs = item.get("args", []), item.get("kwargs", {})
        if not isinstance(args, list):
            raise InvalidOption("args", "a list.")
        if not isinstance(kwargs, dict):
            raise InvalidOption("kwargs", "an object.")
        backend, template, spec = self._template(item)
        try:
            given = tuple(args), kwargs
            args, kwargs = template.arguments(*given)
            job = template.complete(NewJob(spec, args, kwargs), *given)
        except InvalidArguments as error:
            # A signature that does not fit has no path; the arguments as a whole are what is wrong.
            raise InvalidOption(error.path or ("kwargs" if kwargs and not args else "args"), str(error)) from None
        return Asked(job, RETURN, template, backend)

    def _template(self, item: Mapping[str, Any]) -> tuple[Any, Any, JobSpec]:
        key = _key(item)
        if key not in self._templates:
            self._templates[key] = self._make_template(item)
        return self._templates[key]

    def _make_template(self, item: Mapping[str, Any]) -> tuple[Any, Any, JobSpec]:
        task: Any = find_task(values.text(item["task"], "task", 255))
        said = values.merged_retention(item, values.job_options(item), getattr(task, "retention", None))
        if item.get("queue") is not None:
            said["queue"] = check_queue_name(item["queue"], field="queue")
        names = set(said) if isinstance(task, JobTask) else {"queue", "priority"} & set(said)
        try:
            variant = task.using(
                **{_USING.get(name, name): said[name] for name in names if said[name] is not None or name in _NULL}
            )
            self.view.check_queue(variant.queue_name, "enqueue")
            backend = variant.get_backend()
            if getattr(backend, "using", None) != self.view.using:
                raise InvalidOption("task", "its jobs are not kept in the database that this API serves.")
            with as_user(self.view.caller.user):
                template = backend.template(variant)
        except InvalidTask as error:
            raise InvalidOption("queue" if "queue" in str(error).lower() else "task", str(error)) from None
        spec = replace(template.spec, created_by=self.view.caller.name or None)
        for name in set(said) - names:
            setattr(spec, name, said[name])
        return backend, template, spec

    def _of_input(self, item: Mapping[str, Any]) -> Asked:
        for name in ("args", "kwargs"):
            if name in item:
                raise InvalidOption("task", f"is missing: {name} are the arguments of one.")
        key = _key(item)
        if key not in self._inputs:
            self._inputs[key] = self._make_input(item)
        return Asked(NewJob(self._inputs[key], [_free_input(item.get("input"))], {}), RETURN)

    def _make_input(self, item: Mapping[str, Any]) -> JobSpec:
        said = values.job_options(item)
        queue = check_queue_name(item.get("queue") or DEFAULT_TASK_QUEUE_NAME, field="queue")
        self.view.check_queue(queue, "enqueue")
        backend = conf.jobs_aliases()[0]
        if not declared(self.view.using).options(queue, backend).is_http:
            # A slip in the name of a queue is likelier than a task that was forgotten.
            raise InvalidOption(
                "queue" if "input" in item else "task",
                f"is missing: the queue {queue!r} is not for HTTP workers, so its jobs have to name a task."
                if "input" not in item
                else f"{queue!r} is no queue for HTTP workers (is_http), so its jobs have to name a task.",
            )
        said["metadata"] = dict(said.get("metadata") or {})
        with as_user(self.view.caller.user):
            context = carried_user()
        by = self.view.caller.name or None
        return JobSpec(task=INPUT_TASK, backend=backend, queue=queue, created_by=by, context=context, **said)


#: Options in which None says something.
_NULL: Final = frozenset({"max_attempts"})


def _key(item: Mapping[str, Any]) -> str:
    own = ("args", "kwargs", "input", "unique_key", "on_conflict")
    return json.dumps({name: value for name, value in item.items() if name not in own}, sort_keys=True)


def _free_input(value: Any) -> Any:
    try:
        # In the list that it will be in, because that counts as a level.
        return serializers.to_json([value], path="input")[0]
    except InvalidArguments as error:
        message = str(error).replace("input[0]", "input", 1)
        raise InvalidOption(error.path.replace("input[0]", "input", 1), message.partition(": ")[2]) from None


def new_jobs(view: JobsView, items: Sequence[Any], *, is_many: bool, batch: UUID | None = None) -> list[Created]:
    """Store the jobs that `items` ask for, all or none, in the caller's open transaction; return what became of each.

    `batch`: theirs, which the caller has joined. Raises `ApiError`, with the `index` of the item if there are many: then nothing
    was stored.
    """
    reader = Reader(view)
    asked: list[Asked] = []
    for index, item in enumerate(items):
        try:
            asked.append(reader.read(item))
        except (ApiError, JobsError) as error:
            _refuse(error, index if is_many else None)
    for each in asked:
        each.job.spec.batch = batch
    taken = insert_or_find([each.job for each in asked], using=view.using)
    _check_taken(view, asked, taken, is_many)
    for each in asked:
        if each.template is not None and each.job.id not in taken:
            each.backend.tell(each.template, [each.job])
    return [Created(taken.get(each.job.id, each.job.id), each.job.id not in taken) for each in asked]


def _check_taken(view: JobsView, asked: Sequence[Asked], taken: Mapping[UUID, UUID], is_many: bool) -> None:
    """Refuse what did not want a job that is there already, or may not know of it."""
    if not taken:
        return
    visible = set(view.jobs().filter(pk__in=set(taken.values())).values_list("pk", flat=True))
    for index, each in enumerate(asked):
        owner = taken.get(each.job.id)
        if owner is None or (owner in visible and each.on_conflict == RETURN):
            continue
        extra: dict[str, Any] = {"job": str(owner)} if owner in visible else {}
        _refuse(
            ApiError(409, "conflict", "Another live job has this unique key.", {"unique_key": "is held by a live job."}, **extra),
            index if is_many else None,
        )


def _refuse(error: Exception, index: int | None) -> NoReturn:
    answer = as_api_error(error)
    if answer is None or index is None:
        raise answer or error
    raise ApiError(
        answer.status_code,
        answer.code,
        f"item {index}: {answer.message}",
        answer.fields,
        answer.headers,
        **{**answer.extra, "index": index},
    ) from error

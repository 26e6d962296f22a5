"""`Client`: the calls of the API, one method each."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Final
from urllib.parse import parse_qs, quote, urlsplit

import httpx

from .errors import LeaseLost, NotFound
from .jobs import ClaimedJob, Job
from .wire import MISSING, Wire, value_of

#: The header that carries the token of an attempt.
TOKEN_HEADER: Final = "X-Job-Token"  # noqa: S105 - a name
#: Where a job can be after its attempt ended with a status that the worker reported.
_AFTER: Final = {
    "succeeded": frozenset({"succeeded"}),
    "failed": frozenset({"failed", "ready", "scheduled", "waiting"}),
    "ready": frozenset({"ready", "scheduled", "waiting"}),
}

JobOrId = Job | uuid.UUID | str


class Client:
    """Talks to the API at `base_url` (where the site mounts it) with an API token.

    `timeout`: seconds that one request may take. `retry_delays`: the pauses before a request is sent again, in seconds, after a
    refused connection or an answer of 429, 502, 503 or 504; after a lost answer only where sending twice does no harm. A pause is
    jittered, and at least what the server asks for. May be used by several threads at once. Every method raises `ApiError`.
    """

    def __init__(
        self,
        base_url: str,
        token: str,
        *,
        timeout: float = 30.0,
        retry_delays: Sequence[float] = (0.25, 0.5, 1.0, 2.0, 4.0),
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.wire = Wire(base_url, token, timeout=timeout, retry_delays=retry_delays, transport=transport)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self.wire.close()

    # --- put in ---

    def enqueue(
        self,
        task: str | None = None,
        *,
        queue: str | None = None,
        input: Any = MISSING,  # noqa: A002 - the API's word
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
        **options: Any,
    ) -> Job:
        """Enqueue a registered task by its dotted path, or free `input` into a queue that HTTP workers serve.

        `options`: as the API names them: tags, priority, run_after, timeout, heartbeat_timeout, max_attempts, retry_delays,
        retention, unique_key, metadata, description, ...; datetimes and timedeltas are understood. Sent again with the same
        `idempotency_key` (by default one of its own for each call) it is still one job. Raises `Invalid` with `fields`.
        """
        item = spec(task, queue=queue, input=input, args=args, kwargs=kwargs, **options)
        return Job(value_of(self._post_jobs(item, idempotency_key)))

    def enqueue_many(self, items: Iterable[Mapping[str, Any]], *, idempotency_key: str | None = None) -> list[Job]:
        """Enqueue several jobs, all or none. Each item has the arguments of `enqueue`: `{"queue": "resize", "input": 7}`.

        The jobs that come back have an `id`, and `job["created"]`: false for one that has its unique key already.
        """
        answer = value_of(self._post_jobs([spec(**item) for item in items], idempotency_key))
        return [Job(each) for each in answer["results"]]

    def _post_jobs(self, body: Any, key: str | None) -> httpx.Response:
        return self.wire.send("POST", "jobs/", body=body, headers={"Idempotency-Key": key or uuid.uuid4().hex})

    # --- look ---

    def get(self, job: JobOrId, *, fields: Sequence[str] = ()) -> Job:
        """Return a job, with all or some of its fields. Raises `NotFound`."""
        return Job(value_of(self.wire.send("GET", _path(job), query={"fields": ",".join(fields)} if fields else None)))

    def status(self, job: JobOrId) -> str:
        """Return the status of a job."""
        return str(self.get(job, fields=["status"]).status)

    def output(self, job: JobOrId) -> Any:
        """Return what the job has saved so far, or its result when it has ended."""
        return self.get(job, fields=["output"]).output

    def jobs(self, **filters: Any) -> Iterator[Job]:
        """Yield the jobs that match, page by page as they are needed: `jobs(status="timed_out", queue="resize")`."""
        query = {name: _query(value) for name, value in filters.items()}
        while True:
            page = value_of(self.wire.send("GET", "jobs/", query=query))
            yield from map(Job, page["results"])
            if not page.get("next"):
                return
            # Only the query of the link is used: behind a proxy the site may not know its own address, and the token stays here.
            query = {name: values[-1] for name, values in parse_qs(urlsplit(page["next"]).query).items()}

    def info(self) -> dict[str, Any]:
        """Return the counts of jobs by queue and status, and the running totals."""
        return dict(value_of(self.wire.send("GET", "info/")))

    # --- change ---

    def change(self, job: JobOrId, **fields: Any) -> None:
        """Change fields of a job that does not run: `change(job, priority=5, tags=["late"])`."""
        self.wire.send("PATCH", _path(job), body=_plain(fields))

    def cancel(self, job: JobOrId, *, reason: str = "", force: bool = False) -> Job:
        """Cancel a job, or acknowledge one that failed or timed out; return it. Raises `Conflict`."""
        return Job(self._verb(job, "cancel", reason, **({"force": True} if force else {})))

    def requeue(self, job: JobOrId, *, reason: str = "", keep_attempts: bool = False) -> Job:
        """Put a job that has ended back into its queue, with all its attempts anew unless `keep_attempts`; return it."""
        return Job(self._verb(job, "requeue", reason, **({"keep_attempts": True} if keep_attempts else {})))

    def requeue_and_claim(self, job: JobOrId, *, reason: str = "", worker: str = "") -> ClaimedJob:
        """Put a job that has ended back and claim it at once: it runs, here."""
        return ClaimedJob(self._verb(job, "requeue", reason, claim=True, **({"worker": worker} if worker else {})))

    def done(self, job: JobOrId, *, reason: str = "") -> Job:
        """Mark a job as done by hand; return it."""
        return Job(self._verb(job, "done", reason))

    def run_now(self, job: JobOrId, *, reason: str = "") -> Job:
        """Make a job that is due later ready now; return it."""
        return Job(self._verb(job, "run-now", reason))

    def delete(self, job: JobOrId, *, force: bool = False) -> None:
        """Delete a job; one that runs only with `force`."""
        try:
            self.wire.send("DELETE", _path(job), query={"force": "true"} if force else None)
        except NotFound as error:
            if not error.repeated:  # else the request before this one has deleted it, and its answer was lost
                raise

    def _verb(self, job: JobOrId, verb: str, reason: str, **options: Any) -> Any:
        body = {**({"reason": reason} if reason else {}), **options}
        return value_of(self.wire.send("POST", f"{_path(job)}{verb}/", body=body, safe=False))

    # --- run ---

    def claim(self, queue: str, *, limit: int = 1, wait: float = 0.0, worker: str = "", retry: bool = True) -> list[ClaimedJob]:
        """Claim up to `limit` jobs, and run them: each has a lease now. Empty if there was none for `wait` seconds.

        A claim whose answer was lost is not repeated: what it took comes back when its lease lapses.
        """
        body = {"limit": limit, "wait": wait, **({"worker": worker} if worker else {})}
        answer = self.wire.send(
            "POST", f"queues/{quote(queue, safe='')}/claim/", body=body, timeout=wait + self.wire.timeout, safe=False, retry=retry
        )
        return [ClaimedJob(each) for each in value_of(answer)["jobs"]] if answer.content else []

    def heartbeat(self, job: ClaimedJob, *, progress: Any = MISSING, timeout: float | None = None, retry: bool = True) -> None:
        """Say that the attempt lives, and how far it is: `{"done": 1, "total": 2, "message": ""}`. Raises `LeaseLost`."""
        body = MISSING if progress is MISSING else {"progress": progress}
        self._held(job, "PUT", "heartbeat/", body=body, timeout=timeout, retry=retry)

    def save(self, job: ClaimedJob, output: Any) -> None:
        """Store a partial result, replacing the one before; counts as a heartbeat. Raises `LeaseLost`."""
        self._held(job, "PUT", "output/", body=output)

    def finish(self, job: ClaimedJob, output: Any = MISSING, *, logs: str = "", repeated: bool = False) -> None:
        """End the attempt as succeeded. None as output is stored as null, nothing is not. Raises `LeaseLost`.

        `repeated`: an earlier call may have arrived; that the attempt has ended so is then no error.
        """
        self._end(job, {"status": "succeeded", **_if_given(output=output, logs=logs or MISSING)}, repeated)

    def fail(
        self,
        job: ClaimedJob,
        message: str,
        *,
        error_class: str = "",
        traceback: str = "",
        final: bool = False,
        output: Any = MISSING,
        logs: str = "",
        repeated: bool = False,
    ) -> None:
        """End the attempt as failed; it is tried again while attempts remain, unless `final`. Raises `LeaseLost`."""
        error = {"message": message, **_if_given(**{"class": error_class or MISSING}, traceback=traceback or MISSING)}
        rest = _if_given(final=final or MISSING, output=output, logs=logs or MISSING)
        self._end(job, {"status": "failed", "error": error, **rest}, repeated)

    def hand_back(self, job: ClaimedJob, *, repeated: bool = False) -> None:
        """Give the job back unfinished, because this worker stops. Raises `LeaseLost`.

        It is ready again, and the attempt is not counted.
        """
        self._end(job, {"status": "ready"}, repeated)

    def _end(self, job: ClaimedJob, body: Mapping[str, Any], repeated: bool) -> None:
        try:
            self._held(job, "PATCH", body=body)
        except LeaseLost as error:
            # The answer to an earlier request was lost, and the job is where that request has put it.
            if not ((repeated or error.repeated) and error.job_status in _AFTER[body["status"]]):
                raise

    def _held(self, job: ClaimedJob, method: str, path: str = "", **options: Any) -> None:
        """Send what belongs to an attempt. A job that is gone is a lost lease, too."""
        try:
            self.wire.send(method, _path(job) + path, headers={TOKEN_HEADER: job.token}, **options)
        except NotFound as error:
            lost = LeaseLost("The job was deleted.", status=404, code="not_found")
            lost.repeated = error.repeated
            raise lost from error


def spec(
    task: str | None = None,
    *,
    queue: str | None = None,
    input: Any = MISSING,  # noqa: A002 - the API's word
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Return a job as the API takes it. Raises `TypeError` unless it names a task or has an input."""
    if (task is None) == (input is MISSING):
        raise TypeError("a job has either a task or an input, and an input has a queue")
    if input is not MISSING:
        if queue is None or args or kwargs:
            raise TypeError("an input needs a queue, and has no args or kwargs")
        return {"queue": queue, "input": input, **_plain(options)}
    named = {} if queue is None else {"queue": queue}
    return {"task": task, "args": list(args), "kwargs": dict(kwargs or {}), **named, **_plain(options)}


def _if_given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not MISSING}


def _path(job: JobOrId) -> str:
    return f"jobs/{quote(job.id if isinstance(job, Job) else str(job), safe='')}/"


def _plain(value: Any) -> Any:
    """Return options as JSON has them: times and durations as text and seconds, ids as text."""
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, (tuple, set, frozenset, list)):
        return [_plain(each) for each in value]
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError("a time must have a time zone")
        return value.isoformat()
    return str(value) if isinstance(value, uuid.UUID) else value


def _query(value: Any) -> Any:
    """Return a filter as a query has it: several values are joined by commas."""
    plain = _plain(value)
    if isinstance(plain, bool):
        return "true" if plain else "false"
    return ",".join(map(str, plain)) if isinstance(plain, list) else plain

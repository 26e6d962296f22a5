"""`Worker` against a server in memory: what it tells of each end, when its heart beats, what it does when the server is away."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from django_jobs.client import ApiError, ClaimedJob, Client, Context, Fail, Forbidden, LeaseLost, Worker
from tests.client.fake import Fake, claimed, lost, refusal
from tests.support.worker import until

Run = Callable[..., Worker]

pytestmark = pytest.mark.once


@pytest.fixture
def server() -> Fake:
    return Fake()


@pytest.fixture
def run(server: Fake) -> Iterator[Run]:
    """Return a function that runs a worker in a thread; it is stopped at the end of the test."""
    started: list[tuple[Worker, threading.Thread]] = []

    def run(handler: Callable[[ClaimedJob, Context], Any], **options: Any) -> Worker:
        client = Client("http://jobs.example/api/", "t", retry_delays=(0.01,), transport=server.transport)
        worker = Worker(client, "q", handler, **{"wait": 0.2, "pauses": (0.01, 0.02), **options})
        thread = threading.Thread(target=worker.run, daemon=True)
        worker.thread = thread  # type: ignore[attr-defined]
        started.append((worker, thread))
        thread.start()
        return worker

    yield run
    for worker, thread in started:
        worker.stop(now=True)
        thread.join(20)
        assert not thread.is_alive()


def ended(worker: Worker, within: float = 20) -> None:
    worker.thread.join(within)  # type: ignore[attr-defined]
    assert not worker.thread.is_alive()  # type: ignore[attr-defined]


# --- ends ---


def test_what_the_handler_returns_is_the_output(server: Fake, run: Run) -> None:
    server.queue += [claimed(input=20), claimed(input=21)]
    run(lambda job, context: {"twice": 2 * job.input})
    server.wait_for("succeeded", 2)
    assert [seen.body for seen in server.seen if seen.what == "succeeded"] == [
        {"status": "succeeded", "output": {"twice": 40}},
        {"status": "succeeded", "output": {"twice": 42}},
    ]


def test_none_leaves_what_was_saved_and_lines_are_kept(server: Fake, run: Run) -> None:
    server.queue.append(claimed())

    def handler(job: ClaimedJob, context: Context) -> None:
        context.save([1])
        context.log("one")
        context.log("x" * 70_000)
        context.log("never seen")

    run(handler)
    end = server.wait_for("succeeded")
    assert server.wait_for("output").body == [1]
    assert end.body == {"status": "succeeded", "logs": "one\n(more lines were dropped)\n"}


def _raise_value_error(job: ClaimedJob, context: Context) -> None:
    raise ValueError("what a value")


def _raise_fail(job: ClaimedJob, context: Context) -> None:
    raise Fail("never again")


def _raise_exit(job: ClaimedJob, context: Context) -> None:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("handler", "name", "message", "final"),
    [
        (_raise_value_error, "ValueError", "what a value", None),
        (_raise_fail, "django_jobs.client.errors.Fail", "never again", True),
        (_raise_exit, "SystemExit", "3", None),
    ],
)
def test_an_exception_is_a_failure(server: Fake, run: Run, handler: Any, name: str, message: str, final: bool | None) -> None:
    server.queue += [claimed(), claimed()]
    run(handler)
    body = server.wait_for("failed").body
    error = body["error"]
    assert (error["class"], error["message"], body.get("final")) == (name, message, final)
    assert error["traceback"].startswith("Traceback")
    assert handler.__name__ in error["traceback"]
    assert "attempt.py" not in error["traceback"]
    server.wait_for("failed", 2)  # it goes on


@pytest.mark.parametrize("output", [{1, 2}, float("inf"), "too long"])
def test_what_can_not_be_stored_is_a_failure_for_good(server: Fake, run: Run, output: Any) -> None:
    server.queue.append(claimed())
    server.rules["succeeded"] = lambda seen: refusal(413, "too_large", "The body has more than 1 MiB.")
    run(lambda job, context: output)
    assert server.wait_for("failed").body["final"] is True


def test_an_end_is_told_for_as_long_as_the_server_is_away(server: Fake, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_jobs.client.wire.random.uniform", lambda low, high: 0.01)
    server.queue.append(claimed())
    answers: list[Any] = [httpx.ConnectError("refused")] * 5 + [httpx.Response(503), httpx.ReadTimeout("slow")]
    answers.append(lost("This attempt has ended: the job is succeeded.", "succeeded"))
    server.rules["succeeded"] = lambda seen: answers.pop(0) if answers else None
    calls = []
    run(lambda job, context: calls.append(job.id))
    server.wait_for("succeeded", 8)
    assert len(calls) == 1
    assert answers == []


def test_a_conflict_of_a_moment_is_tried_again(server: Fake, run: Run) -> None:
    server.queue.append(claimed())
    answers: list[Any] = [refusal(409, "conflict", "Somebody else has changed the same at this moment. Try again.")]
    server.rules["succeeded"] = lambda seen: answers.pop(0) if answers else None
    run(lambda job, context: 1)
    server.wait_for("succeeded", 2)
    assert "failed" not in server.whats()


def test_a_request_that_only_ever_breaks_the_server_is_given_up(
    server: Fake, run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("django_jobs.client.wire.random.uniform", lambda low, high: 0.001)
    server.queue += [claimed(input=1), claimed(input=2)]
    server.rules["succeeded"] = lambda seen: httpx.Response(500) if seen.body["output"] == 1 else None
    run(lambda job, context: job.input)
    server.wait_for("succeeded", 11)
    assert [seen.body["output"] for seen in server.seen if seen.what == "succeeded"] == [1] * 10 + [2]
    assert "could not be told" in caplog.text


# --- the heart ---


def test_the_heart_beats_at_a_third_of_the_lease(server: Fake, run: Run) -> None:
    server.queue.append(claimed(heartbeat_timeout="0.6s"))
    run(lambda job, context: bool(server.wait_for("heartbeat", 5)) and context.is_cancelled)
    assert server.wait_for("succeeded").body["output"] is False


def test_without_limits_the_heart_beats_so_that_a_cancel_is_noticed(server: Fake, run: Run) -> None:
    server.queue.append(claimed())
    run(lambda job, context: bool(server.wait_for("heartbeat", 2)), heartbeat_every=0.05)
    server.wait_for("succeeded")


def test_progress_is_sent_in_the_background_and_the_newest_only(server: Fake, run: Run) -> None:
    server.queue.append(claimed(heartbeat_timeout="0.9s"))

    def handler(job: ClaimedJob, context: Context) -> Any:
        for done in range(1000):
            context.progress(done, 1000, "on it")
        return server.wait_for("progress").body["progress"]

    run(handler)
    assert server.wait_for("succeeded").body["output"] == {"done": 999, "total": 1000, "message": "on it"}
    assert server.whats().count("progress") == 1


def test_progress_that_was_not_taken_is_sent_again(server: Fake, run: Run) -> None:
    server.queue.append(claimed(heartbeat_timeout="0.6s"))
    answers: list[Any] = [httpx.ConnectError("refused")]
    server.rules["progress"] = lambda seen: answers.pop(0) if answers else None

    def handler(job: ClaimedJob, context: Context) -> Any:
        context.progress(1)
        return server.wait_for("progress", 2).body["progress"]["done"]

    run(handler)
    assert server.wait_for("succeeded").body["output"] == 1


@pytest.mark.parametrize("how", ["check", "is_cancelled", "save"])
def test_a_handler_whose_attempt_is_lost_stops_and_nothing_is_told(server: Fake, run: Run, how: str) -> None:
    server.queue += [claimed(heartbeat_timeout="0.3s", input="lost"), claimed(input="next")]
    if how == "save":
        server.rules["output"] = lambda seen: lost("cancelled by anna")
    else:
        server.rules["heartbeat"] = lambda seen: lost("cancelled by anna")
    reasons = []

    def handler(job: ClaimedJob, context: Context) -> str:
        if job.input == "lost":
            try:
                looks = {"check": context.check, "save": lambda: context.save(1), "is_cancelled": lambda: context.is_cancelled}
                until(looks[how])
                context.check()
            except LeaseLost as error:
                reasons.append(error.reason)
                raise
        return str(job.input)

    run(handler)
    assert server.wait_for("succeeded").body["output"] == "next"
    assert reasons == ["cancelled by anna"]
    assert not {"failed", "ready"} & set(server.whats())


def test_a_handler_that_returns_when_it_sees_the_loss_has_not_succeeded(server: Fake, run: Run) -> None:
    server.queue += [claimed(heartbeat_timeout="0.3s", input="lost"), claimed(input="next")]
    server.rules["heartbeat"] = lambda seen: lost()

    def handler(job: ClaimedJob, context: Context) -> Any:
        until(lambda: job.input != "lost" or context.is_cancelled)
        return job.input

    run(handler)
    assert server.wait_for("succeeded").body["output"] == "next"


def test_a_worker_that_is_cut_off_stops_its_handler_when_the_lease_is_over(server: Fake, run: Run) -> None:
    """By its own clock: the server may have given the job to another by then."""
    server.queue.append(claimed(heartbeat_timeout="0.5s"))
    server.rules["heartbeat"] = lambda seen: httpx.ConnectTimeout("no answer")
    stopped: list[tuple[str, float]] = []
    begun = time.monotonic()

    def handler(job: ClaimedJob, context: Context) -> None:
        try:
            until(context.check)
        except LeaseLost as error:
            stopped.append((error.code, time.monotonic() - begun))
            raise

    worker = run(handler)
    server.wait_for("claim", 2)
    worker.stop()
    ended(worker)
    ((code, after),) = stopped
    assert code == "over"
    assert 0.45 <= after < 5
    assert set(server.whats()) == {"heartbeat"}


def test_a_handler_that_never_heard_of_the_loss_leaves_it_to_the_server(server: Fake, run: Run) -> None:
    """The server may have been away itself, and then the result still counts."""
    server.queue.append(claimed(timeout="0.2s"))
    run(lambda job, context: context.wait(time.monotonic() + 20) and context.remaining_seconds)
    assert server.wait_for("succeeded").body["output"] == 0.0


def test_a_failing_heartbeat_is_tried_again_soon_and_forgiven(server: Fake, run: Run) -> None:
    server.queue.append(claimed(heartbeat_timeout="6s"))
    answers: list[Any] = [httpx.ConnectError("refused"), httpx.Response(502), httpx.ReadTimeout("slow")]
    server.rules["heartbeat"] = lambda seen: answers.pop(0) if answers else None
    begun = time.monotonic()
    run(lambda job, context: bool(server.wait_for("heartbeat", 4)) and context.is_cancelled)
    assert server.wait_for("succeeded").body["output"] is False
    assert time.monotonic() - begun < 6


# --- claims ---


def test_it_runs_as_many_at_once_as_it_may_and_asks_for_no_more(server: Fake, run: Run) -> None:
    server.queue += [claimed(input=number) for number in range(7)]
    together = threading.Barrier(3)
    run(lambda job, context: together.wait(20) if job.input < 6 else None, concurrency=3, name="three")
    server.wait_for("succeeded", 7)
    claims = [seen.body for seen in server.seen if seen.what == "claim"]
    assert claims[0] == {"limit": 3, "wait": 0.2, "worker": "three"}
    assert all(1 <= body["limit"] <= 3 for body in claims)


def test_a_server_that_does_not_let_it_wait_is_not_asked_all_the_time(server: Fake, run: Run) -> None:
    worker = run(lambda job, context: None, pauses=(0.1, 10.0))
    server.wait_for("claim", 3)
    begun = time.monotonic()
    server.wait_for("claim", 5)
    assert time.monotonic() - begun > 0.4  # 0.4 and 0.8, or half of each
    worker.stop()
    ended(worker, 2)


def test_it_waits_for_a_server_that_is_away(server: Fake, run: Run) -> None:
    server.script += [httpx.ConnectError("refused"), httpx.Response(503), httpx.Response(502, html="<h1>Bad gateway</h1>")]
    server.script += [httpx.Response(404, html="<h1>Under repair</h1>"), refusal(429, "throttled"), httpx.Response(500)]
    server.queue.append(claimed(input="at last"))
    run(lambda job, context: job.input)
    assert server.wait_for("succeeded").body["output"] == "at last"


def test_a_refusal_ends_it_after_what_runs_has_ended(server: Fake) -> None:
    server.queue.append(claimed(input=1))
    claims: list[Any] = [None, refusal(403, "forbidden", "The token has not the verb claim.")]
    server.rules["claim"] = lambda seen: claims.pop(0)
    client = Client("http://jobs.example/api/", "t", transport=server.transport)

    def handler(job: ClaimedJob, context: Context) -> str:
        server.wait_for("claim", 2)
        return "done all the same"

    with pytest.raises(Forbidden, match="verb claim"):
        Worker(client, "q", handler, concurrency=2).run()
    assert [seen.body["output"] for seen in server.seen if seen.what == "succeeded"] == ["done all the same"]


def test_drain_ends_when_nothing_is_left(server: Fake) -> None:
    server.queue += [claimed(input=number) for number in range(5)]
    client = Client("http://jobs.example/api/", "t", transport=server.transport)
    Worker(client, "q", lambda job, context: job.input, concurrency=2, pauses=(0.01, 0.01)).run(drain=True)
    assert sorted(seen.body["output"] for seen in server.seen if seen.what == "succeeded") == [0, 1, 2, 3, 4]
    assert server.seen[0].body["wait"] == 0


def test_no_worker_runs_nothing_at_once(server: Fake) -> None:
    client = Client("http://jobs.example/api/", "t", transport=server.transport)
    with pytest.raises(ValueError, match="concurrency"):
        Worker(client, "q", lambda job, context: None, concurrency=0)


# --- stop ---


def test_a_stop_lets_what_runs_end(server: Fake, run: Run) -> None:
    server.queue.append(claimed())
    begun = threading.Event()

    def handler(job: ClaimedJob, context: Context) -> str:
        begun.set()
        until(lambda: context.is_stopping)
        return "whole"

    worker = run(handler)
    assert begun.wait(20)
    worker.stop()
    ended(worker)
    assert server.wait_for("succeeded").body["output"] == "whole"
    server.queue.append(claimed())
    assert "ready" not in server.whats()


@pytest.mark.parametrize("how", ["check", "is_cancelled", "raise"])
def test_a_handler_that_does_not_end_in_time_hands_its_job_back(server: Fake, run: Run, how: str) -> None:
    server.queue.append(claimed(heartbeat_timeout="30s"))
    begun = threading.Event()

    def handler(job: ClaimedJob, context: Context) -> str:
        begun.set()
        until(lambda: context.is_cancelled)
        if how == "check":
            context.check()
        if how == "raise":
            raise RuntimeError("in the middle")
        return "half"

    worker = run(handler, stop_timeout=0.1)
    assert begun.wait(20)
    worker.stop()
    ended(worker)
    assert server.whats() == ["ready"]


@pytest.mark.parametrize(("limit", "told"), [("30s", []), (None, ["ready"])])
def test_a_handler_that_does_not_end_at_all_is_left_behind(
    server: Fake, run: Run, monkeypatch: pytest.MonkeyPatch, limit: str | None, told: list[str]
) -> None:
    """Its job runs again when its lease lapses; one without a lease has to be given back, or it would run for ever."""
    monkeypatch.setattr("django_jobs.client.worker._LAST_SECONDS", 0.1)
    server.queue.append(claimed(timeout=limit))
    begun, release = threading.Event(), threading.Event()

    def handler(job: ClaimedJob, context: Context) -> None:
        begun.set()
        release.wait(20)

    worker = run(handler, stop_timeout=0.1)
    assert begun.wait(20)
    worker.stop()
    ended(worker)
    assert server.whats() == told
    release.set()
    server.wait_for("succeeded")


def test_what_is_claimed_after_the_stop_is_handed_back(server: Fake, run: Run) -> None:
    asked, answer = threading.Event(), threading.Event()

    def claim(seen: Any) -> None:
        asked.set()
        answer.wait(20)
        server.queue.append(claimed())

    server.rules["claim"] = claim
    calls: list[str] = []
    worker = run(lambda job, context: calls.append(job.id))
    assert asked.wait(20)
    worker.stop()
    answer.set()
    ended(worker)
    assert (calls, server.whats()) == ([], ["ready"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_stop_it_and_are_given_back(server: Fake, number: signal.Signals) -> None:
    """Once: what runs may end. Twice: at once."""
    before = signal.getsignal(number)
    server.queue.append(claimed())

    def handler(job: ClaimedJob, context: Context) -> None:
        os.kill(os.getpid(), number)
        until(lambda: context.is_stopping)
        os.kill(os.getpid(), number)
        until(context.check)

    client = Client("http://jobs.example/api/", "t", transport=server.transport)
    Worker(client, "q", handler, wait=0.1, stop_timeout=600).run()
    assert server.whats() == ["ready"]
    assert signal.getsignal(number) is before


def test_a_refused_hand_back_does_not_keep_it_from_stopping(server: Fake, run: Run, caplog: pytest.LogCaptureFixture) -> None:
    server.rules["ready"] = lambda seen: refusal(403, "forbidden")
    asked, answer = threading.Event(), threading.Event()

    def claim(seen: Any) -> None:
        asked.set()
        answer.wait(20)
        server.queue.append(claimed())

    server.rules["claim"] = claim
    worker = run(lambda job, context: None)
    assert asked.wait(20)
    worker.stop()
    answer.set()
    ended(worker)
    assert "could not be handed back" in caplog.text


def test_what_all_errors_have_in_common() -> None:
    import django_jobs.client as client

    names = [
        name
        for name in client.__all__
        if isinstance(getattr(client, name), type) and issubclass(getattr(client, name), Exception)
    ]
    assert {name for name in names if not issubclass(getattr(client, name), ApiError)} == {"Fail"}

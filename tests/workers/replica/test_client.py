"""The worker over a Serve handle, without Ray: lost replicas, resumed streams, heartbeats."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
from ray import ActorID
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError
from ray.serve.exceptions import BackPressureError

from deploy.lab.reenact.clock import VirtualLoop
from orchestrator.errors import (
    Overloaded,
    WorkerError,
    WorkerUnavailable,
)
from orchestrator.types import Generation, LabelQuery, StopCriteria
from orchestrator.worker import Delta
from tests.orchestrator.waiting import until
from tests.workers.replica.handles import (
    CRITERIA,
    GREEDY,
    Broadcast,
    Handle,
    Response,
    Stream,
    call,
    respond,
    story,
    tag,
    taken_by,
)
from workers import streams
from workers.replica import client, routers, silence
from workers.replica.client import ReplicaWorker
from workers.replica.server import ReplicaServer, ReplicaStatus
from workers.retry import CircuitBreaker

pytestmark = pytest.mark.virtual_time
NINE = LabelQuery((), "", ("9",))


def dead() -> ActorDiedError:
    return ActorDiedError()


def timed(handle: Handle, seconds: float) -> ReplicaWorker:
    return ReplicaWorker(handle, retry_timeout_s=seconds)


async def collect(
    worker: ReplicaWorker, criteria: StopCriteria, **more: Any
) -> tuple[list[Delta], Generation]:
    items = [item async for item in worker.generate(call(), criteria, GREEDY, **more)]
    deltas, last = items[:-1], items[-1]
    assert isinstance(last, Generation)
    assert all(isinstance(delta, Delta) for delta in deltas)
    return deltas, last  # type: ignore[return-value]


@pytest.fixture(autouse=True)
def no_batching(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "BATCH_S", 0.0)


async def test_calls_of_a_session_prefer_one_replica() -> None:
    handle = Handle(story())
    worker = ReplicaWorker(handle)
    for request in ("r1", "r1-2", "r2"):
        for session in ("", "s"):
            asked = replace(call(), request=request, session=session)
            async for _ in worker.generate(asked, CRITERIA, GREEDY):
                pass
            async for _ in worker.generate(asked, CRITERIA, GREEDY, stream=False):
                pass
    plain, named = handle.sessions[::4], handle.sessions[2::4]
    assert handle.sessions[1::4] == plain
    assert handle.sessions[3::4] == named
    assert (plain, named) == (["r1/0", "r1/0", "r2/0"], ["s/0"] * 3)


@pytest.mark.parametrize("items", range(6))
@pytest.mark.parametrize("criteria", [CRITERIA, StopCriteria(100), StopCriteria(3)])
async def test_a_stream_that_dies_goes_on_where_it_broke_off(
    items: int, criteria: StopCriteria
) -> None:
    undisturbed = (await collect(ReplicaWorker(Handle(story())), criteria))[1].segment
    handle = Handle(story(delay=0.001), deaths=[(items, dead())])
    deltas, whole = await collect(ReplicaWorker(handle), criteria)
    assert whole.segment == undisturbed
    assert "".join(delta.text for delta in deltas) == undisturbed.text
    assert tuple(t for delta in deltas for t in delta.tokens) == undisturbed.tokens
    assert whole.usage.generated == len(undisturbed.tokens)
    assert whole.usage.prompt in (2, 0)  # "How many?", unknown where only the end was lost
    tries = 2 if items < len(deltas) + 1 else 1  # it may have been over before
    assert handle.sessions == ["r1/0", "r1/1"][:tries]  # the second call asks another replica


async def test_a_classification_is_made_again() -> None:
    handle = Handle(story(), deaths=[(0, dead()), (0, dead())])
    answer = await ReplicaWorker(handle).classify(call(), LabelQuery((), "", ("8", "9")))
    assert answer.probabilities == (0.0, 1.0)
    assert len(handle.sessions) == 3


@pytest.mark.parametrize("stream", [True, False])
async def test_a_call_that_ends_replicas_ends_few(
    stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over gRPC, as calls go, a replica that dies is unavailable."""
    names = {name: ActorID.from_random().binary() for name in "abcd"}

    def deaths(*died: str, after: int) -> list[Any]:
        return [(after, ActorUnavailableError("gone", names.get(name))) for name in died]

    monkeypatch.setattr(silence, "AT_ONCE_S", 0.0)
    handle = Handle(story(delay=0.001), deaths=deaths("a", "a", "b", "?", "c", "d", after=1))
    worker = ReplicaWorker(handle)
    with pytest.raises(WorkerUnavailable, match="3 replicas died at this call"):
        await collect(worker, CRITERIA, stream=stream)
    assert len(handle.sessions) == 5
    handle.deaths = []  # the pool is well
    assert (await collect(worker, CRITERIA, stream=stream))[1].segment.text

    monkeypatch.setattr(silence, "AT_ONCE_S", math.inf)  # they were dead before it came
    handle.deaths = deaths("a", "b", "c", "d", after=0)
    assert (await collect(worker, CRITERIA, stream=stream))[1].segment.text


async def test_a_pool_that_is_down_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PROBE_TIMEOUT_S", 0.1)
    now = 0.0
    handle = Handle(story(), deaths=[(0, dead())] * 100, silent=True)
    worker = timed(handle, 0.2)
    worker._breaker = CircuitBreaker(
        "the pool", failure_threshold=1, reset_timeout_s=5.0, clock=lambda: now
    )

    async def attempts() -> int:
        """How often the pool was called for one call."""
        before = len(handle.sessions)
        with suppress(WorkerUnavailable):
            await worker.classify(call(), NINE)
        return len(handle.sessions) - before

    assert await attempts() > 1
    for _ in range(3):
        assert await attempts() == 0
    with pytest.raises(WorkerUnavailable, match="in a row"):
        await collect(worker, CRITERIA)
    now = 5.0
    assert await attempts() > 0  # one of many tries
    assert await attempts() == 0
    handle.deaths.clear()
    assert await attempts() == 0
    now = 10.0
    assert await attempts() == 1
    assert (await collect(worker, CRITERIA))[1].segment.text  # it is there again for all
    assert await attempts() == 1


async def test_a_status_shows_that_a_pool_is_there_again() -> None:
    handle = Handle(story(), deaths=[(0, dead())] * 100, silent=True)
    worker = timed(handle, 0.1)
    for message in ("lost", "in a row"):
        with pytest.raises(WorkerUnavailable, match=message):
            await collect(worker, CRITERIA)
        handle.deaths.clear()
    handle.silent = False
    await worker.status()
    assert (await collect(worker, CRITERIA))[1].segment.text


@pytest.mark.parametrize("stream", [True, False])
async def test_a_call_that_fails_shuts_no_pool_in_which_a_replica_answers(stream: bool) -> None:
    handle = Handle(story(), deaths=[(0, dead())] * 100)
    worker = timed(handle, 0.1)
    with pytest.raises(WorkerUnavailable, match="lost"):
        await collect(worker, CRITERIA, stream=stream)
    handle.deaths.clear()
    assert (await collect(worker, CRITERIA, stream=stream))[1].segment.text


async def test_an_engine_that_is_dead_is_left_for_another() -> None:
    backend = story(failures={0: WorkerUnavailable("the engine stopped")})
    handle = Handle(backend)
    assert (await collect(ReplicaWorker(handle), CRITERIA))[1].segment.text
    assert handle.sessions == ["r1/0", "r1/1"]


async def test_a_silent_replica_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "SILENCE_TIMEOUT_S", 0.05)
    monkeypatch.setattr(streams, "HEARTBEAT_S", 1000.0)
    slow = story(delay=0.2)
    with pytest.raises(WorkerUnavailable):
        await collect(timed(Handle(slow), 0.3), CRITERIA)


class Stopped:
    """A response of a replica whose process was stopped: after some items nothing comes."""

    def __init__(self, response: Response | Stream, items: int, replica: str | None) -> None:
        self._response, self._items = response, items
        self._request_metadata = taken_by(replica)

    def __await__(self) -> Any:
        return asyncio.sleep(1000).__await__()

    async def __anext__(self) -> Any:
        if not self._items:
            await asyncio.sleep(1000)
        self._items -= 1
        return await anext(self._response)

    def cancel(self) -> None:
        self._response.cancel()


@dataclass
class HalfStopped(Handle):
    """A pool of two, of which the first was stopped: calls that go there fall silent."""

    after: int = 0  # items
    taker: str | None = "stopped"  # of a call with one answer that falls silent

    def remote(self, *args: Any) -> Any:
        response = super().remote(*args)
        if not self.sessions[-1].endswith("/0"):
            return response
        return Stopped(response, self.after, self.taker)


@pytest.fixture
def router(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The router of the pool, as far as the client knows it."""
    monkeypatch.setattr(silence, "SILENCE_TIMEOUT_S", 0.1)
    monkeypatch.setattr(client, "PROBE_TIMEOUT_S", 0.05)
    one: Any = SimpleNamespace(
        _deployment_id=SimpleNamespace(name="Pool"), avoided=frozenset(), replicas={"stopped"}
    )
    monkeypatch.setattr(routers, "ROUTERS", [one])
    return one


@pytest.mark.parametrize("items", [0, 1, 2])
async def test_a_call_leaves_a_stopped_replica(router: Any, items: int) -> None:
    undisturbed = (await collect(ReplicaWorker(Handle(story())), CRITERIA))[1].segment
    handle = HalfStopped(story(delay=0.001), after=items)
    worker = timed(handle, 5)
    assert (await collect(worker, CRITERIA))[1].segment == undisturbed
    assert handle.sessions == ["r1/0", "r1/1"]
    assert not worker._breaker.is_open
    await until(lambda: router.avoided == {"stopped"})
    router.replicas = set()  # it answers again
    await until(lambda: not router.avoided)
    await until(lambda: worker._watching is None)


async def test_a_call_waits_on_where_no_replica_is_silent(router: Any) -> None:
    router.replicas = set()
    handle = HalfStopped(story())
    asked = asyncio.create_task(collect(timed(handle, 0.6), CRITERIA))
    await asyncio.sleep(0.3)
    assert handle.sessions == ["r1/0"]  # all of them are busy
    with pytest.raises(WorkerUnavailable, match="in time"):
        await asked


async def test_who_was_stopped_itself_calls_nobody_silent(router: Any) -> None:
    handle = Handle(story(delay=0.02))
    items = timed(handle, 0.3).generate(call(), CRITERIA, GREEDY)
    await anext(items)
    rest = asyncio.create_task(_all(items))
    await asyncio.sleep(0)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop.jump(0.5)
    *_, whole = await rest
    assert isinstance(whole, Generation)
    assert handle.sessions == ["r1/0"]


async def _all(items: Any) -> list[Any]:
    return [item async for item in items]


async def test_heartbeats_keep_a_slow_stream_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "SILENCE_TIMEOUT_S", 0.1)
    monkeypatch.setattr(streams, "HEARTBEAT_S", 0.02)
    handle = Handle(story(delay=0.3))
    await collect(ReplicaWorker(handle), StopCriteria(2))
    assert len(handle.sessions) == 1


@pytest.mark.parametrize("patience_s", [0.1, 5.0])
@pytest.mark.parametrize("silent", [set(), {"stopped"}])
async def test_a_slow_answer_is_waited_for_while_its_replica_answers(
    router: Any, patience_s: float, silent: set[str]
) -> None:
    handle = Handle(story(delay=0.8))
    router.replicas = {tag(handle.replica), *silent}
    worker = timed(handle, patience_s)
    assert (await worker.classify(call(), NINE)).labels
    assert (handle.sessions, handle.methods) == (["r1/0"], ["answer_call"])
    assert router.avoided == silent
    assert not worker._breaker.is_open


async def test_an_answer_that_no_replica_works_on_is_not_waited_for(router: Any) -> None:
    router.replicas = set()  # all answer, and have no place
    handle = HalfStopped(story(), taker=None)
    asked = asyncio.create_task(timed(handle, 0.6).classify(call(), NINE))
    await asyncio.sleep(0.3)
    assert not asked.done()
    with pytest.raises(WorkerUnavailable, match="took the call in time"):
        await asyncio.wait_for(asked, 60)
    assert handle.sessions == ["r1/0"]


async def test_who_was_silent_is_known_when_a_silent_pool_answers_again(
    router: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = Handle(story())
    well = tag(handle.replica)
    router.replicas, router.avoided = {"stopped", well}, frozenset({well})
    worker = ReplicaWorker(handle)
    handle.silent = True
    await worker._look_around()
    assert worker._watching is not None
    with monkeypatch.context() as broken:
        broken.setattr(worker, "statuses", None)  # any error
        await asyncio.sleep(0.2)
    handle.silent = False
    await until(lambda: router.avoided == {"stopped"})
    router.replicas = {well}
    await until(lambda: worker._watching is None)
    assert not router.avoided


async def test_a_replica_that_stops_when_asked_for_its_status_is_one_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def get_async(self: Any) -> ReplicaStatus:
        raise asyncio.CancelledError

    monkeypatch.setattr(Broadcast, "get_async", get_async)
    assert await ReplicaWorker(Handle(story())).statuses() == []


@pytest.mark.parametrize("taker", ["stopped", None])
async def test_an_answer_is_not_waited_for_where_its_replica_stopped(
    router: Any, taker: str | None
) -> None:
    handle = HalfStopped(story(), taker=taker)
    worker = timed(handle, 5)
    assert (await worker.classify(call(), NINE)).labels == ("9",)
    assert handle.sessions == ["r1/0", "r1/1"]
    router.replicas = set()
    await until(lambda: worker._watching is None)


async def test_an_answer_of_a_pool_that_is_silent_is_waited_for_that_long(router: Any) -> None:
    handle = HalfStopped(story(), silent=True)
    asked = asyncio.create_task(timed(handle, 0.4).classify(call(), NINE))
    await asyncio.sleep(0.2)
    assert not asked.done()
    with pytest.raises(WorkerUnavailable, match="answered in time"):
        await asked
    assert handle.sessions == ["r1/0"]


async def test_who_waits_for_an_answer_may_hang_up() -> None:
    handle = Handle(story(delay=10))
    asked = asyncio.create_task(ReplicaWorker(handle).classify(call(), NINE))
    await until(lambda: handle.responses)
    await asyncio.sleep(0.01)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    (response,) = handle.responses
    await asyncio.wait({response.cancelled})
    assert response.cancelled.cancelled()
    assert handle.backend.live == 0


BUG = RayTaskError("stream_call", "Traceback ...", KeyError("x")).as_instanceof_cause()


@pytest.mark.parametrize(
    ("death", "error", "message"),
    [(BackPressureError(1, 1), Overloaded, "waiting"), (BUG, WorkerError, "KeyError")],
)
async def test_what_no_other_replica_would_change_is_not_retried(
    death: Exception, error: type[Exception], message: str
) -> None:
    handle = Handle(story(), deaths=[(0, death)])
    with pytest.raises(error, match=message):
        await collect(ReplicaWorker(handle), CRITERIA)
    assert len(handle.sessions) == 1


async def test_closing_the_iterator_cancels_the_call() -> None:
    handle = Handle(story(delay=0.01))
    items = ReplicaWorker(handle).generate(call(), CRITERIA, GREEDY)
    await anext(items)
    await items.aclose()
    (response,) = handle.responses
    assert response.cancelled is not None
    await response.cancelled
    assert handle.backend.live == 0


async def test_no_status_of_a_silent_replica() -> None:
    with pytest.raises(WorkerUnavailable):
        await ReplicaWorker(Handle(story(), silent=True)).status(0.1)


@dataclass
class Pool(Handle):
    """Several replicas, each for the requests that `home` names; retries go to the next."""

    replicas: list[ReplicaServer] = field(default_factory=list)
    home: dict[str, int] = field(default_factory=dict)

    def options(self, *, session_id: str, method_name: str, **_: Any) -> Pool:
        request, _, tries = session_id.partition("/")
        self.chosen = (self.home[request] + int(tries or 0)) % len(self.replicas)
        self.methods.append(method_name)
        return self

    def remote(self, *args: Any) -> Any:
        dies = self.deaths.pop(0) if self.deaths else None
        return respond(self.replicas[self.chosen], self.methods[-1], args, dies)

    def counted(self, name: str) -> int:
        return sum(one.stats()[name] for one in self.replicas)


async def test_how_often_a_request_found_the_replica_that_knew_it() -> None:
    backends = [story(), story()]
    replicas = [ReplicaServer(lambda one=one: one) for one in backends]  # type: ignore[misc]
    pool, lost = Pool(backends[0], replicas=replicas, home={"a": 0, "b": 1}), []
    worker = ReplicaWorker(pool, on_lost=lambda: lost.append(1))

    def counted() -> list[int]:
        return [pool.counted(name) for name in ("calls", "later_calls", "affine_calls")]

    async def ask(request: str) -> None:
        await worker.classify(replace(call(), request=request), NINE)

    for request in ("a", "b", "a", "a"):
        await ask(request)
    assert counted() == [4, 2, 2]
    pool.home["a"] = 1  # another replica, which has not seen it
    await ask("a")
    assert counted() == [5, 3, 2]
    pool.deaths = [(0, dead())]
    await ask("b")  # lost with its replica, and made on one that does not know it
    assert (counted(), len(lost)) == ([6, 4, 2], 1)

"""The worker over a pool of replicas, without Ray: which replica, lost calls, resumed streams."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from deploy.lab.reenact.clock import VirtualLoop
from orchestrator.errors import Overloaded, WorkerError, WorkerUnavailable
from orchestrator.types import Generation, LabelQuery, StopCriteria
from orchestrator.worker import Delta
from tests.orchestrator.waiting import until
from tests.workers.replica.handles import (
    CRITERIA,
    GREEDY,
    Broadcast,
    Handle,
    Replica,
    call,
    pool,
    story,
)
from workers import streams
from workers.replica import channel, client
from workers.replica import pool as pools
from workers.replica.client import ReplicaWorker
from workers.replica.server import ReplicaStatus
from workers.retry import CircuitBreaker

pytestmark = pytest.mark.virtual_time
NINE = LabelQuery((), "", ("9",))


async def collect(
    worker: ReplicaWorker, criteria: StopCriteria = CRITERIA, request: str = "r1", **more: Any
) -> tuple[list[Delta], Generation]:
    asked = replace(call(), request=request)
    items = [item async for item in worker.generate(asked, criteria, GREEDY, **more)]
    deltas, last = items[:-1], items[-1]
    assert isinstance(last, Generation)
    assert all(isinstance(delta, Delta) for delta in deltas)
    return deltas, last  # type: ignore[return-value]


@pytest.fixture(autouse=True)
def no_batching(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "BATCH_S", 0.0)


def home(handle: Handle) -> int:
    """The only replica that was called."""
    (number,) = (n for n, one in enumerate(handle.replicas) if one.got)
    return number


async def test_calls_of_a_session_prefer_one_replica() -> None:
    homes: dict[str, set[int]] = {}
    for request in ("r1", "r1-2", "r2", "r3", "r4"):
        for session in ("", "s"):
            handle = Handle(*(story() for _ in range(4)))
            asked, worker = replace(call(), request=request, session=session), pool(handle)
            for stream in (True, False):
                async for _ in worker.generate(asked, CRITERIA, GREEDY, stream=stream):
                    pass
            homes.setdefault(session or request[:2], set()).add(home(handle))
    assert all(len(one) == 1 for one in homes.values())
    assert len(set.union(*homes.values())) > 1


async def test_a_new_replica_takes_its_share_of_the_requests_and_moves_no_other() -> None:
    async def homes(replicas: int) -> list[int]:
        found = []
        for request in range(200):
            handle = Handle(*(story() for _ in range(replicas)))
            await pool(handle).classify(replace(call(), request=f"r{request}"), NINE)
            found.append(home(handle))
        return found

    before, after = await homes(3), await homes(4)
    assert all(share > 40 for share in Counter(before).values())
    assert all(new in (old, 3) for old, new in zip(before, after, strict=True))
    assert 25 < after.count(3) < 75


async def test_a_replica_that_is_added_is_found() -> None:
    handle = Handle(story(), story(), story())
    later = handle.replicas[1:]
    del handle.replicas[1:]
    worker = pool(handle)

    async def ask() -> None:
        for request in range(20):
            await worker.classify(replace(call(), request=f"r{request}"), NINE)

    await ask()
    handle.replicas += later
    await ask()
    assert handle.calls == 40
    assert not any(one.got for one in later)
    await asyncio.sleep(pools.LOOK_S)
    await ask()
    await asyncio.sleep(0.1)
    await ask()
    assert all(one.got for one in later)


async def test_a_replica_that_serve_forgot_is_left() -> None:
    handle = Handle(story(), story())
    worker = pool(handle)
    first = await home_of("r1", handle, worker)
    await collect(worker)
    handle.replicas.remove(first)
    await asyncio.sleep(pools.LOOK_S + 1)
    await collect(worker)
    await until(lambda: len(worker._pool.connections) == 1)
    await collect(worker)
    assert [len(one.got) for one in (first, *handle.replicas)] == [2, 1]
    await until(lambda: first._ends[1].is_closing())


@pytest.mark.parametrize("items", range(6))
@pytest.mark.parametrize("criteria", [CRITERIA, StopCriteria(100), StopCriteria(3)])
async def test_a_stream_that_dies_goes_on_where_it_broke_off(
    items: int, criteria: StopCriteria
) -> None:
    undisturbed = (await collect(pool(Handle(story())), criteria))[1].segment
    handle = Handle(story(delay=0.001), deaths=[items])
    deltas, whole = await collect(pool(handle), criteria)
    assert whole.segment == undisturbed
    assert "".join(delta.text for delta in deltas) == undisturbed.text
    assert tuple(t for delta in deltas for t in delta.tokens) == undisturbed.tokens
    assert whole.usage.generated == len(undisturbed.tokens)
    assert whole.usage.prompt in (2, 0)  # "How many?", unknown if only the end was lost
    assert handle.calls == (2 if items < len(deltas) + 1 else 1)  # it may have been over before


async def test_a_classification_is_made_again() -> None:
    handle = Handle(story(), deaths=[0, 0])
    answer = await pool(handle).classify(call(), LabelQuery((), "", ("8", "9")))
    assert answer.probabilities == (0.0, 1.0)
    assert handle.calls == 3


@pytest.mark.parametrize("stream", [True, False])
async def test_a_call_that_ends_replicas_ends_few(stream: bool) -> None:
    handle = Handle(*(story(delay=0.001) for _ in range(5)))
    for one in handle.replicas:
        one.deaths = [0, 0, 0]
    worker = pool(handle)
    with pytest.raises(WorkerUnavailable, match="3 replicas died at this call"):
        await collect(worker, stream=stream)
    assert sorted(len(one.got) for one in handle.replicas) == [0, 0, 1, 1, 1]
    for one in handle.replicas:
        one.deaths = []
    assert (await collect(worker, stream=stream))[1].segment.text


async def test_a_call_that_ends_engines_ends_few() -> None:
    workers = [story(failures={0: WorkerUnavailable("the engine died")}) for _ in range(5)]
    handle = Handle(*workers)
    with pytest.raises(WorkerUnavailable, match="3 replicas died at this call"):
        await collect(pool(handle))
    assert handle.calls == 3
    for one in workers:
        one.alive = False  # before the next call, which did not end them
        one.failures = {n: WorkerUnavailable("the engine has stopped") for n in range(9)}
    with pytest.raises(WorkerUnavailable, match="has stopped"):
        await pool(handle, retry_timeout_s=1.0).classify(call(), NINE)


async def test_replicas_that_had_ended_before_a_call_did_not_die_of_it() -> None:
    handle = Handle(*(story() for _ in range(5)))
    worker = pool(handle)
    for request in range(30):
        await collect(worker, request=f"r{request}")
    for one in handle.replicas:
        one.end()
    assert (await collect(worker))[1].segment.text


async def test_a_pool_that_is_down_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((client, "PROBE_TIMEOUT_S"), (pools, "LOOK_TIMEOUT_S")):
        monkeypatch.setattr(module, name, 0.1)
    now = 0.0
    handle = Handle(story(), deaths=[0] * 100)
    worker = pool(handle, retry_timeout_s=0.2)
    await worker.status()
    handle.silent = True
    worker._breaker = CircuitBreaker(
        "the pool", failure_threshold=1, reset_timeout_s=5.0, clock=lambda: now
    )

    async def looks() -> int:
        """How often a call looked for replicas."""
        looked, before = 0, worker._pool.look

        def counted() -> Any:
            nonlocal looked
            looked += 1
            return before()

        monkeypatch.setattr(worker._pool, "look", counted)
        with suppress(WorkerUnavailable):
            await worker.classify(call(), NINE)
        monkeypatch.setattr(worker._pool, "look", before)
        return looked

    assert await looks() > 1
    for _ in range(3):
        assert await looks() == 0
    with pytest.raises(WorkerUnavailable, match="in a row"):
        await collect(worker)
    now = 5.0
    assert await looks() > 0  # one of many tries
    assert await looks() == 0
    handle.silent, handle.replica.deaths = False, []
    assert await looks() == 0
    now = 10.0
    assert await looks() > 0
    assert handle.calls == 2
    assert (await collect(worker))[1].segment.text  # it is there again for all


async def test_a_status_shows_that_a_pool_is_there_again() -> None:
    handle = Handle(story())
    handle.silent = True
    worker = pool(handle, retry_timeout_s=0.1)
    for message in ("no replica answers", "in a row"):
        with pytest.raises(WorkerUnavailable, match=message):
            await collect(worker)
    handle.silent = False
    await worker.status()
    assert (await collect(worker))[1].segment.text


@pytest.mark.parametrize("stream", [True, False])
async def test_a_call_that_fails_shuts_no_pool_in_which_a_replica_answers(stream: bool) -> None:
    handle = Handle(story(), deaths=[0] * 100)
    worker = pool(handle, retry_timeout_s=0.1)
    with pytest.raises(WorkerUnavailable, match="ended"):
        await collect(worker, stream=stream)
    handle.replica.deaths = []
    assert (await collect(worker, stream=stream))[1].segment.text


async def test_an_engine_that_is_dead_is_left_for_another() -> None:
    workers = [story(), story()]
    for one in workers:
        one.failures = {0: WorkerUnavailable("the engine stopped")}
    handle = Handle(*workers)
    assert (await collect(pool(handle)))[1].segment.text
    assert [len(one.got) for one in handle.replicas] in ([2, 1], [1, 2])


async def test_a_full_replica_is_left_for_another() -> None:
    workers = [story(), story()]
    for one in workers:
        one.failures = {0: Overloaded("full")}
    handle = Handle(*workers)
    assert (await collect(pool(handle)))[1].segment.text
    assert [len(one.got) for one in handle.replicas] in ([2, 1], [1, 2])


async def test_a_stream_that_ends_early_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    async def cut(*_: Any, **__: Any) -> Any:
        yield Delta("One ", (1,), ())

    worker = story()
    handle = Handle(worker)
    monkeypatch.setattr(worker, "generate", cut)
    lost: list[int] = []
    with pytest.raises(WorkerUnavailable, match="early"):
        await collect(pool(handle, retry_timeout_s=0.0, on_lost=lambda: lost.append(1)))
    assert len(lost) == 1


async def test_a_pool_that_stays_full_says_so() -> None:
    handle = Handle(story(failures={n: Overloaded("full") for n in range(1000)}))
    lost: list[int] = []
    worker = pool(handle, retry_timeout_s=3.0, on_lost=lambda: lost.append(1))
    with pytest.raises(Overloaded, match="full"):
        await collect(worker)
    assert 10 < handle.calls < 25
    assert not lost
    assert not worker._breaker.is_open


@pytest.mark.parametrize("items", range(3))
async def test_a_silent_replica_is_given_up_and_found_again_after_it_goes_on(items: int) -> None:
    undisturbed = (await collect(pool(Handle(story()))))[1].segment
    handle = Handle(story(delay=0.001), story(delay=0.001))
    worker = pool(handle, retry_timeout_s=60)
    first = await home_of("r1", handle, worker)
    first.freezes_after = items
    began = asyncio.get_running_loop().time()
    assert (await collect(worker))[1].segment == undisturbed
    waited = asyncio.get_running_loop().time() - began
    assert channel.SILENCE_TIMEOUT_S <= waited < channel.SILENCE_TIMEOUT_S + 2
    assert not worker._breaker.is_open
    assert (await collect(worker))[1].segment == undisturbed  # at once, elsewhere
    first.frozen, first.freezes_after = False, 1000
    await until(lambda: not worker._pool._looking or worker._pool._looking.done())
    await asyncio.sleep(pools.LOOK_S)
    await collect(worker)
    await until(lambda: len(worker._pool.connections) == 2)
    asked = len(first.got)
    await collect(worker)
    assert len(first.got) == asked + 1


async def home_of(request: str, handle: Handle, worker: ReplicaWorker) -> Replica:
    await worker.statuses()
    connection = await worker._connection(request, worker._retry())
    return next(one for one in handle.replicas if one.tag == connection.replica)


async def test_a_pool_of_silent_replicas_is_waited_for_as_long_as_a_call_may_be() -> None:
    handle = Handle(story())
    worker = pool(handle, retry_timeout_s=30.0)
    await worker.status()
    handle.replica.frozen = True
    asked = asyncio.create_task(worker.classify(call(), NINE))
    await asyncio.sleep(25)
    assert not asked.done()
    with pytest.raises(WorkerUnavailable, match="no replica answers"):
        await asked
    assert worker._breaker.is_open


async def test_a_caller_that_was_stopped_itself_gives_nobody_up() -> None:
    handle = Handle(story(delay=0.02))
    items = pool(handle).generate(call(), CRITERIA, GREEDY)
    await anext(items)
    rest = asyncio.create_task(_all(items))
    await asyncio.sleep(0)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop.jump(50.0)
    *_, whole = await rest
    assert isinstance(whole, Generation)
    assert handle.calls == 1


async def _all(items: Any) -> list[Any]:
    return [item async for item in items]


async def test_a_slow_answer_is_waited_for() -> None:
    handle = Handle(story(delay=3 * channel.SILENCE_TIMEOUT_S))
    worker = pool(handle, retry_timeout_s=1.0)
    assert (await worker.classify(call(), NINE)).labels
    await collect(worker, StopCriteria(2))
    assert handle.calls == 2
    assert not worker._breaker.is_open


async def test_a_replica_that_stops_when_asked_for_its_status_is_one_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def get_async(self: Any) -> ReplicaStatus:
        raise asyncio.CancelledError

    monkeypatch.setattr(Broadcast, "get_async", get_async)
    assert await pool(Handle(story())).statuses() == []


async def test_a_replica_that_cannot_be_reached_does_not_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def refused(*_: Any) -> Any:
        raise ConnectionRefusedError("refused")

    worker = ReplicaWorker(Handle(story()), connect=refused, retry_timeout_s=1.0)
    with pytest.raises(WorkerUnavailable):
        await worker.status(0.1)
    with pytest.raises(WorkerUnavailable, match="no replica answers"):
        await collect(worker)
    assert (
        "no connection to replica replica 0, replica 0:1: ConnectionRefusedError: refused"
        in caplog.text
    )


async def test_who_waits_for_an_answer_may_hang_up() -> None:
    backend = story(delay=10)
    handle = Handle(backend)
    asked = asyncio.create_task(pool(handle).classify(call(), NINE))
    await until(lambda: backend.live)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    await until(lambda: not backend.live)
    assert handle.replica.cancels == 1


async def test_closing_the_iterator_cancels_the_call() -> None:
    backend = story(delay=0.01)
    handle = Handle(backend)
    items = pool(handle).generate(call(), CRITERIA, GREEDY)
    await anext(items)
    await items.aclose()
    await until(lambda: not backend.live)
    assert handle.replica.cancels == 1


async def test_a_replica_whose_caller_ends_ends_its_calls() -> None:
    backend = story(delay=0.01)
    handle = Handle(backend)
    items = pool(handle).generate(call(), StopCriteria(100), GREEDY)
    await anext(items)
    assert backend.live
    handle.replica._ends[1].close()
    await until(lambda: not backend.live)
    await items.aclose()


async def test_a_fault_of_the_replica_is_not_retried() -> None:
    handle = Handle(story(failures={0: KeyError("x")}))
    with pytest.raises(WorkerError, match="generate failed on the replica: KeyError"):
        await collect(pool(handle))
    assert handle.calls == 1


async def test_no_status_of_a_silent_replica() -> None:
    handle = Handle(story())
    handle.replica.frozen = True
    with pytest.raises(WorkerUnavailable):
        await pool(handle).status(0.1)


async def test_how_often_a_request_found_the_replica_that_knew_it() -> None:
    handle, lost = Handle(story(), story()), list[int]()
    worker = pool(handle, on_lost=lambda: lost.append(1))

    def counted() -> list[int]:
        return [handle.counted(name) for name in ("calls", "later_calls", "affine_calls")]

    async def ask(request: str) -> None:
        await worker.classify(replace(call(), request=request), NINE)

    for request in ("a", "b", "a", "a"):
        await ask(request)
    assert counted() == [4, 2, 2]
    (await home_of("a", handle, worker)).deaths = [0]
    await ask("a")  # lost with its replica, and made on one that does not know it
    assert len(lost) == 1
    assert counted() == [6, 4, 3]  # the call that was lost was counted before

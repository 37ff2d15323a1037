"""The worker over a Serve handle, without Ray: lost replicas, resumed streams, beats."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, RayTaskError
from ray.serve.exceptions import BackPressureError

from orchestrator.errors import (
    ContextLengthExceeded,
    Overloaded,
    WorkerError,
    WorkerUnavailable,
)
from orchestrator.types import (
    Generation,
    LabelQuery,
    Message,
    Sampling,
    Segment,
    StopCriteria,
    Transcript,
)
from orchestrator.worker import Call, Delta
from tests.workers.replica.handles import Handle, Response
from workers import streams as wire
from workers.replica import deployment as replica
from workers.replica.deployment import ReplicaWorker, WorkerReplica
from workers.retry import Breaker
from workers.scripted import Say, Scripted, segment

THOUGHT = "One and two and three.\n\nFour and five.\n\n"
GREEDY = Sampling()


class ScriptedBackend(Scripted):
    tokenizer = SimpleNamespace(hash="words")
    alive = True

    def stats(self) -> dict[str, int]:
        return {"live_rows": self.live, "queued": 0, "rows": 4, "slots": 8}

    def close(self) -> None: ...


def dead() -> ActorDiedError:
    return ActorDiedError()


def story(**more: Any) -> ScriptedBackend:
    return ScriptedBackend(story=(THOUGHT, "5"), **more)


def call(transcript: Transcript | None = None) -> Call:
    return Call("r1", transcript or Transcript((Message("user", "How many?"),)), "large")


async def collect(
    worker: ReplicaWorker, criteria: StopCriteria, **more: Any
) -> tuple[list[Delta], Generation]:
    items = [item async for item in worker.generate(call(), criteria, GREEDY, **more)]
    deltas, last = items[:-1], items[-1]
    assert isinstance(last, Generation)
    assert all(isinstance(delta, Delta) for delta in deltas)
    return deltas, last  # type: ignore[return-value]


@pytest.fixture(autouse=True)
def no_gathering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "GATHER_S", 0.0)


SPAN = StopCriteria(100, until=("\n\n",))


async def test_a_generation_arrives_as_the_worker_made_it() -> None:
    expected = [item async for item in story().generate(call(), SPAN, GREEDY)][-1]
    deltas, whole = await collect(ReplicaWorker(Handle(story(delay=0.001))), SPAN)
    assert whole.segment == expected.segment
    assert "".join(delta.text for delta in deltas) == "One and two and three.\n\n"
    assert len(deltas) > 1


async def test_an_unstreamed_generation_is_one_item() -> None:
    deltas, whole = await collect(ReplicaWorker(Handle(story())), SPAN, stream=False)
    assert deltas == []
    assert whole.segment.text == "One and two and three.\n\n"


@pytest.mark.parametrize("items", range(6))
@pytest.mark.parametrize("criteria", [SPAN, StopCriteria(100), StopCriteria(3)])
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
    assert whole.usage.prompt in (2, 0)  # "How many?", unknown where only the last word was lost
    tries = 2 if items < len(deltas) + 1 else 1  # it may have been over before
    assert handle.sessions == ["r1", "r1/1"][:tries]  # the second call asks another replica


async def test_a_gated_stream_is_gated_once() -> None:
    gated = StopCriteria(100, until=("\n\n",), max_entropy=0.5)
    unsure = ScriptedBackend([Say("one two three", entropy=0.7)])
    assert (await collect(ReplicaWorker(Handle(unsure)), gated))[1].segment.finish == "doubt"

    def surer_at_first(transcript: Transcript, criteria: StopCriteria) -> Say:
        return Say("two three\n\n", entropy=0.7) if transcript.thought else Say("one two three\n\n")

    handle = Handle(ScriptedBackend(surer_at_first, delay=0.001), deaths=[(1, dead())])
    _, whole = await collect(ReplicaWorker(handle), gated)
    assert (whole.segment.text, whole.segment.finish) == ("one two three\n\n", "until")
    assert whole.entropy is None  # its first token was made by a replica that is gone


async def test_a_break_inside_a_delimiter_is_seen() -> None:
    lines = ["ab", "\n", "\n", "cd"]

    class Letters(ScriptedBackend):
        async def generate(self, call: Call, *_: Any, **__: Any) -> Any:  # type: ignore[override]
            for index in range(len(call.transcript.thought), len(lines)):
                yield Delta(lines[index], (index,), (0.0,))
                await asyncio.sleep(0.001)
            yield Generation(Segment("large", "".join(lines), (0, 1, 2, 3), finish="eos"))

    made = Delta("ab\n", (0, 1), (0.0, 0.0))
    thought = tuple(Segment("large", "x") for _ in range(1))  # + what was made: two segments
    transcript = Transcript((Message("user", "?"),), thought)
    items = [
        item
        async for item in wire.resumed(
            Letters().generate, "words", made, call(transcript), SPAN, GREEDY, True
        )
    ]
    assert isinstance(items[-1], Generation)
    assert items[-1].segment.text == "ab\n\n"
    assert items[-1].segment.finish == "until"


@pytest.mark.parametrize(
    ("text", "criteria", "finish"),
    [("a\n\n", SPAN, "until"), ("a b", StopCriteria(2), "length")],
)
async def test_only_the_last_word_was_lost(text: str, criteria: StopCriteria, finish: str) -> None:
    backend = story()
    made = Delta(text, (1, 2), (0.0, 0.0))
    items = [
        item
        async for item in wire.resumed(
            backend.generate, "words", made, call(), criteria, GREEDY, True
        )
    ]
    assert len(items) == 1
    assert isinstance(items[0], Generation)
    assert (items[0].segment.text, items[0].segment.finish) == (text, finish)
    assert backend.calls == []


async def test_a_verification_arrives_with_its_texts() -> None:
    draft = segment("small", "One and a half.", "think_end")
    expected = await story().verify(call(), draft, GREEDY)
    answer = await ReplicaWorker(Handle(story())).verify(call(), draft, GREEDY)
    assert answer == expected
    assert [option.text for option in answer.options[:3]] == ["One ", "and ", "two "]


async def test_a_judgement_is_asked_again() -> None:
    handle = Handle(story(), deaths=[(0, dead()), (0, dead())])
    answer = await ReplicaWorker(handle).classify(call(), LabelQuery((), "", ("8", "9")))
    assert answer.probabilities == (0.0, 1.0)
    assert len(handle.sessions) == 3


async def test_patience_ends() -> None:
    handle = Handle(story(), deaths=[(0, dead())] * 100)
    with pytest.raises(WorkerUnavailable, match="lost"):
        await ReplicaWorker(handle, patience_s=0.2).classify(call(), LabelQuery((), "", ("9",)))


async def test_a_pool_that_is_down_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica, "TRY_S", 0.1)
    now = 0.0
    handle = Handle(story(), deaths=[(0, dead())] * 100)
    worker = ReplicaWorker(handle, patience_s=0.2)
    worker._breaker = Breaker("the pool", limit=1, rest_s=5.0, clock=lambda: now)

    async def asked() -> int:
        """How often the pool was asked for one call."""
        before = len(handle.sessions)
        with suppress(WorkerUnavailable):
            await worker.classify(call(), LabelQuery((), "", ("9",)))
        return len(handle.sessions) - before

    assert await asked() > 1
    for _ in range(3):
        assert await asked() == 0
    with pytest.raises(WorkerUnavailable, match="in a row"):
        await collect(worker, SPAN)
    now = 5.0
    assert await asked() > 0  # one of many tries
    assert await asked() == 0
    handle.deaths.clear()
    assert await asked() == 0
    now = 10.0
    assert await asked() == 1
    assert (await collect(worker, SPAN))[1].segment.text  # it is there again for all
    assert await asked() == 1


async def test_facts_tell_that_a_pool_is_there_again() -> None:
    handle = Handle(story(), deaths=[(0, dead())] * 100)
    worker = ReplicaWorker(handle, patience_s=0.1)
    with pytest.raises(WorkerUnavailable, match="lost"):
        await collect(worker, SPAN)
    handle.deaths.clear()
    await worker.facts()
    assert (await collect(worker, SPAN))[1].segment.text


async def test_an_engine_that_is_dead_is_left_for_another() -> None:
    backend = story(failures={0: WorkerUnavailable("the engine stopped")})
    handle = Handle(backend)
    assert (await collect(ReplicaWorker(handle), SPAN))[1].segment.text
    assert handle.sessions == ["r1", "r1/1"]


async def test_a_silent_replica_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica, "SILENCE_S", 0.05)
    monkeypatch.setattr(wire, "BEAT_S", 1000.0)
    slow = story(delay=0.2)
    with pytest.raises(WorkerUnavailable):
        await collect(ReplicaWorker(Handle(slow), patience_s=0.3), SPAN)


async def test_beats_keep_a_slow_call_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica, "SILENCE_S", 0.1)
    monkeypatch.setattr(wire, "BEAT_S", 0.02)
    handle = Handle(story(delay=0.3))
    await ReplicaWorker(handle).classify(call(), LabelQuery((), "", ("9",)))
    assert len(handle.sessions) == 1


async def test_errors_are_the_workers_own() -> None:
    with pytest.raises(ContextLengthExceeded) as info:
        await collect(ReplicaWorker(Handle(story(context=1))), SPAN)
    assert info.value.param == "messages"


async def test_a_full_pool_is_overloaded() -> None:
    handle = Handle(story(), deaths=[(0, BackPressureError(1, 1))])
    with pytest.raises(Overloaded):
        await collect(ReplicaWorker(handle), SPAN)


async def test_a_bug_on_the_replica_is_not_retried() -> None:
    bug = RayTaskError("exchange", "Traceback ...", KeyError("x")).as_instanceof_cause()
    handle = Handle(story(), deaths=[(0, bug)])
    with pytest.raises(WorkerError, match="KeyError"):
        await collect(ReplicaWorker(handle), SPAN)
    assert len(handle.sessions) == 1


async def test_closing_the_iterator_cancels_the_call() -> None:
    handle = Handle(story(delay=0.01))
    items = ReplicaWorker(handle).generate(call(), SPAN, GREEDY)
    await anext(items)
    await items.aclose()
    (response,) = handle.responses
    assert response.cancelled is not None
    await response.cancelled
    assert handle.backend.live == 0


async def test_closing_an_exchange_frees_the_worker() -> None:
    backend = story(delay=0.01)
    exchange = WorkerReplica(lambda: backend).exchange(
        "generate", "r1", False, Delta("", ()), call(), SPAN, GREEDY, True
    )
    await anext(exchange)
    assert backend.live == 1
    await exchange.aclose()
    assert backend.live == 0


async def test_facts() -> None:
    stats = (await ReplicaWorker(Handle(story())).facts()).stats
    assert stats == {
        "live_rows": 0,
        "queued": 0,
        "rows": 4,
        "slots": 8,
        "calls": 0,
        "later_calls": 0,
        "affine_calls": 0,
        "prefixes": 0,
    }
    with pytest.raises(WorkerUnavailable):
        await ReplicaWorker(Handle(story(), deaths=[(0, dead())])).facts(0.1)


async def test_an_engine_that_makes_no_progress_is_ill(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("workers.replica.deployment.time.monotonic", lambda: now)
    backend = story()
    one = WorkerReplica(lambda: backend)
    for _ in range(3):  # idle is healthy
        await one.check_health()
        now += replica.STUCK_S
    backend.live = 1
    await one.check_health()
    now += replica.STUCK_S - 1
    await one.check_health()
    now += 2
    with pytest.raises(WorkerUnavailable):
        await one.check_health()
    backend.live = 2  # it moves again
    await one.check_health()


@dataclass
class Pool(Handle):
    """Several replicas, each for the requests that `home` names; retries go to the next."""

    replicas: list[WorkerReplica] = field(default_factory=list)
    home: dict[str, int] = field(default_factory=dict)

    def options(self, *, session_id: str, **_: Any) -> Pool:
        request, _, tries = session_id.partition("/")
        self.chosen = (self.home[request] + int(tries or 0)) % len(self.replicas)
        return self

    def remote(self, *args: Any) -> Response:
        dies = self.deaths.pop(0) if self.deaths else None
        return Response(self.replicas[self.chosen].exchange(*args), dies)

    def counted(self, name: str) -> int:
        return sum(one.stats()[name] for one in self.replicas)


async def test_how_often_a_request_found_the_replica_that_knew_it() -> None:
    backends = [story(), story()]
    pool = Pool(
        backends[0],
        replicas=[WorkerReplica(lambda one=one: one) for one in backends],  # type: ignore[misc]
        home={"a": 0, "b": 1},
    )
    lost = []
    worker = ReplicaWorker(pool, on_lost=lambda: lost.append(1))
    transcript = Transcript((Message("user", "How many?"),))

    async def ask(request: str) -> None:
        await worker.classify(Call(request, transcript, "large"), LabelQuery((), "", ("9",)))

    for request in ("a", "b", "a", "a"):
        await ask(request)
    assert (pool.counted("calls"), pool.counted("later_calls")) == (4, 2)
    assert pool.counted("affine_calls") == 2
    pool.home["a"] = 1  # another replica, which has not seen it
    await ask("a")
    assert (pool.counted("later_calls"), pool.counted("affine_calls")) == (3, 2)
    pool.deaths = [(0, dead())]
    await ask("b")  # lost with its replica, and asked of one that does not know it
    assert (pool.counted("calls"), len(lost)) == (6, 1)
    assert (pool.counted("later_calls"), pool.counted("affine_calls")) == (4, 2)


def test_who_called_lately(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("workers.replica.deployment.time.monotonic", lambda: now)
    monkeypatch.setattr(replica, "REMEMBERED", 3)
    callers = replica.Callers()
    assert [callers.note(request) for request in "aba"] == [False, False, True]
    assert callers.recent() == 2
    now += replica.RECENT_S - 1
    assert not callers.note("c")
    assert callers.recent() == 3
    now += 1.0
    assert callers.recent() == 1
    assert not callers.note("d")  # and b, the longest silent, is forgotten
    assert not callers.note("b")
    assert callers.note("c")


def test_how_full_a_replica_is() -> None:
    backend = story()
    one = WorkerReplica(lambda: backend)
    assert one.record_autoscaling_stats() == {"load": 0.0}
    backend.live = 2  # of four rows
    assert one.record_autoscaling_stats() == {"load": 0.5}
    for request in "abcdefgh":  # eight prefixes for eight slots
        one._callers.note(request)
    assert one.record_autoscaling_stats() == {"load": 1.0}
    backend.live = 6
    assert one.record_autoscaling_stats() == {"load": 1.5}


async def test_counters_are_reported_with_every_check_and_every_question() -> None:
    told: list[Any] = []
    backend = story()
    one = WorkerReplica(lambda: backend, lambda: told.append)
    await one.check_health()
    assert one._reporting is not None
    await one._reporting
    assert [stats["calls"] for stats in told] == [0]
    _ = [
        item
        async for item in one.exchange("classify", "r", False, call(), LabelQuery((), "", ("9",)))
    ]
    assert (await one.reported_facts()).stats == told[-1]
    assert told[-1]["calls"] == 1

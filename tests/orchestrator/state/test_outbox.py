"""What waits for the store: carried in order, within a bound, counted when lost."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from prometheus_client import CollectorRegistry

from orchestrator.errors import InvalidRequest, StoreUnavailable
from orchestrator.state.memory import MemoryStore
from orchestrator.state.outbox import Outbox
from tests.orchestrator.waiting import until


class Moody(MemoryStore):
    """A store that can be away, or have a stream that nobody can write to."""

    def __init__(self) -> None:
        super().__init__()
        self.away, self.broken = False, ""
        self.failure: Exception = StoreUnavailable("away")

    async def append(self, stream: str, events: Sequence[bytes], *, keep: int) -> None:
        if self.away or stream == self.broken:
            raise self.failure
        await super().append(stream, events, keep=keep)

    async def put(self, name: str, value: bytes, *, ttl_s: float) -> None:
        if self.away:
            raise StoreUnavailable("away")
        await super().put(name, value, ttl_s=ttl_s)


class Subject:
    def __init__(self, **bound: int) -> None:
        self.registry, self.store = CollectorRegistry(), Moody()
        self.outbox = Outbox(self.store, self.registry, **bound)

    def sample(self, name: str, kind: str) -> float:
        value = self.registry.get_sample_value(name, {"kind": kind})
        assert value is not None
        return value

    async def numbers(self, stream: str = "s") -> list[int]:
        return [json.loads(entry.event)["n"] for entry in await self.store.read(stream)]


async def test_events_and_values_arrive() -> None:
    subject = Subject()
    await subject.outbox.start()
    for n in range(1200):
        subject.outbox.event("s", {"n": n})
    subject.outbox.put("trace/a", b"x", ttl_s=60)
    assert await subject.outbox.get("trace/a") == b"x"  # before it has gone anywhere
    await until(lambda: subject.sample("baton_store_waiting", "value") == 0)
    entries = await subject.store.read("s", count=2000)
    assert [json.loads(entry.event)["n"] for entry in entries] == list(range(1200))
    assert await subject.store.get("trace/a") == await subject.outbox.get("trace/a") == b"x"
    assert await subject.outbox.get("trace/b") is None
    await subject.outbox.stop()


@pytest.mark.parametrize("failure", [StoreUnavailable("away"), RuntimeError("a router's")])
async def test_a_store_that_is_away_for_a_while_costs_nothing(failure: Exception) -> None:
    subject = Subject()
    subject.store.away, subject.store.failure = True, failure
    await subject.outbox.start()
    for n in range(20):
        subject.outbox.event("s", {"n": n})
    subject.outbox.put("trace/a", b"x", ttl_s=60)
    await until(lambda: subject.outbox.error)
    assert subject.sample("baton_store_waiting", "event") == 20
    assert await subject.outbox.get("trace/a") == b"x"
    subject.store.away = False
    await until(lambda: subject.outbox.error is None)
    assert await subject.numbers() == list(range(20))
    assert subject.sample("baton_store_lost_total", "event") == 0
    await subject.outbox.stop()


async def test_events_of_all_streams_together_have_so_many_bytes() -> None:
    subject = Subject(size=100)
    subject.store.away = True
    for n in range(8):
        for stream in ("s", "s", "t"):
            subject.outbox.event(stream, {"n": n})  # of seven bytes
    assert subject.sample("baton_store_waiting", "event") == 14
    assert subject.sample("baton_store_lost_total", "event") == 10
    subject.store.away = False
    await subject.outbox.flush()
    assert (await subject.numbers("s"))[-1] == (await subject.numbers("t"))[-1] == 7
    for n in range(13):  # what was sent takes no room
        subject.outbox.event("s", {"n": n})
    assert subject.sample("baton_store_lost_total", "event") == 10


async def test_what_finds_no_room_is_counted_and_the_newest_stays() -> None:
    subject = Subject(size=70)
    subject.store.away = True
    for n in range(8):
        subject.outbox.event("s", {"n": n})
        subject.outbox.event("t", {"n": n})
    for name in ("a", "b", "c", "c"):
        subject.outbox.put(name, bytes(20), ttl_s=60)
    subject.outbox.put("d", bytes(40), ttl_s=60)
    assert subject.sample("baton_store_lost_total", "event") == 6
    assert subject.sample("baton_store_lost_total", "value") == 2
    assert subject.sample("baton_store_waiting", "event") == 10
    with pytest.raises(StoreUnavailable):
        await subject.outbox.flush()
    subject.store.away = False
    await subject.outbox.flush()
    assert await subject.numbers("s") == await subject.numbers("t") == [3, 4, 5, 6, 7]
    assert [await subject.store.get(name) for name in "abcd"] == [None, None, bytes(20), bytes(40)]
    assert subject.sample("baton_store_waiting", "event") == 0


async def test_a_stream_that_cannot_be_written_to_holds_up_no_other() -> None:
    subject = Subject()
    subject.store.broken = "a"
    for n in range(3):
        subject.outbox.event("a", {"n": n})
        subject.outbox.event("b", {"n": n})
    subject.outbox.put("trace/a", b"x", ttl_s=60)
    with pytest.raises(StoreUnavailable):
        await subject.outbox.flush()
    assert await subject.numbers("b") == [0, 1, 2]
    assert subject.sample("baton_store_waiting", "event") == 3
    assert await subject.store.get("trace/a") == b"x"


async def test_stopping_carries_what_is_left() -> None:
    subject = Subject()
    subject.store.away = True
    await subject.outbox.start()
    subject.outbox.event("s", {"n": 1})
    await until(lambda: subject.outbox.error)
    subject.store.away = False
    await subject.outbox.stop()
    assert await subject.numbers() == [1]


def test_what_no_store_would_take_is_told_at_once() -> None:
    with pytest.raises(InvalidRequest):
        Subject().outbox.event("s", {"text": "x" * 100_000})

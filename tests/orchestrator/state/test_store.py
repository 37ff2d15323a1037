"""The store's port, held against every store there is."""

from __future__ import annotations

import asyncio

import pytest

from orchestrator.errors import Conflict, InvalidRequest
from orchestrator.state import memory
from orchestrator.state.memory import MemoryStore
from orchestrator.state.store import (
    AUDIT,
    DOCUMENT_BYTES,
    Commit,
    Store,
    StoreState,
    StreamEntry,
)
from tests.orchestrator.commits import commit
from tests.orchestrator.conftest import Open


async def test_an_empty_store_has_no_revision(store: Store) -> None:
    assert await store.state() == StoreState("", {})
    assert await store.documents(["policy/a/1"]) == [None]
    assert await store.documents([]) == []
    assert await store.read("events") == await store.newest("events", 5) == []
    assert await store.get("value") is None


async def test_a_commit_is_seen_whole_by_everybody(opened: Open) -> None:
    one, other = opened(), opened()
    documents = {"policy/a/1": b"{}", "policy/b/1": b"\x00\xff"}
    made = await commit(one, {"active": b"a@1", "latest/a": b"1"}, documents, b"first")
    assert await other.state() == StoreState(made, {"active": b"a@1", "latest/a": b"1"})
    names = ["policy/b/1", "none", "policy/a/1"]
    assert await other.documents(names) == [b"\x00\xff", None, b"{}"]
    assert [entry.event for entry in await other.read(AUDIT)] == [b"first"]


async def test_every_commit_has_a_revision_of_its_own(store: Store) -> None:
    made = [await commit(store) for _ in range(5)]
    assert len(set(made)) == 5
    assert (await store.state()).revision == made[-1]


async def test_a_document_is_never_written_again(store: Store) -> None:
    await commit(store, create={"policy/a/1": b"old"})
    before = await store.state()
    documents = {"policy/a/2": b"x", "policy/a/1": b"new"}
    with pytest.raises(Conflict, match="policy/a/1"):
        await commit(store, {"active": b"a@1"}, documents)
    assert await store.state() == before
    assert await store.documents(["policy/a/1", "policy/a/2"]) == [b"old", None]
    assert len(await store.read(AUDIT)) == 1


async def test_nobody_changes_what_they_have_not_seen(store: Store) -> None:
    seen = ["", await commit(store, {"active": b"a@1"}), "another", "\xff"]
    await commit(store, {"active": b"a@2"})
    before = await store.state()
    for known in seen:
        with pytest.raises(Conflict, match="changed by another"):
            await store.commit(known, Commit(b"", {"active": b"a@3"}, {"policy/a/3": b"x"}))
    assert await store.state() == before
    assert await store.documents(["policy/a/3"]) == [None]


async def test_an_empty_pointer_is_removed(store: Store) -> None:
    await commit(store, {"active": b"a@1", "latest/a": b"1"})
    await commit(store, {"active": b"", "never": b""})
    assert (await store.state()).pointers == {"latest/a": b"1"}


async def test_of_many_who_want_the_same_version_one_gets_it(opened: Open) -> None:
    async def publish(store: Store, author: int) -> bool:
        pointers, audit = {"latest/a": b"%d" % author}, b"%d" % author
        try:
            await store.commit("", Commit(audit, pointers, {"policy/a/1": audit}))
        except Conflict:
            return False
        return True

    stores = [opened() for _ in range(8)]
    won = await asyncio.gather(*(publish(store, n) for n, store in enumerate(stores)))
    assert sum(won) == 1
    winner = b"%d" % won.index(True)
    assert (await stores[0].state()).pointers == {"latest/a": winner}
    assert await stores[0].documents(["policy/a/1"]) == [winner]
    assert [entry.event for entry in await stores[0].read(AUDIT)] == [winner]


async def test_pointers_that_move_together_are_seen_together(opened: Open) -> None:
    writer, readers = opened(), [opened() for _ in range(3)]
    names = [f"p{n}" for n in range(5)]
    done = asyncio.Event()

    async def look(store: Store) -> int:
        seen = set()
        while not done.is_set():
            await asyncio.sleep(0)
            state = await store.state()
            assert len(set(state.pointers.values())) <= 1
            seen.add(state.revision)
        return len(seen)

    looking = [asyncio.create_task(look(store)) for store in readers]
    for number in range(200):
        await commit(writer, dict.fromkeys(names, b"%d" % number))
        await asyncio.sleep(0)
    done.set()
    assert all(seen > 1 for seen in await asyncio.gather(*looking))


async def test_events_come_back_in_order_and_in_pages(opened: Open) -> None:
    writer, reader = opened(), opened()
    await writer.append("events", [b"%d" % n for n in range(5)], keep=100)
    await writer.append("events", [], keep=100)
    await writer.append("events", [b"5", b"6"], keep=100)
    page = await reader.read("events", count=3)
    assert [entry.event for entry in page] == [b"0", b"1", b"2"]
    rest = await reader.read("events", after=page[-1].at)
    assert [entry.event for entry in rest] == [b"3", b"4", b"5", b"6"]
    assert await reader.read("events", after=rest[-1].at) == []
    assert [entry.event for entry in await reader.newest("events", 2)] == [b"6", b"5"]
    assert await reader.read("others") == []


async def test_a_stream_keeps_its_newest(store: Store) -> None:
    for start in range(0, 5000, 500):
        await store.append("events", [b"%d" % n for n in range(start, start + 500)], keep=1000)
    found: list[StreamEntry] = []
    while page := await store.read("events", after=found[-1].at if found else "", count=700):
        found += page
    numbers = [int(entry.event) for entry in found]
    assert numbers == list(range(5000 - len(numbers), 5000))
    assert 1000 <= len(numbers) <= 1200


async def test_a_dropped_stream_is_empty(opened: Open) -> None:
    store, other = opened(), opened()
    for stream in ("a", "b", "c"):
        await store.append(stream, [b"0", b"1"], keep=10)
    (last,) = await other.newest("a", 1)
    await other.drop("a", "c", "never")
    await other.drop()
    assert await store.read("a") == await store.newest("c", 5) == []
    assert [entry.event for entry in await store.read("b")] == [b"0", b"1"]
    await store.append("a", [b"late"], keep=10)  # behind all positions that readers know
    assert [entry.event for entry in await store.read("a", after=last.at)] == [b"late"]


async def test_memory_finds_its_place_without_a_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    looked, position = 0, memory._position

    def counted(at: str) -> tuple[int, int]:
        nonlocal looked
        looked += 1
        return position(at)

    monkeypatch.setattr(memory, "_position", counted)
    store, at, events = MemoryStore(), "", []
    await store.append("events", [b"%d" % n for n in range(10_000)], keep=10_000)
    while page := await store.read("events", after=at, count=100):
        events += [entry.event for entry in page]
        at = page[-1].at
    assert events == [b"%d" % n for n in range(10_000)]
    assert looked <= 101 * 16  # 101 reads, each of them a search among 10,000


async def test_values_end_with_their_time(store: Store) -> None:
    await store.put("trace/a", b"old", ttl_s=60)
    await store.put("trace/a", b"new", ttl_s=60)
    await store.put("trace/b", b"x" * (DOCUMENT_BYTES + 1), ttl_s=0.05)
    assert await store.get("trace/a") == b"new"
    await asyncio.sleep(0.1)
    assert await store.get("trace/b") is None
    assert await store.get("trace/a") == b"new"


def test_documents_and_pointers_have_a_size() -> None:
    large = b"x" * (DOCUMENT_BYTES + 1)
    for parts in ((large,), (b"", {"a": large}), (b"", {}, {"a": large})):
        with pytest.raises(InvalidRequest, match="too many"):
            Commit(*parts)  # type: ignore[arg-type]
    Commit(b"", {}, {"a": large[1:]})


async def test_memory_holds_no_more_values_than_it_may() -> None:
    now = [0.0]
    store = MemoryStore(count=3, size=10, clock=lambda: now[0])
    for name, value in (("a", b"1"), ("b", b"2"), ("c", b"3"), ("d", b"4")):
        await store.put(name, value, ttl_s=9)
    assert [await store.get(name) for name in "abcd"] == [None, b"2", b"3", b"4"]
    await store.put("e", b"x" * 9, ttl_s=9)
    assert [await store.get(name) for name in "cde"] == [None, b"4", b"x" * 9]
    now[0] = 9.0
    assert await store.get("e") is None

"""Sums that no death makes smaller, whoever reads them and whenever."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import pytest

from deploy.telemetry.ledger import DEAD_S, REFRESH_S, Ledger, Series

ASKED: Series = ("asked_total", (("worker", "large"),))


class Memory:
    """A store in this process; `on_call` may raise, or do something in between."""

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}
        self.on_call: Any = lambda name, key: None

    def get(self, key: str) -> bytes | None:
        self.on_call("get", key)
        return self.data.get(key)

    def put(self, key: str, value: bytes, *, overwrite: bool = True) -> bool:
        self.on_call("put", key)
        before = key in self.data
        if overwrite or not before:
            self.data[key] = value
        return before

    def delete(self, key: str) -> None:
        self.on_call("delete", key)
        self.data.pop(key, None)

    def keys(self, prefix: str) -> list[str]:
        self.on_call("keys", prefix)
        return [key for key in self.data if key.startswith(prefix)]


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def store() -> Memory:
    return Memory()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_sum_over_replicas(store: Memory, clock: Clock) -> None:
    one, two = (Ledger(store, "baton", now=clock) for _ in range(2))
    other: Series = ("other_sum", ())
    one.write("a", {ASKED: 3.0, other: 0.5})
    two.write("b", {ASKED: 4.0})
    one.write("a", {ASKED: 5.0, other: 0.5})
    assert one.total() == two.total() == {ASKED: 9.0, other: 0.5}
    assert Ledger(store, "another", now=clock).total() == {}


def test_nobody_is_forgotten_when_the_long_dead_are_folded(store: Memory, clock: Clock) -> None:
    ledger = Ledger(store, "baton", now=clock)
    for name in "abc":
        ledger.write(name, {ASKED: 2.0})
    clock.now += DEAD_S + REFRESH_S
    ledger.write("d", {ASKED: 1.0})
    for _ in range(3):
        assert ledger.total() == {ASKED: 7.0}
    assert len(store.data) == 2  # d's page, and one for the three
    clock.now += DEAD_S + REFRESH_S
    for _ in range(3):
        assert ledger.total() == {ASKED: 7.0}
    assert len(store.data) == 1


@pytest.mark.parametrize("calls", range(1, 22))
def test_folding_may_break_off_anywhere(store: Memory, clock: Clock, calls: int) -> None:
    ledger, left = Ledger(store, "baton", now=clock), calls
    for name in "abc":
        ledger.write(name, {ASKED: 2.0})
    clock.now += DEAD_S + REFRESH_S

    def die(name: str, key: str) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise ConnectionError

    store.on_call = die
    with suppress(ConnectionError):
        ledger.total()
    store.on_call = lambda name, key: None
    assert left <= 0 or calls > 15  # the whole takes so many
    store.data.pop("baton/lock", None) if calls % 2 else None  # released by its holder, or not
    for _ in range(4):
        assert ledger.total() == {ASKED: 6.0}
        clock.now += DEAD_S + REFRESH_S
    assert set(store.data) == {"baton/gone"}


@pytest.mark.parametrize("start", range(14))
def test_a_reader_beside_a_folding_one_sees_the_same_sum(
    store: Memory, clock: Clock, start: int
) -> None:
    """From some call on, the other reads the whole before every call that the one makes."""
    one, two = (Ledger(store, "baton", now=clock) for _ in range(2))
    for name in "abc":
        one.write(name, {ASKED: 2.0})
    clock.now += DEAD_S + REFRESH_S
    seen, calls = [], 0

    def look(name: str, key: str) -> None:
        nonlocal calls
        calls += 1
        if calls > start:
            store.on_call = lambda name, key: None
            seen.append(two.total())
            store.on_call = look

    store.on_call = look
    assert one.total() == {ASKED: 6.0}
    assert seen
    assert all(total == {ASKED: 6.0} for total in seen)
    store.on_call = lambda name, key: None
    assert one.total() == two.total() == {ASKED: 6.0}


def test_it_never_falls(store: Memory, clock: Clock) -> None:
    """Replicas come, count, fall silent, and anybody reads, in any order."""
    chance, counts, last = random.Random(0), dict[str, float](), 0.0
    ledgers = [Ledger(store, "baton", now=clock) for _ in range(3)]
    for turn in range(2000):
        clock.now += chance.expovariate(1 / 200)
        match chance.randrange(5):
            case 0 if len(counts) < 6:
                counts[f"r{turn}"] = 0.0
            case 1 if counts:
                counts.pop(chance.choice(list(counts)))
            case 2:
                total = chance.choice(ledgers).total().get(ASKED, 0.0)
                assert total >= last
                last = total
            case _:
                for name in counts:
                    counts[name] += chance.randrange(3)
                    chance.choice(ledgers).write(name, {ASKED: counts[name]})
    assert last > 1000
    assert len(store.data) < 30

"""The store in one process's memory: gone when that process is.

One event loop runs it, and no method gives way between reading and writing, so every call is
atomic. Several replicas share one by way of a deployment of their own (`deploy/service/stores.py`).
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from time import monotonic

from orchestrator.errors import Conflict
from orchestrator.state.store import AUDIT, AUDITED, Entry, Move, State, check, check_commit


class MemoryStore:
    """A `Store` of which values take at most `count` places and `size` bytes; the oldest go."""

    def __init__(
        self,
        *,
        count: int = 1000,
        size: int = 64 << 20,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._documents: dict[str, bytes] = {}
        self._pointers: dict[str, bytes] = {}
        self._identity, self._commits = secrets.token_hex(8), 0
        self._streams: dict[str, deque[Entry]] = defaultdict(deque)
        self._places = 0
        self._totals: dict[str, dict[str, float]] = {}
        self._values: OrderedDict[str, tuple[float, bytes]] = OrderedDict()
        self._count, self._size, self._held = count, size, 0
        self._clock = clock
        self._news = asyncio.Event()

    async def commit(
        self,
        *,
        create: Mapping[str, bytes] | None = None,
        move: Sequence[Move] = (),
        audit: bytes,
    ) -> str:
        create = create or {}
        check_commit(create, move, audit)
        for name in create:
            if name in self._documents:
                raise Conflict(f"{name} exists")
        for one in move:
            if self._pointers.get(one.pointer) != one.seen:
                raise Conflict(f"{one.pointer} has been changed by somebody else")
        self._add(AUDIT, [audit], AUDITED)
        self._documents |= create
        for one in move:
            self._pointers.pop(one.pointer, None)
            if one.new is not None:
                self._pointers[one.pointer] = one.new
        self._commits += 1
        self._news.set()
        self._news = asyncio.Event()
        return self._revision

    @property
    def _revision(self) -> str:
        return f"{self._identity}:{self._commits}" if self._commits else ""

    async def state(self, known: str | None = None) -> State | None:
        if known == self._revision:
            return None
        return State(self._revision, dict(self._pointers))

    async def documents(self, names: Sequence[str]) -> list[bytes | None]:
        check(*names)
        return [self._documents.get(name) for name in names]

    async def changed(self, known: str, patience_s: float) -> None:
        if known == self._revision:
            with suppress(TimeoutError):
                async with asyncio.timeout(patience_s):
                    await self._news.wait()

    async def append(self, stream: str, events: Sequence[bytes], *, keep: int) -> None:
        check(stream, values=events)
        self._add(stream, events, keep)

    def _add(self, stream: str, events: Sequence[bytes], keep: int) -> None:
        entries = self._streams[stream]
        for event in events:
            self._places += 1
            entries.append(Entry(f"{self._places}-0", event))
        while len(entries) > keep:
            entries.popleft()

    async def read(self, stream: str, *, after: str = "", count: int = 1000) -> list[Entry]:
        check(stream)
        entries, place = self._streams.get(stream, deque()), _place(after)
        # From the end, since a reader that comes again and again has seen most of it.
        unseen = 0
        for entry in reversed(entries):
            if _place(entry.at) <= place:
                break
            unseen += 1
        start = len(entries) - unseen
        return list(islice(entries, start, start + count))

    async def newest(self, stream: str, count: int) -> list[Entry]:
        check(stream)
        return list(islice(reversed(self._streams.get(stream, deque())), count))

    async def add(self, total: str, amounts: Mapping[str, float]) -> None:
        check(total, *amounts)
        fields = self._totals.setdefault(total, {})
        for name, amount in amounts.items():
            fields[name] = fields.get(name, 0.0) + amount

    async def totals(self, total: str) -> dict[str, float]:
        check(total)
        return dict(self._totals.get(total, {}))

    async def put(self, name: str, value: bytes, *, ttl_s: float) -> None:
        check(name)
        self._drop(name)
        self._values[name] = (self._clock() + ttl_s, value)
        self._held += len(value)
        while len(self._values) > self._count or self._held > self._size:
            self._drop(next(iter(self._values)))

    async def get(self, name: str) -> bytes | None:
        check(name)
        until, value = self._values.get(name, (0.0, b""))
        if self._clock() < until:
            return value
        self._drop(name)
        return None

    def _drop(self, name: str) -> None:
        self._held -= len(self._values.pop(name, (0.0, b""))[1])

    async def aclose(self) -> None:
        """Nothing is open."""


def _place(at: str) -> tuple[int, int]:
    time, _, number = at.partition("-")
    return int(time or 0), int(number or 0)

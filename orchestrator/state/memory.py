"""The store in one process's memory: lost when that process ends.

One event loop runs it, and no method awaits between reading and writing, so every call is atomic.
Replicas share one through a separate deployment (`deploy/service/stores.py`).
"""

from __future__ import annotations

import secrets
from bisect import bisect_right
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from itertools import islice
from time import monotonic, time

from orchestrator.errors import Conflict
from orchestrator.state.store import AUDIT, AUDIT_ENTRIES, Commit, StoreState, StreamEntry


class MemoryStore:
    """A `Store` with at most `count` values of `size` bytes together; the oldest are evicted."""

    def __init__(
        self,
        *,
        count: int = 1000,
        size: int = 64 << 20,
        clock: Callable[[], float] = monotonic,
        wall_clock: Callable[[], float] = time,
    ) -> None:
        self._documents: dict[str, bytes] = {}
        self._pointers: dict[str, bytes] = {}
        self._identity, self._commits = secrets.token_hex(8), 0
        self._streams: dict[str, list[StreamEntry]] = defaultdict(list)
        self._wall_clock, self._last_ms, self._last_number = wall_clock, 0, 0
        self._values: OrderedDict[str, tuple[float, bytes]] = OrderedDict()
        self._count, self._size, self._bytes = count, size, 0
        self._clock = clock

    async def commit(self, known: str, commit: Commit) -> str:
        if known != self._revision:
            raise Conflict("the configuration was changed by another client")
        for name in commit.create:
            if name in self._documents:
                raise Conflict(f"{name} exists")
        self._add(AUDIT, [commit.audit], AUDIT_ENTRIES)
        self._documents |= commit.create
        pointers = {**self._pointers, **commit.pointers}
        self._pointers = {name: value for name, value in pointers.items() if value}
        self._commits += 1
        return self._revision

    @property
    def _revision(self) -> str:
        return f"{self._identity}:{self._commits}" if self._commits else ""

    async def state(self) -> StoreState:
        return StoreState(self._revision, dict(self._pointers))

    async def documents(self, names: Sequence[str]) -> list[bytes | None]:
        return [self._documents.get(name) for name in names]

    async def append(self, stream: str, events: Sequence[bytes], *, keep: int) -> None:
        self._add(stream, events, keep)

    def _add(self, stream: str, events: Sequence[bytes], keep: int) -> None:
        entries = self._streams[stream]
        now_ms = self._now_ms()
        for event in events:
            self._last_number += 1
            entries.append(StreamEntry(f"{now_ms}-{self._last_number}", event))
        if len(entries) > keep + keep // 8:  # in batches: a deletion moves all others up
            del entries[: len(entries) - keep]

    async def read(self, stream: str, *, after: str = "", count: int = 1000) -> list[StreamEntry]:
        entries = self._streams.get(stream, [])
        start = bisect_right(entries, _position(after), key=lambda entry: _position(entry.at))
        return entries[start : start + count]

    async def newest(self, stream: str, count: int) -> list[StreamEntry]:
        return list(islice(reversed(self._streams.get(stream, [])), count))

    async def drop(self, *streams: str) -> None:
        for stream in streams:
            self._streams.pop(stream, None)

    async def time(self) -> float:
        return self._now_ms() / 1000

    def _now_ms(self) -> int:
        self._last_ms = max(self._last_ms, int(self._wall_clock() * 1000))
        return self._last_ms

    async def put(self, name: str, value: bytes, *, ttl_s: float) -> None:
        self._drop(name)
        self._values[name] = (self._clock() + ttl_s, value)
        self._bytes += len(value)
        while len(self._values) > self._count or self._bytes > self._size:
            self._drop(next(iter(self._values)))

    async def get(self, name: str) -> bytes | None:
        expires, value = self._values.get(name, (0.0, b""))
        if self._clock() < expires:
            return value
        self._drop(name)
        return None

    def _drop(self, name: str) -> None:
        self._bytes -= len(self._values.pop(name, (0.0, b""))[1])

    async def aclose(self) -> None:
        """Nothing to close."""


def _position(at: str) -> tuple[int, int]:
    ms, _, number = at.partition("-")
    return int(ms or 0), int(number or 0)

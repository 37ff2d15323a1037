"""Finished requests, kept for a while so that users can look at what happened.

A record is bytes of JSON: what Redis would hold, and what `GET /v1/traces/{id}` sends as it is.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol


class TraceStore(Protocol):
    """Where records go. Losing one is no error; neither call may take longer than a moment."""

    async def put(self, trace_id: str, record: bytes) -> None: ...

    async def get(self, trace_id: str) -> bytes | None: ...


class MemoryTraces:
    """The records used last, in this process: at most `count` of them and `size` bytes."""

    def __init__(self, count: int = 1000, size: int = 64 << 20) -> None:
        self._records: OrderedDict[str, bytes] = OrderedDict()
        self._count, self._size, self._held = count, size, 0

    async def put(self, trace_id: str, record: bytes) -> None:
        self._held += len(record) - len(self._records.pop(trace_id, b""))
        self._records[trace_id] = record
        while len(self._records) > self._count or self._held > self._size:
            _, dropped = self._records.popitem(last=False)
            self._held -= len(dropped)

    async def get(self, trace_id: str) -> bytes | None:
        record = self._records.get(trace_id)
        if record is not None:
            self._records.move_to_end(trace_id)
        return record

"""The outbox: writes to the store that requests do not wait for.

A request adds an event or a value and continues; one task sends them to the store. They wait here
while the store is down; if they are too many, the oldest are dropped and counted.
"""

from __future__ import annotations

import asyncio
import collections
import json
import logging
from collections import OrderedDict, deque
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from orchestrator.background import Background
from orchestrator.errors import StoreError, describe
from orchestrator.state.store import Store, check_size

log = logging.getLogger(__name__)

BATCH: Final = 500  # events sent at once
RETRY_S: Final = 0.5
FLUSH_S: Final = 2.0  # seconds to send the rest when the service stops
EVENTS_KEPT: Final = 100_000
"""The newest events, which a stream keeps."""


class Outbox(Background):
    """One replica's writes to the store.

    At most `events` wait per stream, of `event_size` bytes in all streams together, and `values`
    values of `size` bytes together. `error`: why they wait; None while the store takes them.
    """

    def __init__(
        self,
        store: Store,
        registry: CollectorRegistry,
        *,
        events: int = 10_000,
        values: int = 1000,
        size: int = 64 << 20,
        event_size: int = 64 << 20,
    ) -> None:
        self._store = store
        self._events: dict[str, deque[bytes]] = {}
        self._kept: dict[str, int] = {}  # by stream
        self._values: OrderedDict[str, tuple[bytes, float]] = OrderedDict()
        self._max_events, self._max_values, self._max_bytes = events, values, size
        self._bytes = 0
        self._event_bytes: collections.Counter[str] = collections.Counter()  # by stream
        self._max_event_bytes = event_size
        self._added = asyncio.Event()
        self.error: str | None = None
        self._lost = Counter(
            "baton_store_lost",
            "Events and values dropped before they reached the store, for lack of room.",
            ("kind",),
            registry=registry,
        )
        for kind in ("event", "value"):
            self._lost.labels(kind)  # a series that begins at 0 shows the first loss
        waiting = Gauge(
            "baton_store_waiting",
            "Events and values waiting for the store.",
            ("kind",),
            registry=registry,
        )
        waiting.labels("event").set_function(lambda: sum(map(len, self._events.values())))
        waiting.labels("value").set_function(lambda: len(self._values))

    def event(self, stream: str, event: Mapping[str, Any], *, keep: int = EVENTS_KEPT) -> None:
        """Add an event for the end of a stream, which keeps its newest `keep`.

        Raises:
            InvalidRequest: it is too large.
        """
        data = json.dumps(event, separators=(",", ":")).encode()
        check_size(data)
        queue = self._events.setdefault(stream, deque())
        queue.append(data)
        self._kept[stream] = keep
        self._event_bytes[stream] += len(data)
        if len(queue) > self._max_events:
            self._drop_event(stream)
        while self._event_bytes.total() > self._max_event_bytes:
            self._drop_event(max(self._event_bytes, key=self._event_bytes.__getitem__))
        self._added.set()

    def _drop_event(self, stream: str) -> None:
        self._event_bytes[stream] -= len(self._events[stream].popleft())
        self._lost.labels("event").inc()

    def put(self, name: str, value: bytes, *, ttl_s: float) -> None:
        """Add a value, kept for `ttl_s` seconds once it is in the store."""
        self._bytes += len(value) - len(self._values.pop(name, (b"", 0.0))[0])
        self._values[name] = value, ttl_s
        while len(self._values) > self._max_values or self._bytes > self._max_bytes:
            _, (dropped, _) = self._values.popitem(last=False)
            self._bytes -= len(dropped)
            self._lost.labels("value").inc()
        self._added.set()

    def waiting(self, name: str) -> bytes | None:
        """Return a value that waits here."""
        return self._values[name][0] if name in self._values else None

    async def get(self, name: str) -> bytes | None:
        """Return a value that waits here, else the one in the store.

        Raises:
            StoreUnavailable: it does not wait here, and the store is down.
        """
        waiting = self.waiting(name)
        return await self._store.get(name) if waiting is None else waiting

    async def stop(self) -> None:
        """Flush, within `FLUSH_S`."""
        await super().stop()
        with suppress(Exception):  # the service stops in any case
            async with asyncio.timeout(FLUSH_S):
                await self.flush()

    async def flush(self) -> None:
        """Send everything that waits.

        Raises:
            StoreError: the store did not accept everything; the rest still waits.
        """
        failure: StoreError | None = None
        for stream in list(self._events):
            try:  # one stream that cannot be written to holds up no other
                await self._flush_events(stream)
            except StoreError as error:
                failure = error
        try:
            await self._flush_values()
        except StoreError as error:
            failure = error
        if failure is not None:
            raise failure

    async def _flush_values(self) -> None:
        while self._values:
            name, (value, ttl_s) = next(iter(self._values.items()))
            await self._store.put(name, value, ttl_s=ttl_s)
            if self.waiting(name) is value:  # not replaced or dropped meanwhile
                del self._values[name]
                self._bytes -= len(value)

    async def _flush_events(self, stream: str) -> None:
        queue = self._events[stream]
        while queue:
            batch = list(islice(queue, BATCH))
            await self._store.append(stream, batch, keep=self._kept[stream])
            # Dropped events have left this end of the queue meanwhile.
            for event in batch:
                if queue and queue[0] is event:
                    self._event_bytes[stream] -= len(queue.popleft())
        del self._events[stream], self._event_bytes[stream], self._kept[stream]

    async def _work(self) -> None:
        while True:
            await self._added.wait()
            self._added.clear()
            try:
                await self.flush()
            except Exception as error:  # an error must not end the task of all writes
                if self.error is None:
                    log.warning("outcomes and traces wait for the store: %s", describe(error))
                known = isinstance(error, StoreError)
                self.error = str(error) if known else type(error).__name__
                self._added.set()
                await asyncio.sleep(RETRY_S)
            else:
                self.error = None

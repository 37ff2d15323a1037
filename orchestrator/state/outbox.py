"""The outbox: writes to the store that requests do not wait for.

A request adds an event or a value and continues; one task sends them to the store. They wait here
while the store is down; if they are too many, the oldest are dropped and counted.
"""

from __future__ import annotations

import asyncio
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

    At most `size` bytes of events wait, and as many of values; beyond that the oldest event of the
    longest stream is dropped, or the oldest value. `error`: why they wait; None while the store
    takes them.
    """

    def __init__(self, store: Store, registry: CollectorRegistry, *, size: int = 64 << 20) -> None:
        self._store, self._size = store, size
        self._events: dict[str, deque[bytes]] = {}
        self._kept: dict[str, int] = {}  # by stream
        self._values: OrderedDict[str, tuple[bytes, float]] = OrderedDict()
        self._event_bytes = self._value_bytes = 0
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
        self._events.setdefault(stream, deque()).append(data)
        self._kept[stream] = keep
        self._event_bytes += len(data)
        while self._event_bytes > self._size:
            self._event_bytes -= len(max(self._events.values(), key=len).popleft())
            self._lost.labels("event").inc()
        self._added.set()

    def put(self, name: str, value: bytes, *, ttl_s: float) -> None:
        """Add a value, kept for `ttl_s` seconds once it is in the store."""
        self._value_bytes += len(value) - len(self._values.pop(name, (b"", 0.0))[0])
        self._values[name] = value, ttl_s
        while self._value_bytes > self._size:
            _, (dropped, _) = self._values.popitem(last=False)
            self._value_bytes -= len(dropped)
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
                self._value_bytes -= len(value)

    async def _flush_events(self, stream: str) -> None:
        queue = self._events[stream]
        while queue:
            batch = list(islice(queue, BATCH))
            await self._store.append(stream, batch, keep=self._kept[stream])
            # Dropped events have left this end of the queue meanwhile.
            for event in batch:
                if queue and queue[0] is event:
                    self._event_bytes -= len(queue.popleft())
        del self._events[stream], self._kept[stream]

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

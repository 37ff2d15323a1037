"""What is on its way to the store: written behind the answers, within a bound, counted when lost.

A request hands over what it has to say and goes on; one task carries it to the store. While the
store is away things wait here, and where they become too many the oldest are dropped and counted.
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

from orchestrator.errors import StoreError
from orchestrator.state.store import Store, check

log = logging.getLogger(__name__)

LOT: Final = 500  # events carried at once
RETRY_S: Final = 0.5
PARTING_S: Final = 2.0  # for what is left when the service stops


class Outbox:
    """Things for the store, of one replica.

    At most `events` wait per stream, and `values` values of `size` bytes together. `trouble` says
    why something waits; None while all is carried. `keep`: events that stay in each stream.
    """

    def __init__(
        self,
        store: Store,
        registry: CollectorRegistry,
        *,
        events: int = 10_000,
        values: int = 1000,
        size: int = 64 << 20,
        keep: int = 100_000,
    ) -> None:
        self._store, self._keep = store, keep
        self._events: dict[str, deque[bytes]] = {}
        self._values: OrderedDict[str, tuple[bytes, float]] = OrderedDict()
        self._most_events, self._most_values, self._size = events, values, size
        self._held = 0
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.trouble: str | None = None
        self._lost = Counter(
            "baton_store_lost",
            "Events and values that never reached the store: there was no room to keep them.",
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

    def event(self, stream: str, event: Mapping[str, Any]) -> None:
        """Hand over an event for the end of a stream.

        Raises:
            InvalidRequest: no store would take it.
        """
        data = json.dumps(event, separators=(",", ":")).encode()
        check(stream, values=[data])
        queue = self._events.setdefault(stream, deque())
        queue.append(data)
        if len(queue) > self._most_events:
            queue.popleft()
            self._lost.labels("event").inc()
        self._news.set()

    def put(self, name: str, value: bytes, *, ttl_s: float) -> None:
        """Hand over a value."""
        self._held += len(value) - len(self._values.pop(name, (b"", 0.0))[0])
        self._values[name] = value, ttl_s
        while len(self._values) > self._most_values or self._held > self._size:
            _, (dropped, _) = self._values.popitem(last=False)
            self._held -= len(dropped)
            self._lost.labels("value").inc()
        self._news.set()

    async def get(self, name: str) -> bytes | None:
        """A value: what waits here, or what the store has.

        Raises:
            StoreUnavailable: it does not wait here, and the store is away.
        """
        if name in self._values:
            return self._values[name][0]
        return await self._store.get(name)

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Carry what is left, as long as that is quick."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            with suppress(TimeoutError, StoreError):
                async with asyncio.timeout(PARTING_S):
                    await self.carry()

    async def carry(self) -> None:
        """Carry everything that waits.

        Raises:
            StoreError: the store did not take something; what it did not take waits on.
        """
        failure: StoreError | None = None
        for stream in list(self._events):
            try:  # one stream that cannot be written to holds up no other
                await self._carry_events(stream)
            except StoreError as error:
                failure = error
        while failure is None and self._values:
            name, (value, ttl_s) = next(iter(self._values.items()))
            await self._store.put(name, value, ttl_s=ttl_s)
            if self._values.get(name, (b"",))[0] is value:  # not replaced or dropped meanwhile
                del self._values[name]
                self._held -= len(value)
        if failure is not None:
            raise failure

    async def _carry_events(self, stream: str) -> None:
        queue = self._events[stream]
        while queue:
            lot = list(islice(queue, LOT))
            await self._store.append(stream, lot, keep=self._keep)
            # What is dropped meanwhile for want of room leaves on this side, too.
            for event in lot:
                if queue and queue[0] is event:
                    queue.popleft()
        del self._events[stream]

    async def _run(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                await self.carry()
            except StoreError as error:
                if self.trouble is None:
                    log.warning("outcomes and traces wait for the store: %s", error)
                self.trouble = str(error)
                self._news.set()
                await asyncio.sleep(RETRY_S)
            else:
                self.trouble = None

"""A server's stream while it runs, for one call after the other."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from orchestrator.errors import BatonError
from workers.remote.agreement import Agreement
from workers.remote.protocol import Chunk

Event = dict[str, Any]


@dataclass(eq=False, slots=True)
class RunningStream:
    """A stream of events, which end with the server's answer.

    Attributes:
        chunk: reads an event; None if it cannot be read without the text before.
        form: see `workers.run_ahead.RunsAhead`.
        ahead: tokens that it may make after its first call; 0: it ends with that.
        ids: of its prompt, and of the text that calls have taken.
        agreement: of its ids and texts so far; None before the first call has ended.
        adopted: tokens that its call has of those that were there before.
        is_adopted: whether its first call has ended.
    """

    events: AsyncGenerator[Event, None]
    chunk: Callable[[Event], Chunk | None]
    form: Any
    ahead: int
    ids: list[int] = field(default_factory=list)
    agreement: Agreement | None = None
    adopted: int = 0
    is_adopted: bool = False
    _found: int = 0  # how many of the events that are left came before the call
    _unread: deque[Event | Exception | None] = field(default_factory=deque)  # None: the end
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)
    _reading: asyncio.Task[None] | None = None

    async def take(self) -> Event | None:
        """Return the next event, None after the last.

        Raises:
            BatonError: the stream failed.
        """
        if self._reading is None:
            return await anext(self.events, None)
        while not self._unread:
            self._arrived.clear()
            await self._arrived.wait()
        event = self._unread.popleft()
        if isinstance(event, Exception):
            raise event
        return event

    def run_ahead(self, agreement: Agreement, again: Event | None) -> None:
        """Read on after a call; the next one reads `again` first."""
        self.agreement = agreement
        if again is not None:
            self._unread.appendleft(again)
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._read())

    async def leads_to(self, ids: list[int]) -> bool:
        self._found, self.adopted = len(self._unread), 0
        with suppress(BatonError):
            while len(self.ids) < len(ids) and self.ids == ids[: len(self.ids)]:
                if not await self._skip():
                    return False
            return self.ids == ids
        return False

    async def _skip(self) -> bool:
        """Take an event that another model wrote as well; return whether there is one."""
        event = await self.take()
        chunk = None if event is None else self.chunk(event)
        if chunk is None or chunk.finish or not chunk.tokens or self.agreement is None:
            return False
        for token in chunk.tokens:
            self.agreement.made(token.id)
            self.ids.append(token.id)
        self.agreement.shown(chunk.text)
        self._found -= 1
        return True

    def count(self, tokens: int) -> None:
        """Note that the call has so many tokens after one more event."""
        if self._found > 0:
            self._found, self.adopted = self._found - 1, tokens

    async def close(self) -> None:
        """Hang up."""
        if self._reading is not None:
            self._reading.cancel()
            with suppress(asyncio.CancelledError):
                await self._reading
        await self.events.aclose()

    async def _read(self) -> None:
        try:
            async for event in self.events:
                self._add(event)
            self._add(None)
        except Exception as error:  # for the call that reads on
            self._add(error)

    def _add(self, event: Event | Exception | None) -> None:
        self._unread.append(event)
        self._arrived.set()

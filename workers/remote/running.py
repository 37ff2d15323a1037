"""A server's stream while it runs, for one call after the other."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
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
        ahead: how many events are read for no call; 0: it ends with its first call.
        ids: of its prompt, and of the text that calls have taken.
        agreement: of its ids and texts so far; None before the first call has ended.
        last: the event with which the call's text ended.
        adopted: tokens that its call has of those that were there before.
        is_spent: whether it was closed after `ahead` events.
        is_closed: whether no call may continue it.
    """

    events: AsyncGenerator[Event, None]
    chunk: Callable[[Event], Chunk | None]
    form: Any
    ahead: int
    ids: list[int] = field(default_factory=list)
    agreement: Agreement | None = None
    last: Event | None = None
    adopted: int = 0
    is_spent: bool = False
    is_closed: bool = False
    _found: int = 0  # how many of the events that are left came before the call
    _left: float = inf  # how many more are read
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

    def count(self, tokens: int) -> None:
        """Note the number of tokens that the call has after one more event."""
        if self._found > 0:
            self._found, self.adopted = self._found - 1, tokens

    def run_ahead(self, ids: list[int], agreement: Agreement, *, again: bool) -> None:
        """Read on after a call whose text ended after `ids`; the next call reads the last event
        again if its text did not take that."""
        self.ids, self.agreement = ids, agreement
        if again and self.last is not None:
            self._unread.appendleft(self.last)
        self._left = self.ahead - len(self._unread)
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._read())

    async def leads_to(self, ids: list[int]) -> bool:
        self._found, self.adopted = len(self._unread), 0
        if any(isinstance(one, Exception) for one in self._unread):
            return False
        with suppress(BatonError):
            while len(self.ids) < len(ids) and self.ids == ids[: len(self.ids)]:
                if not self._skip():
                    return False
            if self.ids == ids:
                self._left = inf
                return True
        return False

    def _skip(self) -> bool:
        """Take an event that another model wrote as well; return whether there is one."""
        event = self._unread.popleft() if self._unread else None
        chunk = self.chunk(event) if isinstance(event, dict) else None
        if chunk is None or chunk.finish or not chunk.tokens or self.agreement is None:
            return False
        for token in chunk.tokens:
            self.agreement.made(token.id)
            self.ids.append(token.id)
        self.agreement.shown(chunk.text)
        self._found -= 1
        return True

    async def close(self) -> None:
        """Hang up."""
        self.is_closed = True
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
        await self.events.aclose()

    async def _read(self) -> None:
        try:
            async for event in self.events:
                self._add(event)
                self._left -= 1
                if self._left <= 0:
                    self.is_spent = True
                    await self.events.aclose()
                    break
            self._add(None)
        except Exception as error:  # for the call that reads on
            self._add(error)

    def _add(self, event: Event | Exception | None) -> None:
        self._unread.append(event)
        self._arrived.set()

"""Bounds the proxy's memory for large bodies, whose API keys no one has checked yet.

Any client that can reach the port could fill that memory. If no room is left, the body that has
been arriving longest is refused: a user's is seldom slow, an attacker's often.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from orchestrator.http.errors import HttpError

ROOM_BYTES: Final = 128 << 20


class BodyRoom:
    """Room for `size` bytes of bodies."""

    def __init__(self, size: int = ROOM_BYTES) -> None:
        self._left = size
        self._arriving: dict[BodyShare, None] = {}  # in the order in which they began

    def grow(self, share: BodyShare, size: int) -> None:
        """Add `size` bytes to a body that is arriving; while they do not fit, the oldest yields."""
        self._arriving.setdefault(share)
        share.size += size
        self._left -= size
        while self._left < 0 and self._arriving:
            next(iter(self._arriving)).give_way()

    def arrived(self, share: BodyShare) -> None:
        """Keep a body, which has arrived as far as the proxy gathers it."""
        self._arriving.pop(share, None)

    def leave(self, share: BodyShare) -> None:
        """Free the room of a body."""
        self.arrived(share)
        self._left += share.size
        share.size = 0


class BodyShare:
    """One body's part of the room; `size` is in bytes."""

    def __init__(self, room: BodyRoom) -> None:
        self.size, self._room, self._gave_way = 0, room, False
        self.scope: asyncio.Timeout | None = None
        """The timeout of the wait for the body: `give_way` ends it."""

    def grow(self, size: int) -> None:
        self._room.grow(self, size)

    def give_way(self) -> None:
        self.leave()
        self._gave_way = True
        if self.scope is not None:
            with suppress(RuntimeError):  # its time was up anyway
                self.scope.reschedule(asyncio.get_running_loop().time())

    def check(self) -> None:
        """Raise HttpError (503) if the body gave way."""
        if self._gave_way:
            message = "too many large bodies are arriving; try again shortly"
            raise HttpError(503, message, code="overloaded")

    def arrived(self) -> None:
        self._room.arrived(self)

    def leave(self) -> None:
        self._room.leave(self)

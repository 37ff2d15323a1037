"""Room for large bodies, of whose requests nobody has looked at the keys yet.

Whoever can reach the port could fill the proxy's memory with them. Where there is no room left, the
body that has been arriving longest gives way: a user's is seldom slow, an attacker's often.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from orchestrator.http.errors import HttpError

ROOM_BYTES: Final = 128 << 20


class BodyRoom:
    """Room for so many bytes of bodies."""

    def __init__(self, size: int = ROOM_BYTES) -> None:
        self._left = size
        self._arriving: dict[BodyShare, None] = {}  # the first to come is the first

    def grow(self, share: BodyShare, size: int) -> None:
        """So many bytes more of a body that is arriving; others give way to it, or it to them."""
        self._arriving.setdefault(share)
        share.size += size
        self._left -= size
        while self._left < 0 and self._arriving:
            next(iter(self._arriving)).give_way()

    def arrived(self, share: BodyShare) -> None:
        """A body is whole, or as much of it as is kept: it no longer gives way."""
        self._arriving.pop(share, None)

    def leave(self, share: BodyShare) -> None:
        """A body is not kept any more."""
        self.arrived(share)
        self._left += share.size
        share.size = 0


class BodyShare:
    """One body's part of the room; `size` is in bytes."""

    def __init__(self, room: BodyRoom) -> None:
        self.size, self._room, self._gave_way = 0, room, False
        self.scope: asyncio.Timeout | None = None
        """Of the wait for the body; ended where it gives way."""

    def grow(self, size: int) -> None:
        """So many bytes more have arrived."""
        self._room.grow(self, size)

    def give_way(self) -> None:
        self.leave()
        self._gave_way = True
        if self.scope is not None:
            with suppress(RuntimeError):  # its time was up anyway
                self.scope.reschedule(asyncio.get_running_loop().time())

    def check(self) -> None:
        """Raises HttpError, 503: the body gave way."""
        if self._gave_way:
            message = "too many large bodies are arriving; try again shortly"
            raise HttpError(503, message, code="overloaded")

    def arrived(self) -> None:
        self._room.arrived(self)

    def leave(self) -> None:
        self._room.leave(self)

"""Gathers a request's body in the proxy, and bounds the memory for large ones.

The proxy does not check keys, so any client that can reach the port could fill that memory.
If no room is left, the body that has been arriving longest is refused: a user's is seldom slow, an
attacker's often.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from starlette.types import Message, Receive

from orchestrator.http.errors import HttpError

ROOM_BYTES: Final = 128 << 20  # for all large bodies
BUFFER_BYTES: Final = 1 << 20  # a longer body is passed on as it comes, and never repeated
LARGE_BYTES: Final = 64 << 10  # a longer body needs room, and waits for its turn
BODY_S: Final = 30.0  # seconds for a body, or its first `BUFFER_BYTES`, to arrive


class BodyRoom:
    """Room for `size` bytes of large bodies."""

    def __init__(self, size: int = ROOM_BYTES) -> None:
        self._free = size
        self._arriving: dict[Body, None] = {}  # in the order in which they became large

    def grow(self, body: Body) -> None:
        """Hold a body that is arriving; while it does not fit, the oldest one yields."""
        self._arriving.setdefault(body)
        self._free -= body.size - body.held
        body.held = body.size
        while self._free < 0 and self._arriving:
            next(iter(self._arriving)).give_way()

    def arrived(self, body: Body) -> None:
        self._arriving.pop(body, None)

    def leave(self, body: Body) -> None:
        self.arrived(body)
        self._free += body.held
        body.held = 0


class Body:
    """One request's body: its `messages` so far, their bytes, and those `held` in the room."""

    def __init__(self, room: BodyRoom) -> None:
        self.messages: list[Message] = []
        self.size = self.held = 0
        self._room, self._gave_way = room, False
        self._wait: asyncio.Timeout | None = None

    @property
    def is_whole(self) -> bool:
        return not self.messages[-1]["more_body"]

    async def gather(self, receive: Receive) -> bool:
        """Wait for the body, or its first `BUFFER_BYTES`; return False if the client went away.

        Raises:
            HttpError: 408, it did not arrive in time; 503, it gave way to others.
        """
        try:
            async with asyncio.timeout(BODY_S) as self._wait:
                while not self.messages or (not self.is_whole and self.size <= BUFFER_BYTES):
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return False
                    self.messages.append({"more_body": False, **message})
                    self.size += len(message.get("body", b""))
                    self._check()
                    if self.size > LARGE_BYTES:
                        self._room.grow(self)
                        self._check()
        except TimeoutError:
            self._check()
            text = f"the body did not arrive within {BODY_S:g} s"
            raise HttpError(408, text, code="request_timeout") from None
        finally:
            self._room.arrived(self)
        return True

    def give_way(self) -> None:
        self.leave()
        self._gave_way = True
        assert self._wait is not None
        with suppress(RuntimeError):  # its time was up anyway
            self._wait.reschedule(asyncio.get_running_loop().time())

    def leave(self) -> None:
        self._room.leave(self)

    def _check(self) -> None:
        if self._gave_way:
            message = "too many large bodies are arriving; try again shortly"
            raise HttpError(503, message, code="overloaded")

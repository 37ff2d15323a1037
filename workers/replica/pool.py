"""The replicas of one deployment that this process is connected to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from contextvars import Context
from dataclasses import dataclass
from math import inf
from typing import Any, Generic, TypeVar

from workers.replica.broadcast import broadcast
from workers.replica.channel import Address, Connection

log = logging.getLogger(__name__)

LOOK_S = 5.0  # so often the pool is looked at for new replicas, while there are calls
LOOK_TIMEOUT_S = 2.0  # for the replicas to answer
TICK_S = 0.02

Connect = Callable[[str, Address, Callable[[Connection], object]], Awaitable[Connection]]


@dataclass(frozen=True, slots=True)
class Location:
    """What a replica says of itself: Serve's tag of it, and where it listens."""

    replica: str
    address: Address


T = TypeVar("T", bound=Location)


class Pool(Generic[T]):
    """Asks each replica, through Serve, where it listens, and connects to it.

    Args:
        handle: Serve's handle of the deployment.
        question: the method of its replicas that answers with a `kind`.
        connect: see `Connection.open`.
    """

    def __init__(
        self, handle: Any, question: str, kind: type[T], connect: Connect = Connection.open
    ) -> None:
        self._handle, self._question, self._kind = handle, question, kind
        self._connect_to = connect
        self._connecting = asyncio.Lock()
        self._looking: asyncio.Task[None] | None = None
        self._looked_at = -inf  # a time of the event loop
        self.connections: dict[str, Connection] = {}
        """Those that take calls, by replica."""
        self.known: dict[str, T] = {}
        """What each of these replicas said when it was connected."""

    async def ask(self, timeout_s: float) -> AsyncGenerator[T, None]:
        """Yield what the replicas say as it comes, each after there is a connection to it."""
        async with aclosing(self._answers(timeout_s)) as answers:
            async for said in answers:
                if isinstance(said, self._kind) and await self._connect(said):
                    yield said

    def _answers(self, timeout_s: float) -> AsyncGenerator[Any, None]:
        return broadcast(self._handle, self._question, timeout_s=timeout_s)

    async def found(self) -> dict[str, Connection]:
        """Return the connections. If there are none, look for replicas until the first is found, or
        all have been asked."""
        self.look_again()
        if not self.connections:
            looking = self.look()
            while not (self.connections or looking.done()):
                await asyncio.wait([looking], timeout=TICK_S)
        return self.connections

    def look_again(self) -> None:
        """Look for new replicas if that is due."""
        if asyncio.get_running_loop().time() - self._looked_at > LOOK_S:
            self.look()

    def look(self) -> asyncio.Task[None]:
        """Find out in the background which replicas there are; callers share one such task."""
        if self._looking is None or self._looking.done():
            self._looked_at = asyncio.get_running_loop().time()
            # In an empty context, not in that of the request that happens to look.
            self._looking = asyncio.create_task(self._ask_all(), context=Context())
        return self._looking

    async def _ask_all(self) -> None:
        """Connect to new replicas; if all that Serve knows answered, leave those it forgot."""
        before, named, all_answered = dict(self.connections), set[str](), True
        async with aclosing(self._answers(LOOK_TIMEOUT_S)) as answers:
            async for said in answers:
                if isinstance(said, self._kind):
                    named.add(said.replica)
                    await self._connect(said)
                else:
                    all_answered = False
        if named and all_answered:
            for replica in before.keys() - named:
                before[replica].leave()

    async def _connect(self, said: T) -> bool:
        """Connect to a replica, if no connection is there; return whether that succeeded."""
        replica, address = said.replica, said.address
        async with self._connecting:
            if replica not in self.connections:
                try:
                    made = await self._connect_to(replica, address, self._left)
                except Exception as error:  # such as a firewall, or TLS without its files
                    where = f"{address.host}:{address.port}"
                    why = f"{type(error).__name__}: {error}"
                    log.error("no connection to replica %s, %s: %s", replica, where, why)
                    return False
                self.connections[replica], self.known[replica] = made, said
        return True

    def _left(self, connection: Connection) -> None:
        if self.connections.get(connection.replica) is connection:
            del self.connections[connection.replica], self.known[connection.replica]

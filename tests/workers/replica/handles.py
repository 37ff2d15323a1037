"""A Serve handle without Serve: calls go to one replica in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

from workers.replica.deployment import WorkerReplica


class Response:
    """What a streaming handle call returns; `dies` fails after that many items."""

    def __init__(
        self, items: AsyncGenerator[Any, None], dies: tuple[int, BaseException] | None
    ) -> None:
        self._items, self._dies, self._given = items, dies, 0
        self.cancelled: asyncio.Future[Any] | None = None

    async def __anext__(self) -> Any:
        if self._dies is not None and self._given == self._dies[0]:
            raise self._dies[1]
        self._given += 1
        return await self._items.__anext__()

    def cancel(self) -> None:
        self.cancelled = asyncio.ensure_future(self._items.aclose())


@dataclass
class Handle:
    """A Serve handle on one replica in this process. `deaths`: one a call, in order."""

    backend: Any
    deaths: list[tuple[int, BaseException] | None] = field(default_factory=list)
    sessions: list[str] = field(default_factory=list)
    responses: list[Response] = field(default_factory=list)
    replica: WorkerReplica = field(init=False)

    def __post_init__(self) -> None:
        self.replica = WorkerReplica(lambda: self.backend)

    def options(self, *, session_id: str, **_: Any) -> Handle:
        self.sessions.append(session_id)
        return self

    def remote(self, *args: Any) -> Response:
        dies = self.deaths.pop(0) if self.deaths else None
        self.responses.append(Response(self.replica.exchange(*args), dies))
        return self.responses[-1]

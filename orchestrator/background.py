"""Stopping tasks that run beside a request or the service."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Any, Final

AGAIN_S: Final = 5.0
"""Seconds until a cancelled task that has not ended is cancelled again."""


async def stop(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks until each of them has ended.

    Once is not enough: `asyncio.wait_for` drops a cancellation that comes just as its awaitable
    ends (Python 3.11; redis-py calls it for every command that it sends).
    """
    waiting = set(tasks)
    while waiting:
        for task in waiting:
            task.cancel()
        _, waiting = await asyncio.wait(waiting, timeout=AGAIN_S)


class Background(ABC):
    """A part of a replica with one task beside the requests, from `start` to `stop`."""

    _task: asyncio.Task[None] | None = None

    @abstractmethod
    async def _work(self) -> None: ...

    async def start(self) -> None:
        self._task = asyncio.create_task(self._work())

    async def stop(self) -> None:
        if self._task is not None:
            await stop(self._task)

"""Stopping tasks: those beside a request or the service, and a request that takes too long."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from orchestrator.errors import DeadlineExceeded

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


@asynccontextmanager
async def deadline(seconds: float | None, began_at: float | None = None) -> AsyncIterator[None]:
    """Cancel the block `seconds` (None: never) after `began_at`, a time of the event loop (None:
    now), and raise `DeadlineExceeded`."""
    began_at = asyncio.get_running_loop().time() if began_at is None else began_at
    until = None if seconds is None else began_at + seconds
    try:
        async with asyncio.timeout_at(until) as timeout:
            yield
    except TimeoutError:
        if not timeout.expired():
            raise
        raise DeadlineExceeded(f"no answer within {seconds:g} s") from None


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

"""How a task that runs beside a request or the service is stopped."""

from __future__ import annotations

import asyncio
from typing import Any, Final

AGAIN_S: Final = 5.0
"""Seconds that a cancelled task may take to clean up, before it is cancelled once more."""


async def stop(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks until each of them has ended.

    Once is not enough: `asyncio.wait_for` drops a cancellation that comes in the moment in which
    what it waits for ends (Python 3.11; redis-py calls it for every command that it sends).
    """
    waiting = set(tasks)
    while waiting:
        for task in waiting:
            task.cancel()
        _, waiting = await asyncio.wait(waiting, timeout=AGAIN_S)

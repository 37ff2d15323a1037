"""How tests wait for an event: never for a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(true: Callable[[], object]) -> None:
    """Wait for something to become true; a test that hangs fails after a minute."""
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.002)

"""Concurrent requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from orchestrator.background import stop

Item = TypeVar("Item")
Result = TypeVar("Result")


async def map_concurrently(
    work: Callable[[Item], Awaitable[Result]], items: Iterable[Item], concurrency: int
) -> list[Result]:
    """Return `work` of each item, in their order; at most `concurrency` run at once.

    The first error ends all work and is raised.
    """
    waiting = enumerate(items)
    results: dict[int, Result] = {}

    async def take() -> None:
        for index, item in waiting:
            results[index] = await work(item)

    tasks = [asyncio.create_task(take()) for _ in range(concurrency)]
    try:
        await asyncio.gather(*tasks)
    finally:
        await stop(*tasks)
    return [results[index] for index in range(len(results))]

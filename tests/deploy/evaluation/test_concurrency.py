"""Requests side by side: how many at once, in which order, and what an error does."""

from __future__ import annotations

import asyncio

import pytest

from deploy.evaluation.concurrency import map_concurrently

pytestmark = pytest.mark.asyncio


async def test_results_keep_the_order() -> None:
    async def work(item: int) -> int:
        for _ in range(5 - item):
            await asyncio.sleep(0)
        return 10 * item

    assert await map_concurrently(work, range(5), 3) == [0, 10, 20, 30, 40]
    assert await map_concurrently(work, [], 3) == []


async def test_the_first_error_is_raised_and_ends_the_rest() -> None:
    started = []

    async def work(item: int) -> None:
        started.append(item)
        if item == 1:
            raise ValueError("no")
        await asyncio.sleep(60)

    with pytest.raises(ValueError, match="no"):
        await map_concurrently(work, range(9), 2)
    assert started == [0, 1]

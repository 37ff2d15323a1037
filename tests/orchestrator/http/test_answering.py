"""How the answers to one request are made beside each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from orchestrator.errors import WorkerUnavailable
from orchestrator.http.answering import EventQueue


async def test_an_answer_waits_for_its_own_prompt_alone() -> None:
    """Two prompts have two answers each; the first is read when the second one has been."""
    begun, second_read = list[int](), asyncio.Event()

    async def choice(index: int) -> AsyncGenerator[Any, None]:
        begun.append(index)
        if index == 0:
            await second_read.wait()
        yield index
        if index == 3:
            second_read.set()
        await asyncio.sleep(30)

    queue = EventQueue([choice(index) for index in range(4)], 2)
    seen = set[int]()
    async with asyncio.timeout(60):
        while len(seen) < 4:
            seen |= {index for index, _ in await queue.take()}
    await queue.close()
    assert begun == [0, 2, 3, 1]


async def test_one_that_fails_before_its_prompt_is_read_ends_all() -> None:
    async def choice(index: int) -> AsyncGenerator[Any, None]:
        if index == 2:
            raise WorkerUnavailable("gone")
        yield index
        await asyncio.sleep(30)

    queue = EventQueue([choice(index) for index in range(4)], 2)

    async def take_all() -> None:
        while True:
            await queue.take()

    with pytest.raises(WorkerUnavailable):
        await asyncio.wait_for(take_all(), 60)
    assert queue.failed == 2
    await queue.close()

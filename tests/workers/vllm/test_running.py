"""What a request of vLLM's has made when a call adopts it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from vllm.outputs import CompletionOutput, RequestOutput

from orchestrator.types import Sampling
from workers.vllm.running import Cost, Output, Running


def output(*tokens: int, finished: bool = False) -> Output:
    made = CompletionOutput(0, "", list(tokens), None, None)
    return RequestOutput("r", None, [1, 2], None, [made], finished), None


async def test_tokens_that_an_adopter_waits_for_are_not_found() -> None:
    more = asyncio.Event()

    async def outputs() -> AsyncGenerator[Output, None]:
        yield output(5, 6, 7)
        yield output(8, 9)  # gathered while no call read
        await more.wait()
        yield output(10, finished=True)

    running = Running([1, 2], Sampling(), True, outputs(), Cost(2))
    await running.take()
    assert await running.leads_to([1, 2, 5, 6, 7])
    running.adopt(Cost(5))
    assert [token for token, _ in await running.take()] == [8, 9]
    asyncio.get_running_loop().call_soon(more.set)
    assert [token for token, _ in await running.take()] == [10]
    assert (running.cost.found, running.finished, running.cost.generated) == (2, True, 3)


async def test_what_was_read_and_not_taken_is_found() -> None:
    more = asyncio.Event()

    async def outputs() -> AsyncGenerator[Output, None]:
        yield output(5, 6, 7)
        await more.wait()
        yield output(8)

    running = Running([1, 2], Sampling(), True, outputs(), Cost(2))
    assert await running.leads_to([1, 2, 5])
    running.adopt(Cost(3))
    taken: list[Any] = await running.take()
    asyncio.get_running_loop().call_soon(more.set)
    taken += await running.take()
    assert [token for token, _ in taken] == [6, 7, 8]
    assert running.cost.found == 2

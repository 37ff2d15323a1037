"""What a request of vLLM's has made when a call adopts it, and what a call costs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

from vllm.logprobs import Logprob
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.v1.metrics.stats import RequestSpecDecodeMetrics

from orchestrator.types import Sampling
from workers.vllm.running import Cost, Running


def output(*tokens: int, finished: bool = False) -> RequestOutput:
    rows = [{token: Logprob(0.0)} for token in tokens]
    made = CompletionOutput(0, "", list(tokens), None, rows)
    return RequestOutput("r", None, [1, 2], None, [made], finished)


def test_drafts_are_counted_over_all_requests_of_a_call() -> None:
    cost = Cost(2)
    text: Any = SimpleNamespace(counted=lambda *counts: counts)
    assert cost.provenance(text) is None
    for drafted, accepted in (([3, 3], [1, 3]), ([2], [0])):
        ended = output(5, finished=True)
        ended.outputs[0].spec_decode_metrics = RequestSpecDecodeMetrics(
            3, per_step_drafted=drafted, per_step_accepted=accepted
        )
        cost.record(ended)
    assert cost.provenance(text) == ([3, 3, 2], [2, 1, 1])


async def test_tokens_that_an_adopter_waits_for_are_not_found() -> None:
    more = asyncio.Event()

    async def outputs() -> AsyncGenerator[RequestOutput, None]:
        yield output(5, 6, 7)
        yield output(8, 9)  # gathered while no call read
        await more.wait()
        yield output(10, finished=True)

    running = Running([1, 2], (Sampling(), True), outputs(), Cost(2))
    await running.take()
    assert await running.leads_to([1, 2, 5, 6, 7])
    running.adopt(Cost(5))
    assert [token for token, _ in await running.take()] == [8, 9]
    asyncio.get_running_loop().call_soon(more.set)
    assert [token for token, _ in await running.take()] == [10]
    assert (running.cost.found, running.finished, running.cost.generated) == (2, True, 3)


async def test_what_was_read_and_not_taken_is_found() -> None:
    more = asyncio.Event()

    async def outputs() -> AsyncGenerator[RequestOutput, None]:
        yield output(5, 6, 7)
        await more.wait()
        yield output(8)

    running = Running([1, 2], (Sampling(), True), outputs(), Cost(2))
    assert await running.leads_to([1, 2, 5])
    running.adopt(Cost(3))
    taken: list[Any] = await running.take()
    asyncio.get_running_loop().call_soon(more.set)
    taken += await running.take()
    assert [token for token, _ in taken] == [6, 7, 8]
    assert running.cost.found == 2

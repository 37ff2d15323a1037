"""Batches of deltas."""

from __future__ import annotations

import asyncio
from typing import Any

from orchestrator.worker import Delta
from workers.streams import BATCH_S, MAX_BATCH_S, batch_s, batch_stream


def test_many_streams_send_less_often() -> None:
    assert batch_s(1) == batch_s(4) == BATCH_S
    assert BATCH_S < batch_s(16) < batch_s(32) < MAX_BATCH_S == batch_s(1000)


async def test_a_batch_waits_neither_at_the_beginning_nor_at_the_end() -> None:
    go = asyncio.Event()

    async def items() -> Any:
        yield Delta("a", (1,), (0.0,))
        await go.wait()
        yield Delta("b", (2,), (0.0,))
        yield Delta("c", (3,), (0.0,))
        yield "whole"

    found = []
    async for item in batch_stream(items(), lambda: 1_000_000):
        found.append(item)
        go.set()
    assert found == [Delta("a", (1,), (0.0,)), Delta("bc", (2, 3), (0.0, 0.0)), "whole"]

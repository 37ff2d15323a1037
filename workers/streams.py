"""Batches of deltas, as a replica sends them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from itertools import chain
from typing import Any

from orchestrator.background import stop
from orchestrator.worker import Delta

BATCH_S = 0.02  # deltas closer together than this are sent as one: less work beside the engine
MAX_BATCH_S = 0.25
BATCHES_PER_S = 200  # of all streams of a replica: three processes handle each message


def batch_s(streams: int) -> float:
    """Return the seconds within which deltas are merged if `streams` share a replica."""
    return min(max(BATCH_S, streams / BATCHES_PER_S), MAX_BATCH_S)


async def batch_stream(
    items: AsyncGenerator[Any, None], streams: Callable[[], int] = lambda: 1
) -> AsyncGenerator[Any, None]:
    """Yield the items, with deltas within `batch_s` merged.

    The first item is sent at once, and so is the last batch. `streams` returns how many streams
    share the replica now.
    """
    batch: list[Any] = []
    arrived, exhausted = asyncio.Event(), asyncio.Event()

    async def pump() -> None:
        try:
            async with aclosing(items):
                async for item in items:
                    batch.append(item)
                    arrived.set()
        finally:
            exhausted.set()
            arrived.set()

    task = asyncio.create_task(pump())
    is_first = True
    try:
        while not exhausted.is_set() or batch:
            await arrived.wait()
            if not is_first:
                with suppress(TimeoutError):
                    async with asyncio.timeout(batch_s(streams())):
                        await exhausted.wait()
            is_first = False
            taken = batch[:]
            batch.clear()
            arrived.clear()
            if deltas := [item for item in taken if isinstance(item, Delta)]:
                yield merge_deltas(deltas)
            for item in taken:
                if not isinstance(item, Delta):
                    yield item
        await task
    finally:
        await stop(task)


def merge_deltas(deltas: Sequence[Delta]) -> Delta:
    """Join consecutive deltas."""
    return Delta(
        "".join(delta.text for delta in deltas),
        tuple(chain.from_iterable(delta.tokens for delta in deltas)),
        tuple(chain.from_iterable(delta.logprobs for delta in deltas)),
    )

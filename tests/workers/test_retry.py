"""When a call is tried again: the pauses, and how many."""

from __future__ import annotations

import asyncio

import pytest

from orchestrator.errors import Overloaded
from workers.retry import MAX_BACKOFF_S, CircuitBreaker, CountedRetry, TimedRetry

pytestmark = pytest.mark.virtual_time
FULL = Overloaded("full")


async def test_a_server_that_names_no_pause_is_called_again_as_often_as_is_allowed() -> None:
    retries, now = CountedRetry(10, CircuitBreaker("it")), asyncio.get_running_loop().time
    for _ in range(10):
        began = now()
        await retries.backoff(FULL)
        assert now() - began <= MAX_BACKOFF_S + 0.1
    with pytest.raises(Overloaded, match="full"):
        await retries.backoff(FULL)


async def test_a_pool_that_stays_full_is_waited_for_as_long_as_is_allowed() -> None:
    """Some 1,500 times, in five minutes."""
    retry, began = TimedRetry(300.0), asyncio.get_running_loop().time()

    async def full() -> None:
        while True:
            await retry.backoff(FULL)

    with pytest.raises(Overloaded, match="full"):
        await full()
    assert asyncio.get_running_loop().time() - began > 299

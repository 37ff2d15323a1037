"""When a call is tried again: the pauses, and how many."""

from __future__ import annotations

import asyncio

import pytest

from orchestrator.errors import Overloaded
from workers.retry import MAX_BACKOFF_S, CircuitBreaker, CountedRetry

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

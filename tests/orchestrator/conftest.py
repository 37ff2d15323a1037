"""Stores for tests: the one in memory, and the one in a real redis-server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from orchestrator.state.memory import MemoryStore
from orchestrator.state.redis import RedisStore
from orchestrator.state.store import Store
from tests.orchestrator.redis_server import RedisServer, redis_server

Open = Callable[[], Store]
"""Opens the same store once more, as another replica would."""


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture(params=["memory", "redis"])
async def opened(request: pytest.FixtureRequest, redis: RedisServer) -> AsyncIterator[Open]:
    """An empty store."""
    if request.param == "memory":
        memory = MemoryStore()
        yield lambda: memory
        return
    redis.admin.flushall()
    stores: list[RedisStore] = []

    def another() -> Store:
        stores.append(RedisStore(redis.url, timeout_s=60))
        return stores[-1]

    yield another
    for store in stores:
        await store.aclose()


@pytest.fixture
def store(opened: Open) -> Store:
    return opened()

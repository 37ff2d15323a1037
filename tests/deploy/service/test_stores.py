"""The embedded store's client, when what stands between fails."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from ray.exceptions import ActorDiedError

from deploy.service import stores
from deploy.service.stores import ServedStore, StoreReplica
from orchestrator.errors import InvalidRequest, StoreUnavailable


class Handle:
    """Stands for Serve's: every call ends by `failure`."""

    def __init__(self, failure: BaseException) -> None:
        self.failure, self.address = failure, self

    async def remote(self, *_: Any) -> Any:
        raise self.failure


@pytest.mark.parametrize(
    "failure",
    [ActorDiedError(), RuntimeError("a router's"), OSError(), asyncio.CancelledError()],
    ids=lambda one: type(one).__name__,
)
async def test_every_failure_on_the_way_is_a_store_that_is_away(failure: BaseException) -> None:
    with pytest.raises(StoreUnavailable):
        await ServedStore(Handle(failure)).get("a")


async def test_a_caller_that_goes_is_not_the_store() -> None:
    class Waiting(Handle):
        async def remote(self, *_: Any) -> Any:
            await asyncio.Event().wait()

    asked = asyncio.create_task(ServedStore(Waiting(InvalidRequest(""))).get("a"))
    await asyncio.sleep(0)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked


class Known:
    """Stands for Serve's handle of a store that is there."""

    def __init__(self) -> None:
        self.replica, self.asked, self.address = StoreReplica(), 0, self

    async def remote(self) -> Any:
        self.asked += 1
        return await self.replica.address()


async def test_calls_share_a_connection_and_find_a_store_that_was_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stores, "get_node_ip_address", lambda: "127.0.0.1")
    handle = Known()
    store: Any = ServedStore(handle)
    await asyncio.gather(*(store.put(f"k{n}", b"v", ttl_s=60.0) for n in range(20)))
    assert await store.get("k7") == b"v"
    with pytest.raises(InvalidRequest):
        await store.put("a name that is\nnot allowed", b"v", ttl_s=60.0)
    assert handle.asked == 1

    waiting = asyncio.create_task(store.wait_for_change((await store.state()).revision, 60.0))
    await asyncio.sleep(0.05)
    await handle.replica._listener.close(0)
    handle.replica = StoreReplica()
    with pytest.raises(StoreUnavailable, match="gone"):
        await waiting
    assert await store.get("k7") is None
    assert handle.asked == 2
    await store.aclose()
    await handle.replica._listener.close(0)

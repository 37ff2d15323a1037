"""The embedded store's client, when what stands between fails."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from deploy.service import stores
from deploy.service.stores import ServedStore, StoreReplica
from orchestrator.errors import Conflict, StoreUnavailable
from orchestrator.state.store import Commit


async def test_a_store_that_is_away_is_unavailable() -> None:
    with pytest.raises(StoreUnavailable, match="does not answer"):
        await ServedStore(Known(None)).get("a")  # type: ignore[attr-defined]


class Known:
    """Stands for Serve's handle of the store."""

    def __init__(self, replica: StoreReplica | None) -> None:
        self.replica, self.asked = replica, 0

    def broadcast(self, method: str) -> Any:
        assert method == "location"
        self.asked += 1

        async def results() -> list[Any]:
            return (
                [] if self.replica is None else [SimpleNamespace(get_async=self.replica.location)]
            )

        return SimpleNamespace(_fetch_replica_results_async=results)


async def test_calls_share_a_connection_and_find_a_store_that_was_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stores, "get_node_ip_address", lambda: "127.0.0.1")
    replica = StoreReplica()
    handle = Known(replica)
    store: Any = ServedStore(handle)
    await asyncio.gather(*(store.put(f"k{n}", b"v", ttl_s=60.0) for n in range(20)))
    assert await store.get("k7") == b"v"
    with pytest.raises(Conflict):
        await store.commit("another", Commit(b""))
    assert handle.asked == 1

    monkeypatch.setattr(stores, "TIMEOUT_S", 60.0)
    asked = asyncio.Event()

    async def hangs(name: str) -> None:
        asked.set()
        await asyncio.sleep(60)

    monkeypatch.setattr(replica._store, "get", hangs)
    waiting = asyncio.create_task(store.get("k7"))
    await asked.wait()
    await replica._listener.close(0)
    handle.replica = replica = StoreReplica()
    with pytest.raises(StoreUnavailable, match="gone"):
        await waiting
    assert await store.get("k7") is None
    assert handle.asked == 2
    await store.aclose()
    await replica._listener.close(0)

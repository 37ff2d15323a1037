"""Retries go to other replicas, and nobody goes to a silent one while another answers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve._private.common import DeploymentID, ReplicaID
from ray.serve.config import RequestRouterConfig
from ray.serve.experimental.consistent_hash_router import ConsistentHashRouter

from workers.replica.router import ReplicaRouter
from workers.replica.routers import ROUTERS, avoid_others, taker

POOL = DeploymentID(name="LargeWorker", app_name="baton")


@pytest.fixture
def router(monkeypatch: pytest.MonkeyPatch) -> ReplicaRouter:
    def initialize(self: Any, *args: Any, **kwargs: Any) -> None:
        self._deployment_id, self._num_virtual_nodes = POOL, 100

    monkeypatch.setattr(ConsistentHashRouter, "__init__", initialize)
    made = ReplicaRouter()
    made.initialize_state()
    made._rebuild_ring(frozenset(ReplicaID(unique_id=name, deployment_id=POOL) for name in "abc"))
    return made


def ranked(router: ReplicaRouter, key: str) -> str:
    return "".join(one.unique_id for one in router._lookup_ranked_replicas(key))


def test_each_try_begins_one_replica_later(router: ReplicaRouter) -> None:
    for request in ("r1", "r2", "a/b"):
        first = ranked(router, f"{request}/0")
        assert sorted(first) == ["a", "b", "c"]
        assert ranked(router, f"{request}/1") == first[1:] + first[:1]
        assert ranked(router, f"{request}/4") == first[1:] + first[:1]
    assert len({ranked(router, f"r{number}/0")[0] for number in range(50)}) == 3
    assert sorted(ranked(router, "an id of Serve's own")) == ["a", "b", "c"]


def test_silent_replicas_come_last_until_they_answer(router: ReplicaRouter) -> None:
    assert avoid_others("LargeWorker", {"a", "c"})
    for number in range(20):
        assert ranked(router, f"r{number}/0")[2] == "b"
    assert not avoid_others("SmallWorker", {"a"})
    assert not avoid_others("LargeWorker", {"a", "b", "c"})
    assert {ranked(router, f"r{number}/0")[2] for number in range(20)} == set("abc")


def test_where_no_replica_answers_all_rank_as_ever(router: ReplicaRouter) -> None:
    before = [ranked(router, f"r{number}/0") for number in range(20)]
    assert avoid_others("LargeWorker", {"a"})
    assert avoid_others("LargeWorker", set())
    assert [ranked(router, f"r{number}/0") for number in range(20)] == before


async def test_to_which_replica_a_call_was_sent(
    router: ReplicaRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: asyncio.Queue[str] = asyncio.Queue()

    async def choose(self: Any, pending_request: Any, *, is_retry: bool) -> Any:
        return SimpleNamespace(replica_id=ReplicaID(await chosen.get(), POOL))

    monkeypatch.setattr(ConsistentHashRouter, "_choose_replica_for_request", choose)
    response = SimpleNamespace(_request_metadata=SimpleNamespace())
    pending = SimpleNamespace(metadata=response._request_metadata)
    assert taker(response) is None
    for name, is_retry in (("b", False), ("c", True)):
        choosing = asyncio.create_task(
            router._choose_replica_for_request(pending, is_retry=is_retry)
        )
        await asyncio.sleep(0)
        assert taker(response) is None  # it waits, again where it was refused
        chosen.put_nowait(name)
        assert (await choosing).replica_id.unique_id == name
        assert taker(response) == name


async def test_serve_takes_it_for_a_router_of_its_own() -> None:
    loop = asyncio.get_running_loop()
    made = ReplicaRouter(
        deployment_id=POOL,
        handle_source=SimpleNamespace(value="REPLICA"),
        self_actor_id="me",
        self_actor_handle=None,
        use_replica_queue_len_cache=True,
        event_loop=loop,
    )
    made.initialize_state()
    assert made in ROUTERS
    assert made.replicas == set()


LOADED = """
import sys
from ray import cloudpickle
from workers.replica.routers import ROUTERS
copy = cloudpickle.loads(sys.stdin.buffer.read())
assert copy.__init__.__globals__["routers"].ROUTERS is ROUTERS
"""


def test_what_a_router_shares_with_its_process_is_not_copied() -> None:
    """Serve hands the class to other processes by value."""
    config = RequestRouterConfig(request_router_class="workers.replica.router.ReplicaRouter")
    pickled = config.get_serialized_request_router_cls()
    subprocess.run([sys.executable, "-c", LOADED], input=pickled, check=True)

"""One replica, without Ray: its health, load and counters, and who called it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from orchestrator.errors import (
    WorkerUnavailable,
)
from orchestrator.types import Generation, LabelQuery
from tests.workers.replica.handles import CRITERIA, GREEDY, call, story
from workers.replica import server
from workers.replica.channel import Connection
from workers.replica.server import ReplicaServer, ReplicaStatus
from workers.worker import NOTHING


async def test_an_engine_that_makes_no_progress_is_ill(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("workers.replica.server.time.monotonic", lambda: now)
    backend = story()
    one = ReplicaServer(lambda: backend)
    for _ in range(3):  # idle is healthy
        await one.check_health()
        now += server.STALL_TIMEOUT_S
    backend.live = 1
    await one.check_health()
    checks = round(server.STALL_TIMEOUT_S / server.HEALTH_CHECK_S)
    for _ in range(checks):
        now += server.HEALTH_CHECK_S
        await one.check_health()
    backend.live = 2  # somebody came: that is no progress of the engine's
    now += server.HEALTH_CHECK_S
    with pytest.raises(WorkerUnavailable):
        await one.check_health()
    stats = backend.stats()
    monkeypatch.setattr(backend, "stats", lambda: {**stats, "passes": 1})  # it moves again
    await one.check_health()


async def test_a_process_that_was_stopped_has_not_stalled(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("workers.replica.server.time.monotonic", lambda: now)
    backend = story()
    one = ReplicaServer(lambda: backend)
    backend.live = 1
    for _ in range(3):
        await one.check_health()
        now += 2 * server.STALL_TIMEOUT_S  # between two checks


def test_which_requests_called_lately(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("workers.replica.server.time.monotonic", lambda: now)
    monkeypatch.setattr(server, "MAX_TRACKED", 3)
    requests = server.RecentRequests()
    assert [requests.record(request) for request in "aba"] == [False, False, True]
    assert requests.count() == 2
    now += server.RECENT_S - 1
    assert not requests.record("c")
    assert requests.count() == 3
    now += 1.0
    assert requests.count() == 1
    assert not requests.record("d")  # and b, the longest silent, is forgotten
    assert not requests.record("b")
    assert requests.record("c")


def test_how_full_a_replica_is() -> None:
    backend = story()
    one = ReplicaServer(lambda: backend)
    assert one.record_autoscaling_stats() == {"load": 0.0}
    backend.live = 2  # of four rows
    assert one.record_autoscaling_stats() == {"load": 0.5}
    for request in "abcdefgh":  # eight prefixes for eight slots
        one._recent.record(request)
    assert one.record_autoscaling_stats() == {"load": 1.0}
    backend.live = 6
    assert one.record_autoscaling_stats() == {"load": 1.5}


async def test_counters_are_exported_with_every_check_and_are_those_of_the_status() -> None:
    exported: list[Any] = []
    backend = story()
    one = ReplicaServer(lambda: backend, lambda: exported.append)
    await one.check_health()
    assert [stats["calls"] for stats in exported] == [0]
    await one.answer_call("r", False, call(), "classify", LabelQuery((), "", ("9",)))
    await one.check_health()
    status = await one.status()
    assert status == ReplicaStatus(
        "one", status.address, exported[-1], backend.context, backend.sampling
    )
    assert (await one.status()).address == status.address
    assert exported[-1]["calls"] == 1
    leaving = one.__del__()
    assert leaving is not None
    await leaving


async def test_a_replica_ends_after_its_calls() -> None:
    backend, closed = story(delay=0.05), []
    backend.close = lambda: closed.append(backend.live)  # type: ignore[method-assign]
    one = ReplicaServer(lambda: backend)
    address = (await one.status()).address
    caller = await Connection.open("one", address, lambda _: None)
    items = caller.call("stream", "r", False, call(), NOTHING, CRITERIA, GREEDY)
    await anext(items)
    leaving = one.__del__()
    assert leaving is not None
    ended = asyncio.create_task(leaving)  # type: ignore[arg-type]
    *_, last = [item async for item in items]
    assert isinstance(last, Generation)
    await ended
    assert closed == [0]
    caller.close()
    assert one.__del__() is None


def test_a_spread_replica_takes_its_gpus_on_nodes_of_its_labels() -> None:
    nodes = {"pool": "big"}
    app = server.deployment("LargeWorker", story, gpus=3, gpu=1.0, nodes=nodes)
    options = app._bound_deployment._replica_config
    assert options.placement_group_bundles == [{"CPU": 0.2, "GPU": 1.0}, {"GPU": 1.0}, {"GPU": 1.0}]
    assert options.placement_group_strategy == "PACK"
    assert options.placement_group_bundle_label_selector == [nodes] * 3
    assert options.ray_actor_options["label_selector"] == nodes
    assert "num_gpus" not in options.ray_actor_options  # vLLM's actors take them
    anywhere = server.deployment("LargeWorker", story, gpus=3)._bound_deployment._replica_config
    assert anywhere.placement_group_bundle_label_selector is None
    alone = server.deployment("LargeWorker", story, gpu=0.5, nodes=nodes)._bound_deployment
    assert alone._replica_config.placement_group_bundles is None
    assert alone._replica_config.ray_actor_options["num_gpus"] == 0.5

"""Tasks that let a cancellation pass, as redis-py's do now and then, end all the same."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from orchestrator import background
from orchestrator.background import stop
from orchestrator.experiments.experimenter import Experimenter
from orchestrator.experiments.shadows import ShadowRunner
from orchestrator.state.memory import MemoryStore
from orchestrator.state.outbox import Outbox
from orchestrator.state.redis import RedisStore
from orchestrator.state.versions import PolicyVersions
from orchestrator.state.watcher import ConfigWatcher
from tests.orchestrator.redis_server import redis_server
from tests.orchestrator.serving import service


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "AGAIN_S", 0.0)


async def deaf(times: int) -> int:
    """Ends with the cancellation after so many that it lets pass."""
    passed = 0
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if passed == times:
                raise
            passed += 1


@pytest.mark.parametrize("times", [0, 1, 2, 7])
async def test_a_task_is_cancelled_until_it_ends(times: int) -> None:
    tasks = [asyncio.create_task(deaf(times)), asyncio.create_task(deaf(0))]
    await asyncio.sleep(0)
    async with asyncio.timeout(60):
        await stop(*tasks)
    assert all(task.cancelled() for task in tasks)


async def test_what_has_ended_or_fails_is_stopped_too() -> None:
    async def fails() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise RuntimeError("in its cleanup") from None

    done, failing = asyncio.create_task(asyncio.sleep(0)), asyncio.create_task(fails())
    await done
    async with asyncio.timeout(60):
        await stop()
        await stop(done, failing)
    assert isinstance(failing.exception(), RuntimeError)


def parts() -> dict[str, Any]:
    """Everything of a replica that has a task beside the requests."""
    store, registry = MemoryStore(), CollectorRegistry()
    outbox = Outbox(store, registry)
    some: Any = None  # not called
    shadows = ShadowRunner(some, asyncio.Event(), outbox, registry)
    return {
        "watcher": ConfigWatcher(store, PolicyVersions(store, {}, {}), some, registry),
        "outbox": outbox,
        "shadows": shadows,
        "experimenter": Experimenter(store, some, some, registry),
    }


@pytest.mark.parametrize("part", ["watcher", "outbox", "shadows", "experimenter"])
async def test_every_part_of_a_replica_stops(part: str) -> None:
    subject = parts()[part]
    subject._task = asyncio.create_task(deaf(3))
    await asyncio.sleep(0)
    async with asyncio.timeout(60):
        await subject.stop()
    assert subject._task.cancelled()


async def test_ten_replicas_stop_at_once_as_often_as_one_likes() -> None:
    """In three rounds of these one or two stops never returned, when tasks were cancelled once."""
    with redis_server() as redis:
        for _ in range(12):
            replicas = [service(store=RedisStore(redis.url)) for _ in range(10)]
            await asyncio.gather(*(one.shared.start() for one in replicas))
            async with asyncio.timeout(60):
                await asyncio.gather(*(one.shared.stop() for one in replicas))

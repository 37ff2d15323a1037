"""Two replicas of the orchestrator on a real Ray, meeting in either store."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from redis import Redis

from tests.deploy.conftest import Served, free_port, running
from tests.orchestrator.redis_server import redis_server

pytestmark = [pytest.mark.serve, pytest.mark.timeout(400)]

QUESTION = {"messages": [{"role": "user", "content": "12 + 34?"}], "max_tokens": 40}


Two = tuple[Served, Callable[[], None], Redis | None]


@pytest.fixture(scope="module", params=["memory", "redis"])
def two(
    request: pytest.FixtureRequest, tiny_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Two]:
    """A service of two orchestrators, what takes its store away and all it holds, its Redis."""
    admin = None
    data: dict[str, Any] = yaml.safe_load(tiny_file.read_text())
    data["http_options"]["port"] = free_port()
    application = data["applications"][0]
    application["deployments"] = [{"name": "Orchestrator", "num_replicas": 2}]
    application["args"]["workers"]["large"]["replicas"] = 1
    with ExitStack() as stack:
        if request.param == "redis":
            redis = stack.enter_context(redis_server())
            application["args"]["store"] = redis.url
            admin = redis.admin
        file = tmp_path_factory.mktemp("two") / "two.yaml"
        file.write_text(yaml.safe_dump(data))
        served = stack.enter_context(running(file))

        def lose() -> None:
            if request.param == "redis":
                redis.stop()
                redis.start()
            else:
                (pid,) = served.replicas("Store")
                os.kill(pid, signal.SIGKILL)

        yield served, lose, admin


async def everybody(served: Served, count: int = 24) -> list[dict[str, Any]]:
    """The `baton` fields of many concurrent answers; each replica gives some of them."""
    async with httpx.AsyncClient(timeout=60) as client:
        url = f"{served.url}/v1/chat/completions"
        asked = (client.post(url, json={"model": "baton", **QUESTION}) for _ in range(count))
        return [reply.json()["baton"] for reply in await asyncio.gather(*asked)]


async def test_a_change_reaches_all_replicas(two: Two) -> None:
    served, lose, _ = two
    assert len(served.replicas("Orchestrator")) == 2
    url = f"{served.url}/v1/policies"
    made = httpx.post(url, json={"policy": "small-only", "params": {"budget": 9}})
    assert made.status_code == 201
    until = time.monotonic() + 10
    while {one["version"] for one in await everybody(served)} != {1}:
        assert time.monotonic() < until, "a replica goes by the old version"
    extras = await everybody(served)
    assert {one["policy"] for one in extras} == {"small-only"}
    # Whichever replica is asked finds every trace.
    async with httpx.AsyncClient(timeout=60) as client:
        until = time.monotonic() + 30
        found: set[int] = set()
        while found != {200}:  # the outbox carries them there one after the other
            assert time.monotonic() < until, found
            await asyncio.sleep(0.2)
            asked = (client.get(f"{served.url}/v1/traces/{one['trace_id']}") for one in extras)
            found = {reply.status_code for reply in await asyncio.gather(*asked)}
    lose()
    until = time.monotonic() + 30
    while not httpx.get(f"{served.url}/ready").json()["degraded"]:
        assert time.monotonic() < until, "nobody noticed"
        time.sleep(0.1)
    assert {one["version"] for one in await everybody(served)} == {1}
    until = time.monotonic() + 60
    while httpx.post(url, json={"policy": "large-only"}).status_code != 201:
        assert time.monotonic() < until, "the store did not come back"
        time.sleep(0.5)
    while {one["policy"] for one in await everybody(served)} != {"large-only"}:
        assert time.monotonic() < until, "a replica does not follow any more"

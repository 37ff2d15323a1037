"""Two replicas of the orchestrator on a real Ray, meeting in Redis, and how SIGTERM ends them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.deploy.conftest import QUESTION, WAIT_S, Served, alive, free_port, running, until
from tests.orchestrator.redis_server import RedisServer, redis_server

pytestmark = [pytest.mark.serve, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture(scope="module")
def in_redis(
    redis: RedisServer, endless_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    data: dict[str, Any] = yaml.safe_load(endless_file.read_text())
    data["http_options"]["port"] = free_port()
    application = data["applications"][0]
    application["deployments"] = [{"name": "Orchestrator", "num_replicas": 2}]
    application["args"]["store"] = redis.url
    application["args"]["workers"]["large"]["replicas"] = 1
    file = tmp_path_factory.mktemp("redis") / "two.yaml"
    file.write_text(yaml.safe_dump(data))
    with running(file) as served:
        yield served


async def everybody(served: Served, count: int = 24) -> list[dict[str, Any]]:
    """The `baton` fields of many concurrent answers; each replica gives some of them."""
    body = {"model": "baton", "messages": QUESTION, "max_tokens": 40}
    async with httpx.AsyncClient(timeout=WAIT_S) as client:
        url = f"{served.url}/v1/chat/completions"
        asked = (client.post(url, json=body) for _ in range(count))
        return [reply.json()["baton"] for reply in await asyncio.gather(*asked)]


async def follow(served: Served, name: str, value: Any) -> list[dict[str, Any]]:
    """Answers once all replicas go by a change; `name` is a field of `baton`."""
    async with asyncio.timeout(WAIT_S):
        while True:
            extras = await everybody(served)
            if {one[name] for one in extras} == {value}:
                return extras


async def test_a_change_reaches_all_replicas(in_redis: Served, redis: RedisServer) -> None:
    assert len(in_redis.replicas("Orchestrator")) == 2
    url, policy = f"{in_redis.url}/v1/policies", {"policy": "small-only", "params": {"budget": 9}}
    assert httpx.post(url, json=policy).status_code == 201
    extras = await follow(in_redis, "version", 1)
    assert {one["policy"] for one in extras} == {"small-only"}
    # Whichever replica is asked finds every trace; the outbox carries them there one by one.
    for one in extras:
        trace = f"{in_redis.url}/v1/traces/{one['trace_id']}"
        await until(lambda trace=trace: httpx.get(trace).status_code == 200)
    redis.stop()
    redis.start()
    await until(lambda: httpx.get(f"{in_redis.url}/ready").json()["degraded"])
    assert {one["version"] for one in await everybody(in_redis)} == {1}
    await until(lambda: httpx.post(url, json={"policy": "large-only"}).status_code == 201)
    await follow(in_redis, "policy", "large-only")


async def test_sigterm_lets_answers_be_finished_and_takes_no_more(in_redis: Served) -> None:
    """The last test of this service."""
    started = in_redis.processes()
    streams = [asyncio.create_task(in_redis.told(max_tokens=1800)) for _ in range(6)]
    await until(lambda: in_redis.metric("baton_worker_live_rows", "large") >= 4)
    in_redis.process.send_signal(signal.SIGTERM)
    refused = None
    url = f"{in_redis.url}/v1/chat/completions"
    body = {"model": "large-only", "messages": QUESTION, "max_tokens": 1}
    async with httpx.AsyncClient(timeout=WAIT_S) as http:
        while refused is None or refused.status_code != 503:
            assert not all(stream.done() for stream in streams)
            refused = await http.post(url, json=body)
    assert refused.json()["error"]["code"] == "shutting_down"
    assert "retry-after" in refused.headers
    for text in await asyncio.gather(*streams):
        assert text.endswith("data: [DONE]\n\n")
    out, err = await asyncio.to_thread(in_redis.process.communicate, timeout=WAIT_S)
    assert (in_redis.process.returncode, err) == (0, "")
    assert "cut short" not in out
    assert alive(started) == {}

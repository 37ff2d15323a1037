"""A service of two servers on a real Ray, without the extras: two orchestrators that meet in Redis,
and how SIGTERM ends them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
import yaml

from deploy.evaluation.builtin.problems import draw
from tests.deploy.conftest import QUESTION, ROOT, WAIT_S, Served, alive, running, until
from tests.deploy.service.test_remote_pair import PAIR, remote_file
from tests.orchestrator.redis_server import RedisServer, redis_server
from tests.workers.remote.vllm_like import ServerBehavior, VllmLike, serving
from workers.engine.loading import load

pytestmark = [pytest.mark.serve, pytest.mark.timeout(1200)]

OF_EXTRAS = ("torch", "transformers", "safetensors", "gguf", "scipy", "statsmodels", "sklearn")
OF_EXTRAS += ("matplotlib", "math_verify", "pebble", "reasoning_gym", "pandas")


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


class HeldServer(VllmLike):
    """Streams no token while it is held."""

    held = False

    async def streamed(self, *args: Any) -> AsyncIterator[str]:
        async for chunk in super().streamed(*args):
            while self.held:
                await asyncio.sleep(0.01)
            yield chunk


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, HeldServer]]:
    """The embedded pair on servers that want a key."""
    workers = {name: load(f"embedded:{name}") for name in PAIR}
    yield {name: HeldServer(one, ServerBehavior(key="k")) for name, one in workers.items()}
    for worker in workers.values():
        worker.close()


@pytest.fixture(scope="module")
def in_redis(
    redis: RedisServer, servers: dict[str, HeldServer], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """No process of it can import what an extra brings: each reads this `sitecustomize` first."""
    folder = tmp_path_factory.mktemp("redis")
    blocked = f"import sys\nfor name in {OF_EXTRAS}: sys.modules[name] = None\n"
    (folder / "sitecustomize.py").write_text(blocked)
    with (
        serving(servers["small"].app) as small,
        serving(servers["large"].app) as large,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("SERVER_KEY", "k")
        patch.setenv("PYTHONPATH", os.pathsep.join([str(folder), str(ROOT)]))
        file = remote_file(folder, {"small": small, "large": large}, *PAIR)
        data: dict[str, Any] = yaml.safe_load(file.read_text())
        application = data["applications"][0]
        application["deployments"] = [{"name": "Orchestrator", "num_replicas": 2}]
        application["args"]["store"] = redis.url
        file.write_text(yaml.safe_dump(data))
        with running(file) as served:
            yield served


async def test_a_service_of_two_servers_needs_no_extra(in_redis: Served) -> None:
    reply: Any = await in_redis.client.chat.completions.create(
        model="specreason",
        messages=[{"role": "user", "content": draw("dev", 11, 1)[0].question}],
    )
    assert "boxed" in reply.choices[0].message.content
    assert {step["author"] for step in reply.baton["steps"]} <= {"small", "large"}
    assert reply.baton["metrics"]["large_passes"] > 0
    assert not [*in_redis.replicas("SmallWorker"), *in_redis.replicas("LargeWorker")]


async def everybody(served: Served, count: int = 24) -> list[dict[str, Any]]:
    """The `baton` fields of many concurrent answers; each replica gives some of them."""
    body = {"model": "baton", "messages": QUESTION, "max_tokens": 8}
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


async def test_sigterm_lets_answers_be_finished_and_takes_no_more(
    in_redis: Served, servers: dict[str, HeldServer]
) -> None:
    """The last test of this service."""
    started, large = in_redis.processes(), servers["large"]
    large.held = True
    streams = [asyncio.create_task(in_redis.told()) for _ in range(6)]
    await until(lambda: large.live == 6)
    for pid in {in_redis.process.pid, *in_redis.processes()}:  # as systemd sends it
        os.kill(pid, signal.SIGTERM)
    refused = None
    url = f"{in_redis.url}/v1/chat/completions"
    body = {"model": "small-only", "messages": QUESTION, "max_tokens": 1}
    async with httpx.AsyncClient(timeout=WAIT_S) as http:
        while refused is None or refused.status_code != 503:
            refused = await http.post(url, json=body)
    assert refused.json()["error"]["code"] == "shutting_down"
    assert "retry-after" in refused.headers
    large.held = False
    for text in await asyncio.gather(*streams):
        assert text.endswith("data: [DONE]\n\n")
    out, err = await asyncio.to_thread(in_redis.process.communicate, timeout=WAIT_S)
    assert (in_redis.process.returncode, err) == (0, "")
    assert "cut short" not in out
    assert alive(started) == {}

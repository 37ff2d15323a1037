"""No request ever sees a mix: the active policy changes all the while, two replicas answer.

A hundred changes in the suite; more by `BATON_CHANGES=10000` in the environment.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

from orchestrator.http.settings import ServiceLimits
from orchestrator.state.redis import RedisStore
from orchestrator.state.versions import AuditInfo, PolicyVersions, Publication
from orchestrator.types import Generation, Sampling, StopCriteria
from orchestrator.worker import Call, Delta
from policies import POLICIES
from tests.orchestrator.redis_server import redis_server
from tests.orchestrator.serving import HTTP, STORY, post, service, serving, until
from tests.workers.scripted import Scripted

CHANGES = int(os.environ.get("BATON_CHANGES", "100"))
ASKERS = 6
BUSY_S = 30.0  # everybody shares this process: a store that seems slow is none that is away


def parameters(version: int) -> dict[str, Any]:
    """Parameters each of which tells the version it belongs to."""
    return {"threshold": version % 10, "step_tokens": 10 + version, "budget": 30_000 + version}


class Watched(Scripted):
    """Notes the spans that each request's steps were asked with."""

    spans: defaultdict[str, set[int]]

    async def generate(
        self, call: Call, criteria: StopCriteria, sampling: Sampling, *, stream: bool = True
    ) -> AsyncIterator[Delta | Generation]:
        if criteria.max_tokens and not call.transcript.closed:
            self.spans[call.request].add(criteria.max_tokens)
        async for item in super().generate(call, criteria, sampling, stream=stream):
            yield item


@pytest.fixture
def workers() -> Iterator[dict[str, Watched]]:
    made = {name: Watched(story=STORY, delay=0.0005) for name in ("small", "large")}
    for worker in made.values():
        worker.spans = defaultdict(set)
    return made


@pytest.mark.timeout(900)
def test_no_request_sees_a_mix(workers: dict[str, Watched]) -> None:
    done, published, seen = threading.Event(), [0], set[int]()
    limits = ServiceLimits(max_tokens=100_000, max_tokens_cap=100_000)

    async def change(url: str) -> None:
        store = RedisStore(url, timeout_s=BUSY_S)
        versions = PolicyVersions(store, POLICIES, {})
        for number in range(1, CHANGES + 1):
            given = Publication(policy="specreason", params=parameters(number))
            made = await versions.publish(given, AuditInfo())
            assert made.version == number
            published[0] = number
            if number % 10 == 0:
                await asyncio.to_thread(until, partial(seen.__contains__, number))
                await versions.rollback(AuditInfo())
                await versions.activate(made.reference, AuditInfo())
        await store.aclose()

    def ask(urls: list[str], seed: int) -> None:
        chance = random.Random(seed)
        while not done.is_set():
            last = published[0]
            pin = chance.randint(1, last) if last and chance.random() < 0.25 else None
            model = "baton" if pin is None else f"specreason@{pin}"
            url = chance.choice(urls)
            reply = post(url, {"model": model})
            assert reply.status_code == 200, reply.text
            told = reply.json()["baton"]
            version, trace = told["version"], told["trace_id"]
            assert pin in (None, version)
            if pin is None:
                seen.add(version)
            spans = workers["small"].spans.pop(trace, set()) | workers["large"].spans.pop(
                trace, set()
            )
            if version:
                assert spans == {parameters(version)["step_tokens"]}
                record = HTTP.get(f"{url}/v1/traces/{trace}").json()
                assert record["version"] == version
                given = {key: record["parameters"][key] for key in parameters(version)}
                assert given == parameters(version)

    with redis_server() as redis, ExitStack() as stack:
        urls = []
        for _ in range(2):
            made = service(**workers, limits=limits, store=RedisStore(redis.url, timeout_s=BUSY_S))
            urls.append(stack.enter_context(serving(made)))
        with ThreadPoolExecutor(ASKERS) as pool:
            asking = [pool.submit(ask, urls, seed) for seed in range(ASKERS)]
            try:
                asyncio.run(change(redis.url))
            finally:
                done.set()
            for one in asking:
                one.result()
        for url in urls:
            until(lambda url=url: post(url).json()["baton"]["version"] == CHANGES)  # type: ignore[misc]

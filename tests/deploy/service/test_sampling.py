"""The large model's pool is asked for its sampling once, and only where that counts."""

from __future__ import annotations

import asyncio

import pytest

from deploy.service.config import SamplingSpec
from deploy.service.sampling import AGAIN_S, DefaultSampling
from orchestrator.errors import WorkerUnavailable
from orchestrator.types import Sampling

OWN = Sampling(0.6, 0.95, 20)


class Pool:
    def __init__(self, down: bool = False) -> None:
        self.down, self.asked = down, 0

    async def ask(self) -> Sampling:
        self.asked += 1
        await asyncio.sleep(0.01)
        if self.down:
            raise WorkerUnavailable("no replica answered")
        return OWN


async def test_a_file_that_says_everything_asks_nobody() -> None:
    pool = Pool(down=True)
    spec = SamplingSpec(temperature=0.1, top_p=0.2, top_k=3)
    assert await DefaultSampling(spec, pool.ask).get() == Sampling(0.1, 0.2, 3)
    assert pool.asked == 0


async def test_what_the_file_leaves_open_is_asked_for_once() -> None:
    pool = Pool()
    made = DefaultSampling(SamplingSpec(top_p=0.5), pool.ask)
    told = await asyncio.gather(*(made.get() for _ in range(8)))
    assert {*told, await made.get()} == {Sampling(0.6, 0.5, 20)}
    assert pool.asked == 1


async def test_a_pool_that_is_down_is_asked_again_after_a_while() -> None:
    pool, now = Pool(down=True), 1.0
    made = DefaultSampling(SamplingSpec(), pool.ask, clock=lambda: now)
    told = await asyncio.gather(*(made.get() for _ in range(8)), return_exceptions=True)
    assert all(isinstance(one, WorkerUnavailable) for one in told)
    assert pool.asked == 1
    pool.down = False
    with pytest.raises(WorkerUnavailable):
        await made.get()
    now += AGAIN_S
    assert await made.get() == OWN

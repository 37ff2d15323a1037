"""Pools are asked about themselves once at a time, and only for what is not known."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from deploy.service.pools import REUSE_S, WorkerView, WorkerViews
from orchestrator.efforts import TemplateEfforts
from orchestrator.errors import WorkerUnavailable
from orchestrator.types import PartialSampling, Sampling
from workers.replica.client import ReplicaWorker
from workers.replica.server import ReplicaStatus

OWN = Sampling(0.6, 0.95, 20)
LEVELS = TemplateEfforts("reasoning_effort", ("low", "high"))


class Pool(ReplicaWorker):
    def __init__(self, down: bool = False) -> None:
        self.down, self.asked = down, 0

    async def status(self, timeout_s: float = 1.0) -> ReplicaStatus:
        self.asked += 1
        await asyncio.sleep(0)
        if self.down:
            raise WorkerUnavailable("no replica answered")
        return ReplicaStatus("r", {}, 512, OWN, LEVELS)


def views(pool: Pool, **sampling: Any) -> WorkerViews:
    return WorkerViews({"large": pool}, PartialSampling(**sampling))


async def test_a_file_with_all_of_the_sampling_asks_no_pool() -> None:
    pool = Pool(down=True)
    assert await views(pool, temperature=0.1, top_p=0.2, top_k=3).sampling() == Sampling(
        0.1, 0.2, 3
    )
    assert pool.asked == 0


async def test_requests_at_the_same_time_share_one_question() -> None:
    pool = Pool()
    made = views(pool, top_p=0.5)
    told = await asyncio.gather(*(made.sampling() for _ in range(8)))
    assert {*told, await made.sampling()} == {Sampling(0.6, 0.5, 20)}
    assert await made.contexts() == {"large": 512}
    assert await made.efforts() == {"large": LEVELS}
    assert await made.ready() == {"large": True}
    assert pool.asked == 1


async def test_a_pool_that_is_down_is_asked_again_after_a_while() -> None:
    pool, now = Pool(down=True), 1.0
    view = WorkerView(pool, clock=lambda: now)
    told = await asyncio.gather(*(view.sampling() for _ in range(8)), return_exceptions=True)
    assert all(isinstance(one, WorkerUnavailable) for one in told)
    assert (await view.answers(), await view.context(), pool.asked) == (False, None, 1)
    assert await view.efforts() is None
    pool.down = False
    with pytest.raises(WorkerUnavailable):
        await view.sampling()
    now += REUSE_S
    assert (await view.sampling(), await view.context(), await view.answers()) == (OWN, 512, True)


async def test_a_model_loads_until_it_answers_once() -> None:
    pool, now = Pool(down=True), 1.0
    made = views(pool)
    made._views["large"]._clock = lambda: now
    assert await made.loading(["large"]) == ["large"]
    pool.down, now = False, now + REUSE_S
    assert await made.loading(["large"]) == []
    pool.down, now = True, now + REUSE_S
    assert await made.loading(["large"]) == []  # lost: a call waits for another replica

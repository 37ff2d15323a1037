"""Pools report their status to one caller at a time, and only what is not known yet."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from deploy.service.pools import HIDDEN, REUSE_S, WorkerView, WorkerViews
from orchestrator.efforts import TemplateEfforts
from orchestrator.errors import WorkerUnavailable
from orchestrator.http.planning import ModelFacts
from orchestrator.types import Sampling
from workers.embedded.checkpoints import resolve
from workers.remote.backend import RemoteBackend
from workers.remote.server import Server
from workers.replica.channel import Address
from workers.replica.client import ReplicaWorker
from workers.replica.server import ReplicaStatus
from workers.text.tokenizer_files import load_tokenizer
from workers.worker import ModelWorker

TOKENIZER = load_tokenizer(resolve("embedded:small"))

LOST = "its model loads, or its replicas are lost"
KNOWN = ModelFacts(512, Sampling(0.6, 0.95, 20), TemplateEfforts("effort", ("low", "high")))


class Pool(ReplicaWorker):
    def __init__(self, down: bool = False) -> None:
        self.down, self.asked = down, 0

    async def status(self, timeout_s: float = 1.0) -> ReplicaStatus:
        self.asked += 1
        await asyncio.sleep(0)
        if self.down:
            raise WorkerUnavailable("no replica answered")
        return ReplicaStatus(
            "r", Address("r", 1, b""), {}, KNOWN.context, KNOWN.sampling, KNOWN.efforts
        )


async def test_requests_at_the_same_time_share_one_question() -> None:
    pool = Pool()
    views = WorkerViews({"large": pool})
    told = await asyncio.gather(*(views.facts(["large"]) for _ in range(8)))
    assert told == [{"large": KNOWN}] * 8
    assert await views.troubles() == {"large": None}
    assert pool.asked == 1


async def test_clients_see_what_a_server_said_only_if_all_are_on_this_machine() -> None:
    server = ModelWorker(RemoteBackend(Server("http://127.0.0.1:9/v1", retries=0), "m", TOKENIZER))
    workers: dict[Any, Any] = {"small": server, "large": Pool(down=True)}
    shown = await WorkerViews(workers).troubles()
    assert "127.0.0.1:9" in (shown["small"] or "")
    assert await WorkerViews(workers, shows=False).troubles() == {"small": HIDDEN, "large": LOST}
    await server.backend.aclose()


@pytest.mark.parametrize("times", [1, 8])
async def test_a_model_loads_until_it_answers_once(times: int) -> None:
    pool, now = Pool(down=True), 1.0
    view = WorkerView(pool, clock=lambda: now)
    assert await asyncio.gather(*(view.facts() for _ in range(times))) == [None] * times
    assert (await view.trouble(), pool.asked) == (LOST, 1)
    pool.down = False
    assert await view.facts() is None  # the answer is reused for a while
    now += REUSE_S
    assert (await view.facts(), await view.trouble()) == (KNOWN, None)
    pool.down, now = True, now + REUSE_S
    # Lost: a call waits for another replica.
    assert (await view.trouble(), await view.facts()) == (LOST, KNOWN)

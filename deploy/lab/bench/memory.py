"""The memory that a live request holds, over workers that answer at once."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from time import perf_counter

from deploy.lab.bench.instant import STEP, InstantWorker
from deploy.lab.bench.length import AROUND, ask, service_app
from orchestrator.types import Classification, LabelQuery
from orchestrator.worker import Call


def request_bytes(tokens: int, policy: str = "specreason") -> float:
    """Bytes a token that one request of `tokens` tokens holds just before its end.

    They are counted when the policy judges a step. They grow with the thought: ids, texts, and the
    record of rejected drafts.
    """
    steps = tokens // STEP
    held = 0

    class Watched(InstantWorker):
        async def classify(self, call: Call, query: LabelQuery) -> Classification:
            nonlocal held
            if call.transcript.chain.tokens >= (steps - AROUND) * STEP:
                held = max(held, tracemalloc.get_traced_memory()[0])
            return await super().classify(call, query)

    app = service_app(policy, {name: Watched(steps, perf_counter) for name in ("small", "large")})
    asyncio.run(ask(app, policy, 4 * STEP))  # imports
    gc.collect()
    tracemalloc.start()
    try:
        asyncio.run(ask(app, policy, tokens + 10 * STEP))
    finally:
        tracemalloc.stop()
    return held / tokens

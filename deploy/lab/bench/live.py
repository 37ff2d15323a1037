"""Many long requests at once over scripted workers, and the lag of the event loop they share.

The workers write at a steady pace and cost this process nothing. They return text as a replica
does: a draft as a whole, a stream in pieces of `PIECE_S`. Everything else is real: the HTTP
surface, the step loop, the policy, the record. Requests come `APART_S` after each other.

The loop's lag is how much too late a sleep of `TICK_S` ends. Other load on the machine adds to it;
the CPU time that the loop took meanwhile is the lag without that load.
"""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import AsyncIterator, Callable, Mapping
from itertools import pairwise
from math import inf
from time import perf_counter, process_time, thread_time
from typing import Any, Final

from deploy.evaluation.intervals import quantile
from deploy.evaluation.summary import Row
from deploy.lab.bench.instant import STEP, InstantWorker
from deploy.lab.bench.length import AROUND, MANY, QUESTION, post
from orchestrator.http.app import create_app
from orchestrator.http.planning import Catalog
from orchestrator.http.service import Pools, Service
from orchestrator.http.settings import HttpSettings, ServiceLimits
from orchestrator.types import (
    Classification,
    Generation,
    LabelQuery,
    Sampling,
    Segment,
    StopCriteria,
    Verification,
)
from orchestrator.worker import Call, Delta
from policies import POLICIES
from workers.streams import BATCH_S

TICK_S: Final = 0.002
PIECE_S: Final = BATCH_S
APART_S: Final = 0.031


class PacedWorker(InstantWorker):
    """An `InstantWorker` that takes `token_s` seconds a token; reading takes one token's time."""

    def __init__(self, steps: int, token_s: float) -> None:
        super().__init__(steps, perf_counter)
        self._token_s = token_s

    async def generate(
        self, call: Call, criteria: StopCriteria, sampling: Sampling, *, stream: bool = True
    ) -> AsyncIterator[Delta | Generation]:
        size = max(1, round(PIECE_S / self._token_s))
        async for item in super().generate(call, criteria, sampling, stream=stream):
            if isinstance(item, Generation):
                if not stream:
                    await asyncio.sleep(item.usage.generated * self._token_s)
                yield item
                continue
            words = item.text.split(" ")
            texts = [f"{word} " for word in words[:-1]] + words[-1:]
            for begin, end in pairwise([*range(0, len(item.tokens), size), len(item.tokens)]):
                await asyncio.sleep((end - begin) * self._token_s)
                text = "".join(texts[begin:end] if end < len(item.tokens) else texts[begin:])
                yield Delta(text, item.tokens[begin:end], item.logprobs[begin:end])

    async def classify(self, call: Call, query: LabelQuery) -> Classification:
        await asyncio.sleep(self._token_s)
        return await super().classify(call, query)

    async def verify(
        self, call: Call, segment: Segment, sampling: Sampling, top: int = 0
    ) -> Verification:
        await asyncio.sleep(self._token_s)
        return await super().verify(call, segment, sampling, top)


def bench_live(
    policy: str,
    *,
    live: int = 64,
    tokens: int = 8000,
    token_s: float = 0.005,
    tell: Callable[[str], None] = lambda _: None,
) -> Row:
    """Lag of the loop and CPU of this process, with `live` streamed requests of `tokens` tokens."""
    tell(f"{policy}, {live} requests of {tokens} tokens")
    return asyncio.run(_live(policy, live, tokens, token_s))


async def _live(policy: str, live: int, tokens: int, token_s: float) -> Row:
    steps = tokens // STEP
    app = _app(policy, {name: PacedWorker(steps, token_s) for name in ("small", "large")})
    body = {
        "model": policy,
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": tokens + 10 * STEP,
        "stream": True,
    }
    lags, own = list[float](), list[float]()

    async def watch() -> None:
        while True:
            began, worked = perf_counter(), thread_time()
            await asyncio.sleep(TICK_S)
            lags.append(1e3 * (perf_counter() - began - TICK_S))
            own.append(1e3 * (thread_time() - worked))

    async def ask(number: int) -> bytes:
        await asyncio.sleep(number * APART_S)
        return await post(app, "/v1/chat/completions", body)

    gc.collect()
    watching = asyncio.create_task(watch())
    began, cpu = perf_counter(), process_time()
    ends = await asyncio.gather(*map(ask, range(live)))
    seconds, cpu = perf_counter() - began, process_time() - cpu
    watching.cancel()
    if not all(end.endswith(b"data: [DONE]\n\n") for end in ends):
        raise RuntimeError(f"expected streams that end, got {ends[0][-200:]!r}")
    return {
        "policy": policy,
        "live": live,
        "tokens": tokens,
        "lag_p99_ms": quantile(lags, 0.99),
        "own_p99_ms": quantile(own, 0.99),
        "cpu_us": 1e6 * cpu / (live * tokens),
        "step_us": 1e6 * cpu / (live * steps),
        "seconds": seconds,
    }


def request_bytes(tokens: int, policy: str = "specreason") -> float:
    """Bytes a token that one request of `tokens` tokens holds just before its end.

    They are counted when the policy judges a step. They grow with the thought: ids, texts, and the
    record of rejected drafts.
    """
    steps = tokens // STEP
    held = 0

    class Watched(InstantWorker):
        async def classify(self, call: Call, query: LabelQuery) -> Classification:
            note(call)
            return await super().classify(call, query)

    def note(call: Call) -> None:
        nonlocal held
        if call.transcript.chain.tokens >= (steps - AROUND) * STEP:
            held = max(held, tracemalloc.get_traced_memory()[0])

    app = _app(policy, {name: Watched(steps, perf_counter) for name in ("small", "large")})
    body = {
        "model": policy,
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": tokens + 10 * STEP,
        "stream": True,
    }
    asyncio.run(post(app, "/v1/chat/completions", body | {"max_tokens": 4 * STEP}))  # imports
    gc.collect()
    tracemalloc.start()
    try:
        asyncio.run(post(app, "/v1/chat/completions", body))
    finally:
        tracemalloc.stop()
    return held / tokens


def _app(policy: str, workers: Mapping[Any, Any]) -> Any:
    settings = HttpSettings(ServiceLimits(max_tokens_cap=MANY, deadline_s=inf, concurrent=1024))
    return create_app(Service(Catalog(POLICIES, policy), Pools(workers), settings))

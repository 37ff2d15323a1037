"""Many streamed chat completions at once: tokens a second, and the time to the first text."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import median
from time import perf_counter

import httpx

from deploy.evaluation.intervals import quantile

TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Load:
    """What `streams` clients together got: tokens a second, and seconds to the first text."""

    tokens_per_s: float
    first_p50_s: float
    first_p95_s: float


@dataclass(frozen=True, slots=True)
class _Answer:
    tokens: int
    first_s: float


async def load(
    url: str, model: str, questions: Sequence[str], *, streams: int, requests: int, max_tokens: int
) -> Load:
    """`requests` requests by `streams` clients, each of which asks again once it is answered.

    Raises:
        RuntimeError: an answer is not what an OpenAI-compatible server says.
    """
    left = iter(range(requests))
    # A connection for each request: a server may close an idle one just as it is asked again.
    limits = httpx.Limits(max_connections=streams, max_keepalive_connections=0)
    async with httpx.AsyncClient(limits=limits, timeout=TIMEOUT_S, trust_env=False) as client:

        async def ask_on() -> list[_Answer]:
            return [
                await _ask(client, url, model, questions[number % len(questions)], max_tokens)
                for number in left
            ]

        began = perf_counter()
        groups = await asyncio.gather(*(ask_on() for _ in range(streams)))
        seconds = perf_counter() - began
    answers = list(chain.from_iterable(groups))
    firsts = [answer.first_s for answer in answers]
    tokens = sum(answer.tokens for answer in answers)
    return Load(tokens / seconds, median(firsts), quantile(firsts, 0.95))


async def _ask(
    client: httpx.AsyncClient, url: str, model: str, question: str, max_tokens: int
) -> _Answer:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    began, first, pieces, counted = perf_counter(), None, 0, None
    async with client.stream("POST", f"{url}/v1/chat/completions", json=body) as response:
        if response.status_code != 200:
            text = (await response.aread()).decode(errors="replace")
            raise RuntimeError(f"expected status 200 of {url}, got {response.status_code}: {text}")
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise RuntimeError(f"{url} ended an answer: {event['error']}")
            counted = (event.get("usage") or {}).get("completion_tokens", counted)
            for choice in event.get("choices", ()):
                delta = choice.get("delta", {})
                if any(delta.get(key) for key in ("content", "reasoning_content", "reasoning")):
                    first = first or perf_counter() - began
                    pieces += 1
    if first is None:
        raise RuntimeError(f"expected text of {url} to {question!r}, got none")
    return _Answer(counted or pieces, first)

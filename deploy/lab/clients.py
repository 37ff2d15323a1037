"""Many clients at once over the OpenAI API, each of which asks again once it is answered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import httpx

TIMEOUT_S = 3600.0


@dataclass(slots=True)
class StreamedAnswer:
    """A streamed answer: its text, tokens, seconds to the first text, and Baton's own object."""

    text: str = ""
    tokens: int = 0
    first_s: float | None = None
    baton: Mapping[str, Any] = field(default_factory=dict)


async def ask_all(
    url: str, bodies: Sequence[Mapping[str, Any]], clients: int
) -> tuple[list[StreamedAnswer], float]:
    """Return the answers to all bodies, in their order, and the seconds they took together.

    Raises:
        RuntimeError: an answer is not what an OpenAI-compatible server says.
    """
    answers: dict[int, StreamedAnswer] = {}
    waiting = iter(enumerate(bodies))
    # A connection for each request: a server may close an idle one just as it is asked again.
    limits = httpx.Limits(max_connections=clients, max_keepalive_connections=0)
    async with httpx.AsyncClient(limits=limits, timeout=TIMEOUT_S, trust_env=False) as http:

        async def client() -> None:
            for number, body in waiting:
                answers[number] = await _ask(http, url, body)

        began = perf_counter()
        await asyncio.gather(*(client() for _ in range(clients)))
        return [answers[number] for number in range(len(bodies))], perf_counter() - began


async def _ask(http: httpx.AsyncClient, url: str, given: Mapping[str, Any]) -> StreamedAnswer:
    body = {"temperature": 0, **given, "stream": True, "stream_options": {"include_usage": True}}
    made, began, counted = StreamedAnswer(), perf_counter(), None
    async with http.stream("POST", f"{url}/v1/chat/completions", json=body) as response:
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
            made.baton = event.get("baton") or made.baton
            for choice in event.get("choices", ()):
                delta = choice.get("delta", {})
                if any(delta.get(key) for key in ("content", "reasoning_content", "reasoning")):
                    made.first_s = made.first_s or perf_counter() - began
                    made.tokens += 1
                    made.text += delta.get("content") or ""
    if made.first_s is None:
        raise RuntimeError(f"expected text of {url} to {body['messages']}, got none")
    made.tokens = counted or made.tokens
    return made

"""Calls to a worker on a tiny checkpoint, and changes to what its model does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from orchestrator.types import Generation, Message, Sampling, Segment, StopCriteria, Transcript
from orchestrator.worker import Call
from workers.worker import EngineWorker, ModelWorker

STEPS = (
    StopCriteria(7),
    StopCriteria(40, ("\n\n",)),
    StopCriteria(10, min_confidence=0.9),
    StopCriteria(3),
    StopCriteria(60, ("\n\n",)),
    StopCriteria(60, ("\n\n",)),
)
"""Of every kind, for calls of which each continues the text before."""


def ask(text: str = "What is 12 + 34?", owner: str = "") -> Call:
    """A call; one of another owner finds nothing cached."""
    return Call("r", Transcript((Message("user", text),)), owner=owner)


def continued(call: Call, *segments: Segment) -> Call:
    """The call after further segments."""
    for segment in segments:
        call = replace(call, transcript=call.transcript.extend(segment))
    return call


async def run(
    worker: ModelWorker, call: Call, criteria: StopCriteria, sampling: Sampling | None = None
) -> Generation:
    stream = worker.generate(call, criteria, sampling or Sampling(), stream=False)
    (answer,) = [item async for item in stream]
    assert isinstance(answer, Generation)
    return answer


def slow(worker: EngineWorker, seconds: float) -> None:
    """Make every iteration take that much longer."""
    decode = worker.backend.engine.decoder.step

    def slower(*rows: Any) -> Any:
        time.sleep(seconds)
        return decode(*rows)

    worker.backend.engine.decoder.step = slower  # type: ignore[method-assign]


@contextmanager
def held(worker: EngineWorker) -> Iterator[None]:
    """Let rows that are live wait until the block ends, while others are admitted."""
    decoder = worker.backend.engine.decoder
    decode = decoder.step

    def waiting(*rows: Any) -> Any:
        time.sleep(0.001)
        return []

    decoder.step = waiting  # type: ignore[method-assign]
    try:
        yield
    finally:
        decoder.step = decode  # type: ignore[method-assign]


async def until(worker: EngineWorker, **wanted: int) -> None:
    """Wait until the worker's counters and gauges are these."""
    async with asyncio.timeout(60):
        while {name: worker.stats()[name] for name in wanted} != wanted:
            await asyncio.sleep(0.001)


def force(worker: EngineWorker, *texts: str | int) -> None:
    """Make the model say given tokens: texts in plain tokens, ids as they are."""
    ids: list[int] = []
    for text in texts:
        ids += [text] if isinstance(text, int) else worker.tokenizer.encode(text)
    target = worker.backend.engine.decoder.target
    forward = target.forward
    said = 0

    def forced(slots: Any, trees: Any, **options: Any) -> Any:
        nonlocal said
        result = forward(slots, trees, **options)
        result.logits.fill_(0.0)
        if result.logits.shape[1]:
            result.logits[..., ids[min(said, len(ids) - 1)]] = 9.0
            said += 1
        return result

    target.forward = forced  # type: ignore[method-assign]

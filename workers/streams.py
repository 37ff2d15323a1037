"""The stream protocol between a worker and a caller that may lose its stream.

A replica sends heartbeats and batches of deltas (`batch_stream`); if a stream breaks off, its
caller asks another replica for the rest (`resume_generation`). The transport is not known here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from itertools import chain
from typing import Any, Protocol, cast

from orchestrator.background import stop
from orchestrator.errors import Unsupported, WorkerError
from orchestrator.types import (
    Author,
    Finish,
    Generation,
    Sampling,
    Segment,
    StopCriteria,
    Usage,
    joined_provenance,
)
from orchestrator.worker import Call, Delta
from workers.text.boundaries import StepEnd, begun

HEARTBEAT_S = 1.0  # longest silence of a stream whose worker is alive
BATCH_S = 0.02  # deltas closer together than this are sent as one: less work beside the engine
MAX_BATCH_S = 0.25
BATCHES_PER_S = 200  # of all streams of a replica: a message costs three processes a millisecond


class GenerateCall(Protocol):
    """`Worker.generate`."""

    def __call__(
        self, call: Call, criteria: StopCriteria, sampling: Sampling, *, stream: bool
    ) -> AsyncIterator[Delta | Generation]: ...


async def resume_generation(
    generate: GenerateCall,
    tokenizer: str,
    received: Delta,
    call: Call,
    criteria: StopCriteria,
    sampling: Sampling,
    stream: bool,
) -> AsyncGenerator[Delta | Generation, None]:
    """Yield the deltas that follow `received`, then the whole generation.

    `tokenizer` is the hash of the worker's vocabulary, to which the tokens in `received` belong.
    """
    empty = Segment(cast("Author", call.author), "", tokenizer=tokenizer)
    # "length", since no delimiter ended it: a block that is open at its end stays open.
    sent = replace(
        empty,
        text=received.text,
        tokens=received.tokens,
        logprobs=received.logprobs,
        finish="length",
    )

    def whole(made: Generation) -> Generation:
        rest, usage = made.segment, made.usage
        segment = sent + rest
        prompt, generated = usage.prompt - len(received.tokens), len(segment.tokens)
        cached = min(usage.cached, prompt)  # the received tokens are not part of the prompt
        usage = replace(usage, prompt=prompt, cached=cached, generated=generated)
        provenance = joined_provenance(sent, None, rest, made.provenance)
        return replace(made, segment=segment, usage=usage, provenance=provenance)

    if not received.tokens:
        async with aclosing(_start(generate, call, criteria, sampling, stream)) as items:
            async for item in items:
                yield item
        return
    step = StepEnd(criteria.until, begun(call.transcript, criteria.until))
    ended = step.feed(received.text) is not None
    if ended or criteria.max_tokens == len(received.tokens):  # only the Generation was lost
        finish: Finish = "until" if ended else "length"
        yield whole(Generation(replace(empty, finish=finish), Usage(len(received.tokens))))
        return
    call = replace(call, transcript=call.transcript.extend(sent))
    criteria = criteria.after(len(received.tokens))
    rest: list[Delta] = []
    try:
        async with aclosing(_start(generate, call, criteria, sampling, True)) as items:
            async for item in items:
                if isinstance(item, Generation):
                    yield whole(item)
                    return
                yield item
                rest.append(item)
                if step.feed(item.text) is not None:  # a delimiter that `received` had begun
                    made = merge_deltas(rest)
                    segment = replace(
                        empty, text=made.text, tokens=made.tokens, logprobs=made.logprobs
                    )
                    spent = Usage(len(received.tokens), passes=len(made.tokens))
                    yield whole(Generation(segment, spent))
                    return
    except Unsupported as error:  # such as resuming a constrained answer: no replica can
        raise WorkerError(f"a stream broke off and cannot resume: {error}") from None


def _start(
    generate: GenerateCall, call: Call, criteria: StopCriteria, sampling: Sampling, stream: bool
) -> AsyncGenerator[Delta | Generation, None]:
    """Call the worker; closing the generator cancels the call."""
    items = generate(call, criteria, sampling, stream=stream)
    return cast("AsyncGenerator[Delta | Generation, None]", items)


def batch_s(streams: int) -> float:
    """Return the seconds within which deltas are merged if `streams` share a replica."""
    return min(max(BATCH_S, streams / BATCHES_PER_S), MAX_BATCH_S)


async def batch_stream(
    items: AsyncGenerator[Any, None], streams: Callable[[], int] = lambda: 1
) -> AsyncGenerator[Any, None]:
    """Yield the items, with deltas within `batch_s` merged, and None as a heartbeat in a silence.

    The first item is sent at once, and so is the last batch. `streams` returns how many streams
    share the replica now.

    Serve takes items as fast as they come, even if the caller no longer listens, so the engine's
    lease on the call is renewed. A call ends early if its caller cancels it, or if Serve sees the
    caller's process end; if both are lost, the call keeps its row until the generation ends.
    """
    batch: list[Any] = []
    arrived, exhausted = asyncio.Event(), asyncio.Event()

    async def pump() -> None:
        try:
            async with aclosing(items):
                async for item in items:
                    batch.append(item)
                    arrived.set()
        finally:
            exhausted.set()
            arrived.set()

    task = asyncio.create_task(pump())
    is_first = True
    try:
        while not exhausted.is_set() or batch:
            if not await _is_set_within(HEARTBEAT_S, arrived):
                yield None
                continue
            if not is_first:
                await _is_set_within(batch_s(streams()), exhausted)
            is_first = False
            deltas = [item for item in batch if isinstance(item, Delta)]
            others = [item for item in batch if not isinstance(item, Delta)]
            batch.clear()
            arrived.clear()
            if deltas:
                yield merge_deltas(deltas)
            for item in others:
                yield item
        await task
    finally:
        await stop(task)


async def _is_set_within(seconds: float, event: asyncio.Event) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


def merge_deltas(deltas: Sequence[Delta]) -> Delta:
    """Join consecutive deltas."""
    return Delta(
        "".join(delta.text for delta in deltas),
        tuple(chain.from_iterable(delta.tokens for delta in deltas)),
        tuple(chain.from_iterable(delta.logprobs for delta in deltas)),
    )

"""The stream protocol between a worker and a caller that may lose its stream.

A replica sends batches of deltas (`batch_stream`); if a stream breaks off, its caller asks another
replica for the rest (`resume_generation`). The transport is not known here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, suppress
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

BATCH_S = 0.02  # deltas closer together than this are sent as one: less work beside the engine
MAX_BATCH_S = 0.25
BATCHES_PER_S = 200  # of all streams of a replica: three processes handle each message


Items = AsyncGenerator[Delta | Generation, None]


class GenerateCall(Protocol):
    """`Worker.generate`."""

    def __call__(
        self, call: Call, criteria: StopCriteria, sampling: Sampling, *, stream: bool
    ) -> Items: ...


async def resume_generation(
    generate: GenerateCall,
    tokenizer: str,
    received: Delta,
    call: Call,
    criteria: StopCriteria,
    sampling: Sampling,
    stream: bool,
) -> Items:
    """Yield the deltas that follow `received`, then the whole generation.

    `tokenizer` is the hash of the worker's vocabulary, to which the tokens in `received` belong.
    """
    count = len(received.tokens)

    def segment(delta: Delta, finish: Finish) -> Segment:
        author = cast("Author", call.author)
        return Segment(author, delta.text, delta.tokens, delta.logprobs, tokenizer, finish)

    # "length", since no delimiter ended it: a block that is open at its end stays open.
    sent = segment(received, "length")

    def whole(made: Generation) -> Generation:
        rest, usage = made.segment, made.usage
        prompt = usage.prompt - count  # the received tokens are not part of it
        cached, generated = min(usage.cached, prompt), count + len(rest.tokens)
        usage = replace(usage, prompt=prompt, cached=cached, generated=generated)
        provenance = joined_provenance(sent, None, rest, made.provenance)
        return replace(made, segment=sent + rest, usage=usage, provenance=provenance)

    def items(stream: bool) -> AbstractAsyncContextManager[Items]:
        return aclosing(generate(call, criteria, sampling, stream=stream))

    if not count:
        async with items(stream) as all_of_it:
            async for item in all_of_it:
                yield item
        return
    step = StepEnd(criteria.until, begun(call.transcript, criteria.until))
    ended = step.feed(received.text) is not None
    if ended or criteria.max_tokens == count:  # only the Generation was lost
        nothing = segment(Delta("", ()), "until" if ended else "length")
        yield whole(Generation(nothing, Usage(count)))
        return
    call, criteria = replace(call, transcript=call.transcript.extend(sent)), criteria.after(count)
    rest: list[Delta] = []
    try:
        async with items(True) as the_rest:
            async for item in the_rest:
                if isinstance(item, Generation):
                    yield whole(item)
                    return
                yield item
                rest.append(item)
                if step.feed(item.text) is not None:  # a delimiter that `received` had begun
                    made = merge_deltas(rest)
                    usage = Usage(count, passes=len(made.tokens))
                    yield whole(Generation(segment(made, "until"), usage))
                    return
    except Unsupported as error:  # such as resuming a constrained answer: no replica can
        raise WorkerError(f"a stream broke off and cannot resume: {error}") from None


def batch_s(streams: int) -> float:
    """Return the seconds within which deltas are merged if `streams` share a replica."""
    return min(max(BATCH_S, streams / BATCHES_PER_S), MAX_BATCH_S)


async def batch_stream(
    items: AsyncGenerator[Any, None], streams: Callable[[], int] = lambda: 1
) -> AsyncGenerator[Any, None]:
    """Yield the items, with deltas within `batch_s` merged.

    The first item is sent at once, and so is the last batch. `streams` returns how many streams
    share the replica now.
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
            await arrived.wait()
            if not is_first:
                await _is_set_within(batch_s(streams()), exhausted)
            is_first = False
            taken = batch[:]
            batch.clear()
            arrived.clear()
            if deltas := [item for item in taken if isinstance(item, Delta)]:
                yield merge_deltas(deltas)
            for item in taken:
                if not isinstance(item, Delta):
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

"""The stream protocol between a worker and a caller that may lose its stream.

A replica sends deltas in batches and heartbeats (`batch_stream`); a caller whose stream broke off
asks for the rest elsewhere (`resume_generation`). Nothing here knows the transport.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
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
    """The rest of a generation of which `received` has arrived: its deltas, then the whole.

    `tokenizer` is the hash of the worker's vocabulary, to which the tokens in `received` belong.
    """

    empty = Segment(cast("Author", call.author), "", tokenizer=tokenizer)
    # It ended in no delimiter: a block that is open at its end stays open.
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
        cached = min(usage.cached, prompt)  # what was received is no prompt of the caller's
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
    if ended or criteria.max_tokens == len(received.tokens):  # only its end was lost
        finish: Finish = "until" if ended else "length"
        yield whole(Generation(replace(empty, finish=finish), Usage(len(received.tokens))))
        return
    call = replace(call, transcript=call.transcript.extend(sent))
    criteria = criteria.behind(len(received.tokens))
    rest: list[Delta] = []
    try:
        async with aclosing(_start(generate, call, criteria, sampling, True)) as items:
            async for item in items:
                if isinstance(item, Generation):
                    yield whole(item)
                    return
                yield item
                rest.append(item)
                if step.feed(item.text) is not None:  # it broke off inside one
                    made = merge_deltas(rest)
                    segment = replace(
                        empty, text=made.text, tokens=made.tokens, logprobs=made.logprobs
                    )
                    spent = Usage(len(received.tokens), passes=len(made.tokens))
                    yield whole(Generation(segment, spent))
                    return
    except Unsupported as error:  # such as resuming within a form: no other worker can
        raise WorkerError(f"a stream broke off and cannot resume: {error}") from None


def _start(
    generate: GenerateCall, call: Call, criteria: StopCriteria, sampling: Sampling, stream: bool
) -> AsyncGenerator[Delta | Generation, None]:
    """The worker's iterator as what it is, a generator: closing it cancels the call."""
    items = generate(call, criteria, sampling, stream=stream)
    return cast("AsyncGenerator[Delta | Generation, None]", items)


def batch_s(streams: int) -> float:
    """Seconds within which deltas are merged if this many streams share a replica."""
    return min(max(BATCH_S, streams / BATCHES_PER_S), MAX_BATCH_S)


async def batch_stream(
    items: AsyncGenerator[Any, None], streams: Callable[[], int] = lambda: 1
) -> AsyncGenerator[Any, None]:
    """The items: deltas within `batch_s` merged to one, None as a heartbeat in a long silence.

    The first item is sent at once, and so are those that wait when the items end. `streams` returns
    how many streams share the replica now.

    Serve takes items as fast as they come, whether or not the caller still listens, so the call's
    lease is renewed as long as this runs. The caller's cancellation ends a call early, or Serve
    does when the caller's process is gone; if both are lost, the row is held until the generation
    ends.
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
            if not is_first:  # the first goes at once
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


def merge_deltas(deltas: Iterable[Delta]) -> Delta:
    """Consecutive deltas as one."""
    deltas = list(deltas)
    return Delta(
        "".join(delta.text for delta in deltas),
        tuple(chain.from_iterable(delta.tokens for delta in deltas)),
        tuple(chain.from_iterable(delta.logprobs for delta in deltas)),
    )

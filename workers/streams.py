"""What travels between a replica and its callers: deltas in lots, beats, and the rest of a stream.

Nothing here knows how it travels.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any, Protocol, cast

from orchestrator.types import Author, Finish, Generation, Sampling, Segment, StopCriteria, Usage
from orchestrator.worker import Call, Delta

BEAT_S = 1.0  # a replica at work says so at least this often
GATHER_S = 0.02  # deltas closer together than this travel together: less work beside the engine
UNKNOWN = Usage()


class Generate(Protocol):
    """`Worker.generate`."""

    def __call__(
        self, call: Call, criteria: StopCriteria, sampling: Sampling, *, stream: bool
    ) -> AsyncIterator[Delta | Generation]: ...


async def resumed(
    generate: Generate,
    tokenizer: str,
    made: Delta,
    call: Call,
    criteria: StopCriteria,
    sampling: Sampling,
    stream: bool,
) -> AsyncGenerator[Delta | Generation, None]:
    """A generation of which `made` has arrived already: the other deltas, then the whole of it.

    `tokenizer` is the hash of the worker's vocabulary, to which the tokens in `made` belong.
    """

    def whole(rest: Segment, usage: Usage = UNKNOWN, ms: float = 0.0) -> Generation:
        segment = replace(
            rest,
            text=made.text + rest.text,
            tokens=made.tokens + rest.tokens,
            logprobs=made.logprobs + rest.logprobs,
        )
        prompt, generated = usage.prompt - len(made.tokens), len(segment.tokens)
        return Generation(segment, replace(usage, prompt=prompt, generated=generated), ms)

    if not made.tokens:
        async with aclosing(_writing(generate, call, criteria, sampling, stream)) as items:
            async for item in items:
                yield item
        return
    begun = Segment(cast("Author", call.author), "", tokenizer=tokenizer)
    left = criteria.max_tokens - len(made.tokens)
    if _ended(criteria, made.text) or not left:  # only the last word was lost
        finish: Finish = "until" if _ended(criteria, made.text) else "length"
        yield whole(replace(begun, finish=finish), Usage(prompt=len(made.tokens)))
        return
    call = replace(call, transcript=call.transcript.extend(whole(begun).segment))
    criteria = replace(
        criteria, max_tokens=left, max_entropy=None
    )  # its first token is long since made
    rest = Delta("", ())
    async with aclosing(_writing(generate, call, criteria, sampling, True)) as items:
        async for item in items:
            if isinstance(item, Generation):
                yield whole(item.segment, item.usage, item.ms)
                return
            yield item
            rest = joined((rest, item))
            if _ended(criteria, made.text + rest.text):  # the break lay inside a delimiter
                segment = replace(begun, text=rest.text, tokens=rest.tokens, logprobs=rest.logprobs)
                yield whole(segment, Usage(prompt=len(made.tokens)))
                return


def _writing(
    generate: Generate, call: Call, criteria: StopCriteria, sampling: Sampling, stream: bool
) -> AsyncGenerator[Delta | Generation, None]:
    """The worker's iterator as what it is: closing it cancels the call."""
    items = generate(call, criteria, sampling, stream=stream)
    return cast("AsyncGenerator[Delta | Generation, None]", items)


def _ended(criteria: StopCriteria, text: str) -> bool:
    return any(mark in text for mark in criteria.until)


async def gathered(items: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
    """The items; deltas that come close together as one, and None where there is a long silence.

    Serve takes them as fast as they come, whether or not the caller still listens: as long as this
    runs, the call has somebody who waits, and its lease is renewed. What ends a call early is the
    caller's cancelling, or Serve noticing that the caller's process is gone; where both are lost,
    the row is held until the span ends.
    """
    lot: list[Any] = []
    news, over = asyncio.Event(), asyncio.Event()

    async def pump() -> None:
        try:
            async with aclosing(items):
                async for item in items:
                    lot.append(item)
                    news.set()
        finally:
            over.set()
            news.set()

    task = asyncio.create_task(pump())
    began = False
    try:
        while not over.is_set() or lot:
            if not await _within(BEAT_S, news):
                yield None
                continue
            if began:  # the first goes at once
                await _within(GATHER_S, over)
            began = True
            deltas = [item for item in lot if isinstance(item, Delta)]
            rest = [item for item in lot if not isinstance(item, Delta)]
            lot.clear()
            news.clear()
            if deltas:
                yield joined(deltas)
            for item in rest:
                yield item
        await task
    finally:
        task.cancel()
        await asyncio.wait({task})


async def _within(seconds: float, event: asyncio.Event) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


def joined(deltas: Iterable[Delta]) -> Delta:
    deltas = list(deltas)
    return Delta(
        "".join(delta.text for delta in deltas),
        tuple(token for delta in deltas for token in delta.tokens),
        tuple(logprob for delta in deltas for logprob in delta.logprobs),
    )

"""What is left to make of a stream that broke off."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.errors import Unsupported, WorkerError
from orchestrator.types import (
    CallFormat,
    Generation,
    Message,
    Provenance,
    Segment,
    Segments,
    StopCriteria,
    Transcript,
    Usage,
)
from orchestrator.worker import Call, Delta
from tests.workers.replica.handles import CRITERIA, GREEDY, call
from workers.streams import BATCH_S, MAX_BATCH_S, batch_s, batch_stream, resume_generation
from workers.text import boundaries

QUESTION = Transcript((Message("user", "?"),))
AB = Delta("ab", (0, 1), (0.0, 0.0))


def yields(*items: Any) -> Any:
    """A worker's `generate` that makes these items; an error is raised."""

    async def generate(*_: Any, **__: Any) -> Any:
        for item in items:
            if isinstance(item, Exception):
                raise item
            yield item

    return generate


async def resumed(
    generate: Any,
    received: Delta,
    transcript: Transcript = QUESTION,
    criteria: StopCriteria = CRITERIA,
) -> Generation:
    items = resume_generation(
        generate, "words", received, call(transcript), criteria, GREEDY, stream=True
    )
    *_, whole = [item async for item in items]
    assert isinstance(whole, Generation)
    return whole


async def test_a_break_inside_a_delimiter_is_seen() -> None:
    lines = ["ab", "\n", "\n", "cd"]

    async def letters(call: Call, *_: Any, **__: Any) -> Any:
        for index in range(len(call.transcript.thought), len(lines)):
            yield Delta(lines[index], (index,), (0.0,))
        yield Generation(Segment("large", "".join(lines), (0, 1, 2, 3), finish="eos"))

    # With what was received, two segments.
    transcript = replace(QUESTION, thought=Segments([Segment("large", "x")]))
    whole = await resumed(letters, Delta("ab\n", (0, 1), (0.0, 0.0)), transcript)
    assert (whole.segment.text, whole.segment.finish) == ("ab\n\n", "until")


async def test_a_block_that_was_open_at_a_break_is_still_open() -> None:
    begun = list[str]()

    async def asked(call: Call, *_: Any, **__: Any) -> Any:
        begun.append(boundaries.begun(call.transcript, CRITERIA.until))
        yield Generation(Segment("large", "b = 2\n```\n\n", (3,), finish="until"))

    received = Delta("```python\na = 1\n\n", (0, 1, 2), (0.0,) * 3)
    whole = await resumed(asked, received)
    assert begun == [received.text]
    assert whole.segment.text.count("```") == 2


async def test_what_cannot_go_on_is_a_failure_that_no_retry_mends() -> None:
    """Such as an answer held to a form, which no server goes on within."""
    held = yields(Unsupported("going on within an answer that is held to a grammar"))
    with pytest.raises(WorkerError, match="broke off and cannot resume: going on") as caught:
        await resumed(held, Delta("{", (0,), (0.0,)))
    assert type(caught.value) is WorkerError


@pytest.mark.parametrize(
    ("text", "criteria", "finish"),
    [("a\n\n", CRITERIA, "until"), ("a b", StopCriteria(2), "length")],
)
async def test_only_the_end_was_lost(text: str, criteria: StopCriteria, finish: str) -> None:
    asked = yields(AssertionError("nothing is left to make"))
    whole = await resumed(asked, Delta(text, (1, 2), (0.0, 0.0)), criteria=criteria)
    assert (whole.segment.text, whole.segment.finish) == (text, finish)


async def test_what_a_worker_says_of_the_rest_is_said_of_the_whole() -> None:
    """What came from a lost replica is of unknown origin, and neither prompt nor cached."""
    calls, usage = CallFormat("<call>", "(", ")"), Usage(12, 11, 2)
    rest = Segment("large", "cd", (2, 3), finish="eos")
    origins = Provenance("ab", (1, 1), (), (1,), (1,))
    made = Generation(rest, usage, ms=5.0, thinks=False, calls=calls, provenance=origins)
    whole = await resumed(yields(Delta("cd", (2, 3), (0.0, 0.0)), made), AB)
    assert (whole.segment.text, whole.segment.tokens) == ("abcd", (0, 1, 2, 3))
    assert whole.provenance == Provenance("??ab", (0, 2, 1, 1), (), (1,), (1,))
    assert (whole.ms, whole.thinks, whole.calls) == (5.0, False, calls)
    assert (whole.usage.prompt, whole.usage.cached, whole.usage.generated) == (10, 10, 4)


def test_many_streams_send_less_often() -> None:
    assert batch_s(1) == batch_s(4) == BATCH_S
    assert BATCH_S < batch_s(16) < batch_s(32) < MAX_BATCH_S == batch_s(1000)


async def test_a_batch_waits_neither_at_the_beginning_nor_at_the_end() -> None:
    go = asyncio.Event()

    async def items() -> Any:
        yield Delta("a", (1,), (0.0,))
        await go.wait()
        yield Delta("b", (2,), (0.0,))
        yield Delta("c", (3,), (0.0,))
        yield "whole"

    found = []
    async for item in batch_stream(items(), lambda: 1_000_000):
        found.append(item)
        go.set()
    assert found == [Delta("a", (1,), (0.0,)), Delta("bc", (2, 3), (0.0, 0.0)), "whole"]

"""What is left to make of a stream that broke off."""

from __future__ import annotations

import asyncio
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
from tests.workers.replica.handles import (
    CRITERIA,
    GREEDY,
    ScriptedEngineWorker,
    call,
    story,
)
from workers.streams import BATCH_S, MAX_BATCH_S, batch_s, batch_stream, resume_generation
from workers.text import boundaries


async def test_a_break_inside_a_delimiter_is_seen() -> None:
    lines = ["ab", "\n", "\n", "cd"]

    class Letters(ScriptedEngineWorker):
        async def generate(self, call: Call, *_: Any, **__: Any) -> Any:  # type: ignore[override]
            for index in range(len(call.transcript.thought), len(lines)):
                yield Delta(lines[index], (index,), (0.0,))
                await asyncio.sleep(0.001)
            yield Generation(Segment("large", "".join(lines), (0, 1, 2, 3), finish="eos"))

    received = Delta("ab\n", (0, 1), (0.0, 0.0))
    thought = Segments(Segment("large", "x") for _ in range(1))  # + what was received: two segments
    transcript = Transcript((Message("user", "?"),), thought)
    items = [
        item
        async for item in resume_generation(
            Letters().generate, "words", received, call(transcript), CRITERIA, GREEDY, True
        )
    ]
    assert isinstance(items[-1], Generation)
    assert items[-1].segment.text == "ab\n\n"
    assert items[-1].segment.finish == "until"


async def test_a_block_that_was_open_at_a_break_is_still_open() -> None:
    begun = list[str]()

    class Asked(ScriptedEngineWorker):
        async def generate(self, call: Call, *_: Any, **__: Any) -> Any:  # type: ignore[override]
            begun.append(boundaries.begun(call.transcript, CRITERIA.until))
            yield Generation(Segment("large", "b = 2\n```\n\n", (3,), finish="until"))

    received = Delta("```python\na = 1\n\n", (0, 1, 2), (0.0,) * 3)
    transcript = Transcript((Message("user", "?"),))
    (made,) = [
        item
        async for item in resume_generation(
            Asked().generate, "words", received, call(transcript), CRITERIA, GREEDY, True
        )
    ]
    assert begun == [received.text]
    assert made.segment.text.count("```") == 2


async def test_what_cannot_go_on_is_a_failure_that_no_retry_mends() -> None:
    """Such as an answer held to a form, which no server goes on within."""

    class Held(ScriptedEngineWorker):
        async def generate(self, *_: Any, **__: Any) -> Any:  # type: ignore[override]
            raise Unsupported("going on within an answer that is held to a grammar")
            yield

    received = Delta("{", (0,), (0.0,))
    items = resume_generation(Held().generate, "words", received, call(), CRITERIA, GREEDY, True)
    with pytest.raises(WorkerError, match="broke off and cannot resume: going on") as caught:
        async for _ in items:
            pass
    assert type(caught.value) is WorkerError


@pytest.mark.parametrize(
    ("text", "criteria", "finish"),
    [("a\n\n", CRITERIA, "until"), ("a b", StopCriteria(2), "length")],
)
async def test_only_the_end_was_lost(text: str, criteria: StopCriteria, finish: str) -> None:
    backend = story()
    received = Delta(text, (1, 2), (0.0, 0.0))
    items = [
        item
        async for item in resume_generation(
            backend.generate, "words", received, call(), criteria, GREEDY, True
        )
    ]
    assert len(items) == 1
    assert isinstance(items[0], Generation)
    assert (items[0].segment.text, items[0].segment.finish) == (text, finish)
    assert backend.calls == []


async def test_what_came_from_a_lost_replica_is_of_unknown_origin() -> None:
    class Speculating(ScriptedEngineWorker):
        async def generate(self, call: Call, *_: Any, **__: Any) -> Any:  # type: ignore[override]
            yield Delta("cd", (2, 3), (0.0, 0.0))
            segment = Segment("large", "cd", (2, 3), finish="eos")
            provenance = Provenance("ab", (1, 1), (), (1,), (1,))
            yield Generation(segment, provenance=provenance)

    received = Delta("ab", (0, 1), (0.0, 0.0))
    *_, whole = [
        item
        async for item in resume_generation(
            Speculating().generate, "words", received, call(), CRITERIA, GREEDY, True
        )
    ]
    assert isinstance(whole, Generation)
    assert whole.provenance == Provenance("??ab", (0, 2, 1, 1), (), (1,), (1,))


async def test_what_the_worker_said_of_its_model_stays() -> None:
    calls = CallFormat("<call>", "(", ")")

    class Resumed(ScriptedEngineWorker):
        async def generate(self, call: Call, *_: Any, **__: Any) -> Any:  # type: ignore[override]
            segment = Segment("large", "cd", (2, 3), finish="eos")
            yield Generation(segment, ms=5.0, thinks=False, calls=calls)

    received = Delta("ab", (0, 1), (0.0, 0.0))
    *_, whole = [
        item
        async for item in resume_generation(
            Resumed().generate, "words", received, call(), CRITERIA, GREEDY, True
        )
    ]
    assert isinstance(whole, Generation)
    assert (whole.ms, whole.thinks, whole.calls) == (5.0, False, calls)


async def test_what_came_before_counts_neither_as_prompt_nor_as_cached() -> None:
    class Resumed(ScriptedEngineWorker):
        async def generate(self, call: Call, *_: Any, **__: Any) -> Any:  # type: ignore[override]
            yield Generation(Segment("large", "cd", (2, 3), finish="eos"), Usage(12, 11, 2))

    received = Delta("ab", (0, 1), (0.0, 0.0))
    *_, whole = [
        item
        async for item in resume_generation(
            Resumed().generate, "words", received, call(), CRITERIA, GREEDY, True
        )
    ]
    assert isinstance(whole, Generation)
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
    async with asyncio.timeout(5):
        async for item in batch_stream(items(), lambda: 1_000_000):
            found.append(item)
            go.set()
    assert found == [Delta("a", (1,), (0.0,)), Delta("bc", (2, 3), (0.0, 0.0)), "whole"]

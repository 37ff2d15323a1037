"""The worker that the other tests lean on plays back exactly what it is given."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.errors import ContextLengthExceeded, WorkerUnavailable
from orchestrator.types import (
    Finish,
    Generation,
    LabelQuery,
    Message,
    Sampling,
    StopCriteria,
    Transcript,
)
from orchestrator.worker import Call, Delta
from tests.workers.scripted import Say, Scripted, segment, words

pytestmark = pytest.mark.asyncio

TRANSCRIPT = Transcript((Message("user", "what is 2+2?"),))
CLOSED = replace(TRANSCRIPT, closed=True)


async def generate(
    worker: Scripted, criteria: StopCriteria, transcript: Transcript = TRANSCRIPT
) -> list[Delta | Generation]:
    call = Call("r", transcript, "small")
    return [item async for item in worker.generate(call, criteria, Sampling())]


async def said(
    worker: Scripted, criteria: StopCriteria, transcript: Transcript = TRANSCRIPT
) -> tuple[str, Finish]:
    last = (await generate(worker, criteria, transcript))[-1]
    assert isinstance(last, Generation)
    return last.segment.text, last.segment.finish


@pytest.mark.parametrize("text", ["", "one", " one  two\n\nthree ", "\n\n\n"])
async def test_words_make_up_the_text(text: str) -> None:
    assert "".join(words(text)) == text


@pytest.mark.parametrize(
    ("line", "criteria", "expected"),
    [
        ("one two\n\nthree", StopCriteria(9, until=("\n\n",)), ("one two\n\n", "until")),
        ("one two\n\nthree", StopCriteria(9), ("one two\n\nthree", "think_end")),
        ("one two three", StopCriteria(2), ("one two ", "length")),
        ("one two three", StopCriteria(9, stop=("thr",)), ("one two ", "stop")),
        (Say("", "think_end"), StopCriteria(9), ("", "think_end")),
        (Say("one\n\n", "think_end"), StopCriteria(9, until=("\n\n",)), ("one\n\n", "think_end")),
        (Say("one", "eos"), StopCriteria(9), ("one", "eos")),
    ],
)
async def test_stop_criteria_are_kept_to(
    line: Any, criteria: StopCriteria, expected: tuple[str, Finish]
) -> None:
    assert await said(Scripted([line]), criteria) == expected


async def test_deltas_add_up_to_the_generation() -> None:
    *deltas, last = await generate(Scripted(["one two three"]), StopCriteria(9))
    assert isinstance(last, Generation)
    assert last.segment == segment("small", "one two three", "think_end")
    assert "".join(delta.text for delta in deltas) == last.segment.text  # type: ignore[union-attr]
    assert tuple(t for delta in deltas for t in delta.tokens) == last.segment.tokens  # type: ignore[union-attr]
    assert last.usage.generated == 3


async def test_a_story_continues_where_the_transcript_ends() -> None:
    worker = Scripted(story=("a\n\nb\n\nc", "four"))
    step = StopCriteria(9, until=("\n\n",))
    assert await said(worker, step) == ("a\n\n", "until")
    assert await said(worker, step, TRANSCRIPT.extend(segment("small", "a\n\n"))) == (
        "b\n\n",
        "until",
    )
    other = TRANSCRIPT.extend(segment("small", "x y\n\n")).extend(segment("small", "z\n\n"))
    assert await said(worker, step, other) == ("c", "think_end")
    assert await said(worker, StopCriteria(9), CLOSED) == ("four", "eos")


async def test_no_tokens_is_a_preflight() -> None:
    worker = Scripted(["one"])
    (only,) = await generate(worker, StopCriteria(0))
    assert isinstance(only, Generation)
    assert (only.usage.prompt, only.segment.text) == (3, "")
    assert (worker.prompts, worker.calls) == (1, [])


async def test_failures_and_deaths() -> None:
    worker = Scripted(["b c d"], failures={0: WorkerUnavailable("busy")}, deaths={1: 2})
    with pytest.raises(WorkerUnavailable, match="busy"):
        await generate(worker, StopCriteria(9))
    dying = worker.generate(Call("r", TRANSCRIPT), StopCriteria(9), Sampling())
    assert isinstance(await anext(dying), Delta)
    assert isinstance(await anext(dying), Delta)
    with pytest.raises(WorkerUnavailable, match="mid-stream"):
        await anext(dying)
    assert worker.live == 0
    down = Scripted(down=WorkerUnavailable("down"))
    with pytest.raises(WorkerUnavailable, match="down"):
        await generate(down, StopCriteria(0))


async def test_scores() -> None:
    worker = Scripted(scores=[7, 2.5])
    answer = await worker.classify(Call("r", TRANSCRIPT), LabelQuery((), "", tuple("0123456789")))
    assert answer.probabilities.index(1.0) == 7
    draft = segment("small", "a b")
    answer = await worker.verify(Call("r", TRANSCRIPT), draft, Sampling())
    assert answer.nll == (2.5, 2.5)
    assert len(answer.choices) == 3
    assert [one.operation for one in worker.calls] == ["classify", "verify"]


async def test_a_context_can_be_too_short() -> None:
    with pytest.raises(ContextLengthExceeded):
        await generate(Scripted(["a"], context=3), StopCriteria(0))

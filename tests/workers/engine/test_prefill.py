"""Which prompts share a pass, and that it changes no answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import WorkerError
from orchestrator.types import LabelQuery, Message, Sampling, StopCriteria
from orchestrator.worker import Call
from tests.workers.engine.local import ask, run
from workers.engine.loading import load
from workers.engine.prefill import fitting
from workers.worker import EngineWorker

ROOM = 10_000
QUERY = LabelQuery((Message("user", "Good?"),), "Score: ", ("1", "2"))


@pytest.mark.parametrize(
    ("sizes", "most", "capacity", "chosen"),
    [
        pytest.param([(30, 100)], 10, ROOM, [0], id="one goes alone, however long"),
        pytest.param([(30, 100), (20, 90), (25, 110)], 512, ROOM, [0, 1, 2], id="alike"),
        pytest.param([(30, 100)] * 5, 99, ROOM, [0, 1, 2], id="no more than a pass takes"),
        pytest.param([(90, 0), (50, 0), (40, 0), (82, 0)], 512, ROOM, [0, 1, 3], id="padding"),
        pytest.param([(30, 0), (2, 0), (31, 0), (90, 0)], 512, ROOM, [0, 1, 2], id="of others"),
        pytest.param([(5, 0), (400, 0), (5, 0)], 512, ROOM, [0, 2], id="a long one waits"),
        pytest.param([(5, 10), (5, 9000), (5, 12)], 512, ROOM, [0, 1, 2], id="whatever is cached"),
        pytest.param([(30, 60), (8, 85), (8, 60)], 512, 100, [0, 2], id="padding beyond a slot"),
    ],
)
def test_what_fits_into_a_pass(
    sizes: list[tuple[int, int]], most: int, capacity: int, chosen: list[int]
) -> None:
    assert fitting(sizes, most, capacity) == chosen


@pytest.fixture
def wide(checkpoint: Path) -> Iterator[EngineWorker]:
    worker = load(checkpoint, rows=8, max_len=500)
    yield worker
    worker.close()


async def together(worker: EngineWorker, *calls: Awaitable[Any]) -> tuple[list[Any], list[Any]]:
    """What calls answer that all come during one long pass, and the passes behind that one.

    A pass is listed as the tokens of its rows, by slot.
    """
    target, go = worker.backend.engine.decoder.target, threading.Event()
    forward, passes = target.forward, list[dict[int, int]]()

    def held(slots: Any, trees: Any, **options: Any) -> Any:
        passes.append({slot: len(tree) for slot, tree in zip(slots, trees, strict=True)})
        assert go.wait(60)
        return forward(slots, trees, **options)

    target.forward = held  # type: ignore[method-assign]
    first = asyncio.create_task(run(worker, ask("first"), StopCriteria(1)))
    async with asyncio.timeout(60):
        while not passes:
            await asyncio.sleep(0.001)
        tasks = [asyncio.ensure_future(call) for call in calls]
        while worker.stats()["queued"] < len(tasks):
            await asyncio.sleep(0.001)
    go.set()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    await first
    target.forward = forward  # type: ignore[method-assign]
    return answers, passes[1:]


QUESTIONS = [ask(f"What is {number} and {number * 7}?" + "?" * number) for number in range(6)]
AGAIN = [replace(one, owner="another") for one in QUESTIONS]
"""The same where nothing is cached."""


async def test_judges_that_wait_share_one_pass(wide: EngineWorker) -> None:
    alone = [await wide.classify(one, QUERY) for one in QUESTIONS]
    answers, passes = await together(wide, *(wide.classify(one, QUERY) for one in AGAIN))
    assert [len(rows) for rows in passes] == [6]
    for answer, known in zip(answers, alone, strict=True):
        assert answer.probabilities == pytest.approx(known.probabilities, abs=1e-5)
        assert (answer.usage.prompt, answer.usage.passes) == (known.usage.prompt, 1)


async def test_calls_of_each_kind_share_one_pass(wide: EngineWorker) -> None:
    segment = (await run(wide, QUESTIONS[0], StopCriteria(3))).segment

    def calls(questions: list[Call]) -> list[Any]:
        return [
            run(wide, questions[1], StopCriteria(5)),
            wide.classify(questions[2], QUERY),
            wide.verify(questions[3], segment, Sampling()),
            run(wide, questions[4], StopCriteria(0)),
        ]

    alone = [await call for call in calls(QUESTIONS)]
    answers, passes = await together(wide, *calls(AGAIN))
    assert len(passes[0]) == 4
    assert answers[0].segment.tokens == alone[0].segment.tokens
    assert answers[1].probabilities == pytest.approx(alone[1].probabilities, abs=1e-5)
    assert answers[2].nll == pytest.approx(alone[2].nll, abs=1e-4)
    assert answers[2].choices == alone[2].choices
    assert answers[3].segment.tokens == ()


async def test_a_short_prompt_waits_for_one_chunk_of_a_long_one(
    wide: EngineWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.model.target.CHUNK", 50)
    long, short = ask("A long story. " * 15), ask("Short.")
    known = await run(wide, long, StopCriteria(3)), await run(wide, short, StopCriteria(3))
    again = [replace(one, owner="another") for one in (long, short)]
    answers, passes = await together(wide, *(run(wide, one, StopCriteria(3)) for one in again))
    for answer, one in zip(answers, known, strict=True):
        assert answer.segment.tokens == one.segment.tokens
    assert len(passes) > 5
    assert len({slot for rows in passes[:2] for slot in rows}) == 2
    assert all(size <= 50 for rows in passes for size in rows.values())


SAMPLED = Sampling(1.0, seed=5)
CHAIN = {"method": "chain", "draft": "embedded:draft", "gamma": 3}


@pytest.mark.parametrize(
    ("speculation", "sampling", "prefills"),
    [
        pytest.param(None, Sampling(), 0, id="plain"),
        pytest.param(None, SAMPLED, 0, id="plain, drawn"),
        pytest.param(CHAIN, Sampling(), 0, id="drafts"),
        # A draw behind a draft is not the draw behind a prompt.
        pytest.param(CHAIN, SAMPLED, 1, id="drafts, drawn"),
        pytest.param(CHAIN | {"method": "reflective", "alpha": 0.4}, Sampling(), 1, id="lossy"),
    ],
)
async def test_the_last_token_of_a_cached_prompt_is_read_with_the_first_draft(
    monkeypatch: pytest.MonkeyPatch,
    speculation: dict[str, Any] | None,
    sampling: Sampling,
    prefills: int,
) -> None:
    worker = load("embedded:large", rows=2, max_len=200, speculation=speculation)
    try:
        known = await run(worker, QUESTIONS[0], StopCriteria(8), sampling)
        target, counted = worker.backend.engine.decoder.target, list[Any]()
        extend = target.extend_all
        monkeypatch.setattr(
            target, "extend_all", lambda chunks: counted.append(chunks) or extend(chunks)
        )
        again = await run(worker, QUESTIONS[0], StopCriteria(8), sampling)
        assert again.segment.tokens == known.segment.tokens
        assert again.segment.logprobs == pytest.approx(known.segment.logprobs, abs=1e-4)
        assert len(counted) == prefills
        assert again.usage.cached == again.usage.prompt - 1
        assert again.usage.passes <= known.usage.passes
        one = await run(worker, QUESTIONS[0], StopCriteria(1), sampling)
        assert one.segment.tokens == known.segment.tokens[:1]
        assert len(counted) == prefills + 1  # no drafter reads the prompt for it
    finally:
        worker.close()


async def test_a_prompt_that_fails_takes_no_other_with_it(
    wide: EngineWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = wide.backend.engine.decoder.target
    extend, poison = target.extend_all, wide.prompts.transcript(QUESTIONS[2].transcript)

    shared: list[int] = []

    def failing(chunks: Any) -> Any:
        shared.append(len(chunks))
        if any(chunk.tokens == poison[-len(chunk.tokens) :] for chunk in chunks):
            raise RuntimeError("no room for this one")
        return extend(chunks)

    known = [await run(wide, one, StopCriteria(3)) for one in QUESTIONS]
    monkeypatch.setattr(target, "extend_all", failing)
    answers, _ = await together(wide, *(run(wide, one, StopCriteria(3)) for one in AGAIN))
    assert shared[:2] == [1, 6]
    assert isinstance(answers[2], WorkerError)
    assert "no room" in str(answers[2])
    for place in (0, 1, 3, 4, 5):
        assert answers[place].segment.tokens == known[place].segment.tokens

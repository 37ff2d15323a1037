"""Streams that run ahead: the same texts, and no request for what a server has written already."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.errors import WorkerUnavailable
from orchestrator.types import GREEDY, Message, Sampling, StopCriteria, Transcript
from orchestrator.worker import Call
from policies import POLICIES
from tests.workers.engine.local import STEPS, continued, force, run
from tests.workers.remote.test_worker import QUESTIONS, answer
from tests.workers.remote.vllm_like import MODEL, VllmLike, serving
from workers import run_ahead
from workers.engine.loading import load
from workers.remote.backend import RemoteBackend
from workers.remote.server import Server
from workers.worker import EngineWorker, ModelWorker

AHEAD = 24
QUESTION = Call("r1", Transcript((Message("user", "What is 12 + 34 + 56 - 7?"),)), "small")


@pytest.fixture(scope="module")
def engine() -> Any:
    worker = load("embedded:small", rows=4, max_len=400, threads=1)
    yield worker
    worker.close()


@pytest.fixture
async def ahead(engine: EngineWorker) -> AsyncIterator[tuple[ModelWorker[RemoteBackend], VllmLike]]:
    app = VllmLike(engine)
    with serving(app.app) as url:
        backend = RemoteBackend(Server(url), MODEL, engine.tokenizer, run_ahead=AHEAD)
        worker = ModelWorker(backend)
        await worker.backend.ready()
        app.requests.clear()
        yield worker, app
        await worker.backend.aclose()


async def all_made(app: VllmLike) -> None:
    """Wait until the server has made every token that it may."""
    async with asyncio.timeout(60):
        while app.live:
            await asyncio.sleep(0.01)


async def test_texts_are_those_without(ahead: Any, engine: EngineWorker) -> None:
    chains = []
    for worker in (ahead[0], engine):
        call, made = QUESTION, []
        for criteria in STEPS:
            answer = await run(worker, call, criteria)
            segment = answer.segment
            made.append((segment.tokens, segment.finish, segment.text, answer.usage.prompt))
            call = continued(call, segment)
        chains.append(made)
    assert chains[0] == chains[1]
    assert len(ahead[1].requests) < len(STEPS)


@pytest.mark.parametrize("name", ["specreason", "speculative-thinking", "bild"])
async def test_every_policy_decides_as_without(name: str, pair: dict[Any, EngineWorker]) -> None:
    app, asked = VllmLike(pair["small"]), []
    found = []
    with serving(app.app) as url:
        for tokens in (0, AHEAD):
            backend = RemoteBackend(Server(url), MODEL, pair["small"].tokenizer, run_ahead=tokens)
            await backend.ready()
            app.requests.clear()
            workers = {"small": ModelWorker(backend), "large": pair["large"]}
            answers = [await answer(POLICIES[name](), workers, each) for each in QUESTIONS]
            texts = [(one.transcript.thought.text(), one.transcript.reply) for one in answers]
            found.append(texts)
            asked.append(len(app.requests))
            await backend.aclose()
    assert found[0] == found[1]
    assert asked[1] < asked[0]


async def test_a_step_that_goes_on_makes_no_request(ahead: Any) -> None:
    worker, app = ahead
    first = await run(worker, QUESTION, StopCriteria(6))
    await all_made(app)
    second = await run(worker, continued(QUESTION, first.segment), StopCriteria(6))
    assert len(app.requests) == 1
    assert second.usage.cached == second.usage.prompt == first.usage.prompt + 6
    assert second.usage.adopted == second.usage.generated == 6
    third = await run(worker, continued(QUESTION, first.segment, second.segment), StopCriteria(40))
    assert len(app.requests) == 2  # the first was cut off `AHEAD` tokens after its call
    whole = await run(worker, replace(QUESTION, request="r2"), StopCriteria(52))
    parts = first.segment.tokens + second.segment.tokens + third.segment.tokens
    assert parts == whole.segment.tokens


async def test_a_token_in_doubt_is_read_again(ahead: Any, engine: EngineWorker) -> None:
    worker, app = ahead
    first = await run(worker, QUESTION, StopCriteria(60, min_confidence=0.95))
    assert first.segment.finish == "doubt"
    second = await run(worker, continued(QUESTION, first.segment), StopCriteria(8))
    assert len(app.requests) == 1
    whole = await run(engine, QUESTION, StopCriteria(len(first.segment.tokens) + 8))
    assert first.segment.tokens + second.segment.tokens == whole.segment.tokens


@pytest.mark.parametrize("change", ["text", "sampling", "request", "stop"])
async def test_another_call_ends_it(ahead: Any, change: str) -> None:
    worker, app = ahead
    criteria = StopCriteria(6)
    first = await run(worker, QUESTION, criteria)
    call, sampling = continued(QUESTION, first.segment), GREEDY
    if change == "text":
        call = continued(QUESTION, replace(first.segment, text="No", tokens=()))
    elif change == "sampling":
        sampling = Sampling(0.8, seed=1)
    elif change == "request":
        call = replace(call, request="r3")
    else:
        criteria = StopCriteria(6, stop=("9",))
    await run(worker, call, criteria, sampling)
    assert len(app.requests) == 2
    assert len(worker.backend._ahead) <= 1


async def test_it_reads_no_further_than_it_may(ahead: Any, engine: EngineWorker) -> None:
    worker, app = ahead
    first = await run(worker, QUESTION, StopCriteria(300, ("\n\n",)))
    assert first.segment.finish == "until"
    ((stream,),) = worker.backend._ahead._running.values()
    async with asyncio.timeout(60):
        while not stream._reading.done():
            await asyncio.sleep(0.01)
    assert len(stream._unread) <= AHEAD + 1
    await all_made(app)
    second = await run(worker, continued(QUESTION, first.segment), StopCriteria(300))
    whole = await run(engine, continued(QUESTION, first.segment), StopCriteria(300))
    assert second.segment.tokens == whole.segment.tokens
    assert second.segment.finish == whole.segment.finish == "think_end"


async def test_half_a_character_at_the_end_is_no_text_to_continue(
    ahead: Any, engine: EngineWorker
) -> None:
    worker, _ = ahead
    pieces = engine.tokenizer.pieces
    half = next(i for i, piece in enumerate(pieces) if piece == "é".encode()[:1])
    force(engine, half)
    try:
        first = await run(worker, QUESTION, StopCriteria(3))
        assert first.segment.tokens == ()
        assert not worker.backend._ahead
    finally:
        del engine.backend.engine.decoder.target.forward


async def test_nothing_runs_ahead_beside_another_call(ahead: Any) -> None:
    worker, app = ahead
    calls = [replace(QUESTION, request=f"r{i}") for i in range(3)]
    await asyncio.gather(*(run(worker, call, StopCriteria(12)) for call in calls))
    assert len(worker.backend._ahead) <= 1
    assert len(app.requests) == 3


async def test_what_runs_ahead_can_be_ended(ahead: Any) -> None:
    worker, _ = ahead
    await run(worker, QUESTION, StopCriteria(6))
    ((stream,),) = worker.backend._ahead._running.values()
    await worker.end_ahead()
    assert not worker.backend._ahead
    assert stream.is_closed


async def test_a_stream_that_no_call_continues_ends(
    ahead: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, _ = ahead
    monkeypatch.setattr(run_ahead, "SECONDS", 0.01)
    await run(worker, QUESTION, StopCriteria(6))
    async with asyncio.timeout(10):
        while worker.backend._ahead:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("end", [None, WorkerUnavailable("the server is gone")])
async def test_a_broken_stream_is_asked_for_again(
    ahead: Any, engine: EngineWorker, end: Exception | None
) -> None:
    worker, _ = ahead
    first = await run(worker, QUESTION, StopCriteria(6))
    ((stream,),) = worker.backend._ahead._running.values()
    stream._reading.cancel()
    stream._unread.clear()
    stream._unread.append(end)
    second = await run(worker, continued(QUESTION, first.segment), StopCriteria(6))
    whole = await run(engine, QUESTION, StopCriteria(12))
    assert first.segment.tokens + second.segment.tokens == whole.segment.tokens

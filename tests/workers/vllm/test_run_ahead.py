"""Requests of vLLM's that run ahead: the same texts, and no call or prefill for what is there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.types import GREEDY, Message, Sampling, Segment, StopCriteria, Transcript
from orchestrator.worker import Call
from tests.workers.engine.local import STEPS, continued, run
from workers import run_ahead
from workers.vllm.loading import load

AHEAD = 24
QUESTION = Call("r1", Transcript((Message("user", "What is 12 + 34?"),)), "small")


@pytest.fixture(scope="module")
def ahead() -> Iterator[Any]:
    worker = load("embedded:small", device="cpu", rows=4, max_len=1024, threads=1, run_ahead=AHEAD)
    yield worker
    worker.close()


@pytest.fixture
def requests(ahead: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The requests that vLLM gets."""
    made: list[Any] = []
    generate = ahead.backend.engine.generate

    def noted(prompt: Any, *args: Any, **kwargs: Any) -> Any:
        made.append(prompt)
        return generate(prompt, *args, **kwargs)

    monkeypatch.setattr(ahead.backend.engine, "generate", noted)
    return made


async def all_made(worker: Any) -> None:
    """Wait until vLLM has made every token that it may."""
    async with asyncio.timeout(60):
        while worker.backend.engine.get_num_unfinished_requests():
            await asyncio.sleep(0.01)


async def test_texts_are_those_without(ahead: Any, builtin_small: Any) -> None:
    """Steps of every kind, against our own engine without run-ahead."""
    chains = []
    for worker in (ahead, builtin_small):
        call, made = QUESTION, []
        for criteria in STEPS:
            answer = await run(worker, call, criteria)
            made.append((answer.segment.tokens, answer.segment.finish, answer.usage.generated))
            call = continued(call, answer.segment)
        chains.append(made)
    assert chains[0] == chains[1]


async def test_what_runs_ahead_can_be_ended(ahead: Any) -> None:
    await run(ahead, QUESTION, StopCriteria(6))
    assert len(ahead.backend._ahead) == 1
    await ahead.end_ahead()
    assert not ahead.backend._ahead
    assert ahead.stats()["live_rows"] == 0


async def test_a_step_that_goes_on_makes_no_request(ahead: Any, requests: list[Any]) -> None:
    before = ahead.stats()["adopted_tokens"]
    first = await run(ahead, QUESTION, StopCriteria(6))
    await all_made(ahead)
    second = await run(ahead, continued(QUESTION, first.segment), StopCriteria(6))
    assert len(requests) == 1
    assert second.usage.cached == second.usage.prompt
    assert ahead.stats()["adopted_tokens"] - before == second.usage.adopted == 6


async def test_a_request_that_has_made_its_tokens_is_followed_by_another(
    ahead: Any, requests: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = await run(ahead, replace(QUESTION, request="whole"), StopCriteria(14))
    monkeypatch.setattr(ahead.backend._ahead, "tokens", 3)
    first = await run(ahead, QUESTION, StopCriteria(4))
    rest = await run(ahead, continued(QUESTION, first.segment), StopCriteria(10))
    assert first.segment.tokens + rest.segment.tokens == whole.segment.tokens
    assert len(requests) == 3


async def test_the_models_own_choice_is_adopted_where_another_made_it(
    ahead: Any, requests: list[Any]
) -> None:
    whole = await run(ahead, replace(QUESTION, request="whole"), StopCriteria(12))
    first = await run(ahead, QUESTION, StopCriteria(4))
    token = whole.segment.tokens[4]
    text = ahead.tokenizer.pieces[token].decode()
    choice = Segment("large", text, (token,), (), ahead.tokenizer.hash)
    call = continued(QUESTION, first.segment, choice)
    answer = await run(ahead, call, StopCriteria(7))
    assert answer.segment.tokens == whole.segment.tokens[5:]
    assert len(requests) == 2


DOUBTS = StopCriteria(40, min_confidence=0.9)


async def doubtful(ahead: Any) -> tuple[Segment, list[int]]:
    """A text up to a doubtful token, and the likeliest tokens there, its own first."""
    draft = await run(ahead, replace(QUESTION, request="draft"), DOUBTS)
    assert draft.segment.finish == "doubt"
    place = await ahead.verify(continued(QUESTION, draft.segment), Segment("large", ""), GREEDY, 3)
    return draft.segment, [choice.token for choice in place.top[0]]


@pytest.mark.parametrize("rank", [0, 1, 2])
async def test_each_likely_token_in_doubt_is_continued(
    ahead: Any, builtin_small: Any, requests: list[Any], rank: int
) -> None:
    """As in BiLD: the other model chooses one, and its continuation is there already."""
    _, likely = await doubtful(ahead)
    token = likely[rank]
    first = await run(ahead, QUESTION, DOUBTS)
    assert len(ahead.backend._ahead) == 3
    await all_made(ahead)
    requests.clear()
    text = ahead.tokenizer.pieces[token].decode()
    choice = Segment("large", text, (token,), (), ahead.tokenizer.hash)
    call = continued(QUESTION, first.segment, choice)
    answer = await run(ahead, call, StopCriteria(7))
    assert not requests
    assert (answer.usage.adopted, answer.usage.cached) == (7, answer.usage.prompt)
    assert answer.segment.tokens == (await run(builtin_small, call, StopCriteria(7))).segment.tokens


async def test_what_runs_ahead_leaves_nothing(ahead: Any) -> None:
    await run(ahead, QUESTION, DOUBTS)
    await ahead.backend._ahead.end()
    assert ahead.backend._live == 0
    await all_made(ahead)


async def test_another_text_is_a_request_of_its_own(ahead: Any, requests: list[Any]) -> None:
    first = await run(ahead, QUESTION, StopCriteria(4))
    ids = ahead.tokenizer.encode("\n\nNo.")
    other = Segment("large", "\n\nNo.", tuple(ids), (), ahead.tokenizer.hash)
    await run(ahead, continued(QUESTION, first.segment, other), StopCriteria(4))
    assert len(requests) == 2


async def test_another_call_ends_what_runs_ahead(ahead: Any) -> None:
    """And no request is left in the engine."""
    await run(ahead, QUESTION, StopCriteria(4))
    assert len(ahead.backend._ahead) == 1
    stream = ahead.generate(replace(QUESTION, request="r2"), StopCriteria(20), Sampling())
    await anext(stream)
    assert len(ahead.backend._ahead) == 0
    assert ahead.stats()["live_rows"] == 1
    await stream.aclose()
    await ahead.verify(QUESTION, Segment("large", "", (), ()), Sampling())
    assert ahead.backend._live == 0


async def test_nothing_runs_ahead_beside_a_live_call(
    ahead: Any, requests: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step's end then ends its request, and none of its passes runs on."""
    stream = ahead.generate(replace(QUESTION, request="r2"), StopCriteria(60), Sampling())
    await anext(stream)
    aborted: list[Any] = []
    monkeypatch.setattr(ahead.backend.engine, "abort", aborted.append)
    await run(ahead, QUESTION, StopCriteria(4))
    step = await run(ahead, QUESTION, StopCriteria(60, ("\n\n",)))
    assert step.segment.finish == "until"
    assert (len(ahead.backend._ahead), len(requests), aborted) == (0, 3, [])
    monkeypatch.undo()
    await stream.aclose()


async def test_it_waits_no_longer_than_its_time(
    ahead: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_ahead, "SECONDS", 0.01)
    await run(ahead, QUESTION, StopCriteria(4))
    async with asyncio.timeout(60):
        while ahead.backend._live:
            await asyncio.sleep(0.01)
    assert len(ahead.backend._ahead) == 0


async def test_a_sampled_text_goes_on_by_the_seed_it_began_with(
    ahead: Any, requests: list[Any]
) -> None:
    sampling = Sampling(temperature=0.8, seed=3)
    first = await run(ahead, QUESTION, StopCriteria(4), sampling)
    await run(ahead, continued(QUESTION, first.segment), StopCriteria(4), sampling)
    assert len(requests) == 1
    other = replace(sampling, seed=4)
    await run(ahead, continued(QUESTION, first.segment), StopCriteria(4), other)
    assert len(requests) == 2

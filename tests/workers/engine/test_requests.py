"""How generations end, and what a classification or verification answers, on a real model."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import InvalidRequest, WorkerError
from orchestrator.loop.events import RequestCompleted
from orchestrator.loop.request import Request
from orchestrator.loop.solve import solve
from orchestrator.types import (
    LabelQuery,
    Limits,
    Message,
    Sampling,
    Segment,
    StopCriteria,
    Transcript,
)
from orchestrator.worker import Call, Delta
from policies.single import LargeOnly
from policies.specreason import SpecReason
from tests.workers.conftest import make_model, make_tokenizer, save
from tests.workers.engine.local import ask, force, run
from workers.engine.loading import load
from workers.engine.requests import RequestHandle
from workers.worker import EngineWorker


async def test_what_came_before_an_error_is_not_lost() -> None:
    handle, delta, error = RequestHandle(stream=True), Delta("a", (7,)), WorkerError("gone")
    handle.put(delta)
    handle.put(error)
    assert await handle.items() == [delta, error]


async def test_ids_that_the_tokenizer_has_and_the_model_lacks_are_refused(tmp_path: Path) -> None:
    """As of a pad token that was added to a tokenizer and to no embedding."""
    tokenizer = make_tokenizer()
    model = make_model("qwen3", vocabulary=len(tokenizer) - 1)
    worker = load(save(tmp_path, tokenizer, model), rows=1, slots=2, max_len=100)
    try:
        for ids in ((len(tokenizer) - 1,), (0, len(tokenizer))):
            prompt = Transcript((Message("prompt", "", ids),), closed=True)
            with pytest.raises(InvalidRequest, match="outside the vocabulary"):
                await run(worker, Call("r", prompt), StopCriteria(2))
    finally:
        worker.close()


async def test_tokens_that_come_fast_wake_their_reader_once(monkeypatch: Any) -> None:
    monkeypatch.setattr("workers.engine.requests.WAKE_S", 600.0)
    handle = RequestHandle(stream=True)
    first, second, third = (Delta(text, (7,)) for text in "abc")
    handle.put(first)
    assert await handle.items() == [first]
    handle.put(second)
    handle.put(third)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(handle.items(), 0.05)
    handle.flush()
    assert await handle.items() == [second, third]
    handle.put(first)
    handle.put("the answer")  # waits for no tokens
    assert await handle.items() == [first, "the answer"]
    monkeypatch.setattr("workers.engine.requests.WAKE_S", 0.0)
    slow = RequestHandle(stream=True)
    for one in (first, second):
        slow.put(one)
        assert await slow.items() == [one]


async def test_control_tokens_end_a_generation(worker: EngineWorker) -> None:
    for end, finish in (
        (worker.tokenizer.close_id, "think_end"),
        (next(iter(worker.tokenizer.ends)), "eos"),
    ):
        assert end is not None
        force(worker, "So 46", end)
        answer = await run(worker, ask(), StopCriteria(50))
        assert (answer.segment.finish, answer.segment.text) == (finish, "So 46")
        assert end not in answer.segment.tokens


async def test_a_stop_string_over_several_tokens(worker: EngineWorker) -> None:
    force(worker, "46 and STOP more")
    answer = await run(worker, ask(), StopCriteria(50, until=("more",), stop=("and STOP",)))
    assert (answer.segment.finish, answer.segment.text) == ("stop", "46 ")
    assert worker.tokenizer.decode(answer.segment.tokens) == "46 "
    assert len(answer.segment.logprobs) == len(answer.segment.tokens)
    force(worker, "\n\n46\nmore")  # a stop string is not looked for before an answer begins
    answering = Call("r", replace(ask().transcript, closed=True))
    answer = await run(worker, answering, StopCriteria(50, stop=("\n",)))
    assert (answer.segment.finish, answer.segment.text) == ("stop", "\n\n46")


async def test_low_confidence_ends_before_the_token(worker: EngineWorker) -> None:
    answer = await run(worker, ask(), StopCriteria(20, min_confidence=1.1))
    assert (answer.segment.finish, answer.segment.tokens) == ("doubt", ())
    answer = await run(worker, ask(), StopCriteria(3, min_confidence=1e-9))
    assert answer.segment.finish != "doubt"


async def test_a_character_lies_across_segments(worker: EngineWorker) -> None:
    tokens = worker.tokenizer.encode("a😀é!")
    assert len(tokens) > 5  # bytes, mostly
    for at in range(1, len(tokens)):
        draft = Segment("small", "a😀é!", tokens, (0.0,) * len(tokens), worker.tokenizer.hash)
        answer = await worker.verify(ask(), draft, Sampling())
        assert "".join(answer.pieces) == draft.text
        kept, _ = answer.split(draft, at)
        transcript = ask().transcript.extend(kept)
        forward = worker.backend.engine.decoder.target.forward
        force(worker, *tokens[at:])
        answer = await run(worker, Call("r", transcript), StopCriteria(len(tokens) - at))
        assert kept.text + answer.segment.text == draft.text
        assert kept.tokens + answer.segment.tokens == tokens
        worker.backend.engine.decoder.target.forward = forward  # type: ignore[method-assign]
        nothing = Segment("small", "")
        (option,) = (await worker.verify(Call("r", transcript), nothing, Sampling())).options
        whole = worker.tokenizer.decode(kept.tokens + option.tokens)
        assert kept.text + option.text == whole


@pytest.mark.parametrize("closed", [False, True])
async def test_choices_that_end_a_phase(worker: EngineWorker, closed: bool) -> None:
    end, finish, other = worker.tokenizer.close_id, "think_end", "eos"
    if closed:
        end, finish, other = worker.tokenizer.eos_id, other, finish
    assert end is not None
    call = Call("r", replace(ask().transcript, closed=closed))
    force(worker, end)
    (option,) = (await worker.verify(call, Segment("small", ""), Sampling())).options
    ended = Segment("large", "", tokenizer=worker.tokenizer.hash, finish=finish)  # type: ignore[arg-type]
    assert option == ended
    sure, doubtful = [
        (await worker.verify(ask(), replace(ended, finish=one), Sampling())).ending
        for one in (finish, other)
    ]
    assert sure is not None
    assert doubtful is not None
    assert sure < 0.1 < doubtful


async def test_a_thought_leaves_room_for_an_answer_and_the_answer_fills_it(
    worker: EngineWorker,
) -> None:
    force(worker, "a")
    call = ask()
    thought = await run(worker, call, StopCriteria(10_000))
    assert thought.segment.finish == "length"
    left = worker.context - thought.usage.prompt - len(thought.segment.tokens)
    assert left == worker.context // 8
    longer = call.transcript.extend(thought.segment)
    nothing = await run(worker, replace(call, transcript=longer), StopCriteria(10_000))
    assert (nothing.segment.finish, nothing.segment.tokens) == ("length", ())
    closed = replace(call, transcript=replace(longer, closed=True))
    answer = await run(worker, closed, StopCriteria(10_000))
    assert answer.segment.finish == "length"
    assert answer.usage.prompt + len(answer.segment.tokens) == worker.context
    assert answer.segment.tokens


@pytest.mark.parametrize("policy", [LargeOnly(), SpecReason(threshold=0)])
async def test_a_thought_that_never_ends_is_answered_all_the_same(
    worker: EngineWorker, policy: Any
) -> None:
    force(worker, "a")  # as far as the context goes, which is less than max_tokens
    request = Request("r", ask().transcript.messages, limits=Limits(max_tokens=10_000))
    events = solve(policy, request, {"small": worker, "large": worker})
    *_, ended = [event async for event in events]
    assert isinstance(ended, RequestCompleted)
    assert ended.transcript.forced
    assert ended.transcript.answer.tokens > 0


@pytest.mark.parametrize("size", [1, 5, 16])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.7, top_p=0.9, seed=3)])
async def test_what_is_scored_in_chunks_is_scored_alike(
    worker: EngineWorker, monkeypatch: pytest.MonkeyPatch, size: int, sampling: Sampling
) -> None:
    made = await run(worker, ask(), StopCriteria(24))
    text, query = made.segment, LabelQuery((Message("user", "Good?"),), "Score: ", ("1", "2"))
    judged = replace(ask(), transcript=ask().transcript.extend(text))

    async def scores(owner: str) -> tuple[Any, Any]:
        verified = await worker.verify(ask(owner=owner), text, sampling, 3)
        graded = await worker.classify(replace(judged, owner=owner), replace(query, nll=True))
        return verified, graded

    whole, graded = await scores("one")
    target = worker.backend.engine.decoder.target
    next_chunk, widths = target.next_chunk, list[int]()

    def in_chunks(slot: int, ids: Any, **options: Any) -> Any:
        chunk = next_chunk(slot, ids, **options)
        widths.append(chunk.num_logits)
        return chunk

    monkeypatch.setattr("workers.model.target.CHUNK", size)
    monkeypatch.setattr(target, "next_chunk", in_chunks)
    parts, regraded = await scores("another")
    assert max(widths) <= size
    assert len(parts.nll) == len(text.tokens)
    assert parts.nll == pytest.approx(whole.nll, abs=1e-4)
    assert parts.choices == whole.choices
    assert [one.text for one in parts.options] == [one.text for one in whole.options]
    assert parts.logprobs == pytest.approx(whole.logprobs, abs=1e-4)
    assert regraded.nll == pytest.approx(graded.nll, abs=1e-4)
    assert regraded.probabilities == pytest.approx(graded.probabilities, abs=1e-5)
    assert regraded.usage.prompt == graded.usage.prompt

"""Which prefixes are cached, and where."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.types import LabelQuery, Message, StopCriteria
from tests.workers.engine.local import ask, run, slow
from workers.engine import engine
from workers.engine.loading import load
from workers.worker import EngineWorker


async def test_prefixes_stay_cached_beside_each_other(worker: EngineWorker) -> None:
    first, second = ask("A long question about apples"), ask("Bananas are another matter")
    for one in (first, second):
        await run(worker, one, StopCriteria(5))
    for one in (first, second):
        again = await run(worker, one, StopCriteria(5))
        assert again.usage.cached == again.usage.prompt - 1


async def test_a_common_beginning_is_copied_and_both_texts_live(worker: EngineWorker) -> None:
    common = "One and the same long beginning of two different questions: "
    alone = [await run(worker, ask(common + end), StopCriteria(8)) for end in "ab"]
    fresh = await run(worker, ask("x"), StopCriteria(1))
    assert alone[1].usage.cached > fresh.usage.prompt
    slow(worker, 0.01)
    together = await asyncio.gather(
        *(run(worker, ask(common + end), StopCriteria(8)) for end in "ab")
    )
    assert [t.segment.tokens for t in together] == [a.segment.tokens for a in alone]


async def test_a_classification_leaves_the_prefix_and_nothing_else(worker: EngineWorker) -> None:
    call = ask("Judge this")
    answer = await worker.classify(
        call, LabelQuery((Message("user", "Good?"),), "Score: ", ("1", "2"))
    )
    prefix = len(worker.prompts.transcript(call.transcript))
    assert answer.usage.prompt > prefix
    assert worker.stats()["held_tokens"] == prefix
    assert worker.stats()["lossy"] == 0


async def test_a_stranger_finds_nothing_of_what_others_asked(worker: EngineWorker) -> None:
    secret = replace(ask("The code is 123456 and nobody else knows it"), owner="one")
    first = await run(worker, secret, StopCriteria(4))
    for guess in (secret, ask("The code is 123456"), ask("The code is 654321")):
        await run(worker, secret, StopCriteria(4))
        guess = replace(guess, owner=f"who guesses {guess.transcript.messages[0].content}")
        guessed = await run(worker, guess, StopCriteria(4))
        assert guessed.usage.cached == 0
        own = await run(worker, guess, StopCriteria(4))
        assert own.usage.cached == own.usage.prompt - 1
    again = await run(worker, secret, StopCriteria(4))
    assert again.usage.cached == again.usage.prompt - 1
    assert again.segment.tokens == first.segment.tokens


async def test_a_slot_that_changes_hands_begins_empty(worker: EngineWorker) -> None:
    slots = worker.stats()["slots"]
    for number in range(2 * slots):  # every slot is taken over from somebody else
        answer = await run(worker, replace(ask(), owner=f"owner {number}"), StopCriteria(2))
        assert answer.usage.cached == 0


async def test_a_slot_that_changes_hands_begins_empty_for_drafts_too(checkpoint: Path) -> None:
    chain = {"method": "chain", "draft": str(checkpoint), "gamma": 3}
    worker = load(checkpoint, speculation=chain, rows=1, slots=1, max_len=200)
    try:
        await run(worker, ask(), StopCriteria(8))
        method = worker.backend.engine.decoder.method
        drafted = method.drafter.cache  # type: ignore[attr-defined]
        assert any(drafted.lengths)
        worker.backend.engine._prefixes.allocate([1, 2], 1, "another")
        assert not any(drafted.lengths)
        assert not any(worker.backend.engine.cache.lengths)
    finally:
        worker.close()


async def test_judges_of_one_long_thought_do_not_copy_it_all_at_once(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "COPIED", 10)
    worker = load(checkpoint, rows=4, max_len=200)
    alone = await run(worker, ask("A question " * 5), StopCriteria(4))
    prefixes, copies = worker.backend.engine._prefixes, list[int]()
    iterate = worker.backend.engine._iterate

    def watched() -> None:
        before = prefixes.copied
        iterate()
        copies.append(prefixes.copied - before)

    monkeypatch.setattr(worker.backend.engine, "_iterate", watched)
    slow(worker, 0.01)
    calls = (run(worker, ask("A question " * 5), StopCriteria(4)) for _ in range(3))
    answers = await asyncio.gather(*calls)
    assert [answer.segment.tokens for answer in answers] == [alone.segment.tokens] * 3
    assert sum(size > 0 for size in copies) == 2
    assert max(copies) <= alone.usage.prompt
    worker.close()

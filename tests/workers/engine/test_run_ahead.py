"""Rows that run ahead: the same texts as without, from fewer passes, and no call waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.types import Generation, Sampling, Segment, StopCriteria
from tests.workers.engine.local import ask, continued, force, held, run, until
from workers.engine.loading import load
from workers.worker import EngineWorker

AHEAD = 24
METHODS = ("vanilla", "chain", "lookup")
ALSO = [{"method": "chain", "draft": "same", "gamma": 3}, {"method": "lookup"}]


def started(checkpoint: Path, tokens: int, **options: Any) -> EngineWorker:
    also = [dict(one, draft=str(checkpoint)) if "draft" in one else one for one in ALSO]
    chosen: Any = {"rows": 2, "slots": 3, "max_len": 300, "also": also} | options
    return load(checkpoint, run_ahead=tokens, **chosen)


@pytest.fixture(scope="module")
def pair(checkpoint: Path) -> Iterator[tuple[EngineWorker, EngineWorker]]:
    """A worker without run-ahead, and one with."""
    workers = started(checkpoint, 0), started(checkpoint, AHEAD)
    yield workers
    for worker in workers:
        worker.close()


@pytest.fixture
def ahead(checkpoint: Path) -> Iterator[EngineWorker]:
    worker = started(checkpoint, AHEAD)
    yield worker
    worker.close()


async def idle(worker: EngineWorker) -> None:
    """Wait until nothing runs ahead any more."""
    engine = worker.backend.engine
    async with asyncio.timeout(60):
        while engine._ahead.running:
            await asyncio.sleep(0)


STEP = st.builds(
    StopCriteria,
    st.integers(1, 12),
    st.sampled_from([(), ("\n\n",), ("e",), (" ",)]),
    min_confidence=st.sampled_from([0.0, 0.0, 0.3, 0.6]),
)
PLAN = st.lists(st.tuples(STEP, st.sampled_from([None, None, None, ".", "Wait, "])), max_size=7)
DRAWN = Sampling(temperature=0.8, seed=7)


@settings(max_examples=40)
@given(
    plan=PLAN,
    way=st.sampled_from([*((name, Sampling()) for name in METHODS), ("vanilla", DRAWN)]),
    waits=st.booleans(),
)
def test_texts_are_those_without(
    pair: tuple[EngineWorker, EngineWorker],
    plan: list[tuple[StopCriteria, str | None]],
    way: tuple[str, Sampling],
    waits: bool,
) -> None:
    """Steps of any kind, some with a text of another author in between."""
    method, sampling = way

    async def chain(worker: EngineWorker) -> list[tuple[Segment, int]]:
        call = replace(ask(), speculation=method)
        made = []
        for criteria, inserted in plan:
            answer = await run(worker, call, criteria, sampling)
            made.append((replace(answer.segment, logprobs=()), answer.usage.generated))
            call = continued(call, answer.segment)
            if inserted:
                tokens = tuple(worker.tokenizer.encode(inserted))
                text = Segment("large", inserted, tokens, (), worker.tokenizer.hash)
                call = continued(call, text)
            if answer.segment.finish in ("eos", "think_end"):
                break
            if waits:
                await idle(worker)
        return made

    plain, run_ahead = pair
    assert asyncio.run(chain(run_ahead)) == asyncio.run(chain(plain))


@pytest.mark.parametrize("method", METHODS)
async def test_an_adopted_step_makes_no_pass(ahead: EngineWorker, method: str) -> None:
    call = replace(ask(), speculation=method)
    first = await run(ahead, call, StopCriteria(4))
    await idle(ahead)
    before = ahead.stats()
    second = await run(ahead, continued(call, first.segment), StopCriteria(5))
    after = ahead.stats()
    assert second.usage.cached == second.usage.prompt
    assert (second.usage.generated, second.usage.passes, second.usage.adopted) == (5, 0, 5)
    assert after["adopted_tokens"] - before["adopted_tokens"] == 5
    assert after["generated_tokens"] - before["generated_tokens"] == 5


async def test_a_row_goes_on_to_its_budget_and_the_rest_is_adopted_later(
    ahead: EngineWorker,
) -> None:
    call = ask()
    for adopted in (0, 4, 8):
        answer = await run(ahead, call, StopCriteria(4))
        call = continued(call, answer.segment)
        assert ahead.stats()["adopted_tokens"] == adopted
        await idle(ahead)
        if not adopted:
            assert ahead.stats()["ahead_tokens"] == AHEAD
            assert ahead.stats()["generated_tokens"] == 4


@pytest.mark.parametrize("method", METHODS)
async def test_one_token_alone_is_continued_as_without(ahead: EngineWorker, method: str) -> None:
    """No drafter has read that prompt, and the slot may hold a longer text for it."""
    call = replace(ask(), speculation=method)
    whole = (await run(ahead, replace(call, request="other"), StopCriteria(9))).segment.tokens
    await ahead.end_ahead()
    with held(ahead):  # so that the next call comes before the row decodes on
        first = (await run(ahead, call, StopCriteria(1))).segment
        next_call = asyncio.create_task(run(ahead, continued(call, first), StopCriteria(8)))
        await until(ahead, live_rows=1)
    assert first.tokens + (await next_call).segment.tokens == whole
    first = (await run(ahead, call, StopCriteria(1))).segment
    await idle(ahead)
    later = await run(ahead, continued(call, first), StopCriteria(8))
    assert first.tokens + later.segment.tokens == whole
    assert later.usage.cached >= later.usage.prompt - 1


async def test_the_models_own_choice_is_adopted_where_another_made_it(ahead: EngineWorker) -> None:
    """As in BiLD: the other model writes the token that this one would have written."""
    call = ask()
    whole = await run(ahead, replace(call, request="other"), StopCriteria(9))
    drafted = await run(ahead, call, StopCriteria(4))
    await idle(ahead)
    token = whole.segment.tokens[4]
    text = ahead.tokenizer.pieces[token].decode()
    choice = Segment("large", text, (token,), (), ahead.tokenizer.hash)
    answer = await run(ahead, continued(call, drafted.segment, choice), StopCriteria(4))
    assert answer.segment.tokens == whole.segment.tokens[5:9]
    assert answer.usage.passes == 0


@pytest.mark.parametrize("finish", ["eos", "think_end"])
async def test_nothing_runs_ahead_of_an_end(ahead: EngineWorker, finish: str) -> None:
    tokenizer = ahead.tokenizer
    end = tokenizer.close_id if finish == "think_end" else min(ahead.backend.ends)
    assert end is not None
    force(ahead, "Hm.", end)
    answer = await run(ahead, ask(), StopCriteria(40))
    assert answer.segment.finish == finish
    assert not ahead.backend.engine._ahead.rows


@pytest.mark.parametrize(
    "change", [{"request": "s"}, {"owner": "somebody else"}, {"speculation": "lookup"}]
)
async def test_another_call_adopts_nothing(ahead: EngineWorker, change: dict[str, str]) -> None:
    call = replace(ask(), speculation="vanilla")
    first = await run(ahead, call, StopCriteria(4))
    await idle(ahead)
    await run(ahead, replace(continued(call, first.segment), **change), StopCriteria(4))  # type: ignore[arg-type]
    assert ahead.stats()["adopted_tokens"] == 0


async def test_a_call_that_goes_on_otherwise_ends_the_row(ahead: EngineWorker) -> None:
    call = ask()
    await run(ahead, call, StopCriteria(4))
    await run(ahead, continued(call, Segment("large", "No.")), StopCriteria(40, (".",)))
    assert len(ahead.backend.engine._ahead.rows) <= 1
    assert ahead.stats()["adopted_tokens"] == 0


async def test_rows_that_ran_ahead_give_their_slots_to_calls(ahead: EngineWorker) -> None:
    """Three slots: the fourth request takes that of the oldest row."""
    for name in "abcdef":
        answer = await run(ahead, replace(ask(name), request=name), StopCriteria(3))
        assert len(answer.segment.tokens) == 3
    assert len(ahead.backend.engine._ahead.rows) == 3


async def test_rows_that_run_ahead_share_passes_in_the_order_of_their_slots(
    ahead: EngineWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = [replace(ask(40 * f"{name} "), request=name) for name in "ab"]
    for call in calls:
        await run(ahead, call, StopCriteria(0))
    target = ahead.backend.engine.decoder.target
    forward, passes = target.forward, list[list[int]]()

    def noting(slots: Any, trees: Any, **options: Any) -> Any:
        passes.append(list(slots))
        return forward(slots, trees, **options)

    with held(ahead):
        for call in reversed(calls):
            await run(ahead, call, StopCriteria(1))
        monkeypatch.setattr(target, "forward", noting)
    await idle(ahead)
    assert {tuple(slots) for slots in passes} == {(0, 1)}


async def test_a_call_is_served_while_rows_wait_to_run_ahead(ahead: EngineWorker) -> None:
    """No pass is made for them while a call is live."""
    await run(ahead, ask(), StopCriteria(4))
    stream = ahead.generate(
        replace(ask("b"), request="b"), StopCriteria(30), Sampling(), stream=True
    )
    made: list[Any] = [await anext(stream)]
    before = ahead.stats()["ahead_tokens"]
    made += [item async for item in stream]
    answer = made[-1]
    assert isinstance(answer, Generation)
    assert answer.usage.passes == answer.usage.generated
    assert ahead.stats()["ahead_tokens"] - before <= AHEAD  # those after its end


async def test_what_runs_ahead_can_be_ended(ahead: EngineWorker) -> None:
    """By no call: it ends at once, and the next call writes what it would have written."""
    call, engine = ask(), ahead.backend.engine
    first = await run(ahead, call, StopCriteria(4))
    await ahead.end_ahead()
    async with asyncio.timeout(10):
        while engine._ahead.rows:
            await asyncio.sleep(0)
    assert not engine.decoder.rows
    answer = await run(ahead, continued(call, first.segment), StopCriteria(4))
    whole = await run(ahead, replace(call, request="other"), StopCriteria(8))
    assert answer.usage.adopted == 0
    assert first.segment.tokens + answer.segment.tokens == whole.segment.tokens


async def test_a_failure_while_running_ahead_harms_no_call(ahead: EngineWorker) -> None:
    call = ask()
    whole = await run(ahead, replace(call, request="other"), StopCriteria(8))
    engine = ahead.backend.engine
    step, failed = engine.decoder.step, asyncio.Event()
    loop = asyncio.get_running_loop()

    def failing(rows: Any, *late: Any) -> Any:
        if rows[0] in engine._ahead.rows:
            loop.call_soon_threadsafe(failed.set)
            raise RuntimeError("planted")
        return step(rows, *late)

    engine.decoder.step = failing  # type: ignore[method-assign]
    first = await run(ahead, call, StopCriteria(4))
    await failed.wait()
    answer = await run(ahead, continued(call, first.segment), StopCriteria(4))
    assert first.segment.tokens + answer.segment.tokens == whole.segment.tokens

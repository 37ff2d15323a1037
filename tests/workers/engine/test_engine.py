"""Admission and failures of the engine."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any

import pytest
import torch

from orchestrator.errors import Overloaded, WorkerError, WorkerUnavailable
from orchestrator.types import (
    Generation,
    LabelQuery,
    Message,
    Sampling,
    Segment,
    StopCriteria,
    Transcript,
)
from orchestrator.worker import Call
from tests.workers.engine.local import ask, held, run, until
from workers.engine import engine
from workers.engine.loading import load
from workers.replica.server import ReplicaServer
from workers.text.detokenizer import Detokenizer
from workers.worker import EngineWorker


async def test_more_calls_than_rows_wait_and_then_are_refused(worker: EngineWorker) -> None:
    with held(worker):
        calls = [asyncio.create_task(run(worker, ask(str(i)), StopCriteria(2))) for i in range(4)]
        await until(worker, live_rows=2, queued=2)
        with pytest.raises(Overloaded):
            await run(worker, ask("one too many"), StopCriteria(2))
    assert all(len(answer.segment.tokens) > 0 for answer in await asyncio.gather(*calls))


async def test_rows_that_become_free_go_to_the_key_that_has_the_fewest(
    worker: EngineWorker,
) -> None:
    worker.backend.engine.queue = 20
    ended: list[str] = []

    async def one(owner: str) -> None:
        await run(worker, replace(ask(str(len(ended))), owner=owner), StopCriteria(6))
        ended.append(owner)

    with held(worker):  # eight of one key under different names, and two of another come last
        loud = [asyncio.create_task(one(f"loud.{user}")) for user in range(8)]
        await until(worker, live_rows=2, queued=6)
        quiet = [asyncio.create_task(one("quiet.x")) for _ in range(2)]
        await until(worker, queued=8)
    await asyncio.gather(*loud, *quiet)
    assert max(place for place, owner in enumerate(ended) if owner == "quiet.x") <= 5
    assert len(ended) == 10


async def test_a_burst_into_free_rows_is_no_overload(worker: EngineWorker) -> None:
    await asyncio.gather(*(run(worker, ask(str(i)), StopCriteria(2)) for i in range(4)))


async def test_closing_the_engine_fails_its_calls(checkpoint: Path) -> None:
    worker = load(checkpoint, rows=1, max_len=100)
    with held(worker):
        calls = [asyncio.create_task(run(worker, ask(str(i)), StopCriteria(60))) for i in range(2)]
        await until(worker, live_rows=1, queued=1)
        worker.close()
    for call in calls:
        with pytest.raises(WorkerUnavailable):
            await call
    with pytest.raises(WorkerUnavailable):
        await run(worker, ask(), StopCriteria(1))


async def test_a_prompt_longer_than_a_chunk(
    worker: EngineWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = ask("Several chunks are needed for this one. " * 3)
    whole = await run(worker, call, StopCriteria(6))
    for slot in range(3):
        worker.backend.engine.cache.reset(slot)
    monkeypatch.setattr("workers.model.target.CHUNK", 16)
    pieces = await run(worker, call, StopCriteria(6))
    assert pieces.segment.tokens == whole.segment.tokens
    assert pieces.usage.passes > whole.usage.passes


async def test_nan_logits_are_an_error_and_harm_no_other_call(worker: EngineWorker) -> None:
    good = await run(worker, ask(), StopCriteria(6))
    target = worker.backend.engine.decoder.target
    forward = target.forward

    def broken(*args: Any, **options: Any) -> Any:
        result = forward(*args, **options)
        target.cache.data[:, list(args[0])] = torch.nan
        result.logits.fill_(torch.nan)
        return result

    target.forward = broken  # type: ignore[method-assign]
    for sampling in (Sampling(), Sampling(0.8, seed=1)):
        with pytest.raises(WorkerError, match="NaN"):
            await run(worker, ask("what now?"), StopCriteria(6), sampling)
    with pytest.raises(WorkerError, match="NaN"):
        await worker.classify(ask("and now?"), LabelQuery((Message("user", "?"),), "", ("1", "2")))
    with pytest.raises(WorkerError, match="NaN"):
        await worker.verify(ask("or now?"), Segment("small", ""), Sampling())
    target.forward = forward  # type: ignore[method-assign]
    assert (await run(worker, ask(), StopCriteria(6))).segment.tokens == good.segment.tokens
    assert worker.stats()["live_rows"] == 0


async def test_a_prompt_that_makes_nans_is_an_error_and_leaves_none(worker: EngineWorker) -> None:
    """A prefill wants no logits, and what it caches is read by later calls."""
    target = worker.backend.engine.decoder.target
    target.embedding[worker.tokenizer.encode("#")[0]] = nan
    for criteria in (StopCriteria(0), StopCriteria(5)):
        for question in ("#", "# and 2"):
            with pytest.raises(WorkerError, match="NaN"):
                await run(worker, replace(ask(question), owner="one"), criteria)
    assert target.cache.data.isfinite().all()
    asked = [replace(ask("What is 1?" + " and 2" * i), owner=str(i)) for i in range(4)]
    answers = await asyncio.gather(*(run(worker, one, StopCriteria(8)) for one in asked))
    assert all(answer.segment.tokens for answer in answers)


async def test_a_crash_in_the_model_fails_its_calls_only(
    worker: EngineWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no memory left")

    with monkeypatch.context() as broken:
        broken.setattr(worker.backend.engine.decoder.target, "forward", crash)
        with pytest.raises(WorkerError, match="no memory left"):
            await run(worker, ask(), StopCriteria(6))
    assert (await run(worker, ask(), StopCriteria(3))).segment.tokens


async def test_a_crash_in_the_handling_of_a_token_fails_that_call_only(
    worker: EngineWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    push = Detokenizer.push

    def crash(self: Detokenizer, token: int, logprob: float, **more: Any) -> Any:
        if len(self.tokens) in crash_at:
            raise IndexError("no such token")
        return push(self, token, logprob, **more)

    monkeypatch.setattr(Detokenizer, "push", crash)
    for at in (0, 3):  # with the prompt's last logits, and in the loop
        crash_at = {at}
        with pytest.raises(WorkerError, match="no such token"):
            await asyncio.wait_for(run(worker, ask(), StopCriteria(6)), 60)
    crash_at = set()
    assert (await run(worker, ask(), StopCriteria(3))).segment.tokens
    assert worker.stats()["live_rows"] == 0


async def test_an_engine_that_dies_fails_its_waiting_calls(
    worker: EngineWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(worker.backend.engine.cache, "truncate", crash)
    calls = (run(worker, ask(str(i)), StopCriteria(6)) for i in range(2))
    answers = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 60)
    assert [type(answer) for answer in answers] == [WorkerUnavailable] * 2
    with pytest.raises(WorkerUnavailable):
        await asyncio.wait_for(run(worker, ask(), StopCriteria(1)), 60)


@pytest.mark.parametrize("working", [0, 3])
async def test_an_accelerator_past_use_fails_its_calls_and_the_health_check(
    worker: EngineWorker, monkeypatch: pytest.MonkeyPatch, working: int
) -> None:
    """Every operation on it fails, from the first prompt on or amid decoding."""
    target = worker.backend.engine.decoder.target
    forward, passes = target.forward, 0

    def sticky(*_: Any, **__: Any) -> Any:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def breaking(*args: Any, **options: Any) -> Any:
        nonlocal passes
        passes += 1
        return forward(*args, **options) if passes <= working else sticky()

    monkeypatch.setattr(target, "forward", breaking)
    monkeypatch.setattr(worker.backend.engine.cache, "reset", sticky)
    replica = ReplicaServer(lambda: worker)
    await replica.check_health()
    calls = (run(worker, ask(str(i)), StopCriteria(50)) for i in range(2))
    answers = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 60)
    assert [type(answer) for answer in answers] == [WorkerUnavailable] * 2
    with pytest.raises(WorkerUnavailable, match="stopped"):
        await replica.check_health()


async def test_a_call_that_comes_while_the_engine_stops_is_refused(worker: EngineWorker) -> None:
    class Late(deque[Any]):
        def append(self, request: Any) -> None:
            worker.close()
            super().append(request)

    worker.backend.engine._waiting = Late()
    with pytest.raises(WorkerUnavailable):
        await asyncio.wait_for(run(worker, ask(), StopCriteria(1)), 60)


async def test_a_method_that_fails_fails_its_own_rows_only(checkpoint: Path) -> None:
    worker = load(checkpoint, also=[{"method": "lookup"}], rows=4, max_len=200)

    def broken(_: Any) -> Any:
        raise RuntimeError("no draft today")

    try:
        expected = (await run(worker, ask(), StopCriteria(20))).segment.tokens
        worker.backend.engine.decoder.methods["lookup"].draft = broken  # type: ignore[method-assign]
        good = [run(worker, ask(), StopCriteria(20)) for _ in range(2)]
        bad = [
            run(worker, replace(ask(), speculation="lookup"), StopCriteria(20)) for _ in range(2)
        ]
        ended = await asyncio.gather(*good, *bad, return_exceptions=True)
        assert [one.segment.tokens for one in ended[:2]] == [expected] * 2  # type: ignore[union-attr]
        assert all(isinstance(one, WorkerError) for one in ended[2:])
        assert worker.stats()["live_rows"] == 0
    finally:
        worker.close()


def drafting(method: str, **more: Any) -> EngineWorker:
    """The embedded large model, with its weak draft model as `method` wants it."""
    speculation = {"method": method, "draft": "embedded:draft"}
    return load("embedded:large", rows=2, max_len=512, threads=1, speculation=speculation, **more)


def served_in_a_draft(worker: EngineWorker, *calls: tuple[Call, int]) -> list[Future[Generation]]:
    """Submit calls, each with its `max_tokens`, when the next draft pauses for the first time."""
    method: Any = worker.backend.engine.decoder.method
    drafter = getattr(method, "base", method).drafter
    serve, loop, submitted = drafter.pause, asyncio.get_running_loop(), list[Future[Generation]]()

    def pause() -> None:
        if not submitted:
            for call, most in calls:
                asked = run(worker, call, StopCriteria(most))
                submitted.append(asyncio.run_coroutine_threadsafe(asked, loop))
            while worker.stats()["queued"] < len(calls):
                time.sleep(0.001)
        serve()

    drafter.pause = pause
    return submitted


async def test_a_call_that_comes_while_a_draft_is_made_joins_its_round() -> None:
    large = drafting("chain")
    decoder = large.backend.engine.decoder
    step, rounds = decoder.step, list[int]()

    def noting(*rows: Any) -> Any:
        emitted = step(*rows)
        rounds.append(len(emitted))
        return emitted

    decoder.step = noting  # type: ignore[method-assign]
    try:
        first, second = ask("What is 12 + 34?"), ask("What is 3 * 21?")
        expected = [await run(large, call, StopCriteria(40)) for call in (first, second)]
        rounds.clear()
        joined = served_in_a_draft(large, (second, 40))
        answers = await run(large, first, StopCriteria(40)), await asyncio.wrap_future(joined[0])
        assert [one.segment.tokens for one in answers] == [one.segment.tokens for one in expected]
        assert rounds[0] == 2
        assert sum(answer.usage.passes for answer in answers) == sum(rounds)
    finally:
        large.close()


async def test_a_method_that_fails_fails_no_row_of_another_that_joined_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    large = drafting("chain", also=[{"method": "vanilla"}])
    plain = replace(ask("What is 3 * 21?"), speculation="vanilla")

    def broken(*_: Any) -> Any:
        raise RuntimeError("no verdict today")

    try:
        expected = await run(large, plain, StopCriteria(20))
        monkeypatch.setattr(large.backend.engine.decoder.methods["chain"], "verify", broken)
        joined = served_in_a_draft(large, (plain, 20))
        with pytest.raises(WorkerError, match="no verdict today"):
            await run(large, ask(), StopCriteria(20))
        answer = await asyncio.wrap_future(joined[0])
        assert answer.segment.tokens == expected.segment.tokens
    finally:
        large.close()


async def test_a_failure_between_the_passes_of_a_draft_answers_all_callers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    large = drafting("chain")
    try:
        served = served_in_a_draft(large, (ask("Read?"), 0))

        def broken() -> Any:
            raise RuntimeError("the device is past use")

        drafter = large.backend.engine.decoder.method.drafter  # type: ignore[attr-defined]
        pause = drafter.pause

        def failing() -> None:
            monkeypatch.setattr(large.backend.engine, "_admit", broken)
            pause()

        drafter.pause = failing
        with pytest.raises(WorkerUnavailable, match="has stopped"):
            await run(large, ask(), StopCriteria(40))
        with pytest.raises(WorkerUnavailable, match="has stopped"):
            await asyncio.wrap_future(served[0])
        assert not large.alive
    finally:
        large.close()


async def test_prompts_are_read_between_the_passes_of_a_draft(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    large = drafting("chain")
    target = large.backend.engine.decoder.target
    monkeypatch.setattr(engine, "CHUNK", 32)
    monkeypatch.setattr("workers.model.target.CHUNK", 32)
    extend_all, sizes, rounds = target.extend_all, list[int](), list[int]()

    def reading(chunks: Any) -> Any:
        sizes.append(sum(len(chunk.tokens) for chunk in chunks))
        rounds.append(large.stats()["rounds"])
        return extend_all(chunks)

    try:
        expected = await run(large, ask(), StopCriteria(60))
        monkeypatch.setattr(target, "extend_all", reading)
        read = served_in_a_draft(large, (ask("Is this one long? " * 12), 0))
        assert (await run(large, ask(), StopCriteria(60))).segment.tokens == expected.segment.tokens
        usage = (await asyncio.wrap_future(read[0])).usage
        assert sum(sizes) == usage.prompt - usage.cached > 2 * 32
        assert len({*rounds}) == len(rounds)  # one chunk a round, so that the row goes on
    finally:
        large.close()


@pytest.mark.parametrize("method", ["chain", "relaxed", "reflective"])
async def test_a_prompt_that_comes_while_a_draft_is_made_is_read_at_once(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    large = drafting(method)
    engine, target = large.backend.engine, large.backend.engine.decoder.target
    extend_all, while_drafting = target.extend_all, list[bool]()

    def reading(chunks: Any) -> Any:
        while_drafting.append(engine._late is not None)
        return extend_all(chunks)

    try:
        monkeypatch.setattr(target, "extend_all", reading)
        read = served_in_a_draft(large, (ask("Is this read?"), 0))
        await run(large, ask(), StopCriteria(20))
        await asyncio.wrap_future(read[0])
        assert while_drafting == [False, True]
    finally:
        large.close()


async def test_a_draft_that_is_nan_fails_its_own_row_only(
    checkpoint: Path, draft_checkpoint: Path
) -> None:
    chain = {"method": "chain", "draft": str(draft_checkpoint)}
    worker = load(checkpoint, speculation=chain, rows=4, max_len=200)
    try:
        expected = (await run(worker, ask(), StopCriteria(20))).segment.tokens
        drafter = worker.backend.engine.decoder.method.drafter  # type: ignore[attr-defined]
        bad = worker.tokenizer.encode("#")[0]
        drafter.model.embedding[bad] = nan
        for sampling in (Sampling(), Sampling(0.8, seed=1)):
            asked = [run(worker, ask(), StopCriteria(20)) for _ in range(2)]
            asked += [run(worker, ask("# 1?"), StopCriteria(20), sampling)]
            *good, failed = await asyncio.gather(*asked, return_exceptions=True)
            assert [one.segment.tokens for one in good] == [expected] * 2  # type: ignore[union-attr]
            assert isinstance(failed, WorkerError)
            assert "the draft's logits are NaN" in str(failed)
            assert drafter.cache.data.isfinite().all()
    finally:
        worker.close()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("method", ["chain", "recursive-s"])
async def test_each_token_says_whether_it_was_drafted(method: str, temperature: float) -> None:
    large = drafting(method, also=[{"method": "vanilla"}])
    rounds: list[tuple[int, list[int], list[int]]] = []  # depth, tokens, rejected drafts
    verify = large.backend.engine.decoder.method.verify

    def noting(plan: Any, scores: Any) -> Any:
        accepted = verify(plan, scores)
        for tree, one in zip(plan.trees, accepted, strict=True):
            parent = one.path[-1]
            here = [t for t, p in zip(tree.tokens, tree.parents, strict=True) if p == parent]
            rounds.append((tree.depth, one.tokens, here))
        return accepted

    large.backend.engine.decoder.method.verify = noting  # type: ignore[method-assign]
    try:
        call = Call("r", Transcript((Message("user", "What is 12 + 34?"),)), "large")
        sampling = Sampling(temperature, seed=3)
        answer = await run(large, call, StopCriteria(60), sampling)
        made, tokens = answer.provenance, answer.segment.tokens
        assert made is not None
        letters, rejected = ["-"], {}
        for depth, emitted, drafts in rounds:
            letters += "a" * (len(emitted) - 1)
            if drafts:
                rejected[len(letters)] = drafts
            letters += "r" if drafts else "b" if depth else "-"
        assert made.origins == "".join(letters)[: len(tokens)]
        assert {"a", "r"} <= set(made.origins)
        pieces = [piece.decode("utf-8", "replace") for piece in large.tokenizer.pieces]
        assert dict(made.rejected) == {
            place: tuple(pieces[token] for token in drafts)
            for place, drafts in rejected.items()
            if place < len(tokens)
        }
        assert all(tokens[p] not in drafts for p, drafts in rejected.items() if p < len(tokens))
        ends = [sum(made.lengths[: n + 1]) for n in range(len(tokens))]
        assert [answer.segment.text[:end] for end in ends] == [
            large.tokenizer.decode(tokens[: n + 1]) for n in range(len(tokens))
        ]
        stats = large.stats()
        # Each round emits what was accepted and one token more.
        assert stats["emitted_tokens"] == stats["rounds"] + stats["accepted_tokens"]
        assert 0 < stats["accepted_tokens"] == sum(made.accepted_at) < stats["drafted_tokens"]
        for counts, name in ((made.drafted_at, "drafted"), (made.accepted_at, "accepted")):
            assert [stats[f"{name}_at_{n}"] for n in range(1, len(counts) + 1)] == list(counts)
        plain = await run(large, replace(call, speculation="vanilla"), StopCriteria(20), sampling)
        assert plain.provenance is None
    finally:
        large.close()

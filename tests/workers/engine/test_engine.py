"""Admission, prefix reuse, leases, failures, and how generations end on a real model."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from orchestrator.errors import (
    ConfigError,
    InvalidRequest,
    Overloaded,
    WorkerError,
    WorkerUnavailable,
)
from orchestrator.loop.events import RequestCompleted
from orchestrator.loop.solve import solve
from orchestrator.types import (
    Generation,
    LabelQuery,
    Limits,
    Message,
    Sampling,
    Segment,
    StopCriteria,
    Transcript,
)
from orchestrator.worker import Call
from policies.single import LargeOnly
from policies.specreason import SpecReason
from tests.workers.conftest import make_model, make_tokenizer, save
from workers.engine.loading import load
from workers.engine.worker import LocalWorker
from workers.replica.server import ReplicaServer
from workers.text.detokenizer import Writer

pytestmark = pytest.mark.asyncio


@pytest.fixture
def worker(checkpoint: Path) -> Iterator[LocalWorker]:
    worker = load(checkpoint, rows=2, slots=3, max_len=300, queue=2)
    yield worker
    worker.close()


def ask(text: str = "What is 12 + 34?") -> Call:
    return Call("r", Transcript((Message("user", text),)))


async def run(
    worker: LocalWorker, call: Call, criteria: StopCriteria, sampling: Sampling | None = None
) -> Generation:
    stream = worker.generate(call, criteria, sampling or Sampling(), stream=False)
    (answer,) = [item async for item in stream]
    assert isinstance(answer, Generation)
    return answer


def slow(worker: LocalWorker, seconds: float) -> None:
    """Make every iteration take that much longer."""
    decode = worker.engine.decoder.round

    def slower(rows: Any) -> Any:
        time.sleep(seconds)
        return decode(rows)

    worker.engine.decoder.round = slower  # type: ignore[method-assign]


def force(worker: LocalWorker, *texts: str | int) -> None:
    """Make the model say given tokens: texts in plain tokens, ids as they are."""
    ids: list[int] = []
    for text in texts:
        ids += [text] if isinstance(text, int) else worker.tokenizer.encode(text)
    target = worker.engine.decoder.target
    forward = target.forward
    said = 0

    def forced(slots: Any, trees: Any, **options: Any) -> Any:
        nonlocal said
        result = forward(slots, trees, **options)
        result.logits.fill_(0.0)
        if result.logits.shape[1]:
            result.logits[..., ids[min(said, len(ids) - 1)]] = 9.0
            said += 1
        return result

    target.forward = forced  # type: ignore[method-assign]


async def test_more_calls_than_rows_wait_and_then_are_refused(worker: LocalWorker) -> None:
    slow(worker, 0.02)
    running = [asyncio.create_task(run(worker, ask(str(i)), StopCriteria(10))) for i in range(2)]
    await asyncio.sleep(0.05)
    waiting = [asyncio.create_task(run(worker, ask(str(i)), StopCriteria(2))) for i in range(2)]
    await asyncio.sleep(0.01)
    assert worker.stats()["live_rows"] == 2
    assert worker.stats()["queued"] == 2
    with pytest.raises(Overloaded):
        await run(worker, ask("one too many"), StopCriteria(2))
    answers = await asyncio.gather(*running, *waiting)
    assert all(len(answer.segment.tokens) > 0 for answer in answers)


async def test_a_burst_into_free_rows_is_no_overload(worker: LocalWorker) -> None:
    await asyncio.gather(*(run(worker, ask(str(i)), StopCriteria(2)) for i in range(4)))


async def test_an_abandoned_call_ends_with_its_lease(worker: LocalWorker) -> None:
    worker.engine.lease_s = 0.5
    slow(worker, 0.02)
    stream = worker.generate(ask(), StopCriteria(200), Sampling())
    await anext(stream)
    assert worker.stats()["live_rows"] == 1
    for _ in range(100):  # the caller forgets its stream, without closing it
        if worker.stats()["live_rows"] == 0:
            break
        await asyncio.sleep(0.02)
    assert worker.stats()["live_rows"] == 0
    with pytest.raises(WorkerUnavailable):
        async for _ in stream:
            pass


async def test_a_waiting_caller_keeps_its_lease(worker: LocalWorker) -> None:
    worker.engine.lease_s = 0.9
    slow(worker, 0.05)
    answer = await run(worker, ask(), StopCriteria(30))
    assert answer.ms > 900
    assert answer.segment.finish == "length"


async def test_closing_the_engine_fails_its_calls(checkpoint: Path) -> None:
    worker = load(checkpoint, rows=1, max_len=100)
    slow(worker, 0.02)
    calls = [asyncio.create_task(run(worker, ask(str(i)), StopCriteria(60))) for i in range(2)]
    await asyncio.sleep(0.05)
    worker.close()
    for call in calls:
        with pytest.raises(WorkerUnavailable):
            await call
    with pytest.raises(WorkerUnavailable):
        await run(worker, ask(), StopCriteria(1))


async def test_the_prefix_cache_can_be_reset(worker: LocalWorker) -> None:
    first = await run(worker, ask(), StopCriteria(4))
    again = await run(worker, ask(), StopCriteria(4))
    assert (first.usage.cached, again.usage.cached) == (0, again.usage.prompt - 1)
    worker.reset_prefix_cache()
    fresh = await run(worker, ask(), StopCriteria(4))
    assert fresh.usage.cached == 0
    assert fresh.segment == first.segment


async def test_prefixes_stay_cached_beside_each_other(worker: LocalWorker) -> None:
    first, second = ask("A long question about apples"), ask("Bananas are another matter")
    await run(worker, first, StopCriteria(5))
    await run(worker, second, StopCriteria(5))
    again = await run(worker, first, StopCriteria(5))
    assert again.usage.cached == again.usage.prompt - 1
    again = await run(worker, second, StopCriteria(5))
    assert again.usage.cached == again.usage.prompt - 1


async def test_a_common_beginning_is_copied_and_both_texts_live(worker: LocalWorker) -> None:
    common = "One and the same long beginning of two different questions: "
    alone = [await run(worker, ask(common + end), StopCriteria(8)) for end in "ab"]
    fresh = await run(worker, ask("x"), StopCriteria(1))
    assert alone[1].usage.cached > fresh.usage.prompt
    slow(worker, 0.01)
    together = await asyncio.gather(
        *(run(worker, ask(common + end), StopCriteria(8)) for end in "ab")
    )
    assert [t.segment.tokens for t in together] == [a.segment.tokens for a in alone]


async def test_a_classification_leaves_the_prefix_and_nothing_else(worker: LocalWorker) -> None:
    call = ask("Judge this")
    answer = await worker.classify(
        call, LabelQuery((Message("user", "Good?"),), "Score: ", ("1", "2"))
    )
    prefix = len(worker.prompts.transcript(call.transcript))
    assert answer.usage.prompt > prefix
    assert worker.stats()["held_tokens"] == prefix
    assert worker.stats()["lossy"] == 0


async def test_a_prompt_longer_than_a_chunk(
    worker: LocalWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = ask("Several chunks are needed for this one. " * 3)
    whole = await run(worker, call, StopCriteria(6))
    for slot in range(3):
        worker.engine.cache.clear(slot)
    read = worker.engine.decoder.read
    monkeypatch.setattr(
        worker.engine.decoder, "read", lambda slot, ids, last: read(slot, ids, last=last, most=16)
    )
    pieces = await run(worker, call, StopCriteria(6))
    assert pieces.segment.tokens == whole.segment.tokens
    assert pieces.usage.passes > whole.usage.passes


async def test_control_tokens_end_a_generation(worker: LocalWorker) -> None:
    close = worker.tokenizer.close_id
    assert close is not None
    force(worker, "So 46", close)
    answer = await run(worker, ask(), StopCriteria(50))
    assert (answer.segment.finish, answer.segment.text) == ("think_end", "So 46")
    assert close not in answer.segment.tokens
    force(worker, "So 46", next(iter(worker.tokenizer.controls - {close})))
    answer = await run(worker, ask(), StopCriteria(50))
    assert (answer.segment.finish, answer.segment.text) == ("eos", "So 46")


async def test_a_stop_string_over_several_tokens(worker: LocalWorker) -> None:
    force(worker, "46 and STOP more")
    answer = await run(worker, ask(), StopCriteria(50, until=("more",), stop=("and STOP",)))
    assert (answer.segment.finish, answer.segment.text) == ("stop", "46 ")
    assert worker.tokenizer.decode(answer.segment.tokens) == "46 "
    assert len(answer.segment.logprobs) == len(answer.segment.tokens)


async def test_a_stop_string_is_not_looked_for_before_the_answer_begins(
    worker: LocalWorker,
) -> None:
    force(worker, "\n\n46\nmore")
    transcript = replace(ask().transcript, closed=True)
    answer = await run(worker, Call("r", transcript), StopCriteria(50, stop=("\n",)))
    assert (answer.segment.finish, answer.segment.text) == ("stop", "\n\n46")


async def test_low_confidence_ends_before_the_token(worker: LocalWorker) -> None:
    answer = await run(worker, ask(), StopCriteria(20, min_confidence=1.1))
    assert (answer.segment.finish, answer.segment.tokens) == ("doubt", ())
    assert (
        await run(worker, ask(), StopCriteria(3, min_confidence=1e-9))
    ).segment.finish != "doubt"


async def test_the_entropy_is_that_of_the_models_own_distribution(worker: LocalWorker) -> None:
    answer = await run(worker, ask(), StopCriteria(5, max_entropy=0.0))
    assert (answer.segment.finish, answer.usage.generated) == ("doubt", 0)
    assert answer.usage.passes == 1  # a glimpse costs the reading of the prompt
    prompt = worker.prompts.transcript(ask().transcript)
    with torch.inference_mode():
        logits = worker.engine.decoder.target.model(torch.tensor([prompt])).logits[0, -1]
    # The head is padded, as in real checkpoints.
    probs = logits[: len(worker.tokenizer.pieces)].double().softmax(-1)
    expected = -float((probs * probs.log()).sum())
    assert answer.entropy == pytest.approx(expected, rel=1e-4)
    assert worker.stats()["live_rows"] == 0
    following = await run(worker, ask(), StopCriteria(5))  # its slot is free, its prefix cached
    assert following.usage.cached == following.usage.prompt - 1


async def test_nothing_is_gated_where_nothing_is_to_be_written(worker: LocalWorker) -> None:
    answer = await run(worker, ask(), StopCriteria(0, max_entropy=0.0))
    assert (answer.segment.finish, answer.entropy) == ("length", None)


async def test_a_gate_of_nan_logits_is_an_error(worker: LocalWorker) -> None:
    target = worker.engine.decoder.target
    forward = target.forward

    def broken(*args: Any, **options: Any) -> Any:
        result = forward(*args, **options)
        result.logits.fill_(float("nan"))
        return result

    target.forward = broken  # type: ignore[method-assign]
    with pytest.raises(WorkerError, match="NaN"):
        await run(worker, ask(), StopCriteria(5, max_entropy=9.0))
    target.forward = forward  # type: ignore[method-assign]
    assert (await run(worker, ask(), StopCriteria(5, max_entropy=9.0))).entropy is not None


async def test_a_character_lies_across_segments(worker: LocalWorker) -> None:
    tokens = worker.tokenizer.encode("a😀é!")
    assert len(tokens) > 5  # bytes, mostly
    for at in range(1, len(tokens)):
        draft = Segment("small", "a😀é!", tokens, (0.0,) * len(tokens), worker.tokenizer.hash)
        answer = await worker.verify(ask(), draft, Sampling())
        assert "".join(answer.pieces) == draft.text
        kept, _ = answer.split(draft, at)
        transcript = ask().transcript.extend(kept)
        forward = worker.engine.decoder.target.forward
        force(worker, *tokens[at:])
        answer = await run(worker, Call("r", transcript), StopCriteria(len(tokens) - at))
        assert kept.text + answer.segment.text == draft.text
        assert kept.tokens + answer.segment.tokens == tokens
        worker.engine.decoder.target.forward = forward  # type: ignore[method-assign]
        option = (
            await worker.verify(Call("r", transcript), Segment("small", ""), Sampling())
        ).options
        whole = worker.tokenizer.decode(kept.tokens + option[0].tokens)
        assert kept.text + option[0].text == whole


@pytest.mark.parametrize("closed", [False, True])
async def test_choices_that_end_a_phase(worker: LocalWorker, closed: bool) -> None:
    close = worker.tokenizer.close_id
    assert close is not None
    call = Call("r", replace(ask().transcript, closed=closed))
    force(worker, close)
    (option,) = (await worker.verify(call, Segment("small", ""), Sampling())).options
    assert option == Segment(
        "large", "", tokenizer=worker.tokenizer.hash, finish="eos" if closed else "think_end"
    )
    ended = Segment("small", "", finish="think_end")
    sure = await worker.verify(Call("r", ask().transcript), ended, Sampling())
    doubtful = await worker.verify(
        Call("r", ask().transcript), replace(ended, finish="eos"), Sampling()
    )
    assert sure.ending is not None
    assert doubtful.ending is not None
    assert sure.ending < 0.1 < doubtful.ending


async def test_nan_logits_are_an_error_and_harm_no_other_call(worker: LocalWorker) -> None:
    good = await run(worker, ask(), StopCriteria(6))
    target = worker.engine.decoder.target
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


async def test_a_crash_in_the_model_fails_its_calls_only(worker: LocalWorker) -> None:
    def crash(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no memory left")

    forward = worker.engine.decoder.target.forward
    worker.engine.decoder.target.forward = crash  # type: ignore[method-assign]
    with pytest.raises(WorkerError, match="no memory left"):
        await run(worker, ask(), StopCriteria(6))
    worker.engine.decoder.target.forward = forward  # type: ignore[method-assign]
    assert (await run(worker, ask(), StopCriteria(3))).segment.tokens


async def test_a_crash_in_the_handling_of_a_token_fails_that_call_only(
    worker: LocalWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    push = Writer.push

    def crash(self: Writer, token: int, logprob: float) -> Any:
        if len(self.tokens) in crash_at:
            raise IndexError("no such token")
        return push(self, token, logprob)

    monkeypatch.setattr(Writer, "push", crash)
    for at in (0, 3):  # with the prompt's last logits, and in the loop
        crash_at = {at}
        with pytest.raises(WorkerError, match="no such token"):
            await asyncio.wait_for(run(worker, ask(), StopCriteria(6)), 5)
    crash_at = set()
    assert (await run(worker, ask(), StopCriteria(3))).segment.tokens
    assert worker.stats()["live_rows"] == 0


async def test_an_engine_that_dies_fails_its_waiting_calls(
    worker: LocalWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(worker.engine.cache, "claim", crash)
    calls = (run(worker, ask(str(i)), StopCriteria(6)) for i in range(2))
    answers = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 5)
    assert [type(answer) for answer in answers] == [WorkerUnavailable] * 2
    with pytest.raises(WorkerUnavailable):
        await asyncio.wait_for(run(worker, ask(), StopCriteria(1)), 5)


@pytest.mark.parametrize("working", [0, 3])
async def test_an_accelerator_past_use_fails_its_calls_and_the_health_check(
    worker: LocalWorker, monkeypatch: pytest.MonkeyPatch, working: int
) -> None:
    """Every operation on it fails, from the first prompt on or amid decoding."""
    target = worker.engine.decoder.target
    forward, passes = target.forward, 0

    def sticky(*_: Any, **__: Any) -> Any:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def breaking(*args: Any, **options: Any) -> Any:
        nonlocal passes
        passes += 1
        return forward(*args, **options) if passes <= working else sticky()

    monkeypatch.setattr(target, "forward", breaking)
    monkeypatch.setattr(worker.engine.cache, "clear", sticky)
    replica = ReplicaServer(lambda: worker)
    await replica.check_health()
    calls = (run(worker, ask(str(i)), StopCriteria(50)) for i in range(2))
    answers = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 5)
    assert [type(answer) for answer in answers] == [WorkerUnavailable] * 2
    with pytest.raises(WorkerUnavailable, match="stopped"):
        await replica.check_health()


async def test_a_call_that_comes_while_the_engine_stops_is_refused(worker: LocalWorker) -> None:
    class Late(deque[Any]):
        def append(self, request: Any) -> None:
            worker.close()
            super().append(request)

    worker.engine._waiting = Late()
    with pytest.raises(WorkerUnavailable):
        await asyncio.wait_for(run(worker, ask(), StopCriteria(1)), 5)


async def test_a_thought_leaves_room_for_an_answer_and_the_answer_fills_it(
    worker: LocalWorker,
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
    worker: LocalWorker, policy: Any
) -> None:
    force(worker, "a")  # as far as the context goes, which is less than max_tokens
    events = solve(
        policy,
        ask().transcript.messages,
        {"small": worker, "large": worker},
        request="r",
        sampling=Sampling(),
        limits=Limits(max_tokens=10_000),
    )
    *_, ended = [event async for event in events]
    assert isinstance(ended, RequestCompleted)
    assert ended.transcript.forced
    assert ended.transcript.answer_tokens > 0


async def test_what_cannot_be_loaded_says_why(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for options, reason in (
        ({"model": "embedded:nothing"}, "no embedded model"),
        ({"model": tmp_path}, "no config.json"),
        ({"speculation": {"method": "magic"}}, "vanilla, chain"),
        ({"speculation": {"method": "vanilla", "gamma": 3}}, "gamma"),
        ({"also": [{"method": "magic"}]}, "vanilla, chain"),
        ({"also": [{"method": "lookup", "gamme": 3}]}, "speculation lookup: .*gamme"),
        ({"also": [{"method": "vanilla"}]}, "speculation vanilla: named twice"),
        ({"max_len": 10_000}, "512 positions"),
        ({"dtype": "int8"}, "dtype"),
        ({"rows": 4, "slots": 3}, "slots"),
        ({"rows": 0}, "rows"),
    ):
        with pytest.raises(ConfigError, match=reason):
            load(**{"model": checkpoint, **options})
    other = make_tokenizer(corpus="some other text with other merges " * 5)
    save(tmp_path, other, make_model("qwen3", vocabulary=len(other)))
    with pytest.raises(ConfigError, match="another vocabulary"):
        load(checkpoint, speculation={"method": "chain", "draft": str(tmp_path)})
    config = (tmp_path / "config.json").read_text().replace("Qwen3ForCausalLM", "GPT2LMHeadModel")
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(ConfigError, match="GPT2LMHeadModel"):
        load(tmp_path)


async def test_every_call_has_the_method_that_it_names(
    checkpoint: Path, draft_checkpoint: Path
) -> None:
    chain = {"method": "chain", "draft": str(draft_checkpoint), "gamma": 3}
    block = {"method": "recursive-s", "draft": str(draft_checkpoint)}
    plain = load(checkpoint, rows=1, max_len=200)
    several = load(checkpoint, also=[chain, block, {"method": "lookup"}], rows=4, max_len=200)
    named = several.engine.decoder.named
    assert list(named) == ["vanilla", "chain", "recursive-s", "lookup"]
    models = [named[name].drafter.model.model for name in ("chain", "recursive-s")]  # type: ignore[attr-defined]
    assert models[0] is models[1]  # loaded once
    drafted: set[str] = set()
    for name, method in named.items():
        method.draft = _noting(method.draft, name, drafted)  # type: ignore[method-assign]
    try:
        texts = [f"{n} and {n + 1} make {2 * n + 1}" for n in range(8)]
        alone = [(await run(plain, ask(text), StopCriteria(20))).segment for text in texts]
        calls = [
            replace(ask(text), speculation=name)
            for text, name in zip(texts, [None, *named] * 2, strict=False)
        ]
        made = await asyncio.gather(*(run(several, call, StopCriteria(20)) for call in calls))
        assert [one.segment.tokens for one in made] == [one.tokens for one in alone]
        assert drafted == set(named)
        assert several.stats()["lossy"] == 0
        for worker, offered in (
            (several, "vanilla, chain, recursive-s, lookup"),
            (plain, "vanilla"),
        ):
            for criteria in (
                StopCriteria(20),
                StopCriteria(0),
            ):  # also where only the prompt is prefilled
                with pytest.raises(InvalidRequest, match=f"offers {offered}$") as caught:
                    await run(worker, replace(ask(), speculation="kangaroo"), criteria)
                assert caught.value.param == "speculation"
    finally:
        plain.close()
        several.close()


def _noting(draft: Any, name: str, drafted: set[str]) -> Any:
    def noted(rows: Any) -> Any:
        drafted.add(name)
        return draft(rows)

    return noted


async def test_a_method_that_fails_fails_its_own_rows_only(checkpoint: Path) -> None:
    worker = load(checkpoint, also=[{"method": "lookup"}], rows=4, max_len=200)

    def broken(_: Any) -> Any:
        raise RuntimeError("no draft today")

    try:
        expected = (await run(worker, ask(), StopCriteria(20))).segment.tokens
        worker.engine.decoder.named["lookup"].draft = broken  # type: ignore[method-assign]
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


async def test_a_lossy_method_on_request_shows_in_the_stats(checkpoint: Path, draft_checkpoint: Path) -> None:
    lossy = {"method": "reflective", "draft": str(draft_checkpoint)}
    worker = load(checkpoint, also=[lossy], max_len=200)
    assert worker.stats()["lossy"] == 1
    worker.close()

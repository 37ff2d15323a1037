"""What every worker promises, whatever is behind it.

A new backend adds one line to `BACKENDS`: a factory that yields a worker which answers any
question with some text. Capabilities that a backend lacks go into its `lacks`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from deploy.lab.peers.llama_cpp import live_slots, serving_gguf, write_gguf
from orchestrator.errors import ContextLengthExceeded, InvalidRequest, Unsupported
from orchestrator.types import (
    Constraint,
    Generation,
    LabelQuery,
    Message,
    Sampling,
    Segment,
    StopCriteria,
    Transcript,
)
from orchestrator.worker import Call, Delta, Worker
from tests.orchestrator.waiting import until
from tests.workers.conftest import chain_checkpoint, vllm_checkpoint
from tests.workers.remote.vllm_like import MODEL, VllmLike, serving
from tests.workers.replica.handles import Handle, pool
from tests.workers.scripted import Scripted, words
from workers.engine.loading import load
from workers.remote.backend import RemoteBackend
from workers.remote.server import Server
from workers.streams import merge_deltas
from workers.text.tokenizer_files import load_tokenizer
from workers.worker import ModelWorker

QUESTION = Transcript((Message("user", "What is 12 + 34?"),))
GREEDY = Sampling()
JUDGED = LabelQuery((Message("user", "Is this step good?"),), "Score: ", ("1", "2"))


@dataclass
class Subject:
    worker: Any  # a Worker, with `live()` beside it
    live: Callable[[], int]
    lacks: frozenset[str] = frozenset()
    block: int = 1  # tokens of a prefix that are cached together
    passes: int = 1  # most of a judge's call of two labels


@contextmanager
def scripted(folder: Path, draft: Path) -> Iterator[Subject]:
    def say(transcript: Transcript, criteria: StopCriteria) -> str:
        return "one two three four five six seven eight nine ten\n\n" * 40

    worker = Scripted(say, delay=0.001, context=400)
    lacks = frozenset({"usage", "labels", "tokenizer", "grammar", "min_tokens"})
    yield Subject(worker, lambda: worker.live, lacks)


@contextmanager
def local(folder: Path, draft: Path, **options: Any) -> Iterator[Subject]:
    worker = load(folder, rows=3, max_len=400, **options)
    try:
        yield Subject(worker, lambda: worker.stats()["live_rows"])
    finally:
        worker.close()


@contextmanager
def speculating(folder: Path, draft: Path, **options: Any) -> Iterator[Subject]:
    speculation = {"method": "chain", "draft": str(draft), "gamma": 3}
    with local(folder, draft, speculation=speculation, **options) as subject:
        yield subject


@contextmanager
def remote(folder: Path, draft: Path) -> Iterator[Subject]:
    with (
        local(folder, draft) as behind,
        serving((app := VllmLike(behind.worker)).app) as url,
    ):
        worker = ModelWorker(RemoteBackend(Server(url), MODEL, behind.worker.tokenizer))
        yield Subject(worker, lambda: app.live, frozenset({"grammar"}), passes=3)


@contextmanager
def llama_cpp(folder: Path, draft: Path) -> Iterator[Subject]:
    file = write_gguf(folder, folder.with_suffix(".gguf"))
    with serving_gguf(file, slots=2) as url:
        worker = ModelWorker(RemoteBackend(Server(url), MODEL, load_tokenizer(str(folder))))
        lacks = frozenset({"verify", "slow", "grammar", "min_tokens"})
        yield Subject(worker, lambda: live_slots(url), lacks)


class Caller:
    """The caller's side of a pool, in the loop of each test."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def __getattr__(self, name: str) -> Any:
        return getattr(pool(self._handle), name)


@contextmanager
def replica(folder: Path, draft: Path) -> Iterator[Subject]:
    with local(folder, draft) as behind:
        yield Subject(Caller(Handle(behind.worker)), behind.live)


@contextmanager
def vllm(folder: Path, draft: Path) -> Iterator[Subject]:
    from workers.vllm.loading import load as load_vllm

    worker = load_vllm(folder, device="cpu", rows=3, max_len=400, threads=1)
    try:
        yield Subject(worker, lambda: worker.stats()["live_rows"], block=32, passes=3)
    finally:
        worker.close()


BACKENDS: dict[str, Any] = {
    "scripted": scripted, "local": local, "local-chain": speculating,
    "local-int4": partial(speculating, dtype="int4"),
    "remote": remote, "llama.cpp": llama_cpp, "replica": replica, "vllm": vllm,
}  # fmt: skip


NAMING = partial(chain_checkpoint, "0", "1", "</think>", "2", "<think>", "3")
NAMED = [
    pytest.param(name, marks=pytest.mark.vllm) if name == "vllm" else name for name in BACKENDS
]


@pytest.fixture(scope="module", params=NAMED)
def subject(
    request: pytest.FixtureRequest, checkpoint: Path, draft_checkpoint: Path
) -> Iterator[Subject]:
    folder = vllm_checkpoint() if request.param == "vllm" else checkpoint
    with BACKENDS[request.param](folder, draft_checkpoint) as subject:
        yield subject


@pytest.fixture(scope="module", params=[one for one in NAMED if one != "scripted"])
def naming(request: pytest.FixtureRequest, draft_checkpoint: Path) -> Iterator[Subject]:
    """A worker whose model names the markers of a thought: behind a 0 it writes
    `1</think>2<think>3` and ends its turn."""
    with BACKENDS[request.param](NAMING(), draft_checkpoint) as subject:
        yield subject


def needs(subject: Subject, capability: str) -> None:
    if capability in subject.lacks:
        pytest.skip(f"this backend has no {capability}")


def call(transcript: Transcript = QUESTION) -> Call:
    return Call("r1", transcript, "large")


async def run(
    worker: Worker,
    criteria: StopCriteria,
    transcript: Transcript = QUESTION,
    sampling: Sampling = GREEDY,
    **options: Any,
) -> tuple[list[Delta], Generation]:
    items = [
        item async for item in worker.generate(call(transcript), criteria, sampling, **options)
    ]
    assert isinstance(items[-1], Generation)
    deltas = [item for item in items[:-1] if isinstance(item, Delta)]
    assert len(deltas) == len(items) - 1
    return deltas, items[-1]


async def test_a_stream_is_the_segment_in_pieces(subject: Subject) -> None:
    deltas, generation = await run(subject.worker, StopCriteria(12))
    segment = generation.segment
    assert deltas
    assert segment.author == "large"
    assert "".join(delta.text for delta in deltas) == segment.text
    assert tuple(t for delta in deltas for t in delta.tokens) == segment.tokens
    assert tuple(p for delta in deltas for p in delta.logprobs) == segment.logprobs
    assert len(segment.tokens) == len(segment.logprobs) <= 12
    assert all(logprob <= 1e-6 for logprob in segment.logprobs)
    assert generation.usage.generated >= len(segment.tokens)
    assert generation.ms >= 0
    assert generation.usage.prompt > 0


async def test_not_streamed_is_the_same_without_pieces(subject: Subject) -> None:
    _, streamed = await run(subject.worker, StopCriteria(12))
    deltas, whole = await run(subject.worker, StopCriteria(12), stream=False)
    assert deltas == []
    assert whole.segment == streamed.segment


SCHEMA = Constraint(
    "json_schema",
    '{"type": "object", "properties": {"a": {"enum": [1, 22]}, "b": {"type": "boolean"}}, '
    '"required": ["a", "b"], "additionalProperties": false}',
)


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(1.0, seed=3)])
@pytest.mark.parametrize(
    ("constraint", "pattern"),
    [
        (SCHEMA, r'\{"a": (1|22), "b": (true|false)\}'),
        (Constraint("regex", "(yes|no){2}"), "(yes|no){2}"),
        (Constraint("grammar", 'start: "x" "y"+ "z"'), "xy+z?"),
    ],
)
async def test_an_answer_is_held_to_its_grammar(
    subject: Subject, constraint: Constraint, pattern: str, sampling: Sampling
) -> None:
    needs(subject, "grammar")
    answer = Transcript(QUESTION.messages, closed=True)
    held = replace(call(answer), constraint=constraint)
    items = [i async for i in subject.worker.generate(held, StopCriteria(40), sampling)]
    generation = items[-1]
    assert isinstance(generation, Generation)
    assert re.fullmatch(pattern, generation.segment.text.strip())
    assert "".join(i.text for i in items if isinstance(i, Delta)) == generation.segment.text
    assert generation.segment.finish in ("eos", "length")
    bad = replace(held, constraint=Constraint("regex", "("))
    with pytest.raises(InvalidRequest):
        _ = [i async for i in subject.worker.generate(bad, StopCriteria(4), sampling)]


async def test_a_span_of_no_tokens_reads_the_prompt(subject: Subject) -> None:
    deltas, generation = await run(subject.worker, StopCriteria(0))
    assert deltas == []
    assert generation.segment.tokens == ()
    assert generation.segment.text == ""
    assert generation.usage.prompt > 0
    assert generation.segment.finish == "length"


async def test_a_delimiter_stays_and_a_stop_goes(subject: Subject) -> None:
    _, whole = await run(subject.worker, StopCriteria(12))
    text = whole.segment.text
    mark = text[len(text) // 2 :][:2]
    deltas, until = await run(subject.worker, StopCriteria(12, until=(mark,)))
    assert until.segment.finish == "until"
    assert mark in until.segment.text
    assert text.startswith(until.segment.text)
    assert until.segment.tokens == whole.segment.tokens[: len(until.segment.tokens)]
    deltas, stop = await run(subject.worker, StopCriteria(12, stop=(mark,)))
    assert stop.segment.finish == "stop"
    assert stop.segment.text == text[: text.index(mark)]
    assert "".join(delta.text for delta in deltas) == stop.segment.text


async def test_no_stop_begins_before_min_tokens(subject: Subject) -> None:
    needs(subject, "min_tokens")
    _, whole = await run(subject.worker, StopCriteria(24))
    text = whole.segment.text
    mark = text[1:3]
    deltas, late = await run(subject.worker, StopCriteria(24, stop=(mark,), min_tokens=12))
    segment = late.segment
    assert text.startswith(segment.text)
    assert mark in segment.text
    assert "".join(delta.text for delta in deltas) == segment.text
    assert segment.finish == "think_end" or len(segment.tokens) >= 12
    _, beyond = await run(subject.worker, StopCriteria(6, stop=(mark,), min_tokens=100))
    assert beyond.segment.tokens == whole.segment.tokens[:6]


async def test_classification_is_a_distribution_over_labels(subject: Subject) -> None:
    query = replace(JUDGED, labels=tuple("0123456789"))
    answer = await subject.worker.classify(call(), query)
    assert answer.labels == query.labels
    assert len(answer.probabilities) == 10
    assert abs(sum(answer.probabilities) - 1) < 1e-6
    assert 0 <= answer.outside <= 1
    assert min(answer.probabilities) >= 0
    again = await subject.worker.classify(call(), query)
    assert again.probabilities == pytest.approx(answer.probabilities, abs=1e-5)


async def test_the_likeliest_tokens_at_each_place(subject: Subject) -> None:
    needs(subject, "verify")
    needs(subject, "usage")
    _, generation = await run(subject.worker, StopCriteria(6), sampling=Sampling(0.9, seed=5))
    step = generation.segment
    plain = await subject.worker.verify(call(), step, GREEDY)
    assert plain.top == ()
    scores = await subject.worker.verify(call(), step, GREEDY, 4)
    assert [len(row) for row in scores.top] == [4] * (len(step.tokens) + 1)
    assert scores.nll == pytest.approx(plain.nll, abs=1e-3)
    for i, row in enumerate(scores.top):
        values = [one.logprob for one in row]
        assert values == sorted(values, reverse=True)
        assert len({one.token for one in row}) == 4
        assert scores.logprobs[i] == pytest.approx(values[0], abs=1e-3)
        for one in row:
            if i < len(step.tokens) and one.token == step.tokens[i]:
                assert one.logprob == pytest.approx(-scores.nll[i], abs=1e-3)
                assert one.text == scores.pieces[i]


async def test_one_pass_gives_the_distribution_and_the_nll_of_the_step(subject: Subject) -> None:
    needs(subject, "verify")
    needs(subject, "usage")
    _, generation = await run(subject.worker, StopCriteria(8), sampling=Sampling(0.9, seed=5))
    step = generation.segment
    with_nll = replace(JUDGED, nll=True)
    apart = await subject.worker.classify(call(QUESTION.extend(step)), JUDGED)
    verified = await subject.worker.verify(call(), step, GREEDY)
    both = await subject.worker.classify(call(QUESTION.extend(step)), with_nll)
    assert apart.nll is None
    assert 1 <= both.usage.passes <= subject.passes
    assert both.nll == pytest.approx(verified.nll, abs=1e-3)
    assert both.probabilities == pytest.approx(apart.probabilities, abs=1e-3)
    nothing = await subject.worker.classify(call(QUESTION), with_nll)
    assert (nothing.nll, nothing.ending) == ((), None)


@pytest.mark.parametrize("finish", ["think_end", "eos"])
async def test_one_pass_gives_the_nll_of_a_steps_end(subject: Subject, finish: Any) -> None:
    needs(subject, "verify")
    needs(subject, "usage")
    _, generation = await run(subject.worker, StopCriteria(4))
    step = replace(generation.segment, finish=finish)
    judged = call(QUESTION.extend(step))
    both = await subject.worker.classify(judged, replace(JUDGED, nll=True))
    verified = await subject.worker.verify(call(), step, GREEDY)
    assert len(verified.nll) == len(step.tokens)
    for ending in (both.ending, verified.ending):
        assert ending is not None
        assert ending >= 0
    if not isinstance(subject.worker, ModelWorker):  # a server shows the likeliest tokens alone
        assert both.ending == pytest.approx(verified.ending, abs=1e-3)


async def test_tokens_of_another_vocabulary_are_not_scored(subject: Subject) -> None:
    needs(subject, "tokenizer")
    foreign = Segment("small", "x", (5,), (0.0,), "another")
    with pytest.raises(Unsupported):
        await subject.worker.classify(call(QUESTION.extend(foreign)), replace(JUDGED, nll=True))
    with pytest.raises(Unsupported):
        await subject.worker.verify(call(), foreign, GREEDY)


async def test_bad_labels_are_refused(subject: Subject) -> None:
    needs(subject, "labels")
    for labels in ((), ("yes and no",), ("1", "1"), ("</think>",)):
        with pytest.raises(InvalidRequest) as caught:
            await subject.worker.classify(call(), replace(JUDGED, labels=labels))
        assert caught.value.param == "labels"


async def test_verification_of_ones_own_words(subject: Subject) -> None:
    needs(subject, "verify")
    _, generation = await run(subject.worker, StopCriteria(8))
    segment = generation.segment
    answer = await subject.worker.verify(call(), segment, GREEDY)
    assert len(answer.nll) == len(segment.tokens)
    assert len(answer.choices) == len(segment.tokens) + 1
    assert answer.choices[:-1] == segment.tokens
    if "usage" not in subject.lacks:
        assert answer.nll == pytest.approx([-p for p in segment.logprobs], abs=1e-4)
        _, following = await run(subject.worker, StopCriteria(1), QUESTION.extend(segment))
        if following.segment.tokens:
            assert following.segment.tokens == answer.choices[-1:]


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(0.9, seed=4)])
async def test_a_verified_segment_can_be_cut_anywhere(subject: Subject, sampling: Sampling) -> None:
    needs(subject, "verify")
    _, generation = await run(subject.worker, StopCriteria(8), sampling=Sampling(0.9, seed=2))
    draft = generation.segment
    answer = await subject.worker.verify(call(), draft, sampling)
    size = len(draft.tokens)
    assert len(answer.pieces) == size
    assert len(answer.options) == len(answer.choices) == size + 1
    for count in range(size + 1):
        kept, rest = answer.split(draft, count)
        assert (kept.text + rest.text, kept.tokens + rest.tokens) == (draft.text, draft.tokens)
        assert (kept.finish, rest.finish) == ("until", draft.finish)
        assert len(kept.logprobs) == len(kept.tokens) == count
        option = answer.options[count]
        assert option.author == "large"
        assert option.tokenizer == draft.tokenizer
        if option.finish in ("think_end", "eos"):
            assert (option.text, option.tokens) == ("", ())
        else:
            assert option.tokens == answer.choices[count : count + 1]
            assert len(option.logprobs) == 1
            assert option.logprobs[0] <= 1e-6


async def test_verifying_nothing_asks_for_the_next_token(subject: Subject) -> None:
    needs(subject, "verify")
    answer = await subject.worker.verify(call(), Segment("small", ""), GREEDY)
    assert (answer.nll, answer.pieces, answer.ending) == ((), (), None)
    (option,) = answer.options
    _, generation = await run(subject.worker, StopCriteria(1))
    if generation.segment.tokens:
        assert option.tokens == generation.segment.tokens
        assert option.text == generation.segment.text
        assert option.logprobs == pytest.approx(generation.segment.logprobs, abs=1e-4)


async def test_greedy_text_does_not_depend_on_where_it_is_cut(subject: Subject) -> None:
    needs(subject, "usage")
    _, whole = await run(subject.worker, StopCriteria(16))
    _, first = await run(subject.worker, StopCriteria(7))
    assert whole.segment.tokens[: len(first.segment.tokens)] == first.segment.tokens
    rest = 16 - len(first.segment.tokens)
    _, second = await run(subject.worker, StopCriteria(rest), QUESTION.extend(first.segment))
    assert (*first.segment.tokens, *second.segment.tokens) == whole.segment.tokens
    # Invariant: the prompt of a longer prefix is the shorter one's and the segment's ids.
    assert second.usage.prompt == first.usage.prompt + len(first.segment.tokens)


async def test_a_text_goes_on_wherever_it_broke_off(subject: Subject) -> None:
    if not isinstance(subject.worker, ModelWorker):
        pytest.skip("not one that can be lost: the others call again")
    _, known = await run(subject.worker, StopCriteria(12))
    mark = known.segment.text[len(known.segment.text) // 2 :][:2]
    for criteria in (StopCriteria(12), StopCriteria(12, until=(mark,))):
        deltas, whole = await run(subject.worker, criteria)
        for count in range(1, len(deltas) + 1):
            received = merge_deltas(deltas[:count])
            rest, again = await run(subject.worker, criteria, received=received)
            assert merge_deltas([received, *rest]).text == whole.segment.text
            assert again.segment.text == whole.segment.text
            assert again.segment.tokens == whole.segment.tokens
            assert again.segment.logprobs == pytest.approx(whole.segment.logprobs, abs=1e-3)
            assert again.segment.finish == whole.segment.finish
            assert again.usage.prompt == whole.usage.prompt


async def test_a_prefix_is_read_once(subject: Subject) -> None:
    needs(subject, "usage")
    transcript = Transcript((Message("user", "A question that is new: 77?"),))
    _, first = await run(subject.worker, StopCriteria(6), transcript)
    longer = transcript.extend(first.segment)
    judged = await subject.worker.classify(call(longer), JUDGED)
    _, second = await run(subject.worker, StopCriteria(4), longer)
    read = first.usage.prompt + len(first.segment.tokens) - 1
    assert judged.usage.cached >= read - read % subject.block
    last = second.usage.prompt - 1
    assert second.usage.cached == last - last % subject.block


async def test_calls_at_once_answer_as_they_do_alone(subject: Subject) -> None:
    needs(subject, "usage")
    asked = [
        (Transcript((Message("user", f"What is {i} + {i * i}?"),)), sampling)
        for sampling in (GREEDY, Sampling(0.9, seed=6))
        for i in range(9)
    ]
    calls = partial(run, subject.worker, StopCriteria(12))
    alone = [await calls(*one) for one in asked]
    together = await asyncio.gather(*(calls(*one) for one in asked))
    for (_, one), (_, other) in zip(alone, together, strict=True):
        assert one.segment.tokens == other.segment.tokens
        assert one.segment.logprobs == pytest.approx(other.segment.logprobs, abs=1e-3)


async def test_an_answer_may_name_the_markers_of_a_thought(naming: Subject) -> None:
    begun = replace(QUESTION, closed=True).extend(Segment("policy", "0"))
    deltas, generation = await run(naming.worker, StopCriteria(20), begun)
    segment = generation.segment
    assert (segment.text, segment.finish) == ("1</think>2<think>3", "eos")
    assert "".join(delta.text for delta in deltas) == segment.text
    assert tuple(token for delta in deltas for token in delta.tokens) == segment.tokens
    tokenizer = load_tokenizer(str(NAMING()))
    assert tokenizer.decode(segment.tokens) == segment.text
    assert tokenizer.close_id in segment.tokens
    # What a model wrote so is text wherever it is encoded again.
    assert not tokenizer.controls.intersection(tokenizer.encode(segment.text))
    _, first = await run(naming.worker, StopCriteria(2), begun)
    assert first.segment.text == "1</think>"
    _, rest = await run(naming.worker, StopCriteria(20), begun.extend(first.segment))
    assert (rest.segment.text, rest.segment.finish) == ("2<think>3", "eos")
    if "verify" not in naming.lacks:
        scores = await naming.worker.verify(call(begun), segment, GREEDY)
        assert "".join(scores.pieces) == segment.text
        assert "".join(option.text for option in scores.options) == segment.text
        assert [option.finish for option in scores.options] == ["until"] * 5 + ["eos"]


async def test_a_thought_ends_with_its_closing_marker_alone(naming: Subject) -> None:
    closing = QUESTION.extend(Segment("policy", "0"))
    _, generation = await run(naming.worker, StopCriteria(20), closing)
    assert (generation.segment.text, generation.segment.finish) == ("1", "think_end")
    opening = QUESTION.extend(Segment("policy", "2"))
    _, generation = await run(naming.worker, StopCriteria(20), opening)
    assert (generation.segment.text, generation.segment.finish) == ("<think>3", "eos")


async def test_a_thought_goes_on_behind_a_forced_close_and_is_answered(naming: Subject) -> None:
    thought = QUESTION.extend(Segment("policy", "So "))
    forced = replace(thought, closed=True, forced=True).extend(Segment("policy", "0"))
    deltas, generation = await run(naming.worker, StopCriteria(20), forced)
    segment = generation.segment
    assert (segment.text, segment.finish) == ("1", "think_end")
    assert "".join(delta.text for delta in deltas) == segment.text
    again = forced.extend(segment)
    assert again.reply == ""
    _, generation = await run(naming.worker, StopCriteria(20), again)
    assert (generation.segment.text, generation.segment.finish) == ("2<think>3", "eos")
    if "usage" not in naming.lacks:  # the marker stands between the two
        _, whole = await run(naming.worker, StopCriteria(0), again)
        _, before = await run(naming.worker, StopCriteria(0), forced)
        assert whole.usage.prompt == before.usage.prompt + 2


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", -1.0), ("top_p", 0.0), ("top_k", -2), ("speculation", "magic")],
)
async def test_what_a_call_may_not_ask_for_is_refused_by_name(
    name: str, value: Any, naming: Subject
) -> None:
    asked, sampling = call(), GREEDY
    if name == "speculation":
        asked = replace(asked, speculation=value)
    else:
        sampling = replace(GREEDY, **{name: value})
    with pytest.raises(InvalidRequest) as caught:
        async for _ in naming.worker.generate(asked, StopCriteria(4), sampling):
            pass
    assert caught.value.param == name
    assert naming.live() == 0


async def test_closing_a_stream_frees_its_row(subject: Subject) -> None:
    needs(subject, "slow")  # enough for its work to be seen
    stream: AsyncIterator[Any] = subject.worker.generate(call(), StopCriteria(300), GREEDY)
    await anext(stream)
    assert subject.live() == 1
    await stream.aclose()  # type: ignore[attr-defined]
    await until(lambda: subject.live() == 0)


async def test_cancelling_a_call_frees_its_row(subject: Subject) -> None:
    task = asyncio.create_task(run(subject.worker, StopCriteria(300), stream=False))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: subject.live() == 0)
    await run(subject.worker, StopCriteria(2))


async def test_a_prompt_beyond_the_context(subject: Subject) -> None:
    long = Transcript((Message("user", " ".join(words("word " * 500))),))
    with pytest.raises(ContextLengthExceeded) as caught:
        await run(subject.worker, StopCriteria(4), long)
    assert caught.value.code == "context_length_exceeded"


async def test_a_closed_thought_is_continued_with_the_answer(subject: Subject) -> None:
    transcript = replace(QUESTION.extend(Segment("policy", "12 + 34 = 46.\n\n")), closed=True)
    _, generation = await run(subject.worker, StopCriteria(8), transcript)
    assert generation.segment.finish in ("length", "eos", "until")

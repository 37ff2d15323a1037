"""The remote worker over llama.cpp's own server: real, with the weights of small checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deploy.lab.peers.llama_cpp import embedded_gguf, serving_gguf, write_gguf
from orchestrator.errors import ContextLengthExceeded, Unsupported
from orchestrator.types import (
    Constraint,
    Message,
    Sampling,
    Segment,
    StopCriteria,
    Transcript,
)
from policies import POLICIES
from tests.workers.conftest import (
    CONTROLS,
    chain_checkpoint,
    continuation,
    make_model,
    make_tokenizer,
    save,
)
from tests.workers.remote.corruptions import Corrupting
from tests.workers.remote.test_worker import (
    GREEDY,
    QUESTIONS,
    SCORE,
    answer,
    ask,
    call,
    runs_ahead,
    texts,
    write,
)
from tests.workers.remote.vllm_like import PAIR, serving
from workers.engine.loading import load
from workers.remote.backend import RemoteBackend
from workers.remote.capabilities import ServerCapabilities
from workers.remote.dialects.llama_cpp import LLAMA_CPP
from workers.remote.protocol import Chunk, Token
from workers.remote.response_parser import ResponseParser
from workers.remote.server import Server
from workers.text.prompt import PromptRenderer
from workers.worker import EngineWorker, ModelWorker

MODEL = "any name"  # a server of one model does not mind
ABLE = ServerCapabilities("ids", LLAMA_CPP, top=1000, extras=True, forms=True)
NEEDS_PROMPT = {"bild", "learned-gate"}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The embedded pair as GGUF files."""
    folder = tmp_path_factory.mktemp("gguf")
    return {name: embedded_gguf(name, folder) for name in PAIR}


@pytest.fixture(scope="module")
def urls(files: dict[str, Path]) -> Iterator[dict[str, str]]:
    """The embedded pair, each behind a llama.cpp server of its own."""
    with ExitStack() as stack:
        yield {name: stack.enter_context(serving_gguf(file, 1024)) for name, file in files.items()}


@pytest.fixture
def served(urls: dict[str, str], pair: dict[Any, EngineWorker]) -> dict[Any, ModelWorker]:
    return {
        name: ModelWorker(RemoteBackend(Server(url), MODEL, pair[name].tokenizer))
        for name, url in urls.items()
    }


async def test_what_it_can_do_is_seen(served: dict[Any, ModelWorker]) -> None:
    for worker in served.values():
        assert await worker.backend.capabilities() == ABLE
        assert worker.context == 1024


async def test_texts_are_those_of_the_model(
    served: dict[Any, ModelWorker], pair: dict[Any, EngineWorker]
) -> None:
    """The same text with the same ends, the same ids, and their log-probabilities."""
    for question in QUESTIONS:
        for where, criteria, ours in await texts(pair["small"], question):
            theirs = (await write(served["small"], where, criteria)).segment
            assert replace(theirs, logprobs=()) == replace(ours, logprobs=())
            assert theirs.logprobs == pytest.approx(ours.logprobs, abs=5e-3)


async def test_texts_are_those_of_the_model_if_streams_run_ahead(
    urls: dict[str, str], pair: dict[Any, EngineWorker]
) -> None:
    ahead = ModelWorker(
        RemoteBackend(Server(urls["small"]), MODEL, pair["small"].tokenizer, run_ahead=24)
    )
    await runs_ahead(ahead, pair["small"], StopCriteria(200, until=("\n\n",)))
    await ahead.backend.aclose()


async def test_texts_with_a_draft_model_are_those_of_the_model(
    files: dict[str, Path], pair: dict[Any, EngineWorker]
) -> None:
    """For tokens that its draft model drafted it sends neither ids nor log-probabilities, and for
    the end of a thought not even a text."""
    with serving_gguf(files["large"], 1024, draft=files["small"]) as url:
        worker = ModelWorker(RemoteBackend(Server(url), MODEL, pair["large"].tokenizer))
        assert await worker.backend.capabilities() == replace(ABLE, missing="ids")
        for question in QUESTIONS:
            for where, criteria, ours in await texts(pair["large"], question):
                theirs = (await write(worker, where, criteria)).segment
                assert theirs == replace(ours, logprobs=())
        drafted = call(ask(QUESTIONS[0]).extend(Segment("large", "12 + 34 is 46.\n\n")), "large")
        ours, theirs = [await one.classify(drafted, SCORE) for one in (pair["large"], worker)]
        assert theirs.probabilities == pytest.approx(ours.probabilities, abs=2e-3)
        with pytest.raises(Unsupported, match="log-probabilities of tokens, which min_confidence"):
            await write(worker, ask(QUESTIONS[0]), StopCriteria(20, min_confidence=0.5))


async def test_ids_that_stop_coming_in_mid_answer(
    files: dict[str, Path], pair: dict[Any, EngineWorker], caplog: pytest.LogCaptureFixture
) -> None:
    """Drafts that are copied from what was written come late, or never: the probe saw all ids."""
    with serving_gguf(files["large"], 1024, draft="ngram") as url:
        worker = ModelWorker(RemoteBackend(Server(url), MODEL, pair["large"].tokenizer))
        assert await worker.backend.capabilities() == ABLE
        for question in QUESTIONS:
            await same_thoughts(pair["large"], worker, question)
    assert f"{worker.backend.server.name} leaves out ids of some tokens" in caplog.text


async def test_a_thought_ends_where_a_proxy_drops_all_ids(
    urls: dict[str, str], pair: dict[Any, EngineWorker]
) -> None:
    """The server hides the marker unless `preserved_tokens` names it."""
    with serving(Corrupting(urls["small"], "ids are dropped").app) as proxy:
        server = Server(proxy, retries=0)
        worker = ModelWorker(RemoteBackend(server, MODEL, pair["small"].tokenizer))
        assert await worker.backend.capabilities() == ServerCapabilities("ids", extras=True)
        for question in QUESTIONS:
            assert await same_thoughts(pair["small"], worker, question) == "think_end"


async def same_thoughts(ours: EngineWorker, theirs: ModelWorker, question: str) -> str:
    """Check that two workers write the same thought; return why it ends."""
    one, other = [
        (await write(worker, ask(question), StopCriteria(200))).segment for worker in (ours, theirs)
    ]
    assert replace(other, logprobs=()) == replace(one, logprobs=())
    return str(one.finish)


@pytest.mark.parametrize("drops", [None, "ids are dropped"])
@pytest.mark.parametrize(
    ("rest", "text"),
    [
        (("2",), "2"),
        (("2", "<think>", "3"), "2<think>3"),
        (("2", "\u00c3"), "2"),
        (("2", "\u00f0", "\u0141"), "2"),
    ],
)
async def test_a_thought_that_is_closed_twice(
    rest: tuple[str, ...], text: str, drops: str | None, tmp_path: Path
) -> None:
    """The worker stops reading at the second close, of which the server knows nothing. The server
    may have ended with the next chunk: after a character that is not completed (here its first
    bytes) it sends neither that nor the end of the turn, and counts both."""
    folder = chain_checkpoint("0", "1", "</think>", *rest)
    here = load(folder, rows=1, max_len=300)
    named = replace(ask("2+2?"), closed=True).extend(Segment("policy", "0"))
    forced = replace(named, forced=True)
    try:
        with (
            serving_gguf(write_gguf(folder, tmp_path / "chain.gguf"), 300) as url,
            serving(Corrupting(url, drops).app) as proxy,
        ):
            worker = ModelWorker(RemoteBackend(Server(proxy, retries=0), MODEL, here.tokenizer))
            for where, written, finish in [
                (named, f"1</think>{text}", "eos"),
                (forced, "1", "think_end"),
                (forced.extend(Segment("policy", "1", finish="think_end")), text, "eos"),
            ]:
                ours, theirs = [
                    (await write(one, where, StopCriteria(20))).segment for one in (here, worker)
                ]
                assert (theirs.text, theirs.finish) == (ours.text, ours.finish)
                assert (ours.text, ours.finish) == (written, finish)
    finally:
        here.close()


async def test_a_block_stays_whole(
    served: dict[Any, ModelWorker], pair: dict[Any, EngineWorker]
) -> None:
    fence, criteria = Segment("policy", "```\n"), StopCriteria(200, until=("\n\n",))
    for question in QUESTIONS:
        ours, theirs = [
            (await write(worker["small"], ask(question).extend(fence), criteria)).segment
            for worker in (pair, served)
        ]
        assert replace(theirs, logprobs=()) == replace(ours, logprobs=())
        assert "\n\n" in theirs.text


def test_a_delimiter_that_ends_no_step_is_not_the_end(prompts: PromptRenderer) -> None:
    """The server stops at it, and does not say at what it stopped."""
    tokenizer, criteria = prompts.tokenizer, StopCriteria(50, until=("\n\n",))
    ends = []
    for text in ("We compute:\n\n", "It is 4.", "```\nx = 1\n\n"):
        parser = ResponseParser(continuation(prompts, ask("2 + 2?"), criteria), prompts, ABLE)
        tokens = tuple(Token(i, -0.5, {}) for i in tokenizer.encode(text))
        assert parser.push(Chunk(text, tokens, None, None)) is None
        ends.append((parser.push(Chunk("", (), "stop", None)), parser.inside))
    assert ends == [("until", True), ("eos", False), ("until", True)]


def test_a_delimiter_that_the_server_is_not_told_of_is_not_where_it_stopped(
    prompts: PromptRenderer,
) -> None:
    """Where an answer begins it may write blank lines first: none of them is a stop string."""
    tokenizer, criteria = prompts.tokenizer, StopCriteria(50, until=("\n\n",))
    answer = replace(ask("2 + 2?"), closed=True)
    going_on = continuation(prompts, answer, criteria)
    assert "stop" not in ABLE.stop_fields(going_on, tokenizer)
    parser, text = ResponseParser(going_on, prompts, ABLE), "```\nx = 1\n\ny = 2\n```"
    tokens = tuple(Token(i, -0.5, {}) for i in tokenizer.encode(text))
    assert parser.push(Chunk(text, tokens, None, None)) is None
    assert parser.push(Chunk("", (), "stop", None)) == "eos"


async def test_sampling_draws_from_the_whole_distribution(
    served: dict[Any, ModelWorker],
) -> None:
    """The server's own cuts (40 likeliest, `min_p`) are off, and `top_k` is honoured."""
    small, transcript = served["small"], ask(QUESTIONS[0])

    async def drawn(sampling: Sampling) -> list[int]:
        segment = (await write(small, transcript, StopCriteria(40), sampling)).segment
        return list(segment.tokens)

    wild = [await drawn(Sampling(50.0, seed=seed)) for seed in (1, 1, 2, 3, 4, 5)]
    assert wild[0] == wild[1] != wild[2]
    assert len({token for text in wild for token in text}) > 60  # nearly uniform over 1024 tokens
    assert await drawn(Sampling(50.0, top_k=1, seed=3)) == await drawn(GREEDY)


async def test_an_answer_is_held_to_a_schema(served: dict[Any, ModelWorker]) -> None:
    answer = replace(ask(QUESTIONS[0]), closed=True)
    schema = Constraint("json_schema", '{"enum": ["yes", "no"]}')
    held = replace(call(answer), constraint=schema)
    items = [i async for i in served["small"].generate(held, StopCriteria(20), GREEDY)]
    assert items[-1].segment.text.strip() in ('"yes"', '"no"')
    for constraint in (Constraint("regex", "a+"), Constraint("grammar", 'start: "a"')):
        refused = replace(held, constraint=constraint)
        with pytest.raises(Unsupported):
            _ = [i async for i in served["small"].generate(refused, StopCriteria(2), GREEDY)]


@pytest.mark.parametrize("name", sorted(POLICIES))
async def test_every_policy_answers_or_is_refused_by_name(
    name: str, served: dict[Any, ModelWorker], pair: dict[Any, EngineWorker]
) -> None:
    fields = POLICIES[name].model_fields
    policy = POLICIES[name](**({"judge": "short"} if "judge" in fields else {}))
    if name in NEEDS_PROMPT:
        with pytest.raises(Unsupported, match="log-probabilities of the prompt"):
            await answer(policy, served, QUESTIONS[0])
        return
    for question in QUESTIONS[:2]:
        ours, theirs = [await answer(policy, them, question) for them in (pair, served)]
        assert [(s.author, s.text, s.accepted) for s in theirs.steps] == [
            (s.author, s.text, s.accepted) for s in ours.steps
        ]


async def test_a_full_context_ends_a_text_and_refuses_a_prompt(
    served: dict[Any, ModelWorker],
) -> None:
    """By the context that it tells, and where that is not known by its own refusal."""
    small = served["small"]
    await small.backend.capabilities()
    length = len(small.prompts.transcript(ask("1+1?")))
    closed = replace(ask("1+1?"), closed=True)
    for context in (1024, None):
        small.backend.context = context
        with pytest.raises(ContextLengthExceeded) as caught:
            await write(small, ask("1+1=2 " * 400), StopCriteria(4))
        assert caught.value.code == "context_length_exceeded"
        nearly = closed.extend(Segment("policy", "1" * (1024 - length - 6)))
        segment = (await write(small, nearly, StopCriteria(50))).segment
        assert len(segment.tokens) <= 6
        assert segment.finish in ("length", "eos")


async def test_a_tokenizer_that_is_not_the_models_is_refused(
    urls: dict[str, str], prompts: Any
) -> None:
    stranger = ModelWorker(RemoteBackend(Server(urls["small"]), MODEL, prompts.tokenizer))
    with pytest.raises(Unsupported, match=r"token \d+, which the tokenizer"):
        await write(stranger, Transcript((Message("user", "1"),)), StopCriteria(4))


async def test_ids_of_broken_characters_are_found(tmp_path: Path) -> None:
    """Random weights write bytes that are no text; what the server shows of them adds up."""
    tokenizer = make_tokenizer()
    model = make_model("qwen3", vocabulary=len(tokenizer))
    model.lm_head.weight *= 3  # so that no rounding decides between two tokens
    model.lm_head.weight[-len(CONTROLS) :] *= 0
    save(tmp_path, tokenizer, model)
    here = load(tmp_path, max_len=400)
    try:
        with serving_gguf(write_gguf(tmp_path, tmp_path / "tiny.gguf"), 512) as url:
            worker = ModelWorker(RemoteBackend(Server(url), MODEL, here.tokenizer, context=400))
            broken = 0
            for question in QUESTIONS:
                for criteria in (StopCriteria(60), StopCriteria(60, stop=("is", "a"))):
                    ours, theirs = [
                        (await write(one, ask(question), criteria)).segment
                        for one in (here, worker)
                    ]
                    size = len(theirs.tokens)
                    assert theirs.tokens == ours.tokens[:size]
                    assert theirs.finish == ours.finish
                    # At the limit, bytes of a character that was not completed are missing.
                    assert ours.finish == "stop" or size >= len(ours.tokens) - 3
                    for one, other in zip(theirs.logprobs, ours.logprobs, strict=False):
                        broken += one == 0.0  # left out
                        assert one == 0.0 or one == pytest.approx(other, abs=0.03)
            assert broken > 0
    finally:
        here.close()

"""The remote worker against a server in vLLM's dialect, and against servers that can do less."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from starlette.responses import HTMLResponse, JSONResponse
from starlette.routing import Route

from deploy.evaluation.builtin.problems import draw
from orchestrator.errors import (
    ContextLengthExceeded,
    InvalidRequest,
    Unsupported,
    WorkerError,
    WorkerUnavailable,
)
from orchestrator.grammar import tool_rules
from orchestrator.loop.events import RequestCompleted
from orchestrator.loop.request import Request
from orchestrator.loop.solve import solve
from orchestrator.types import (
    Constraint,
    Generation,
    LabelQuery,
    Limits,
    Message,
    Sampling,
    Segment,
    StopCriteria,
    Transcript,
)
from orchestrator.worker import Call, Delta
from policies import POLICIES
from tests.workers.conftest import chain_checkpoint, continuation
from tests.workers.remote.vllm_like import MODEL, PAIR, ServerBehavior, VllmLike, serving
from workers.engine.loading import load
from workers.remote import protocol
from workers.remote.backend import RemoteBackend, check_held
from workers.remote.capabilities import ServerCapabilities
from workers.remote.dialects.llama_cpp import LLAMA_CPP
from workers.remote.dialects.openai import OPENAI
from workers.remote.dialects.sglang import SGLANG as SGLANG_API
from workers.remote.dialects.sglang import SGLANG_COMPLETIONS
from workers.remote.dialects.transformers_serve import TRANSFORMERS_SERVE
from workers.remote.dialects.vllm import VLLM as VLLM_API
from workers.remote.errors import Absent, Broke, Declined
from workers.remote.protocol import Chunk, Token
from workers.remote.response_parser import ResponseParser
from workers.remote.server import Server
from workers.retry import CircuitBreaker
from workers.text.prompt import PromptRenderer
from workers.worker import EngineWorker, ModelWorker

QUESTIONS = [problem.question for problem in draw("dev", 7, 4)]
GREEDY = Sampling()
DIGITS = tuple("0123456789")
JUDGE = (Message("user", "Score?"),)
SCORE = LabelQuery(JUDGE, "", DIGITS)


STEP = StopCriteria(200, until=("\n\n",))
NAMES = {"ids": "ids", "logprobs": "log-probabilities"}
KNOWN: dict[int, dict[tuple[int, ...], torch.Tensor]] = {}
"""What the models compute behind a prompt, by worker: the servers of all ways share it."""
OURS: dict[Any, Any] = {}
"""What the pair in this process answers, by call."""


async def ours_of(key: tuple[str, str], make: Callable[..., Awaitable[Any]], *args: Any) -> Any:
    if key not in OURS:
        OURS[key] = await make(*args)
    return OURS[key]


class Servers:
    """The embedded pair behind servers, and remote workers over them. Servers that `remember`
    compute nothing twice."""

    def __init__(
        self,
        pair: dict[Any, EngineWorker],
        behavior: ServerBehavior,
        *,
        remember: bool = False,
        **options: Any,
    ) -> None:
        self.apps = {name: VllmLike(worker, behavior) for name, worker in pair.items()}
        for app in self.apps.values() if remember else ():
            app.known = KNOWN.setdefault(id(app.worker), {})
        self._stack, self._pair, self._options = ExitStack(), pair, options

    def __enter__(self) -> dict[Any, ModelWorker]:
        made = {}
        for name, app in self.apps.items():
            server = Server(self._stack.enter_context(serving(app.app)), **self._options)
            made[name] = ModelWorker(RemoteBackend(server, MODEL, self._pair[name].tokenizer))
        return made

    def __exit__(self, *error: Any) -> None:
        self._stack.close()


@pytest.fixture(scope="module")
def vllm(pair: dict[Any, EngineWorker]) -> Iterator[dict[Any, ModelWorker]]:
    with Servers(pair, ServerBehavior()) as workers:
        yield workers


VLLM = ServerCapabilities(
    "ids", VLLM_API, top=20, scores=True, lookups=True, min_tokens=True, extras=True
)
VLLM_CHAT = ServerCapabilities("chat", VLLM_API, top=20, min_tokens=True, extras=True)
OLD_VLLM = ServerBehavior(token_ids=False, allows=False, min_tokens=False)
ROUTED = ServerBehavior(named_ids=False, allows=False, prompt_logprobs=False)
SGLANG = replace(ROUTED, generates=True)
PLAIN = ServerBehavior(
    prompt_ids=False, max_logprobs=0, strict=True, stops_at_controls=True, tells_context=False
)
UNTOLD = replace(PLAIN, strict=False, token_ids=False, named_ids=False)
MUTE = ServerBehavior(max_logprobs=0, token_ids=False, strict=True, stops_at_controls=True)
CHAT = ServerBehavior(completions=False, allows=False)
# As its source at 0.33.0-rc2 has it; Ollama itself was not run.
OLLAMA = replace(
    CHAT, completions=True, prompt_ids=False, wraps=True, token_ids=False, named_ids=False,
    stops_at_controls=True, tells_context=False,
)  # fmt: skip
WAYS: dict[str, tuple[ServerBehavior, ServerCapabilities]] = {
    "vllm": (ServerBehavior(), VLLM),
    "old-vllm": (OLD_VLLM, replace(VLLM, lookups=False, min_tokens=False)),
    "few": (ServerBehavior(max_logprobs=5), replace(VLLM, top=5)),
    "processed": (ServerBehavior(processed=True), replace(VLLM, lookups=False)),
    "sglang": (SGLANG, replace(VLLM, dialect=SGLANG_API, lookups=False)),
    "routed-sglang": (ROUTED, replace(VLLM, dialect=SGLANG_COMPLETIONS, lookups=False)),
    "plain": (PLAIN, ServerCapabilities("text")),
    "mute": (MUTE, ServerCapabilities("ids")),
    "chat": (CHAT, VLLM_CHAT),
    "proxy": (ServerBehavior(lacks="ids"), replace(VLLM, missing="ids", min_tokens=False)),
    "half-proxy": (ServerBehavior(lacks="logprobs"), replace(VLLM, missing="logprobs")),
    "proxy-chat": (
        replace(CHAT, lacks="ids"),
        replace(VLLM_CHAT, missing="ids", min_tokens=False),
    ),
    # sglang-router 0.3.2 and smg 1.13.0 before vLLM
    "router": (
        ServerBehavior(prompt_ids=False, tells_context=False),
        replace(VLLM, prompt="text", lookups=False, scores=False),
    ),
    # llama.cpp (xllamacpp 2026.10.11549), where only its chat can be reached
    "repeating-chat": (
        replace(CHAT, repeats=True),
        VLLM_CHAT,
    ),
    "ollama": (OLLAMA, ServerCapabilities("chat", top=20, extras=True)),
    "plain-chat": (
        replace(CHAT, token_ids=False, max_logprobs=0, stops_at_controls=True),
        ServerCapabilities("chat", extras=True),
    ),
}


@pytest.fixture(scope="module", params=list(WAYS))
def way(
    request: pytest.FixtureRequest, pair: dict[Any, EngineWorker]
) -> Iterator[tuple[dict[Any, ModelWorker], ServerCapabilities]]:
    behavior, able = WAYS[request.param]
    with Servers(pair, behavior, remember=True) as workers:
        yield workers, able


@pytest.mark.parametrize("name", [one for one in WAYS if WAYS[one][1].prompt != "chat"])
async def test_markers_in_an_answer_over_every_kind_of_server(name: str) -> None:
    folder = chain_checkpoint("0", "1", "</think>", "2", "<think>", "3")
    local = load(folder, rows=1, max_len=300)
    question = ask("2+2?").extend(Segment("policy", "So "))
    named = replace(question, closed=True).extend(Segment("policy", "0"))
    forced = replace(named, forced=True)
    try:
        with Servers({"large": local}, WAYS[name][0]) as workers:
            worker = workers["large"]
            whole = (await write(worker, named, StopCriteria(20))).segment
            assert (whole.text, whole.finish) == ("1</think>2<think>3", "eos")
            thought = (await write(worker, forced, StopCriteria(20))).segment
            assert (thought.text, thought.finish) == ("1", "think_end")
            answer = (await write(worker, forced.extend(thought), StopCriteria(20))).segment
            assert (answer.text, answer.finish) == ("2<think>3", "eos")
            goes_on = question.extend(Segment("policy", "2"))
            opened = (await write(worker, goes_on, StopCriteria(20))).segment
            assert opened.text == "<think>3"
    finally:
        local.close()


def call(transcript: Transcript, author: str = "small") -> Call:
    return Call("request 1", transcript, author)


async def write(
    worker: Any, transcript: Transcript, criteria: StopCriteria, sampling: Sampling = GREEDY
) -> Generation:
    async with aclosing(worker.generate(call(transcript), criteria, sampling)) as stream:
        items = [item async for item in stream]
    *deltas, whole = items
    assert isinstance(whole, Generation)
    assert all(isinstance(delta, Delta) for delta in deltas)
    assert "".join(delta.text for delta in deltas) == whole.segment.text
    assert tuple(t for delta in deltas for t in delta.tokens) == whole.segment.tokens
    told = tuple(p for delta in deltas for p in delta.logprobs)
    assert whole.segment.logprobs == (told if len(told) == len(whole.segment.tokens) else ())
    return whole


def ask(question: str) -> Transcript:
    return Transcript((Message("user", question),))


async def answer(
    policy: Any, workers: Any, question: str, sampling: Sampling = GREEDY
) -> RequestCompleted:
    request = Request("r", (Message("user", question),), sampling, Limits(400))
    events = solve(policy, request, workers)
    async with aclosing(events):
        async for event in events:
            last = event
    assert isinstance(last, RequestCompleted)
    return last


async def runs_ahead(ahead: ModelWorker, ours: EngineWorker, step: StopCriteria) -> None:
    """Check that a worker whose streams run ahead adopts some, and writes what ours does."""
    adopted = 0
    for question in QUESTIONS:
        chains = []
        for worker in (ahead, ours):
            where, made = ask(question), []
            for criteria in (StopCriteria(5), step, StopCriteria(9, min_confidence=0.9), step):
                answer = await write(worker, where, criteria)
                made.append((answer.segment.tokens, answer.segment.finish))
                where = where.extend(answer.segment)
                adopted += worker is ahead and answer.usage.cached == answer.usage.prompt
            chains.append(made)
        assert chains[0] == chains[1]
    assert adopted > 0


async def test_what_a_server_can_do_is_seen(
    way: tuple[dict[Any, ModelWorker], ServerCapabilities],
) -> None:
    workers, able = way
    assert await workers["small"].backend.capabilities() == able


async def texts(worker: Any, question: str) -> list[tuple[Transcript, StopCriteria, Segment]]:
    """Places to write, and what a model writes there."""
    transcript, stopped = ask(question), StopCriteria(200, stop=("boxed", " "))
    whole, first = [
        (await write(worker, transcript, criteria)).segment
        for criteria in (StopCriteria(200), STEP)
    ]
    closed = replace(transcript.extend(whole), closed=True)
    limits = (StopCriteria(200), STEP, StopCriteria(5), StopCriteria(200, stop=("=",)))
    cases = [(transcript, criteria) for criteria in limits]
    cases += [(transcript.extend(first), STEP), (closed, StopCriteria(200)), (closed, stopped)]
    return [
        (where, criteria, (await write(worker, where, criteria)).segment)
        for where, criteria in cases
    ]


async def drafted(pair: dict[Any, EngineWorker], question: str) -> Segment:
    """The small model's first step."""
    made: Generation = await ours_of(("step", question), write, pair["small"], ask(question), STEP)
    return made.segment


async def test_texts_are_those_of_the_model(
    way: tuple[dict[Any, ModelWorker], ServerCapabilities], pair: dict[Any, EngineWorker]
) -> None:
    """Whatever a server can do, the same words with the same ends, and the same ids."""
    workers, able = way
    for question in QUESTIONS:
        for where, criteria, ours in await ours_of(
            ("texts", question), texts, pair["small"], question
        ):
            theirs = (await write(workers["small"], where, criteria)).segment
            assert (theirs.text, theirs.finish) == (ours.text, ours.finish)
            assert theirs.tokens == ours.tokens
            if able.reads_logprobs:
                assert theirs.logprobs == pytest.approx(ours.logprobs, abs=1e-3)
            else:
                assert theirs.logprobs == ()


@pytest.mark.parametrize("lacks", ["ids", "logprobs"])
@pytest.mark.parametrize("completions", [True, False])
async def test_what_stops_coming_in_mid_stream_is_gone_without(
    lacks: Any,
    completions: bool,
    pair: dict[Any, EngineWorker],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No text is lost, and later calls begin without what was missing."""
    behavior = ServerBehavior(completions=completions, lacks_after=9)
    for criteria in (StopCriteria(200), STEP, StopCriteria(12)):
        ours = (await write(pair["small"], ask(QUESTIONS[0]), criteria)).segment
        late = len(ours.tokens) > 9
        with (servers := Servers(pair, behavior)) as workers:
            small, requests = workers["small"], servers.apps["small"].requests
            assert (await small.backend.capabilities()).missing is None
            for gap, calls in [(False, 1), (True, 2), (True, 1), (False, 1)]:
                behavior.lacks, before = lacks if gap else None, len(requests)
                theirs = (await write(small, ask(QUESTIONS[0]), criteria)).segment
                assert replace(theirs, logprobs=()) == replace(ours, logprobs=())
                assert len(requests) - before == (calls if late else 1)
            assert (f"{small.backend.server.name} leaves out {NAMES[lacks]}" in caplog.text) == late


@pytest.mark.parametrize("lacks", ["ids", "logprobs"])
async def test_what_needs_log_probabilities_is_tried_after_gaps(
    lacks: Any, pair: dict[Any, EngineWorker]
) -> None:
    behavior, doubt = ServerBehavior(lacks_after=9), StopCriteria(200, min_confidence=1e-9)
    ours = (await write(pair["small"], ask(QUESTIONS[0]), doubt)).segment
    with Servers(pair, behavior) as workers:
        await workers["small"].backend.capabilities()
        behavior.lacks = lacks
        for _ in range(3):
            with pytest.raises(WorkerError, match="of tokens, which min_confidence needs"):
                await write(workers["small"], ask(QUESTIONS[0]), doubt)
        behavior.lacks = None
        theirs = (await write(workers["small"], ask(QUESTIONS[0]), doubt)).segment
        assert (theirs.tokens, theirs.finish) == (ours.tokens, ours.finish)


@pytest.mark.parametrize("completions", [True, False])
async def test_ids_of_another_vocabulary_than_the_tokenizers(
    completions: bool, pair: dict[Any, EngineWorker], caplog: pytest.LogCaptureFixture
) -> None:
    """Its texts show it, to the probe or within the first tokens of an answer."""
    behavior = ServerBehavior(completions=completions)
    with Servers(pair, behavior) as workers:
        early, late = workers["small"], workers["large"]
        await late.backend.capabilities()
        behavior.foreign = True
        with pytest.raises(Unsupported, match="tokenizer is not the served model's"):
            await write(early, ask(QUESTIONS[0]), StopCriteria(30))
        with pytest.raises(WorkerError, match=f"{late.backend.server.name}: the tokenizer is not"):
            await write(late, ask(QUESTIONS[0]), StopCriteria(30))
    assert early.backend.server.name in caplog.text


@pytest.mark.parametrize("samples", ["generation_config", None])
async def test_a_server_that_samples_by_its_own_settings_or_never(
    samples: Any, pair: dict[Any, EngineWorker]
) -> None:
    """As `transformers serve` does, whose temperature counts if `do_sample` is set."""
    where, short = ask(QUESTIONS[0]), StopCriteria(9)
    with Servers(pair, replace(UNTOLD, samples=samples)) as workers:
        small = workers["small"]
        able = await small.backend.capabilities()
        assert able.samples == bool(samples)
        assert able.dialect is (TRANSFORMERS_SERVE if samples else OPENAI)
        ours, theirs = [await write(one, where, StopCriteria(30)) for one in (pair["small"], small)]
        assert theirs.segment.text == ours.segment.text
        if not samples:
            with pytest.raises(Unsupported, match="the same at any temperature"):
                await write(small, where, short, Sampling(1.0))
            return
        drawn = [await write(small, where, short, Sampling(3.0, seed=seed)) for seed in range(4)]
        assert len({one.segment.text for one in drawn}) == 4


async def test_laws_over_labels_are_those_of_the_model(
    way: tuple[dict[Any, ModelWorker], ServerCapabilities], pair: dict[Any, EngineWorker]
) -> None:
    workers, able = way
    for question in QUESTIONS:
        judged = call(ask(question).extend(await drafted(pair, question)), "large")
        ours = await ours_of(("law", question), pair["large"].classify, judged, SCORE)
        if able.top:
            theirs = await workers["large"].classify(judged, SCORE)
            assert theirs.probabilities == pytest.approx(ours.probabilities, abs=2e-3)
            assert theirs.outside == pytest.approx(ours.outside, abs=2e-3)
            continue
        with pytest.raises(Unsupported, match="log-probabilities"):
            await workers["large"].classify(judged, SCORE)
        theirs = await workers["large"].classify(judged, replace(SCORE, likeliest=True))
        best = max(range(10), key=lambda digit: ours.probabilities[digit])
        assert theirs.probabilities == tuple(float(digit == best) for digit in range(10))
        assert theirs.outside == 0.0


async def test_verification_is_that_of_the_model(
    way: tuple[dict[Any, ModelWorker], ServerCapabilities], pair: dict[Any, EngineWorker]
) -> None:
    workers, able = way
    for question in QUESTIONS:
        verify_call = (call(ask(question), "large"), await drafted(pair, question))
        if not able.scores:
            with pytest.raises(Unsupported, match="log-probabilities of the prompt"):
                await workers["large"].verify(*verify_call, GREEDY)
            continue
        ours = await ours_of(("verify", question), pair["large"].verify, *verify_call, GREEDY)
        theirs = await workers["large"].verify(*verify_call, GREEDY)
        assert theirs.nll == pytest.approx(ours.nll, abs=1e-3)
        assert theirs.choices == ours.choices
        assert theirs.pieces == ours.pieces
        for one, other in zip(ours.options, theirs.options, strict=True):
            assert replace(other, logprobs=()) == replace(one, logprobs=())
            assert other.logprobs == pytest.approx(one.logprobs, abs=1e-3)
        drawn = await workers["large"].verify(*verify_call, Sampling(0.7, seed=5))
        assert drawn.nll == theirs.nll
        assert len(drawn.options) == len(drawn.choices) == len(theirs.choices)
        again = await workers["large"].verify(*verify_call, Sampling(0.7, seed=5))
        assert again.choices == drawn.choices


async def test_the_likelihood_of_an_end_is_that_of_the_model(
    way: tuple[dict[Any, ModelWorker], ServerCapabilities], pair: dict[Any, EngineWorker]
) -> None:
    """Exactly where the server shows the end; where it does not, it is unlikely by both."""
    workers, able = way
    if not able.scores:
        return
    exact_cases: set[bool] = set()
    for question in QUESTIONS:
        transcript = ask(question)
        whole, step = [
            (await write(pair["small"], transcript, limit)).segment
            for limit in (StopCriteria(200), STEP)
        ]
        answered = replace(transcript.extend(whole), closed=True)
        spoken = (await write(pair["small"], answered, StopCriteria(200))).segment
        assert (whole.finish, spoken.finish) == ("think_end", "eos")
        cases = [(transcript, whole), (answered, spoken)]
        cases += [(transcript, replace(step, finish=finish)) for finish in ("think_end", "eos")]
        for where, draft in cases:
            asked = (call(where, "large"), draft, GREEDY)
            ours, theirs = [(await w["large"].verify(*asked)).ending for w in (pair, workers)]
            exact = theirs == pytest.approx(ours, abs=1e-2)  # a few of many ends are looked up
            exact_cases.add(exact)
            assert exact or min(ours, theirs) > 5  # so unlikely that no rule would keep it
        silent = await workers["large"].verify(call(transcript, "large"), step, GREEDY)
        assert silent.ending is None
    if able.lookups or able.dialect is SGLANG_API:
        assert exact_cases == {True}
    else:
        assert True in exact_cases


def test_a_character_that_the_trace_began_is_completed(prompts: PromptRenderer) -> None:
    tokenizer = prompts.tokenizer
    first, second = (tokenizer.pieces.index(bytes([byte])) for byte in "é".encode())
    begun = Segment("large", "", (first,), (0.0,), tokenizer.hash)
    transcript, criteria = ask("Où?").extend(begun), StopCriteria(1)
    text = continuation(prompts, transcript, criteria)
    parser = ResponseParser(text, prompts, VLLM)
    assert parser.push(Chunk("", (Token(second, -0.5, {}),), None, None)) == "length"
    segment = text.segment("length")
    assert (segment.text, segment.tokens, segment.logprobs) == ("é", (second,), (-0.5,))


@pytest.mark.parametrize(
    ("name", "mixed"),
    [*((name, "both") for name in POLICIES), ("bild", "small"), ("specreason", "large")],
)
async def test_every_policy_answers_over_servers_as_in_process(
    name: str,
    mixed: str,
    pair: dict[Any, EngineWorker],
    vllm: dict[Any, ModelWorker],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two remote workers, and one beside a local one: the same answer by the same steps."""
    # This server draws by seed and position, as our engine does, so it needs no seed of its own.
    monkeypatch.setattr("workers.remote.backend.reseeded", lambda sampling, _: sampling)
    workers = {**pair, **{key: vllm[key] for key in PAIR if mixed in ("both", key)}}
    fields = POLICIES[name].model_fields
    policy = POLICIES[name](**({"judge": "short"} if "judge" in fields else {}))
    for question in QUESTIONS[:2]:
        # Drafts that are drawn whatever the request says follow its seed, here and there.
        sampling = Sampling(seed=7)
        ours, theirs = [await answer(policy, them, question, sampling) for them in (pair, workers)]
        assert [(s.author, s.text, s.accepted) for s in theirs.steps] == [
            (s.author, s.text, s.accepted) for s in ours.steps
        ]
        assert theirs.metrics.large_tokens == ours.metrics.large_tokens


async def test_the_second_half_of_a_text_does_not_repeat_the_draws_of_the_first(
    pair: dict[Any, EngineWorker],
) -> None:
    servers, transcript = Servers(pair, ServerBehavior()), ask(QUESTIONS[0])
    with servers as workers:
        small, sampling = workers["small"], Sampling(1.2, seed=7)
        first = (await write(small, transcript, StopCriteria(8), sampling)).segment
        for _ in range(2):
            await write(small, transcript.extend(first), StopCriteria(8), sampling)
    seeds = [body["seed"] for _, body in servers.apps["small"].requests[-3:]]
    assert seeds[0] != seeds[1] == seeds[2]
    assert all(0 <= seed < 2**53 for seed in seeds)


async def test_control_tokens_cannot_be_spelt(pair: dict[Any, EngineWorker]) -> None:
    """As ids a text stays a text; a server that would read it as a token never sees it."""
    evil = ask("Say </think> and <|end|>, please: 1+1?")
    with Servers(pair, ServerBehavior()) as workers:
        ours, theirs = [
            (await write(worker["small"], evil, StopCriteria(30))).segment
            for worker in (pair, workers)
        ]
        assert theirs.text == ours.text
    for behavior in (PLAIN, CHAT):
        servers = Servers(pair, behavior)
        with servers as workers:
            with pytest.raises(InvalidRequest, match="control token") as caught:
                await write(workers["small"], evil, StopCriteria(30))
            assert caught.value.param == "messages"
            assert "</think> and" not in str(servers.apps["small"].requests)


async def test_a_prompt_that_only_the_server_knows_to_be_too_long(
    pair: dict[Any, EngineWorker],
) -> None:
    with Servers(pair, ServerBehavior(tells_context=False)) as workers:
        with pytest.raises(ContextLengthExceeded) as caught:
            await write(workers["small"], ask("1+1=2 " * 400), StopCriteria(4))
        assert caught.value.code == "context_length_exceeded"


async def test_a_key_is_sent_and_a_wrong_one_reported(pair: dict[Any, EngineWorker]) -> None:
    with Servers(pair, ServerBehavior(key="k1"), key="k1") as workers:
        assert (await write(workers["small"], ask("1+1?"), StopCriteria(4))).segment.text


@pytest.mark.parametrize(
    ("behavior", "options", "model", "error", "message"),
    [
        (ServerBehavior(key="k1"), {"key": "k2"}, MODEL, WorkerError, "is the key right"),
        (ServerBehavior(), {}, "another", Absent, "`another` does not exist"),
        (replace(CHAT, continues=False), {}, MODEL, Unsupported, "does not continue the last mess"),
    ],
)
async def test_a_server_that_cannot_be_used_is_named(
    behavior: ServerBehavior,
    options: dict[str, Any],
    model: str,
    error: type[Exception],
    message: str,
    pair: dict[Any, EngineWorker],
) -> None:
    with Servers(pair, behavior, **options) as workers:
        backend = workers["small"].backend
        worker = ModelWorker(RemoteBackend(backend.server, model, pair["small"].tokenizer))
        with pytest.raises(error, match=message):
            await write(worker, ask("1+1?"), StopCriteria(4))


async def test_a_server_that_breaks_down_over_a_field_is_asked_without(
    pair: dict[Any, EngineWorker],
) -> None:
    """As some do over log-probabilities or ids; the breaker, which would end it, is left alone."""
    breaking = replace(PLAIN, breaks=True)
    with Servers(pair, breaking, retries=0) as workers:
        assert await workers["small"].backend.capabilities() == ServerCapabilities("text")
        made = await write(workers["small"], ask("1+1?"), StopCriteria(4))
        assert made.segment.text


async def test_a_server_that_fails_all_the_time_is_unavailable(
    pair: dict[Any, EngineWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one that lacks something, though it lists its models: it may work again."""

    async def broken(self: Server, path: str, *_: Any, **__: Any) -> Any:
        if path == "/chat/completions":
            raise Declined("no such template")
        raise Broke("the backend is gone")

    with Servers(pair, ServerBehavior()) as workers:
        with monkeypatch.context() as patch:
            patch.setattr(Server, "ask", broken)
            with pytest.raises(WorkerUnavailable, match="the backend is gone"):
                await workers["small"].backend.capabilities()
        assert await workers["small"].backend.capabilities() == VLLM


async def test_cached_prefixes_are_kept_apart_by_owner(pair: dict[Any, EngineWorker]) -> None:
    """Of a dialect without a field for that the count of cached tokens is not told."""
    servers, owned = Servers(pair, ServerBehavior()), replace(call(ask("12+3?")), owner="a digest")
    with servers as workers:
        for one in (owned, call(ask("12+3?"))):
            _ = [item async for item in workers["small"].generate(one, StopCriteria(3), GREEDY)]
    salts = [body.get("cache_salt") for _, body in servers.apps["small"].requests]
    assert salts[-2:] == ["a digest", None]
    answer = {"usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 7}}}
    assert [protocol.usage(answer, 9, 1, shared=one).cached for one in (False, True)] == [7, 0]
    assert LLAMA_CPP.owner_fields("a digest") == OPENAI.owner_fields("a digest") == {}


def held(constraint: Constraint, answer: str = "") -> Call:
    transcript = replace(ask("1+1?"), closed=True)
    if answer:
        transcript = transcript.extend(Segment("small", answer))
    return replace(call(transcript), constraint=constraint)


def test_what_servers_are_asked_to_hold_an_answer_to() -> None:
    schema, regex = Constraint("json_schema", '{"type": "object"}'), Constraint("regex", "a+")
    free = tool_rules([], required=False, parallel=True, answer=None)
    assert VLLM_API.form_fields(call(ask("1+1?"))) == {}
    assert VLLM_API.form_fields(held(free)) == {}  # calls are read from what the model writes
    json_fields = {"json": {"type": "object"}}
    assert VLLM_API.form_fields(held(schema)) == {"structured_outputs": json_fields}
    assert VLLM_API.form_fields(held(regex)) == {"structured_outputs": {"regex": "a+"}}
    assert LLAMA_CPP.form_fields(held(schema)) == {"json_schema": {"type": "object"}}
    must = tool_rules([], required=True, parallel=True, answer=None)
    for refused, dialect in (
        (regex, LLAMA_CPP), (Constraint("grammar", ""), VLLM_API), (must, VLLM_API),
    ):  # fmt: skip
        with pytest.raises(Unsupported):
            dialect.form_fields(held(refused))
    with pytest.raises(Unsupported, match="within"):
        VLLM_API.form_fields(held(schema, "{"))


FORM = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "number", "minimum": 0}},
    "required": ["a"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("constraint", "good", "bad"),
    [
        (None, ["anything"], []),
        (Constraint("json_schema", "{}"), [' {"a": 1}', "[1e-7]", '"\x7f"'], ["Sure!", '{"a": 1']),
        (
            Constraint("json_schema", json.dumps(FORM)),
            ['{"a":1}', '{\n"b": 1e-7, "a": 99999999999999999999\n}\n', '{"a": 1, "b": 1E22}'],
            ["{}", '{"a": "1"}', '{"a": 1, "b": -1}', '{"a": 1, "c": 2}', "1"],
        ),
        (
            Constraint("json_schema", '{"prefixItems": [{"enum": [{"a": 1, "b": 2}]}]}'),
            ['[{"a": 1, "b": 2}]', "[]"],
            ['[{"a": 2}]'],
        ),
        (Constraint("json_schema", '{"required": ["x", "y"]}'), ['{"y": 1, "x": 2}'], ["{}"]),
        (Constraint("regex", "\\p{L}+/"), ["aa/", "\n\naa/"], ["aa", "1", "aa/aa"]),
        (Constraint("regex", " a", exact=True), [" a"], ["a", "  a"]),
    ],
)
def test_an_answer_that_its_server_did_not_hold_is_refused(
    constraint: Constraint | None, good: list[str], bad: list[str]
) -> None:
    for text in good:
        check_held(constraint, text, "a server")
    for text in bad:
        with pytest.raises(WorkerError, match="a server did not hold"):
            check_held(constraint, text, "a server")


async def test_no_text_ends_before_min_tokens(
    way: tuple[dict[Any, ModelWorker], ServerCapabilities], pair: dict[Any, EngineWorker]
) -> None:
    """The end of a thought may come, the end of the turn may not."""
    workers, able = way
    thought = Transcript((Message("user", QUESTIONS[0]),))
    answer = Transcript((Message("user", QUESTIONS[0]),), closed=True)
    for transcript, ends in ((thought, "think_end"), (answer, "eos")):
        plain = await write(pair["large"], transcript, StopCriteria(80))
        size = len(plain.segment.tokens)
        assert plain.segment.finish == ends
        late = StopCriteria(80, min_tokens=size + 9)
        if not able.min_tokens:
            with pytest.raises(Unsupported, match="min_tokens"):
                await write(workers["large"], transcript, late)
            continue
        ours = await write(pair["large"], transcript, late)
        theirs = await write(workers["large"], transcript, late)
        assert theirs.segment.tokens == ours.segment.tokens
        assert theirs.segment.finish == ours.segment.finish
        longer = len(ours.segment.tokens) - size
        assert longer == 0 if ends == "think_end" else longer >= 9


async def test_no_more_of_the_likeliest_than_the_server_shows(
    way: tuple[dict[Any, ModelWorker], ServerCapabilities], pair: dict[Any, EngineWorker]
) -> None:
    workers, able = way
    text = Segment("large", "12 + 34 is 46.")
    if not able.top or not able.scores:
        return
    with pytest.raises(Unsupported, match=f"the {able.top} likeliest"):
        await workers["large"].verify(call(ask(QUESTIONS[0])), text, GREEDY, able.top + 1)
    theirs = await workers["large"].verify(call(ask(QUESTIONS[0])), text, GREEDY, able.top)
    ours = await pair["large"].verify(call(ask(QUESTIONS[0])), text, GREEDY, able.top)
    for mine, other in zip(ours.top, theirs.top, strict=True):
        assert [one.token for one in other][:3] == [one.token for one in mine][:3]
        assert len(other) == len(mine) == able.top


async def test_sglang_reads_a_judged_step_alone(pair: dict[Any, EngineWorker]) -> None:
    """Of what is before the step nothing is read again, also if the step is cached too."""
    servers, transcript = Servers(pair, SGLANG), ask(QUESTIONS[0])
    for _ in range(3):
        before, made = transcript, await write(pair["small"], transcript, STEP)
        transcript = transcript.extend(made.segment)
    query = replace(SCORE, nll=True)
    with servers as workers:
        large, app = workers["large"], servers.apps["large"]
        prefix = len(large.prompts.transcript(before))
        for _ in range(2):
            owned = replace(call(before), owner="me")
            verified = await large.verify(owned, made.segment, GREEDY)
            judged = await large.classify(call(transcript), query)
        assert min(verified.usage.cached, judged.usage.cached) >= prefix - 1
        path, body = app.requests[-2]
        asked = path, body["logprob_start_len"], body["extra_key"]
        assert asked == ("/generate", prefix - 1, "me")
        ours = await pair["large"].classify(call(transcript), query)
        assert judged.nll == pytest.approx(ours.nll, abs=1e-3)
        assert judged.probabilities == pytest.approx(ours.probabilities, abs=2e-3)


@contextmanager
def generating(
    pair: dict[Any, EngineWorker], behavior: ServerBehavior, generate: Any, **options: Any
) -> Iterator[ModelWorker]:
    """The small model's server, whose `/generate` is another's."""
    app = VllmLike(pair["small"], behavior)
    app.app.router.routes.insert(0, Route("/generate", generate, methods=["POST"]))
    with serving(app.app) as url:
        yield ModelWorker(RemoteBackend(Server(url, **options), MODEL, pair["small"].tokenizer))


@pytest.mark.parametrize(
    "answer",
    [
        {"generated_text": "4"},
        {"meta_info": {}},
        {"meta_info": {"output_token_logprobs": [["x", 3]]}},
        {
            "meta_info": {
                "output_token_logprobs": [[-0.1, 3, None]],
                "input_token_logprobs": [[None, 7], [-1, 7]],
            }
        },
        "a page",
    ],
    ids=["tgi", "empty", "words", "other-ids", "html"],
)
async def test_another_servers_generate_is_not_taken_for_sglangs(
    pair: dict[Any, EngineWorker], answer: Any
) -> None:
    async def generate(_: Any) -> Any:
        return HTMLResponse(answer) if isinstance(answer, str) else JSONResponse(answer)

    with generating(pair, ROUTED, generate) as worker:
        assert (await worker.backend.capabilities()).dialect is SGLANG_COMPLETIONS


@pytest.mark.parametrize("status", [302, 401, 403, 429, 500, 503])
async def test_a_gateway_that_closes_generate_costs_one_request(
    pair: dict[Any, EngineWorker], status: int, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[int] = []

    async def generate(_: Any) -> Any:
        asked.append(status)
        return JSONResponse({}, status, {"retry-after": "0"})

    caplog.set_level("INFO", "workers.remote.probe")
    breaker = CircuitBreaker("it", failure_threshold=1)
    with generating(pair, ROUTED, generate, breaker=breaker) as worker:
        for _ in range(2):
            assert (await worker.backend.capabilities()).dialect is SGLANG_COMPLETIONS
        await worker.verify(call(ask(QUESTIONS[0])), Segment("large", "12 + 34 is 46."), GREEDY)
    assert asked == [status]
    assert [one.message for one in caplog.records if str(status) in one.message]


async def test_generate_by_another_model_is_not_used(
    pair: dict[Any, EngineWorker], caplog: pytest.LogCaptureFixture
) -> None:
    """It names no model: beside an adapter, or behind a router, another one answers there."""
    with generating(pair, SGLANG, VllmLike(pair["large"], SGLANG).generate) as worker:
        assert (await worker.backend.capabilities()).dialect is SGLANG_COMPLETIONS
    assert "another model answers there" in caplog.text

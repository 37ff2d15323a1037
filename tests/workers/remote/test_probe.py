"""What the probe sees of servers that ignore what they are asked, and say so with status 200."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.errors import Unsupported
from orchestrator.types import Constraint, Sampling, StopCriteria
from tests.workers.remote.test_worker import GREEDY, MUTE, QUESTIONS, ask, call, write
from tests.workers.remote.vllm_like import MODEL, ServerBehavior, VllmLike, serving
from workers.engine.loading import load
from workers.remote.backend import RemoteBackend
from workers.remote.capabilities import ServerCapabilities
from workers.remote.server import Server
from workers.worker import EngineWorker, ModelWorker

# transformers 5.23.0, `transformers serve --continuous-batching`: text alone, no stop strings, and
# all requests of a process sampled as its first one asked.
BATCHING = ServerBehavior(
    prompt_ids=False, max_logprobs=0, token_ids=False, named_ids=False, min_tokens=False,
    stops=False, samples=None,
)  # fmt: skip
# LiteLLM 1.108.7, its provider `hosted_vllm`: status 500 for a prompt of ids.
HOSTED = ServerBehavior(prompt_ids=False, breaks=True)


@pytest.fixture(scope="module")
def local() -> Iterator[EngineWorker]:
    worker = load("embedded:small", rows=4)
    yield worker
    worker.close()


@contextmanager
def served(local: EngineWorker, behavior: ServerBehavior) -> Iterator[ModelWorker]:
    with serving(VllmLike(local, behavior).app) as url:
        yield ModelWorker(RemoteBackend(Server(url, retries=0), MODEL, local.tokenizer))


async def test_a_thought_needs_a_server_that_reads_stop_strings(local: EngineWorker) -> None:
    """Its end is a control token, which no text shows: what follows it would be thought, too."""
    question = ask(QUESTIONS[0])
    with served(local, BATCHING) as worker:
        able = ServerCapabilities("text", samples=False, extras=True, stops=False)
        assert await worker.backend.capabilities() == able
        with pytest.raises(Unsupported, match="a sign of the end of a thought"):
            await write(worker, question, StopCriteria(200))
        closed = replace(question.extend((await write(local, question, StopCriteria(200))).segment))
        closed = replace(closed, closed=True)
        ours, theirs = [
            (await write(one, closed, StopCriteria(60))).segment for one in (local, worker)
        ]
        assert (theirs.text, theirs.finish) == (ours.text, ours.finish)
        with pytest.raises(Unsupported, match="it writes the same at any temperature"):
            await write(worker, closed, StopCriteria(60), Sampling(1.0))


@pytest.mark.parametrize("repeats", [False, True])
@pytest.mark.parametrize("top", [0, 20])
@pytest.mark.parametrize("completions", [False, True])
@pytest.mark.parametrize("stop_ids", [False, True])
@pytest.mark.parametrize("strict", [False, True])
async def test_a_hidden_end_of_a_thought_is_where_a_server_stops_or_thoughts_are_refused(
    strict: bool, stop_ids: bool, completions: bool, top: int, repeats: bool, local: EngineWorker
) -> None:
    """No ids, no marker in the text, and stop strings are looked for in the text."""
    behavior = ServerBehavior(
        completions=completions, prompt_ids=False, token_ids=False, named_ids=False,
        max_logprobs=top, strict=strict, stop_ids=stop_ids, repeats=repeats,
    )  # fmt: skip
    question = ask(QUESTIONS[0])
    with served(local, behavior) as worker:
        if not completions and (strict or (repeats and not top)):
            why = "cannot continue a text" if strict else "repeats the message of a chat"
            with pytest.raises(Unsupported, match=why):
                await worker.backend.capabilities()
            return
        seen = stop_ids and not strict
        assert (await worker.backend.capabilities()).stops == seen
        if not seen:
            with pytest.raises(Unsupported, match="a sign of the end of a thought"):
                await write(worker, question, StopCriteria(200))
            return
        ours, theirs = [
            (await write(one, question, StopCriteria(200))).segment for one in (local, worker)
        ]
        assert replace(theirs, logprobs=()) == replace(ours, logprobs=())
        assert ours.finish == "think_end"


@pytest.mark.parametrize("prompt_ids", [False, True])
@pytest.mark.parametrize("completions", [False, True])
async def test_a_server_that_reads_no_logit_bias_is_seen_to_write_on_behind_a_hidden_marker(
    completions: bool, prompt_ids: bool, local: EngineWorker
) -> None:
    """It copies the marker from the prompt; a chat has no place for that, so nothing shows it."""
    behavior = ServerBehavior(
        completions=completions, prompt_ids=prompt_ids, token_ids=False, named_ids=False,
        max_logprobs=0, stop_ids=False, biases=False,
    )  # fmt: skip
    with served(local, behavior) as worker:
        assert (await worker.backend.capabilities()).stops != completions
        if completions:
            with pytest.raises(Unsupported, match="a sign of the end of a thought"):
                await write(worker, ask(QUESTIONS[0]), StopCriteria(200))


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("prompt_ids", [False, True])
async def test_a_thought_is_not_refused_where_a_server_stops_at_its_marker(
    prompt_ids: bool, biases: bool, local: EngineWorker
) -> None:
    """Without `stop_token_ids`."""
    behavior = replace(MUTE, prompt_ids=prompt_ids, stop_ids=False, biases=biases)
    with served(local, behavior) as worker:
        assert (await worker.backend.capabilities()).stops


@pytest.mark.parametrize(
    ("changes", "samples"),
    [
        ({"top_k": 1}, True),  # by its own cuts it would write the same
        ({"hottest": 1.5}, True),
        ({"hottest": 1.0}, True),
        ({"hottest": 0.7}, True),  # nothing shows the contrary
        ({"hottest": 1.0, "samples": None}, False),
    ],
)
async def test_sampling_is_seen_as_requests_ask_for_it(
    changes: dict[str, Any], samples: bool, local: EngineWorker
) -> None:
    with served(local, ServerBehavior(**changes)) as worker:
        assert (await worker.backend.capabilities()).samples == samples


async def test_a_server_that_samples_greedy_requests_is_refused(local: EngineWorker) -> None:
    with (
        served(local, replace(BATCHING, samples="always")) as worker,
        pytest.raises(Unsupported, match="a different text each time at temperature 0"),
    ):
        await worker.backend.capabilities()


async def test_a_field_that_breaks_a_server_is_not_why_it_is_refused(local: EngineWorker) -> None:
    """It answers a text, so it is not out of order: why that cannot be used is what counts."""
    with served(local, replace(HOSTED, wraps=True, continues=False)) as worker:
        with pytest.raises(Unsupported) as caught:
            await worker.backend.capabilities()
        assert "template of its own around a text" in str(caught.value)
        assert "does not continue the last message of a chat" in str(caught.value)
    with served(local, HOSTED) as worker:
        assert (await worker.backend.capabilities()).prompt == "text"


async def test_a_form_needs_a_server_that_holds_answers_to_it(local: EngineWorker) -> None:
    """mlx_lm.server 0.32.2 ignores the field: nothing is generated for such a request."""
    question = ask(QUESTIONS[0])
    thought = (await write(local, question, StopCriteria(200))).segment
    answer = replace(question.extend(thought), closed=True)
    form = Constraint("json_schema", '{"enum": ["yes", "no"]}')
    app = VllmLike(local, ServerBehavior())
    with serving(app.app) as url:
        worker = ModelWorker(RemoteBackend(Server(url, retries=0), MODEL, local.tokenizer))
        assert not (await worker.backend.capabilities()).forms
        before = len(app.requests)
        with pytest.raises(Unsupported, match="held to a form"):
            async for _ in worker.generate(
                replace(call(answer), constraint=form), StopCriteria(20), GREEDY
            ):
                pass
        assert len(app.requests) == before

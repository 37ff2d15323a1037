"""What the probe sees of servers that ignore what they are asked, and say so with status 200."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from orchestrator.errors import Unsupported
from orchestrator.types import Constraint, Sampling, StopCriteria
from tests.workers.remote.test_worker import GREEDY, QUESTIONS, ask, call, write
from tests.workers.remote.vllm_like import MODEL, ServerBehavior, VllmLike, serving
from workers.engine.loading import load
from workers.engine.worker import LocalWorker
from workers.remote.protocol import ServerCapabilities
from workers.remote.server import Server
from workers.remote.worker import RemoteWorker

# transformers 5.23.0, `transformers serve --continuous-batching`: text alone, no stop strings, and
# all requests of a process sampled as its first one asked.
BATCHING = ServerBehavior(
    prompt_ids=False, max_logprobs=0, token_ids=False, named_ids=False, min_tokens=False,
    stops=False, samples=None,
)  # fmt: skip
# LiteLLM 1.108.7, its provider `hosted_vllm`: status 500 for a prompt of ids.
HOSTED = ServerBehavior(prompt_ids=False, breaks=True)


@pytest.fixture(scope="module")
def local() -> Iterator[LocalWorker]:
    worker = load("embedded:small", rows=4)
    yield worker
    worker.close()


@contextmanager
def served(local: LocalWorker, behavior: ServerBehavior) -> Iterator[RemoteWorker]:
    with serving(VllmLike(local, behavior).app) as url:
        yield RemoteWorker(Server(url, retries=0), MODEL, local.tokenizer)


async def test_a_thought_needs_a_server_that_reads_stop_strings(local: LocalWorker) -> None:
    """Its end is a control token, which no text shows: what follows it would be thought, too."""
    question = ask(QUESTIONS[0])
    with served(local, BATCHING) as worker:
        assert await worker.capabilities() == ServerCapabilities("text", draws=None, stops=False)
        with pytest.raises(Unsupported, match="stop string, by which the end of a thought"):
            await write(worker, question, StopCriteria(200))
        closed = replace(question.extend((await write(local, question, StopCriteria(200))).segment))
        closed = replace(closed, closed=True)
        ours, theirs = [
            (await write(one, closed, StopCriteria(60))).segment for one in (local, worker)
        ]
        assert (theirs.text, theirs.finish) == (ours.text, ours.finish)
        with pytest.raises(Unsupported, match="it writes the same at any temperature"):
            await write(worker, closed, StopCriteria(60), Sampling(1.0))


async def test_a_server_that_samples_greedy_requests_is_refused(local: LocalWorker) -> None:
    with (
        served(local, replace(BATCHING, samples="always")) as worker,
        pytest.raises(Unsupported, match="other texts each time at temperature 0"),
    ):
        await worker.capabilities()


async def test_a_field_that_breaks_a_server_is_not_why_it_is_refused(local: LocalWorker) -> None:
    """It answers a text, so it is not out of order: why that cannot be used is what counts."""
    with served(local, replace(HOSTED, wraps=True, continues=False)) as worker:
        with pytest.raises(Unsupported) as caught:
            await worker.capabilities()
        assert "template of its own around a text" in str(caught.value)
        assert "does not continue the last message of a chat" in str(caught.value)
    with served(local, HOSTED) as worker:
        assert (await worker.capabilities()).prompt == "text"


async def test_a_chat_that_repeats_its_message_shows_no_choice_of_a_judge(
    local: LocalWorker,
) -> None:
    """llama.cpp's whole answers do; with log-probabilities a judge reads those."""
    mute = ServerBehavior(completions=False, max_logprobs=0, token_ids=False, repeats=True)
    with (
        served(local, mute) as worker,
        pytest.raises(Unsupported, match="repeats the message of a chat"),
    ):
        await worker.capabilities()


async def test_a_form_needs_a_server_that_holds_answers_to_it(local: LocalWorker) -> None:
    """mlx_lm.server 0.32.2 ignores the field: nothing is generated for such a request."""
    question = ask(QUESTIONS[0])
    thought = (await write(local, question, StopCriteria(200))).segment
    answer = replace(question.extend(thought), closed=True)
    form = Constraint("json_schema", '{"enum": ["yes", "no"]}')
    app = VllmLike(local, ServerBehavior())
    with serving(app.app) as url:
        worker = RemoteWorker(Server(url, retries=0), MODEL, local.tokenizer)
        assert not (await worker.capabilities()).forms
        before = len(app.requests)
        with pytest.raises(Unsupported, match="held to a form"):
            async for _ in worker.generate(
                replace(call(answer), constraint=form), StopCriteria(20), GREEDY
            ):
                pass
        assert len(app.requests) == before

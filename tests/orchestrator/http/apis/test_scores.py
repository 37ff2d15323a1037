"""`logprobs` of a chat completion's answer, with the official client."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from deploy.launch.deployment_file import DEFAULT_FILE, load
from deploy.service.workers import load_worker
from orchestrator.errors import ContextLengthExceeded, Unsupported
from orchestrator.http.apis.scores import Scorer, shown_tokens
from orchestrator.http.ask import Choice, Incoming, RequestPlan
from orchestrator.loop.accumulator import ResponseAccumulator
from orchestrator.loop.events import Metrics, RequestCompleted
from orchestrator.types import (
    Message,
    Sampling,
    Segment,
    Segments,
    Transcript,
    Verification,
)
from orchestrator.worker import Call
from policies import POLICIES
from tests.orchestrator.serving import (
    HTTP,
    STORY,
    asked,
    client,
    post,
    scripted,
    service,
    serving,
)
from tests.workers.scripted import Scripted, segment
from workers.worker import EngineWorker

ARGS = load(DEFAULT_FILE).args
QUESTION: Any = [{"role": "user", "content": "What is 37+12?"}]


@pytest.fixture(scope="module")
def pair() -> Iterator[dict[str, EngineWorker]]:
    workers = {name: load_worker(spec) for name, spec in ARGS.workers.by_name().items()}
    yield workers  # type: ignore[misc]
    for worker in workers.values():
        worker.close()


@pytest.fixture(scope="module")
def url(pair: dict[str, EngineWorker]) -> Iterator[str]:
    made = service(pair["small"], pair["large"], params=ARGS.policy.params)
    with serving(made) as url:
        yield url


def ask(url: str, **body: Any) -> Any:
    given = {"model": "large-only", "messages": QUESTION, "logprobs": True, **body}
    with client(url) as api:
        return api.chat.completions.create(**given).choices[0]


@pytest.mark.parametrize("model", ["large-only", "small-only", "specreason", "bild"])
def test_the_tokens_are_the_answers(url: str, model: str) -> None:
    choice = ask(url, model=model, top_logprobs=1)
    rows = choice.logprobs.content
    assert "".join(row.token for row in rows).strip() == choice.message.content
    assert b"".join(bytes(row.bytes) for row in rows).decode().strip() == choice.message.content
    for row in rows:
        (best,) = row.top_logprobs
        assert row.logprob <= best.logprob <= 0
    assert choice.logprobs.refusal is None


def test_greedy_tokens_are_the_likeliest_and_drawn_ones_are_not_always(url: str) -> None:
    for row in ask(url, top_logprobs=1).logprobs.content:
        assert (row.token, row.logprob) == (row.top_logprobs[0].token, row.top_logprobs[0].logprob)
    drawn = (ask(url, top_logprobs=1, temperature=2, seed=seed) for seed in range(50))
    rows = (row for choice in drawn for row in choice.logprobs.content)
    assert any(row.logprob < row.top_logprobs[0].logprob for row in rows)


def test_they_are_what_the_worker_says(url: str, pair: dict[str, EngineWorker]) -> None:
    """Against `/v1/completions`, which scores a prompt of the same ids in one pass."""
    large = pair["large"]
    choice = ask(url, extra_body={"chat_template_kwargs": {"enable_thinking": False}})
    begun = Transcript((Message("user", QUESTION[0]["content"]),)).without_thought()
    ids = [
        *large.prompts.transcript(begun),
        *large.tokenizer.encode("".join(row.token for row in choice.logprobs.content)),
    ]
    with client(url) as api:
        reply = api.completions.create(
            model="large-only", prompt=ids, echo=True, logprobs=1, max_tokens=1
        )
    assert reply.choices[0].logprobs is not None
    values = reply.choices[0].logprobs.token_logprobs
    assert values is not None
    mine = [row.logprob for row in choice.logprobs.content]
    assert values[-1 - len(mine) : -1] == pytest.approx(mine, abs=1e-4)


def test_a_token_that_may_begin_a_marker_has_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an answer ends by a text, as models without a token for it do."""
    worker = load_worker(ARGS.workers.large)
    monkeypatch.setattr(worker.tokenizer, "stops", lambda thinking: [("49 is no end", "eos")])
    with serving(service(large=worker)) as url:
        rows = ask(url, top_logprobs=2).logprobs.content
    worker.close()
    named = [row for row in rows if row.token in ("4", "49")]
    assert named
    for row in named:
        assert row.top_logprobs[0].token == row.token
    assert not any("token_id" in best.token for row in rows for best in row.top_logprobs[:1])


def test_what_scores_cost_is_counted() -> None:
    def told(body: dict[str, Any]) -> Any:
        with serving(service(large=scripted())) as url:
            reply = post(url, {"model": "large-only", **body}).json()
            lines = HTTP.get(f"{url}/metrics").text.splitlines()
            trace = HTTP.get(f"{url}/v1/traces/{reply['baton']['trace_id']}").json()
            counted = {
                line.split()[0]: float(line.split()[1]) for line in lines if "# " not in line
            }
            return reply["baton"]["metrics"], counted, trace

    plain, counted, _ = told({})
    assert plain["judge_calls"] == counted["baton_judge_calls_total"] == 0
    scored, counted, trace = told({"logprobs": True})
    assert scored["judge_calls"] == counted["baton_judge_calls_total"] == 2  # whether it can; it
    assert counted["baton_prefill_tokens_total"] == scored["prefill_tokens"]
    assert scored["prefill_tokens"] > plain["prefill_tokens"]
    assert scored["large_passes"] == plain["large_passes"] + 2
    assert [call["kind"] for call in trace["calls"]].count("verify") == 2
    assert scored["ms"]["total"] >= scored["ms"]["classify"] > 0


def test_without_top_logprobs_there_are_none(url: str) -> None:
    assert {len(row.top_logprobs) for row in ask(url).logprobs.content} == {0}
    assert ask(url, logprobs=False).logprobs is None


def test_a_text_that_goes_on_has_the_tokens_that_are_new(url: str) -> None:
    messages = [*QUESTION, {"role": "assistant", "content": "The answer is"}]
    more = {"continue_final_message": True}
    choice = ask(url, messages=messages, extra_body=more)
    assert "".join(row.token for row in choice.logprobs.content).rstrip() == choice.message.content


def scorer(policy: str, response: ResponseAccumulator, workers: Any) -> Scorer:
    plan = RequestPlan(policy, POLICIES[policy](), Sampling())
    return Scorer(Choice(asked(), Incoming("request"), plan), response, workers)


async def test_each_segment_is_scored_by_its_author() -> None:
    answer = [segment("small", "a b"), Segment("policy", "so"), segment("large", "c")]
    transcript = Transcript((Message("user", "?"),), closed=True, done=True)
    transcript = Transcript(
        transcript.messages, answer=Segments(answer), thinking=False, closed=True, done=True
    )
    response = ResponseAccumulator()
    response.completed = RequestCompleted(transcript, (), Metrics())
    small, large = scripted(scores=lambda _: 0.5), scripted(scores=lambda _: 2.0)
    workers: Any = {"small": small, "large": large}
    scored = await scorer("specreason", response, workers).answer()
    told = [(token.text.strip(), token.logprob) for token, _ in shown_tokens(scored)]
    assert told == [("a", -0.5), ("b", -0.5), ("so", -2.0), ("c", -2.0)]
    assert [len(heard.call.transcript.answer) for heard in (*small.calls, *large.calls)] == [
        0,
        1,
        2,
    ]


class CannotScore(Scripted):
    async def verify(self, *_: Any) -> Verification:
        raise Unsupported("log-probabilities")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("lacking", ["small", "large"])
def test_a_worker_that_cannot_score_refuses_before_anything_is_shown(
    lacking: str, stream: bool
) -> None:
    workers = {"small": scripted(), "large": scripted(), lacking: CannotScore(story=STORY)}
    with serving(service(workers["small"], workers["large"])) as url:
        reply = post(url, {"logprobs": True, "stream": stream})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "logprobs")
        assert f"the {lacking} worker" in reply.json()["error"]["message"]
        assert all(worker.live == 0 for worker in workers.values())


async def test_what_a_worker_wrote_before_it_died_is_scored_by_its_text() -> None:
    cut = replace(segment("large", "a b"), tokenizer="")
    transcript = replace(
        Transcript((Message("user", "?"),)).without_thought(), answer=Segments([cut]), done=True
    )
    response = ResponseAccumulator()
    response.completed = RequestCompleted(transcript, (), Metrics())
    large = scripted()
    await scorer("large-only", response, {"large": large}).answer()
    assert large.calls[0].args[0] == Segment("large", "a b")


class HasNoRoom(Scripted):
    """It cannot score a text that fills its context."""

    async def verify(self, call: Call, segment: Segment, *given: Any) -> Verification:
        if segment.text:
            raise ContextLengthExceeded("full", param="messages")
        return await super().verify(call, segment, *given)


def test_an_answer_that_fills_the_context_is_given_without_scores() -> None:
    with serving(service(large=HasNoRoom(story=STORY))) as url:
        body = {"model": "large-only", "logprobs": True}
        (choice,) = post(url, body).json()["choices"]
        assert choice["message"]["content"] == "The answer is 8."
        assert choice["logprobs"] is None
        assert "[DONE]" in post(url, {**body, "stream": True}).text
        body = {"model": "large-only", "prompt": "Twice 2+2?", "logprobs": 1}
        (choice,) = HTTP.post(f"{url}/v1/completions", json=body).json()["choices"]
        assert choice["text"]
        assert choice["logprobs"] is None

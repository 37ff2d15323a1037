"""The openai client, unmodified, against a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from orchestrator.efforts import TemplateEfforts
from orchestrator.errors import ConfigError, WorkerUnavailable
from orchestrator.http.apis.parameters import HINTS
from orchestrator.http.planning import ModelFacts
from orchestrator.http.routes.feedback import Feedback, reward
from orchestrator.http.settings import Patience
from orchestrator.types import StopCriteria, TokenPrices, Transcript
from tests.orchestrator.serving import (
    HTTP,
    STORY,
    client,
    post,
    scripted,
    service,
    serving,
    until,
)
from tests.workers.scripted import Say, Scripted

ASKED: list[Any] = [{"role": "user", "content": "Twice 2+2?"}]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(
        service(scripted(), scripted(scores=lambda trace: 9 if len(trace.thought) < 2 else 2))
    ) as url:
        yield url


def test_models(url: str) -> None:
    with client(url) as api:
        names = [model.id for model in api.models.list()]
        assert names[0] == "baton"
        assert {"small-only", "large-only", "specreason"} < set(names)
        assert api.models.retrieve("specreason").owned_by == "baton"
        with pytest.raises(openai.NotFoundError) as caught:
            api.models.retrieve("nonesuch")
        assert caught.value.code == "model_not_found"


def test_a_lossy_method_is_marked_wherever_a_model_is() -> None:
    labels = {"small": "chain", "large": "reflective (lossy)"}
    with serving(service(speculation=labels)) as lossy, client(lossy) as api:
        for card in (*api.models.list(), api.models.retrieve("large-only")):
            assert (card.model_extra or {})["speculation"] == labels
        reply: Any = api.chat.completions.create(model="large-only", messages=ASKED)
        extra = reply.model_extra["baton"]
        assert extra["speculation"] == labels
        kept = HTTP.get(f"{lossy}/v1/traces/{extra['trace_id']}").json()
        assert kept["speculation"] == labels


def test_a_request_may_name_the_large_workers_method() -> None:
    methods = {"vanilla": "vanilla", "reflective": "reflective (lossy)"}
    small, large = scripted(), scripted()
    made = service(small, large, methods=methods, speculation={"small": "x", "large": "vanilla"})
    with serving(made) as url:
        for card in HTTP.get(f"{url}/v1/models").json()["data"]:
            assert card["methods"] == [
                {"name": "vanilla", "lossy": False},
                {"name": "reflective", "lossy": True},
            ]
        for asked, used in ((None, "vanilla"), ("vanilla", "vanilla"), ("reflective", None)):
            body = {} if asked is None else {"speculation": asked}
            extra = post(url, {"model": "specreason", **body}).json()["baton"]
            assert extra["speculation"] == {"small": "x", "large": used or "reflective (lossy)"}
            heard = [h.call for h in large.calls if h.call.request == extra["trace_id"]]
            assert {call.speculation for call in heard} == {asked}
            kept = HTTP.get(f"{url}/v1/traces/{extra['trace_id']}").json()
            assert kept["overrides"] == ([] if asked is None else ["speculation"])
        for wrong, said in (
            ("chain", "offers vanilla, reflective"),
            (3, "must be a string, not 3"),
        ):
            refused = post(url, {"speculation": wrong}).json()["error"]
            assert said in refused["message"]
            assert refused["param"] == "speculation"
    assert not any(heard.call.speculation for heard in small.calls)


def test_completion(url: str) -> None:
    with client(url) as api:
        reply: Any = api.chat.completions.create(model="baton", messages=ASKED)
    message, extra = reply.choices[0].message, reply.model_extra["baton"]
    assert (message.content, message.reasoning_content) == ("The answer is 8.", STORY[0])
    assert not hasattr(message, "reasoning")  # clients that read both would show it twice
    assert "".join(step["text"] for step in extra["steps"] if step["accepted"]) == STORY[0]
    usage = reply.usage
    assert usage.completion_tokens_details.reasoning_tokens == 9  # the rejected draft's 5: never
    answered = sum(step["tokens"] for step in extra["answer_steps"])
    assert usage.completion_tokens == 9 + 1 + answered + 1  # both ends are tokens, as with OpenAI


def test_stream_says_the_same_in_pieces(url: str) -> None:
    asked: Any = {"model": "baton", "messages": ASKED}
    options = {"include_usage": True}
    with client(url) as api:
        whole: Any = api.chat.completions.create(**asked)
        stream = api.chat.completions.create(**asked, stream=True, stream_options=options)
        *said, last, usage = list[Any](stream)
    deltas = [chunk.choices[0].delta for chunk in said]
    assert "".join(delta.content or "" for delta in deltas) == "The answer is 8."
    thought = [(d.model_extra or {}).get("reasoning_content", "") for d in deltas]
    assert "".join(thought) == STORY[0]
    assert [chunk.choices[0].finish_reason for chunk in said] == [None] * len(said)
    assert last.choices[0].finish_reason == "stop"
    assert last.model_extra["baton"].keys() == whole.model_extra["baton"].keys()
    assert (usage.choices, usage.usage) == ([], whole.usage)


def test_a_reply_can_be_sent_back(url: str) -> None:
    with client(url) as api:
        first = api.chat.completions.create(model="baton", messages=ASKED).choices[0].message
        again: list[Any] = [*ASKED, first, {"role": "user", "content": "Sure?"}]
        reply = api.chat.completions.create(model="baton", messages=again)
    assert reply.choices[0].message.content == "The answer is 8."


def test_policy_parameters(url: str) -> None:
    def authors(**body: Any) -> list[str]:
        steps = post(url, body).json()["baton"]["steps"]
        return [step["author"] for step in steps if step["accepted"]]

    assert authors(policy={"threshold": 0}) == ["small", "small"]
    assert authors(model="specreason", policy={"threshold": 10}) == ["large", "large"]
    assert authors(policy={"name": "small-only"}) == ["small"]
    assert authors(model="large-only") == ["large"]


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_max_tokens(url: str, name: str) -> None:
    whole = post(url, {"model": "large-only"}).json()
    need = whole["usage"]["completion_tokens"]
    for spare in (0, 1, 10):
        reply = post(url, {name: need + spare, "model": "large-only"}).json()
        assert reply["choices"] == whole["choices"]
    for most in (4, need - 4, need - 1):
        reply = post(url, {name: most, "model": "large-only"}).json()
        assert reply["choices"][0]["finish_reason"] == "length"
        assert reply["usage"]["completion_tokens"] <= most


@pytest.mark.parametrize(
    "body",
    [
        {"policy": {"budget": 2}},
        {"thinking_token_budget": 2},
        {"thinking_token_budget": 2, "policy": {"budget": 3}, "max_tokens": 20},
        {"reasoning_effort": "low", "max_completion_tokens": 8},
        {"reasoning_effort": "low", "max_tokens": 8, "policy": {"budget": 7}},
        {"reasoning_effort": "minimal", "max_tokens": 100, "thinking_token_budget": 2},
        {"reasoning_effort": "high", "max_tokens": 800, "policy": {"budget": 2}},
        {"reasoning_effort": "max", "thinking_token_budget": -1, "policy": {"budget": 2}},
    ],
)
def test_thinking_budgets(url: str, body: dict[str, Any]) -> None:
    reply = post(url, {**body, "model": "large-only"}).json()
    assert reply["usage"]["completion_tokens_details"]["reasoning_tokens"] == 2
    assert reply["baton"]["forced"]
    assert reply["choices"][0]["message"]["content"] == "The answer is 8."
    assert reply["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("reader", ["small", "large", None])
@pytest.mark.parametrize(
    "asked",
    [
        {"reasoning_effort": "low"},
        {"chat_template_kwargs": {"thinking_effort": "low"}},
        {"chat_template_kwargs": {"reasoning_effort": "low"}, "reasoning_effort": "low"},
    ],
)
def test_an_effort_that_a_template_reads_is_no_budget(
    reader: str | None, asked: dict[str, Any]
) -> None:
    known = ModelFacts(efforts=TemplateEfforts("reasoning_effort", ("low", "high")))
    small, large = scripted(), scripted()
    with serving(service(small, large, facts={reader: known})) as url:
        reply = post(url, {**asked, "model": "specreason", "max_tokens": 16}).json()
    assert {call.call.transcript.effort for one in (small, large) for call in one.calls} == {"low"}
    assert reply["baton"]["forced"] == (reader is None)


def test_efforts_that_contradict_each_other_are_refused(url: str) -> None:
    body = {"reasoning_effort": "low", "chat_template_kwargs": {"thinking_effort": "high"}}
    reply = post(url, body)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "chat_template_kwargs"


def test_a_thought_that_goes_on_behind_its_budget_is_not_the_answer() -> None:
    def line(transcript: Transcript, criteria: StopCriteria) -> Say:
        if not transcript.closed:
            return Say("one two three four five")
        return Say("42", "eos") if transcript.reply_start else Say("so 40 and 2", "think_end")

    body = {"model": "large-only", "policy": {"budget": 3}}
    with serving(service(large=Scripted(line))) as url:
        whole = post(url, body).json()
        assert whole["choices"][0]["message"]["content"] == "42"
        assert whole["choices"][0]["message"]["reasoning_content"] == "one two three "
        assert whole["choices"][0]["finish_reason"] == "stop"
        assert whole["baton"]["forced"]
        assert [step["text"] for step in whole["baton"]["answer_steps"]] == ["so 40 and 2", "42"]
        assert whole["usage"]["completion_tokens_details"]["reasoning_tokens"] == 3
        assert whole["usage"]["completion_tokens"] == 3 + 5 + 2
        trace = HTTP.get(f"{url}/v1/traces/{whole['baton']['trace_id']}").json()
        assert trace["answer"] == "42"
        with client(url) as api:
            asked: Any = {"model": "large-only", "messages": ASKED, "stream": True}
            chunks = list(api.chat.completions.create(**asked, extra_body=body))
            shown = "".join(one.choices[0].delta.content or "" for one in chunks if one.choices)
            assert shown == "so 40 and 2\n\n42"  # what was sent stays
            given: Any = {"model": "large-only", "input": "40+2?", "extra_body": body}
            assert api.responses.create(**given).output_text == "42"
            events = list(api.responses.create(**given, stream=True))
            assert events[-1].response.output_text == shown


def test_money_needs_prices(url: str) -> None:
    body = {"model": "large-only", "policy": {"max_cost": 5e-5}}
    refused = post(url, body).json()["error"]
    assert (refused["param"], "names no prices" in refused["message"]) == ("policy.max_cost", True)
    with serving(service(prices=TokenPrices(small=1, large=10, prompt=0))) as priced:
        baton = post(priced, body).json()["baton"]
        steps = [(step["author"], step["tokens"]) for step in baton["steps"]]
        assert steps == [("large", 5), ("small", 4)]
        metrics = baton["metrics"]
        money = metrics["small_tokens"] * 1e-6 + metrics["large_tokens"] * 1e-5
        assert metrics["cost"] == pytest.approx(money)
        assert post(priced, {"model": "large-only", "policy": {"max_cost": -1}}).status_code == 400
        version = {"policy": "large-only", "params": {"max_cost": 5e-5}}
        assert HTTP.post(f"{priced}/v1/policies", json=version).status_code == 201


@pytest.mark.parametrize("body", [{"reasoning_effort": "none"}, {"thinking_token_budget": 0}])
def test_no_thought_at_all(body: dict[str, Any]) -> None:
    pair = [Scripted(story=("", PLAIN)) for _ in range(2)]
    with serving(service(*pair)) as url:
        for model in ("large-only", "specreason"):
            reply = post(url, {**body, "model": model}).json()
            assert reply["choices"][0]["message"]["content"] == PLAIN
            assert reply["choices"][0]["message"]["reasoning_content"] == ""
            assert reply["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0
            assert "".join(step["text"] for step in reply["baton"]["steps"]) == PLAIN
    heard = [call.call.transcript for worker in pair for call in worker.calls]
    assert not any(transcript.thinking for transcript in heard)


@pytest.mark.parametrize(
    ("field", "names"),
    [("reasoning", ["reasoning"]), ("both", ["reasoning", "reasoning_content"])],
)
def test_where_the_thought_is_held_is_a_setting(field: Any, names: list[str]) -> None:
    with serving(service(reasoning_field=field)) as url, client(url) as api:
        message: Any = post(url).json()["choices"][0]["message"]
        assert {name: message[name] for name in names} == dict.fromkeys(names, STORY[0])
        assert ("reasoning_content" in message) == ("reasoning_content" in names)
        chunks = api.chat.completions.create(model="baton", messages=ASKED, stream=True)
        deltas = [chunk.choices[0].delta.model_extra or {} for chunk in chunks]
        assert {name for delta in deltas for name in delta} == set(names)


def test_usage_with_every_chunk(url: str) -> None:
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    with client(url) as api:
        chunks: list[Any] = list(
            api.chat.completions.create(
                model="large-only", messages=ASKED, stream=True, stream_options=options
            )
        )
    first, *said, last, usage = chunks
    assert first.usage is None
    counts = [chunk.usage.completion_tokens for chunk in said]
    assert counts == sorted(counts)
    assert counts[-1] == usage.usage.completion_tokens - 2  # the ends are not shown
    assert {chunk.usage.prompt_tokens for chunk in said} == {usage.usage.prompt_tokens}
    assert last.usage == usage.usage


def test_models_say_how_long_a_prompt_may_be_and_follow_the_active_version() -> None:
    contexts = {"small": ModelFacts(512), "large": ModelFacts(1024)}
    with serving(service(facts=contexts)) as url, client(url) as api:
        lengths = {card.id: (card.model_extra or {})["max_model_len"] for card in api.models.list()}
        known = {"large-only": 1024, "small-only": 512, "specreason": 512, "baton": 512}
        assert lengths == lengths | known
        one: Any = api.models.retrieve("large-only")
        assert one.max_model_len == 1024
        HTTP.post(f"{url}/v1/policies", json={"policy": "large-only", "params": {}})
        HTTP.put(f"{url}/v1/policies/active", json={"version": "large-only@1"})
        until(lambda: HTTP.get(f"{url}/v1/models/baton").json()["max_model_len"] == 1024)
    with serving(service(facts={"small": None})) as url:
        assert HTTP.get(f"{url}/v1/models/baton").json()["max_model_len"] is None


def test_models_say_what_is_to_know_of_the_deployment() -> None:
    with serving(service(notes=("a toy",))) as url, client(url) as api:
        assert HTTP.get(f"{url}/v1/models").json()["notes"] == ["a toy"]
        assert list(api.models.list())


def test_a_model_that_still_loads_is_named_at_once() -> None:
    async def troubles() -> dict[str, str | None]:
        return {"small": None, "large": "its model loads"}

    with serving(service(facts={"large": None}, troubles=troubles)) as url:
        refused = post(url, {"model": "specreason"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "loading")
        assert "still load: large;" in refused.json()["error"]["message"]
        assert refused.headers["retry-after"]
        assert post(url, {"model": "small-only"}).status_code == 200
        assert "large" in HTTP.get(f"{url}/ready").json()["error"]["message"]


def test_parameters_of_a_single_model_reach_it_and_hold_for_thought_and_answer() -> None:
    large = scripted()
    with serving(service(large=large)) as url:
        body = {"model": "large-only", "min_tokens": 50, "max_tokens": 60, "ignore_eos": True}
        assert post(url, body).status_code == 200
    thought, answer = (call.args[0] for call in large.calls)
    assert thought.ignore_eos
    assert answer.ignore_eos
    assert thought.min_tokens == 50
    assert 0 < answer.min_tokens < 50  # the thought counts, and its end


def test_hints_pass_and_change_nothing(url: str) -> None:
    plain = post(url, {"model": "large-only"}).json()["choices"]
    named = [{"role": "user", "name": "ann", "content": ASKED[0]["content"]}]
    # `parallel_tool_calls` says something with tools alone.
    names = sorted(HINTS - {"parallel_tool_calls"})
    hints: list[Any] = [{name: value} for name in names for value in (True, "text", 3)]
    for hint in (*hints, {"messages": named}):
        assert post(url, {"model": "large-only", **hint}).json()["choices"] == plain


def test_a_system_message_alone(url: str) -> None:
    reply = post(url, {"messages": [{"role": "system", "content": "Say it."}]}).json()
    assert reply["choices"][0]["message"]["content"] == "The answer is 8."
    record = HTTP.get(f"{url}/v1/traces/{reply['baton']['trace_id']}").json()
    assert record["question"] == "Say it."


@pytest.mark.parametrize("model", ["large-only", "specreason"])
@pytest.mark.parametrize("stop", [[], ["."]])
def test_an_answer_that_is_begun_goes_on(model: str, stop: list[str]) -> None:
    def line(transcript: Transcript, criteria: StopCriteria) -> str:
        assert (transcript.thinking, transcript.messages[-1].role) == (False, "user")
        begun, *_ = transcript.answer
        assert (begun.author, begun.text) == ("policy", "The answer")
        return " is 8." if not criteria.until else " is 8.\n\n"

    pair = [Scripted(line) for _ in range(2)]
    turns: Any = [*ASKED, {"role": "assistant", "content": "The answer"}]
    more: Any = {"continue_final_message": True, "add_generation_prompt": False}
    with serving(service(*pair)) as url, client(url) as api:
        reply: Any = api.chat.completions.create(
            model=model, messages=turns, stop=stop, max_tokens=3, extra_body=more
        )
        said = " is 8" if stop else " is 8."
        assert reply.choices[0].message.content.startswith(said)
        assert reply.usage.prompt_tokens == 2
        chunks = api.chat.completions.create(
            model=model, messages=turns, stop=stop, max_tokens=3, extra_body=more, stream=True
        )
        told = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert told == reply.choices[0].message.content
        kept = HTTP.get(f"{url}/v1/traces/{reply.model_extra['baton']['trace_id']}").json()
        assert kept["question"] == ASKED[0]["content"]


def test_trace(url: str) -> None:
    body = {"user": "ann", "metadata": {"run": "7"}, "seed": 5}
    reply = post(url, body, headers={"x-request-id": "mine-1"})
    assert reply.headers["x-request-id"] == "mine-1"
    trace_id = reply.json()["baton"]["trace_id"]
    record = HTTP.get(f"{url}/v1/traces/{trace_id}").json()
    assert record["question"] == "Twice 2+2?"
    assert record["answer"] == "The answer is 8."
    assert [step["accepted"] for step in record["steps"]] == [True, False, True, True]
    assert record["parameters"]["threshold"] == 7.0
    assert record["sampling"]["seed"] == 5
    assert (record["status"], record["request_id"], record["user"]) == ("finished", "mine-1", "ann")
    assert record["metadata"] == {"run": "7"}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", {"messages": ASKED}),
        ("completions", {"prompt": "Twice 2+2?"}),
        ("responses", {"input": "Twice 2+2?"}),
    ],
)
def test_the_id_of_an_answer_finds_its_trace_and_takes_its_reward(
    url: str, path: str, body: dict[str, Any]
) -> None:
    reply = HTTP.post(f"{url}/v1/{path}", json={"model": "large-only", **body}).json()
    trace = HTTP.get(f"{url}/v1/traces/{reply['id']}")
    assert trace.json()["id"] == reply["baton"]["trace_id"]
    worth = {"trace_id": reply["id"], "reward": 1.0}
    assert HTTP.post(f"{url}/v1/feedback", json=worth).status_code == 200
    event = reward(Feedback(**worth), trace.json(), "0a1b2c3d")
    assert event.trace_id == reply["baton"]["trace_id"]
    assert event.key == "0a1b2c3d"


def test_request_ids(url: str) -> None:
    made = {HTTP.get(f"{url}/health").headers["x-request-id"] for _ in range(2)}
    assert len(made) == 2
    for bad in ("a b", "x" * 129, "<script>"):
        reply = HTTP.get(f"{url}/nowhere", headers={"x-request-id": bad})
        assert reply.headers["x-request-id"] != bad


def test_metrics(url: str) -> None:
    post(url)
    text = HTTP.get(f"{url}/metrics").text
    assert 'baton_requests_total{outcome="stop",policy="specreason"}' in text
    assert 'baton_http_responses_total{code="200"}' in text
    assert "baton_live_requests 0.0" in text


def test_a_silent_stream_pings() -> None:
    slow = service(scripted(delay=0.03), patience=Patience(ping_s=0.01))
    with serving(slow) as url:
        reply = post(url, {"stream": True})
        assert (reply.headers["cache-control"], reply.headers["x-accel-buffering"]) == (
            "no-cache",
            "no",
        )
        assert ": ping\n\n" in reply.text
        assert reply.text.endswith("data: [DONE]\n\n")
        with client(url) as api:
            stream = api.chat.completions.create(model="baton", messages=ASKED, stream=True)
            assert "".join(c.choices[0].delta.content or "" for c in stream) == "The answer is 8."


def test_readiness() -> None:
    pools = {"small": None, "large": "http://10.0.0.7: no such model"}

    async def troubles() -> dict[str, str | None]:
        if not pools:
            raise WorkerUnavailable("at 10.0.0.7")
        return {**pools}

    with serving(service(troubles=troubles)) as url:
        reply = HTTP.get(f"{url}/ready")
        assert (reply.status_code, reply.json()["workers"]) == (
            503,
            {"small": True, "large": False},
        )
        assert reply.headers["retry-after"]
        assert reply.json()["error"]["code"] == "not_ready"
        assert reply.json()["reasons"] == {"large": pools["large"]}
        assert "large: http://10.0.0.7: no such model" in reply.json()["error"]["message"]
        assert HTTP.get(f"{url}/health").status_code == 200
        pools["large"] = None
        state = {"workers": {"small": True, "large": True}, "store": True, "degraded": False}
        assert HTTP.get(f"{url}/ready").json() == {"ready": True, **state}
        pools.clear()
        reply = HTTP.get(f"{url}/ready")
        assert reply.status_code == 503
        assert "10.0.0.7" not in reply.text


@pytest.mark.parametrize("trace_id", ["nonesuch", "a%20b", "x" * 200, "%00", "a%2Fb"])
def test_a_trace_that_is_not_there(url: str, trace_id: str) -> None:
    reply = HTTP.get(f"{url}/v1/traces/{trace_id}")
    assert reply.status_code == 404
    assert reply.json()["error"]["code"].endswith("not_found")


def test_deployment_defaults() -> None:
    made = service(params={"specreason": {"threshold": 0}}, default="large-only")
    with serving(made) as url:
        assert post(url).json()["baton"]["policy"] == "large-only"
        steps = post(url, {"model": "specreason"}).json()["baton"]["steps"]
        assert {step["author"] for step in steps} == {"small"}
        steps = post(url, {"model": "specreason", "policy": {"threshold": 10}}).json()["baton"]
        assert "large" in {step["author"] for step in steps["steps"]}


@pytest.mark.parametrize(
    "wrong",
    [
        {"default": "nonesuch"},
        {"params": {"nonesuch": {}}},
        {"params": {"specreason": {"threshold": 11}}},
    ],
)
def test_wrong_defaults_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        service(**wrong)


PLAIN = "First, 2+2 is 4.\n\nSo twice that is 8."


@pytest.mark.virtual_time
async def test_metrics_that_are_asked_for_at_once_are_read_once() -> None:
    made = service()
    readings = 0

    async def scrape() -> bytes:
        nonlocal readings
        readings += 1
        await asyncio.sleep(0.01)
        if readings == 2:
            raise RuntimeError("no replica")
        return b"reading %d" % readings

    made.scrape = scrape
    left = asyncio.create_task(made.metrics_text())
    others = [asyncio.create_task(made.metrics_text()) for _ in range(3)]
    await asyncio.sleep(0)
    left.cancel()
    assert await asyncio.gather(*others) == [b"reading 1"] * 3
    failed = await asyncio.gather(*(made.metrics_text() for _ in range(2)), return_exceptions=True)
    assert list(map(str, failed)) == ["no replica"] * 2
    assert await made.metrics_text() == b"reading 3"

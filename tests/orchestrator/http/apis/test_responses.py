"""`POST /v1/responses` with the official client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from orchestrator.errors import WorkerUnavailable
from tests.orchestrator.http.tools.test_offered import FORMAT
from tests.orchestrator.http.tools.test_offered import worker as tool_worker
from tests.orchestrator.serving import HTTP, client, scripted, service, serving
from tests.workers.scripted import Scripted, words

ASKED = "Twice 2+2?"
ANSWER = "The answer is 8."
BOTH = {"reasoning", "message"}
CUTS = {1: BOTH, 2: BOTH, 4: {"message"}, 10: {"message"}, 15: {"message"}, 16: set()}
"""Which items of an answer in so many tokens are incomplete."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(service()) as url:
        yield url


def create(url: str, **body: Any) -> Any:
    with client(url) as api:
        return api.responses.create(**{"model": "specreason", "input": ASKED, **body})


def stream(url: str, **body: Any) -> list[Any]:
    with client(url) as api:
        return list(
            api.responses.create(**{"model": "specreason", "input": ASKED, **body}, stream=True)
        )


def test_a_conversation() -> None:
    large = scripted()
    with serving(service(large=large)) as url, client(url) as api:
        first = api.responses.create(model="large-only", input=ASKED, instructions="Be brief.")
        turns: Any = [
            {"role": "developer", "content": "Be kind."},
            {"role": "user", "content": [{"type": "input_text", "text": ASKED}]},
            *(item.model_dump() for item in first.output),  # as they came, reasoning and all
            {"type": "message", "role": "user", "content": "Sure?"},
        ]
        again = api.responses.create(model="large-only", input=turns, instructions="Be brief.")
    assert again.output_text == ANSWER
    heard = large.calls[-1].call.transcript.messages
    assert [(message.role, message.content) for message in heard] == [
        ("system", "Be brief."),
        ("system", "Be kind."),
        ("user", ASKED),
        ("assistant", ANSWER),
        ("user", "Sure?"),
    ]


def test_caps_and_efforts(url: str) -> None:
    cut = create(url, model="large-only", max_output_tokens=6)
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert cut.usage.output_tokens <= 6
    assert stream(url, model="large-only", max_output_tokens=6)[-1].type == "response.incomplete"
    for budget, cut in CUTS.items():
        states = {kind: "incomplete" if kind in cut else "completed" for kind in BOTH}
        whole = create(url, model="large-only", max_output_tokens=budget)
        last = stream(url, model="large-only", max_output_tokens=budget)[-1].response
        for reply in (whole, last):
            assert {item.type: item.status for item in reply.output} == states, budget
    low = create(url, model="large-only", max_output_tokens=8, reasoning={"effort": "low"})
    assert low.usage.output_tokens_details.reasoning_tokens == 2
    assert low.model_extra["baton"]["forced"]
    assert (low.status, low.output_text) == ("completed", ANSWER)


def test_hints_pass(url: str) -> None:
    reply = create(
        url,
        store=True,
        include=["reasoning.encrypted_content"],
        truncation="disabled",
        parallel_tool_calls=True,
        service_tier="auto",
        text={"format": {"type": "text"}, "verbosity": "low"},
        reasoning={"summary": "auto"},
        tools=[],
        tool_choice="auto",
        user="ann",
    )
    assert reply.output_text == ANSWER
    assert reply.store is False  # nothing is


FUNCTION = {"type": "function", "name": "add", "parameters": {}}
CALLED = {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}"}
GIVEN_BACK = {"type": "function_call_output", "call_id": "c", "output": "5"}
TEXT = {"type": "input_text", "text": "hi"}


def items(*given: Any) -> dict[str, Any]:
    """An `input` of a question and what follows it."""
    return {"input": [{"role": "user", "content": ASKED}, *given]}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": [FUNCTION]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        (
            {"text": {"format": {"type": "json_schema", "schema": {"type": "strin"}}}},
            "text.format.schema",
        ),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tools": [FUNCTION, FUNCTION]}, "tools"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "b"}}, "tool_choice"),
        (items({"type": "function_call", "call_id": "c", "name": "add"}), "input[1].arguments"),
        (items(CALLED | {"arguments": "[" * 90 + "]" * 90}), "input[1].arguments"),
        (items(CALLED | {"name": "a<"}), "input[1].name"),
        (items(CALLED | {"call_id": ""}), "input[1].call_id"),
        (
            {"tools": [{**FUNCTION, "strict": True, "parameters": {"not": {}}}]},
            "tools[0].parameters",
        ),
        ({"reasoning": {"effort": "much"}}, "reasoning.effort"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 10**6}, "max_output_tokens"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"n": 2}, "n"),
        ({"messages": []}, "messages"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": None}, "input"),
        (items("hi"), "input[1]"),
        (items({"role": "tool", "content": "hi"}), "input[1].role"),
        (items({"role": "user", "content": 5}), "input[1].content"),
        (items({"role": "user", "content": None}), "input[1].content"),
        (
            items({"role": "user", "content": [TEXT, {"type": "input_image"}]}),
            "input[1].content[1]",
        ),
        (items({"role": "user", "content": [{**TEXT, "text": 5}]}), "input[1].content[0].text"),
        (items({"role": "user", "content": "hi", "mood": "glad"}), "input[1].mood"),
        (items({"type": "reasoning", "summary": [5]}), "input[1].summary[0]"),
        ({"input": [{"role": "assistant", "content": "hi"}]}, "input"),
        (items({"type": "function_call_output", "output": "5"}), "input[1].call_id"),
        (items(CALLED, {**GIVEN_BACK, "call_id": "other"}), "input[2].call_id"),
        (items(CALLED, {**GIVEN_BACK, "output": 5}), "input[2].output"),
        (items({"type": "item_reference", "id": "msg_1"}), "input[1]"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_refused_by_name(url: str, body: dict[str, Any], param: str) -> None:
    given = {"model": "specreason", "input": ASKED, **body}
    reply = HTTP.post(f"{url}/v1/responses", json=given)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"].startswith(param)
    assert reply.json()["error"]["message"].startswith(param)


ADD: Any = {
    "type": "function",
    "name": "add",
    "description": "Adds two numbers.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    "strict": True,
}


@pytest.mark.parametrize("streamed", [False, True])
def test_what_the_clients_own_helpers_give_back_can_be_sent_again(streamed: bool) -> None:
    body: Any = {"model": "large-only", "tools": [ADD]}
    turns: list[Any] = [{"role": "user", "content": "What is 2 + 3?"}]
    with serving(service(tool_worker(), tool_worker())) as url, client(url) as api:
        if streamed:
            with api.responses.stream(input=turns, **body) as made:
                first = made.get_final_response()
        else:
            first = api.responses.parse(input=turns, **body)
        call = first.output[-1]
        assert call.type == "function_call"
        assert call.parsed_arguments == {"a": 2, "b": 3}
        turns += [item.model_dump() for item in first.output]
        turns.append({"type": "function_call_output", "call_id": call.call_id, "output": "5"})
        second = api.responses.create(input=turns, **body)
    assert second.output_text == "It is 5."


def test_a_model_reads_of_tools_what_it_reads_in_chat_completions() -> None:
    large = tool_worker()
    with serving(service(tool_worker(), large)) as url, client(url) as api:
        create(url, model="large-only", tools=[FUNCTION])
        flat = {key: value for key, value in FUNCTION.items() if key != "type"}
        tools: Any = [{"type": "function", "function": flat}]
        asked: Any = [{"role": "user", "content": ASKED}]
        api.chat.completions.create(model="large-only", messages=asked, tools=tools)
    ours, theirs = (each.call.transcript.messages for each in (large.calls[0], large.calls[-1]))
    assert ours == theirs


def test_the_form_of_the_answer_reaches_its_writer() -> None:
    large = scripted()
    schema = {"type": "object", "properties": {}}
    form = {"type": "json_schema", "name": "a", "schema": schema, "strict": True}
    with serving(service(large=large)) as url:
        reply = create(url, model="large-only", text={"format": form})
    assert reply.text.format.type == "json_schema"
    held = large.calls[-1].call.constraint
    assert held is not None
    assert (held.kind, json.loads(held.source)) == ("json_schema", schema)


def test_a_stream_that_breaks_off_ends_in_an_error() -> None:
    large = scripted(deaths={0: 3}, failures={1: WorkerUnavailable("gone")})
    with serving(service(large=large)) as url:
        body = {"model": "large-only", "input": ASKED, "stream": True}
        *_, last, end = HTTP.post(f"{url}/v1/responses", json=body).text.split("\n\n")
    assert end == ""
    told = json.loads(last.removeprefix("event: error\ndata: "))
    assert (told["type"], told["code"]) == ("error", "worker_unavailable")
    large = scripted(deaths={0: 3}, failures={1: WorkerUnavailable("gone")})
    with (
        serving(service(large=large)) as url,
        pytest.raises(openai.APIError, match="the large worker is not available"),
    ):
        stream(url, model="large-only")


LOOK_UP: Any = {"type": "function", "name": "look_up", "parameters": {}}
NATIVE = """Both.
<tool_call>
{"name": "add", "arguments": {"a": 2, "b": 3}}
</tool_call>
<tool_call>
{"name": "look_up", "arguments": {"key": "x"}}
</tool_call>"""
FENCED = """Both.
```json
[{"name": "add", "arguments": {"a": 2, "b": 3}}, {"name": "look_up", "arguments": {"key": "x"}}]
```"""
CALLS = [("add", {"a": 2, "b": 3}), ("look_up", {"key": "x"})]


@pytest.mark.parametrize("answer", [NATIVE, FENCED])
@pytest.mark.parametrize("delay", [0.0, 0.002])  # in one batch, and piece by piece
def test_each_of_several_calls_has_its_own_name_and_id(answer: str, delay: float) -> None:
    large = Scripted(story=("I call both.", answer), call_format=FORMAT, delay=delay)
    body: Any = {"model": "large-only", "tools": [{**ADD, "strict": False}, LOOK_UP]}
    with serving(service(tool_worker(), large)) as url:
        whole, events = create(url, **body), stream(url, **body)
        with client(url) as api, api.responses.stream(input=ASKED, **body) as made:
            assembled = made.get_final_response()
    replies = [whole, events[-1].response, assembled]
    for reply in replies:
        assert [item.type for item in reply.output[:2]] == ["reasoning", "message"]
        calls = reply.output[2:]
        assert [(call.name, json.loads(call.arguments)) for call in calls] == CALLS
        assert len({call.id for call in calls}) == len({call.call_id for call in calls}) == 2
        assert all(call.id.removeprefix("fc_") in call.call_id for call in calls)
    final = events[-1].response.output
    begun = [event.item for event in events if event.type == "response.output_item.added"]
    ended = [event.item for event in events if event.type == "response.output_item.done"]
    assert [item.id for item in begun] == [item.id for item in final]
    assert [item.model_dump() for item in ended] == [item.model_dump() for item in final]
    written = dict.fromkeys((item.id for item in final[2:]), "")
    for event in events:
        if event.type == "response.function_call_arguments.delta":
            written[event.item_id] += event.delta
    assert list(written.values()) == [item.arguments for item in final[2:]]
    told = [event for event in events if event.type == "response.function_call_arguments.done"]
    assert [(event.name, event.item_id) for event in told] == [(c.name, c.id) for c in final[2:]]


@pytest.mark.parametrize("streamed", [False, True])
def test_of_what_a_cap_cuts_the_last_item_alone_is_incomplete(streamed: bool) -> None:
    large = Scripted(story=("I call both.", NATIVE), call_format=FORMAT)
    body: Any = {"model": "large-only", "tools": [ADD, LOOK_UP], "policy": {"answer_reserve": 0}}
    tokens = len(words("I call both.")) + 1  # and the end of the thought
    states = {}
    with serving(service(tool_worker(), large)) as url, client(url) as api:
        for cap in range(tokens + 1, tokens + len(words(NATIVE))):
            given = {"input": ASKED, "max_output_tokens": cap, **body}
            policy = {"policy": given.pop("policy")}
            reply = api.responses.create(**given, stream=streamed, extra_body=policy)
            final = list(reply)[-1].response if streamed else reply
            assert final.status == "incomplete"
            shown = [(item.type, item.status) for item in final.output[1:]]
            states[NATIVE[: len("".join(words(NATIVE)[: cap - tokens]))]] = shown
            assert all(state == "completed" for _, state in shown[:-1]), shown
    whole, cut = ("function_call", "completed"), ("function_call", "incomplete")
    message = ("message", "completed")
    for text, shown in states.items():
        if text.rstrip().endswith('{"a": 2,'):
            assert shown == [message, cut]
        if text.rstrip().endswith("3}}") or text.rstrip().endswith('{"key":'):
            assert shown[1] == whole
            assert shown[2:] in ([], [cut])

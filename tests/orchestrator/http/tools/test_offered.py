"""Tools over HTTP, with the official client: whole agent loops, streams, bad input."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from openai import BadRequestError, OpenAI, pydantic_function_tool
from pydantic import BaseModel

from orchestrator.grammar import lark
from orchestrator.http.app import create_app
from orchestrator.http.settings import Patience
from orchestrator.types import ArgumentFormat, CallFormat, StopCriteria, Transcript
from tests.orchestrator.serving import HTTP, client, service, serving
from tests.workers.scripted import Say, Scripted

FORMAT = CallFormat(
    '<tool_call>\n{"name": "',
    '", "arguments": ',
    "}\n</tool_call>",
    '}\n</tool_call>\n<tool_call>\n{"name": "',
)
ADD: Any = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}
LOOK_UP: Any = {"type": "function", "function": {"name": "look_up"}}
QUESTION = {"role": "user", "content": "What is 2 + 3?"}


def agent(transcript: Transcript, criteria: StopCriteria) -> str:
    """Thinks, calls `add`, and answers with what it gave back."""
    if not transcript.closed:
        return "I should add.\n\n" if not transcript.thought else "So I call it."
    last = transcript.messages[-1]
    if last.role == "tool":
        return f"It is {last.content}."
    return 'Let me see.\n<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'


def worker(**settings: Any) -> Scripted:
    return Scripted(agent, call_format=FORMAT, **settings)


@contextmanager
def api(small: Scripted | None = None, large: Scripted | None = None) -> Iterator[OpenAI]:
    made = service(small or worker(), large or worker())
    with serving(made) as url, client(url) as official:
        yield official


@pytest.fixture(scope="module")
def official() -> Iterator[OpenAI]:
    with api() as made:
        yield made


CALLED = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'
OTHER = CALLED.replace("2", "4")
MENTION = f"I could write {CALLED}, but no."


def in_thought(thought: str, finish: Any, answer: str | None) -> Scripted:
    """Thinks so, and then answers so."""

    def line(transcript: Transcript, criteria: StopCriteria) -> Say:
        if transcript.closed:
            assert answer is not None
            return Say(answer, "eos")
        rest = thought.removeprefix(transcript.thought.text())
        step, blank, _ = rest.partition("\n\n")
        return Say(step + blank, "until") if blank and criteria.until else Say(rest, finish)

    return Scripted(line, call_format=FORMAT)


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize(
    "leftover", [f"maybe {OTHER} no.", "so:\n```json\n", f"maybe {OTHER[:45]}", f"{OTHER}\n{OTHER}"]
)
def test_calls_in_a_thought_that_goes_on_behind_its_budget_are_none(
    leftover: str, parallel: bool
) -> None:
    def line(transcript: Transcript, criteria: StopCriteria) -> Say:
        if not transcript.closed:
            return Say("one two three four five")
        return Say(CALLED, "eos") if transcript.reply_start else Say(leftover, "think_end")

    with api(large=Scripted(line, call_format=FORMAT)) as official:
        body: Any = {"model": "large-only", "extra_body": {"policy": {"budget": 3}}}
        body |= {"parallel_tool_calls": parallel}
        chat: Any = {**body, "messages": [QUESTION], "tools": [ADD]}
        whole = official.chat.completions.create(**chat).choices[0].message.tool_calls
        with official.chat.completions.stream(**chat) as made:
            streamed = made.get_final_completion().choices[0].message.tool_calls
        tools = [{"type": "function", **ADD["function"]}]
        given: Any = {**body, "input": "2+3?", "tools": tools}
        responses = [official.responses.create(**given).output]
        *_, last = official.responses.create(**given, stream=True)
        responses.append(last.response.output)
    for calls in (whole, streamed):
        assert [json.loads(call.function.arguments) for call in calls or ()] == [{"a": 2, "b": 3}]
        assert [call.id.rpartition("_")[2] for call in calls or ()] == ["0"]
    for output in responses:
        found = [json.loads(one.arguments) for one in output if one.type == "function_call"]
        assert found == [{"a": 2, "b": 3}]


@pytest.mark.parametrize(
    ("thought", "finish", "answer", "calls"),
    [
        (f"I should add.\n\n{CALLED}", "eos", None, [(2, 3)]),
        (f"I should add.\n\n{CALLED}\n{OTHER}\n", "eos", None, [(2, 3), (4, 3)]),
        (f"{MENTION}\n\nBut yes: {CALLED}", "eos", None, [(2, 3)]),
        (f"I should add.\n\n{CALLED}", "think_end", "", [(2, 3)]),
        (f"I should add.\n\n{CALLED}", "think_end", "It is 5.", []),
        (MENTION, "eos", "It is 5.", []),
        (f"As in `{CALLED}`", "eos", "It is 5.", []),
        (CALLED[:45], "eos", "It is 5.", []),  # not whole
        (CALLED.replace("add", "rob"), "eos", "It is 5.", []),  # no tool
    ],
)
def test_a_call_that_ends_a_thought_and_the_turn(
    thought: str, finish: Any, answer: str | None, calls: list[tuple[int, int]]
) -> None:
    expected = (calls, "" if calls else answer)
    with api(*(in_thought(thought, finish, answer) for _ in range(2))) as official:
        for policy in ("large-only", "specreason"):
            asked: Any = {"model": policy, "messages": [QUESTION], "tools": [ADD]}
            whole = official.chat.completions.create(**asked)
            with official.chat.completions.stream(**asked) as made:
                streamed = made.get_final_completion()
            for completion in (whole, streamed):
                choice: Any = completion.choices[0]
                made_calls = [call.function.arguments for call in choice.message.tool_calls or []]
                assert choice.finish_reason == ("tool_calls" if calls else "stop")
                assert (values(made_calls), choice.message.content or "") == expected
            named = {"type": "function", **ADD["function"]}
            given: Any = {"model": policy, "input": "2 + 3?", "tools": [named]}
            *_, last = official.responses.create(**given, stream=True)
            for reply in (official.responses.create(**given), last.response):
                found = [item.arguments for item in reply.output if item.type == "function_call"]
                assert (values(found), reply.output_text) == expected


def values(arguments: list[str]) -> list[tuple[Any, ...]]:
    return [tuple(json.loads(one).values()) for one in arguments]


@pytest.mark.parametrize("stop", [None, ["</tool_call>"], ["}}"]])
def test_a_stream_ends_as_the_whole_answer_does(official: OpenAI, stop: list[str] | None) -> None:
    body: Any = {"model": "large-only", "messages": [QUESTION], "tools": [ADD], "stop": stop}
    whole = official.chat.completions.create(**body).choices[0]
    chunks = [
        chunk.choices[0]
        for chunk in official.chat.completions.create(**body, stream=True)
        if chunk.choices
    ]
    streamed = any(chunk.delta.tool_calls for chunk in chunks)
    assert chunks[-1].finish_reason == whole.finish_reason
    assert streamed == bool(whole.message.tool_calls) == (whole.finish_reason == "tool_calls")


def test_a_stream_that_goes_on_with_an_answer_is_the_whole_one_too() -> None:
    def goes_on(transcript: Transcript, criteria: StopCriteria) -> str:
        call = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'
        return f" that up.\n{call}" if transcript.closed else "Let me see."

    with api(Scripted(goes_on, call_format=FORMAT), Scripted(goes_on, call_format=FORMAT)) as one:
        begun = {"role": "assistant", "content": "Let me look"}
        body: Any = {"model": "large-only", "messages": [QUESTION, begun], "tools": [ADD]}
        more = {"continue_final_message": True, "add_generation_prompt": False}
        whole = one.chat.completions.create(**body, extra_body=more).choices[0].message
        chunks = one.chat.completions.create(**body, extra_body=more, stream=True)
        told = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert whole.tool_calls
    assert whole.content == told.rstrip() == " that up."


def test_a_stream_pings_while_what_comes_cannot_be_shown_yet() -> None:
    """An argument between tags is shown once it is whole, however long that takes."""
    tagged = CallFormat(
        "<tool_call>\n<function=",
        ">\n",
        "</function>\n</tool_call>",
        "</function>\n</tool_call>\n<tool_call>\n<function=",
        each=ArgumentFormat("<parameter=", ">\n", "\n</parameter>\n"),
    )
    text = "word " * 40

    def writes(transcript: Transcript, criteria: StopCriteria) -> str:
        if not transcript.closed:
            return "I should write."
        value = f"<parameter=text>\n{text}\n</parameter>\n"
        return f"<tool_call>\n<function=look_up>\n{value}</function>\n</tool_call>"

    slow = [Scripted(writes, call_format=tagged, delay=0.005) for _ in range(2)]
    body = {"model": "large-only", "messages": [QUESTION], "tools": [LOOK_UP], "stream": True}
    with serving(service(*slow, patience=Patience(ping_s=0.05))) as url:
        reply = HTTP.post(f"{url}/v1/chat/completions", json=body).text
    assert text.strip() in reply
    assert ": ping" in reply


def test_what_models_are_shown() -> None:
    large = worker()
    turns: list[Any] = [
        QUESTION,
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "I should add.",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "5"}]},
    ]
    with api(large=large) as official:
        official.chat.completions.create(model="large-only", messages=turns, tools=[ADD])
        official.chat.completions.create(
            model="large-only", messages=[QUESTION], tools=[ADD], tool_choice="none"
        )
    tools, user, assistant, tool = large.calls[0].call.transcript.messages
    assert (tools.role, json.loads(tools.content)) == ("tools", [ADD])
    assert user.content == "What is 2 + 3?"
    (call,) = assistant.calls
    assert (call.id, call.name, call.arguments) == ("c1", "add", "{}")
    assert assistant.reasoning == "I should add."
    assert (tool.role, tool.content, tool.call_id) == ("tool", "5", "c1")
    assert [m.role for m in large.calls[-1].call.transcript.messages] == ["user"]


def test_models_are_shown_what_a_client_left_out_of_a_tool() -> None:
    """Templates add descriptions to texts and go through properties (Hermes 2 Pro)."""
    large = worker()
    with api(large=large) as official:
        official.chat.completions.create(model="large-only", messages=[QUESTION], tools=[LOOK_UP])
    (tool,) = json.loads(large.calls[0].call.transcript.messages[0].content)
    assert tool["function"] == {
        "name": "look_up",
        "description": "",
        "parameters": {"type": "object", "properties": {}},
    }


@pytest.mark.parametrize("blank", ["", " \n"])
def test_earlier_calls_without_arguments_and_what_they_gave_back_by_name(blank: str) -> None:
    large = worker()
    turns: list[Any] = [QUESTION]
    for name in ("look_up", "add"):  # one id twice, as some models number their calls
        call = {"id": "c0", "type": "function", "function": {"name": name, "arguments": blank}}
        turns += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c0", "content": "5"},
        ]
    with api(large=large) as official:
        official.chat.completions.create(model="large-only", messages=turns, tools=[ADD, LOOK_UP])
    heard = large.calls[0].call.transcript.messages[2:]
    assert [(turn.role, turn.name) for turn in heard if turn.role == "tool"] == [
        ("tool", "look_up"),
        ("tool", "add"),
    ]
    assert [call.arguments for turn in heard for call in turn.calls] == ["{}", "{}"]


class Add(BaseModel):
    a: int
    b: int


@pytest.mark.parametrize("streamed", [False, True])
def test_what_the_clients_own_helpers_give_back_can_be_sent_again(
    official: OpenAI, streamed: bool
) -> None:
    body: Any = {"model": "large-only", "tools": [pydantic_function_tool(Add, name="add")]}
    messages: list[Any] = [QUESTION]
    if streamed:
        with official.chat.completions.stream(messages=messages, **body) as stream:
            first = stream.get_final_completion().choices[0].message
    else:
        first = official.chat.completions.parse(messages=messages, **body).choices[0].message
    assert first.tool_calls is not None
    assert first.tool_calls[0].function.parsed_arguments == Add(a=2, b=3)
    result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "5"}
    for sent in (first, first.model_dump(), first.model_dump(exclude_unset=True)):
        second = official.chat.completions.create(messages=[*messages, sent, result], **body)
        assert second.choices[0].message.content == "It is 5."


def test_a_model_without_a_place_for_tools_is_refused() -> None:
    with (
        api(Scripted(agent), Scripted(agent)) as official,
        pytest.raises(BadRequestError) as caught,
    ):
        official.chat.completions.create(model="large-only", messages=[QUESTION], tools=[ADD])
    assert "tools" in str(caught.value)


def test_a_pair_of_different_forms_is_refused() -> None:
    other = CallFormat('{"name": "', '", "parameters": ', "}")
    with (
        api(large=Scripted(agent, call_format=other)) as official,
        pytest.raises(BadRequestError) as caught,
    ):
        official.chat.completions.create(model="specreason", messages=[QUESTION], tools=[ADD])
    assert "different forms" in str(caught.value)


def wide_tool(i: int, **more: Any) -> dict[str, Any]:
    """A tool whose schema has many words about 8 arguments."""
    about = {"description": "what is meant by it, in words " * 8}
    properties = {
        f"a{i}_{k}": {"enum": [f"{k}{one}" for one in "abcdefgh"], **about} for k in range(8)
    }
    parameters = {"type": "object", "properties": properties, **about}
    return {"type": "function", "function": {"name": f"tool{i}", "parameters": parameters, **more}}


def test_as_many_tools_as_there_may_be() -> None:
    large = worker()
    with api(large=large) as official:
        tools: Any = [*map(wide_tool, range(127)), ADD]
        answer = official.chat.completions.create(
            model="large-only",
            messages=[QUESTION],  # type: ignore[list-item]
            tools=tools,
        )
    assert answer.choices[0].finish_reason == "tool_calls"
    constraint = large.calls[-1].call.constraint
    assert constraint is not None
    held = lark(constraint, FORMAT)
    assert '"tool126"' in held
    assert "126_7" in held
    assert "in words" not in held
    assert "in words" in large.calls[-1].call.transcript.messages[0].content


async def test_others_do_not_wait_while_schemas_are_read() -> None:
    """By counting how often the event loop turns until the last of them is refused."""
    wrong = wide_tool(227, strict=True)
    wrong["function"]["parameters"]["not"] = {}
    tools, turns = [*map(wide_tool, range(200, 227)), wrong], 0
    transport = httpx.ASGITransport(create_app(service()))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        body = {"model": "large-only", "messages": [QUESTION], "tools": tools}
        asked = asyncio.create_task(http.post("/v1/chat/completions", json=body))
        while not asked.done():
            await asyncio.sleep(0)
            turns += 1
    assert asked.result().json()["error"]["param"] == "tools[27].function.parameters"
    assert turns > 200


CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
DEEP = {**CALL, "function": {"name": "add", "arguments": '{"a":' * 90 + "1" + "}" * 90}}
RESULT = {"role": "tool", "content": "5", "tool_call_id": "c1"}


def function(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


NEVER = function("b", strict=True, parameters={"not": {}})
BAD: list[tuple[dict[str, Any], str]] = [
    ({"tools": [{"type": "web_search"}]}, "tools[0]"),
    ({"tools": [function("a b")]}, "tools[0].function.name"),
    ({"tools": [ADD, ADD]}, "tools"),
    ({"tools": [ADD] * 200}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [ADD], "tool_choice": "maybe"}, "tool_choice"),
    ({"tools": [ADD], "tool_choice": function("sub")}, "tool_choice"),
    (
        {"tools": [function("a", strict=True, parameters={"type": "strin"})]},
        "tools[0].function.parameters",
    ),
    ({"tools": [ADD, NEVER], "tool_choice": function("b")}, "tools[1].function.parameters"),
    ({"tools": [ADD], "ignore_eos": True}, "ignore_eos"),
    ({"tools": [ADD], "structured_outputs": {"regex": "a+"}}, "tools"),
    ({"functions": [{"name": "add"}]}, "functions"),
    ({"messages": [QUESTION, {"role": "tool", "content": "5"}]}, "messages[1].tool_call_id"),
    ({"messages": [QUESTION, {**RESULT, "name": "add"}]}, "messages[1].tool_call_id"),
    ({"messages": [{**QUESTION, "tool_calls": [CALL]}, QUESTION]}, "messages[0].tool_calls"),
    ({"messages": [QUESTION, {"role": "assistant"}, QUESTION]}, "messages[1].content"),
    ({"messages": [{"role": "function", "content": "5", "name": "add"}]}, "messages[0].role"),
    (
        {"messages": [QUESTION, {"role": "assistant", "tool_calls": [DEEP]}, RESULT]},
        "messages[1].tool_calls[0].function.arguments",
    ),
]


@pytest.mark.parametrize(("body", "place"), BAD, ids=range(len(BAD)))
def test_bad_input_is_named(official: OpenAI, body: dict[str, Any], place: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        official.chat.completions.create(
            **{"model": "large-only", "messages": [QUESTION]},
            extra_body=body,
        )
    error: Any = caught.value.body
    assert error["param"].startswith(place)
    assert error["message"]

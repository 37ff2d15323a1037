"""Agent loops and structured answers over the real pair, shared between both models.

The large model writes the right calls, if left to itself in fenced blocks instead of the tags that
its template teaches; one that is required is held to the tags.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai import OpenAI

SYSTEM = {"role": "system", "content": "You are a helpful assistant. Use the tools for sums."}
QUESTION = {"role": "user", "content": "What is 1234 plus 4321? Use the tool."}
ADD: Any = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two whole numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
            "additionalProperties": False,
        },
    },
}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
POLICIES = ["large-only", "small-only", "specreason", "speculative-thinking"]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_an_agent_loop(pair: OpenAI, policy: str, choice: Any) -> None:
    messages: list[Any] = [SYSTEM, QUESTION]
    first = pair.chat.completions.create(
        model=policy, messages=messages, tools=[ADD], tool_choice=choice, max_tokens=120
    ).choices[0]
    if choice == "auto" and not first.message.tool_calls:
        assert first.message.content  # a model may answer by itself
        return
    assert first.finish_reason == "tool_calls"
    messages.append(first.message.model_dump(exclude_none=True))
    for call in first.message.tool_calls or []:
        assert call.type == "function"
        assert call.function.name == "add"
        arguments = json.loads(call.function.arguments)
        assert {type(value) for value in arguments.values()} == {int}
        messages.append(
            {"role": "tool", "tool_call_id": call.id, "content": str(sum(arguments.values()))}
        )
    last = pair.chat.completions.create(
        model=policy, messages=messages, tools=[ADD], tool_choice="none", max_tokens=80
    ).choices[0]
    assert last.message.content
    if choice == "required" and policy == "large-only":
        assert "5555" in last.message.content.replace(",", "")


@pytest.mark.parametrize("policy", POLICIES)
def test_an_answer_in_a_schema(pair: OpenAI, policy: str) -> None:
    messages: Any = [
        {"role": "user", "content": "Ada is thirty-six years old. Who is she, in JSON?"}
    ]
    answer = pair.chat.completions.create(
        model=policy,
        messages=messages,
        max_tokens=80,
        response_format={"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}},
    ).choices[0]
    assert answer.finish_reason == "stop"
    found = json.loads(answer.message.content or "")
    assert found.keys() == {"name", "age"}
    if policy == "large-only":
        assert (found["name"], found["age"]) == ("Ada", 36)

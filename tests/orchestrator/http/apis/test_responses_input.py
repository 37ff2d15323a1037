"""Items of an input become turns of a conversation."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.types import Message
from tests.orchestrator.serving import asked

QUESTION = {"role": "user", "content": "2 + 3?"}
ANSWER = {"type": "message", "role": "assistant", "content": "5"}
CALL = {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "5"}


def reasoning(text: str) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]}


def turns(*items: dict[str, Any]) -> tuple[Message, ...]:
    ask = asked("responses", model="baton", input=[QUESTION, *items, QUESTION])
    return ask.conversations[0][1:-1]


def test_reasoning_goes_with_the_answer_after_it() -> None:
    (answer,) = turns(reasoning("Add."), ANSWER)
    assert (answer.content, answer.reasoning) == ("5", "Add.")
    first, _, second = turns(reasoning("Add."), ANSWER, QUESTION, ANSWER)
    assert (first.reasoning, second.reasoning) == ("Add.", "")


def test_reasoning_goes_with_the_calls_after_it() -> None:
    (calling,) = turns(reasoning("Add."), CALL)
    assert (calling.reasoning, calling.calls[0].name) == ("Add.", "add")
    (both,) = turns(reasoning("Add."), ANSWER, reasoning("Or call."), CALL)
    assert (both.content, both.reasoning) == ("5", "Add.\nOr call.")


def test_text_after_a_call_belongs_to_the_same_turn() -> None:
    before, after = ({"role": "assistant", "content": text} for text in ("Let me see.", "Wait."))
    (calling, result) = turns(before, CALL, after, RESULT)
    assert (calling.content, [call.id for call in calling.calls]) == ("Let me see.\nWait.", ["c1"])
    assert (result.role, result.content, result.name) == ("tool", "5", "add")


@pytest.mark.parametrize(
    ("written", "read"), [('{"a": 1, "b', '{"a": 1, "b'), ("", "{}"), (" ", "{}")]
)
def test_a_call_that_was_cut_off_comes_back_and_a_blank_one_has_no_arguments(
    written: str, read: str
) -> None:
    calling, _ = turns({**CALL, "arguments": written}, RESULT)
    assert [call.arguments for call in calling.calls] == [read]


def test_no_reasoning_is_lost() -> None:
    (answer,) = turns(reasoning("One."), reasoning("Two."), ANSWER)
    assert answer.reasoning == "One.\nTwo."
    (whole,) = turns(reasoning("One."), CALL, reasoning("Two."), ANSWER)
    assert (whole.content, whole.reasoning) == ("5", "One.\nTwo.")


def test_instructions_come_before_what_a_developer_says() -> None:
    items = [{"role": "developer", "content": "Be kind."}, QUESTION]
    ask = asked("responses", model="baton", input=items, instructions="Be brief.")
    assert [(turn.role, turn.content) for turn in ask.conversations[0]] == [
        ("system", "Be brief."),
        ("system", "Be kind."),
        ("user", "2 + 3?"),
    ]

"""Calls of tools are found in an answer however it is cut into pieces, and text stays text."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from orchestrator.http.call_reader import CallPiece, CallReader
from orchestrator.types import CallFormat

HERMES = CallFormat(
    '<tool_call>\n{"name": "',
    '", "arguments": ',
    "}\n</tool_call>",
    '}\n</tool_call>\n<tool_call>\n{"name": "',
)
LLAMA = CallFormat('{"name": "', '", "parameters": ', "}")
MISTRAL = CallFormat("[TOOL_CALLS]", "[ARGS]", "", "[TOOL_CALLS]")
NAMES = {"add", "look_up"}
ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
CODE = '{"text": "a \\"quoted\\" } brace, <tool_call> and ``` \\\\"}'

CASES: list[tuple[str, CallFormat, str, str, list[tuple[str, Any]]]] = [
    ("a call", HERMES, ADD, "", [("add", {"a": 1, "b": 2})]),
    ("text before it", HERMES, f"Let me see.\n{ADD}", "Let me see.", [("add", {"a": 1, "b": 2})]),
    (
        "two calls",
        HERMES,
        f'{ADD}\n<tool_call>\n{{"name": "look_up", "arguments": {{"key": "x"}}}}\n</tool_call>',
        "",
        [("add", {"a": 1, "b": 2}), ("look_up", {"key": "x"})],
    ),
    (
        "braces and marks in a text",
        HERMES,
        f'<tool_call>\n{{"name": "look_up", "arguments": {CODE}}}\n</tool_call>',
        "",
        [("look_up", json.loads(CODE))],
    ),
    (
        "other white space",
        HERMES,
        '<tool_call>{"name":"add","arguments":{"a":1,"b":2}}</tool_call>',
        "",
        [("add", {"a": 1, "b": 2})],
    ),
    (
        "a fenced block",
        HERMES,
        'I call it:\n```json\n{\n  "name": "add",\n  "arguments": {"a": 1, "b": 2}\n}\n```',
        "I call it:",
        [("add", {"a": 1, "b": 2})],
    ),
    (
        "several in a fenced block",
        HERMES,
        '```\n[{"name": "add", "arguments": {"a": 1}}, {"name": "add", "arguments": "{}"}]\n```',
        "",
        [("add", {"a": 1}), ("add", {})],
    ),
    ("an object", HERMES, '{"name": "add", "arguments": {}}', "", [("add", {})]),
    ("parameters", LLAMA, '{"name": "add", "parameters": {"a": [1]}}', "", [("add", {"a": [1]})]),
    (
        "control tokens",
        MISTRAL,
        '[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]look_up[ARGS]{}',
        "",
        [("add", {"a": 1}), ("look_up", {})],
    ),
    (
        "a code block",
        HERMES,
        "```python\nprint({})\n```\nDone.",
        "```python\nprint({})\n```\nDone.",
        [],
    ),
    (
        "JSON that is no call",
        HERMES,
        '{"name": "other", "arguments": {}}',
        '{"name": "other", "arguments": {}}',
        [],
    ),
    ("an unknown tool", HERMES, ADD.replace("add", "sub"), ADD.replace("add", "sub"), []),
    (
        "other white space in the tag",
        HERMES,
        '<tool_call>\n{"name": "add","arguments":{"a":1,"b":2}}\n</tool_call>',
        "",
        [("add", {"a": 1, "b": 2})],
    ),
    (
        "other white space behind it",
        HERMES,
        '<tool_call>\n{"name": "add", "arguments": {"a": 1}}</tool_call> Done.',
        "Done.",
        [("add", {"a": 1})],
    ),
    (
        "the definition of a tool",
        HERMES,
        '```json\n{"name": "add", "parameters": {"type": "object"}}\n```',
        '```json\n{"name": "add", "parameters": {"type": "object"}}\n```',
        [],
    ),
    ("plain text", HERMES, "a < b, <tool or <tool_cal", "a < b, <tool or <tool_cal", []),
    ("a number", HERMES, "{1, 2}", "{1, 2}", []),
    ("an unfinished block", HERMES, "```json\n{", "```json\n{", []),
]


def read(reader: CallReader, pieces: list[str]) -> tuple[str, list[tuple[str, str]]]:
    text, calls = "", list[list[str]]()
    for piece in [one for part in pieces for one in reader.feed(part)] + reader.end():
        if isinstance(piece, CallPiece):
            if piece.name is not None:
                assert piece.index == len(calls)
                calls.append([piece.name, ""])
            calls[piece.index][1] += piece.arguments
        else:
            text += piece
    assert [(call.name, call.arguments) for call in reader.calls] == [tuple(one) for one in calls]
    return text, [(name, arguments) for name, arguments in calls]


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
@pytest.mark.parametrize("seed", [None, 0, 1, 2, 3])
def test_calls_and_text_are_told_apart(case: Any, seed: int | None) -> None:
    _, form, answer, text, calls = case
    pieces, rng = [answer], random.Random(seed)
    if seed == 0:
        pieces = list(answer)
    elif seed is not None:
        cuts = sorted(rng.sample(range(1, len(answer)), min(5, len(answer) - 1)))
        pieces = [answer[a:b] for a, b in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
    shown, found = read(CallReader(form, NAMES, "call_"), pieces)
    assert shown.strip() == text.strip()
    assert [(name, json.loads(arguments)) for name, arguments in found] == calls


def test_arguments_come_as_they_are_written_and_may_be_cut_off() -> None:
    reader = CallReader(HERMES, NAMES, "call_")
    assert reader.feed('<tool_call>\n{"name": "add", "arg') == []
    assert reader.feed('uments": {"a": ') == [
        CallPiece(0, "call_0", "add", ""),
        CallPiece(0, "call_0", None, '{"a": '),
    ]
    assert reader.feed("12") == [CallPiece(0, "call_0", None, "12")]
    assert reader.end() == []
    assert reader.calls[0].arguments == '{"a": 12'


def test_text_is_not_held_back_longer_than_it_must() -> None:
    reader = CallReader(HERMES, NAMES, "call_")
    assert reader.feed("The sum is <") == ["The sum is "]
    assert reader.feed("b") == ["<b"]


FENCED = '```json\n[{"name": "add", "arguments": {}}, {"name": "add", "arguments": {}}]\n```'


def test_what_must_be_held_to_a_schema_is_a_call_in_the_models_own_form_alone() -> None:
    shown, calls = read(CallReader(HERMES, NAMES, "call_", loose={"look_up"}), [FENCED])
    assert (shown, calls) == (FENCED, [])
    shown, calls = read(CallReader(HERMES, NAMES, "call_", loose=set()), [ADD])
    assert [name for name, _ in calls] == ["add"]


def test_one_call_where_there_may_be_one() -> None:
    shown, calls = read(CallReader(HERMES, NAMES, "call_", parallel=False), [FENCED])
    assert (shown, calls) == (FENCED, [])
    _, calls = read(CallReader(HERMES, NAMES, "call_", parallel=False), [f"{ADD}\n{ADD}"])
    assert len(calls) == 1


@pytest.mark.parametrize("begin", ["```", "```python\n", '{"a": "', "<tool_call>\n{"])
def test_a_long_block_costs_what_it_has_letters(begin: str) -> None:
    """By counting: what is held is looked through once, whatever the number of pieces."""
    reader, looked = CallReader(HERMES, NAMES, "call_"), 0

    class Counting(str):
        __slots__ = ()

        def find(self, *args: Any) -> int:
            nonlocal looked
            looked += len(self) - (args[1] if len(args) > 1 else 0)
            return super().find(*args)

    reader.feed(begin)
    for _ in range(400):
        reader._held = Counting(reader._held)
        reader.feed("word ")
    assert looked < 400 * 60 + 10 * 2000
    text, calls = read(reader, [])
    assert calls == []
    assert "word word" in text or begin == "```"

"""Calls of tools are found in an answer however it is cut into pieces, and text stays text."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from orchestrator.http.tools.call_reader import CallPiece, CallReader
from orchestrator.types import ArgumentFormat, CallFormat

HERMES = CallFormat(
    '<tool_call>\n{"name": "',
    '", "arguments": ',
    "}\n</tool_call>",
    '}\n</tool_call>\n<tool_call>\n{"name": "',
)
LLAMA = CallFormat('{"name": "', '", "parameters": ', "}")
MISTRAL = CallFormat("[TOOL_CALLS]", "[ARGS]", "", "[TOOL_CALLS]")
LISTED = CallFormat(
    '[TOOL_CALLS] [{"name": "',
    '", "arguments": ',
    ', "id": "\0"}]',
    ', "id": "\0"}, {"name": "',
)
BLOCKS = CallFormat(  # DeepSeek R1's: white space follows the arguments
    "<calls><call>function<sep>",
    "\n```json\n",
    "\n```</call></calls>",
    "\n```</call>\n<call>function<sep>",
)
TAGS = CallFormat(
    "<tool_call>\n<function=",
    ">\n",
    "</function>\n</tool_call>",
    "</function>\n</tool_call>\n<tool_call>\n<function=",
    each=ArgumentFormat("<parameter=", ">\n", "\n</parameter>\n"),
)
KEYS = CallFormat(
    "<tool_call>",
    "\n",
    "</tool_call>",
    each=ArgumentFormat("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n"),
)
BLOCK = "```python\n" + "print('a sum')\n" * 20 + "```"
TAGGED = """<tool_call>
<function=add>
<parameter=a>
1
</parameter>
<parameter=text>
  if a < "b":
    </p>
</parameter>
</function>
</tool_call>"""
SCHEMAS: dict[str, Any] = {
    "add": {
        "properties": {
            "a": {"type": "integer"},
            "text": {"type": "string"},
            "flag": {"type": ["boolean", "null"]},
            "either": {"type": ["string", "number"]},
            "one": {"enum": ["1", 2]},
            "free": {},
            "odd": True,
            "perhaps": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "number_or": {"oneOf": [{"type": "null"}, {"$ref": "#/$defs/sizes/0"}]},
            "named": {"$ref": "#/$defs/kind"},
            "const": {"const": "1"},
            "some": {"anyOf": [{"const": "1"}, {"type": "integer"}]},
            "all": {"allOf": [{"$ref": "#/$defs/kind"}, {"maxLength": 3}]},
            "round": {"$ref": "#/$defs/round"},
            "nowhere": {"$ref": "#/$defs/nothing"},
            "elsewhere": {"$ref": "https://x/y"},
        },
        "$defs": {
            "sizes": [{"type": "integer"}],
            "kind": {"type": "string"},
            "round": {"anyOf": [{"$ref": "#/$defs/round"}, {"type": "string"}]},
        },
    },
    "look_up": None,
}
NAMES = {"add", "look_up"}
ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
ONE = '{"name": "add", "arguments": {"a": 1}}'
CODE = '{"text": "a \\"quoted\\" } brace, <tool_call> and ``` \\\\"}'

HERMES_CASES: list[tuple[str, str, str, list[tuple[str, Any]]]] = [
    ("a call", ADD, "", [("add", {"a": 1, "b": 2})]),
    ("text before it", f"Let me see.\n{ADD}", "Let me see.", [("add", {"a": 1, "b": 2})]),
    (
        "two calls",
        f'{ADD}\n<tool_call>\n{{"name": "look_up", "arguments": {{"key": "x"}}}}\n</tool_call>',
        "",
        [("add", {"a": 1, "b": 2}), ("look_up", {"key": "x"})],
    ),
    (
        "braces and marks in a text",
        f'<tool_call>\n{{"name": "look_up", "arguments": {CODE}}}\n</tool_call>',
        "",
        [("look_up", json.loads(CODE))],
    ),
    (
        "other white space",
        '<tool_call>{"name":"add","arguments":{"a":1,"b":2}}</tool_call>',
        "",
        [("add", {"a": 1, "b": 2})],
    ),
    (
        "a fenced block",
        'I call it:\n```json\n{\n  "name": "add",\n  "arguments": {"a": 1, "b": 2}\n}\n```',
        "I call it:",
        [("add", {"a": 1, "b": 2})],
    ),
    (
        "several in a fenced block",
        '```\n[{"name": "add", "arguments": {"a": 1}}, {"name": "add", "arguments": "{}"}]\n```',
        "",
        [("add", {"a": 1}), ("add", {})],
    ),
    (
        "doubled braces",
        '{{"name": "add", "arguments": {"a": 1}}} Done.',
        "Done.",
        [("add", {"a": 1})],
    ),
    (
        "doubled braces in the tag, of which one is not closed",
        '<tool_call>\n{{"name": "add", "arguments": {"a": 1}}\n</tool_call>',
        "",
        [("add", {"a": 1})],
    ),
    ("doubled braces that are no call", "{{ name }} is {{x}}.", "{{ name }} is {{x}}.", []),
    ("an object", '{"name": "add", "arguments": {}}', "", [("add", {})]),
    ("a code block", "```python\nprint({})\n```\nDone.", "```python\nprint({})\n```\nDone.", []),
    (
        "JSON that is no call",
        '{"name": "other", "arguments": {}}',
        '{"name": "other", "arguments": {}}',
        [],
    ),
    ("an unknown tool", ADD.replace("add", "sub"), ADD.replace("add", "sub"), []),
    (
        "other white space behind it",
        '<tool_call>\n{"name": "add", "arguments": {"a": 1}}</tool_call> Done.',
        "Done.",
        [("add", {"a": 1})],
    ),
    (
        "the definition of a tool",
        '```json\n{"name": "add", "parameters": {"type": "object"}}\n```',
        '```json\n{"name": "add", "parameters": {"type": "object"}}\n```',
        [],
    ),
    (
        "a mention of the tag, before a call",
        f"I write <tool_call> before it.\n{ADD}",
        "I write <tool_call> before it.",
        [("add", {"a": 1, "b": 2})],
    ),
    (
        "half a surrogate pair in arguments that are a text",
        '<tool_call>\n{"name": "add", "arguments": "{\\"a\\": \\"\\ud800\\"}"}\n</tool_call>',
        "",
        [("add", {"a": "\ud800"})],
    ),
    (
        "a number too large in a loose call",
        '{"name": "add", "arguments": {"a": 1e999}}',
        '{"name": "add", "arguments": {"a": 1e999}}',
        [],
    ),
    (
        "a call that breaks off before another",
        f'{{"name": "look_up",\n{ADD}',
        '{"name": "look_up",',
        [("add", {"a": 1, "b": 2})],
    ),
    ("plain text", "a < b, <tool or <tool_cal", "a < b, <tool or <tool_cal", []),
    ("a number", "{1, 2}", "{1, 2}", []),
    ("an unfinished block", "```json\n{", "```json\n{", []),
]
CASES: list[tuple[str, CallFormat, str, str, list[tuple[str, Any]]]] = [
    *(
        (
            f"arguments that are {kind}",
            form,
            form.before
            + "add"
            + form.middle
            + arguments
            + form.after.replace("\0", "a1b2c3d4e")
            + " Done.",
            "Done.",
            [("add", expected)],
        )
        for form in (HERMES, LLAMA, MISTRAL, LISTED, BLOCKS)
        for kind, arguments, expected in (
            ("a text of JSON", '"{\\"a\\": \\"}\\"}"', {"a": "}"}),
            ("null", "null", {}),
        )
    ),
    ("parameters", LLAMA, '{"name": "add", "parameters": {"a": [1]}}', "", [("add", {"a": [1]})]),
    (
        "control tokens",
        MISTRAL,
        '[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]look_up[ARGS]{}',
        "",
        [("add", {"a": 1}), ("look_up", {})],
    ),
    (
        "arguments in tags",
        TAGS,
        f"So:\n{TAGGED}",
        "So:",
        [("add", {"a": 1, "text": '  if a < "b":\n    </p>'})],
    ),
    (
        "two calls in tags, one without arguments",
        TAGS,
        f"{TAGGED}\n<tool_call>\n<function=look_up>\n</function>\n</tool_call> Done.",
        "Done.",
        [("add", {"a": 1, "text": '  if a < "b":\n    </p>'}), ("look_up", {})],
    ),
    (
        "other white space in tags",
        TAGS,
        "<tool_call>\n<function=add>\n<parameter=a>7</parameter><parameter=b>\n[1]</parameter>\n\n"
        "</function></tool_call>",
        "",
        [("add", {"a": 7, "b": [1]})],
    ),
    (
        "a line break left out between a name and its value",
        TAGS,
        "<tool_call>\n<function=add>\n<parameter=text>a>\nb</parameter>\n</function>\n</tool_call>",
        "",
        [("add", {"text": "a>\nb"})],
    ),
    (
        "a value that begins with a line break",
        TAGS,
        "<tool_call>\n<function=add>\n<parameter=text>\n\na\n</parameter>\n</function>\n</tool_call>",
        "",
        [("add", {"text": "\na"})],
    ),
    (
        "white space left out between the tags of a name and its value",
        KEYS,
        "<tool_call>add\n<arg_key>a</arg_key><arg_value>1</arg_value><arg_key>text</arg_key>\n"
        "<arg_value></arg_key>\n<arg_value></arg_value></tool_call>",
        "",
        [("add", {"a": 1, "text": "</arg_key>\n<arg_value>"})],
    ),
    (
        "a call in tags that ends without its closing tag",
        TAGS,
        TAGGED.removesuffix("</function>\n</tool_call>"),
        "",
        [("add", {"a": 1, "text": '  if a < "b":\n    </p>'})],
    ),
    (
        "a call in tags that ends where an argument may begin",
        TAGS,
        TAGGED[: TAGGED.rindex("<parameter=") + 5],
        "",
        [("add", {"a": 1})],
    ),
    (
        "a call with an id",
        LISTED,
        '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}, "id": "a1b2c3d4e"}, '
        '{"name": "look_up", "arguments": {}, "id": "b1b2c3d4e"}]',
        "",
        [("add", {"a": 1}), ("look_up", {})],
    ),
    (
        "a call whose id was left out",
        LISTED,
        '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}}, '
        '{"name": "look_up", "arguments": {}}] So.',
        "So.",
        [("add", {"a": 1}), ("look_up", {})],
    ),
    *(
        (f"no call: {text[:40]!r}", HERMES, text, text, [])
        for text in [
            '{"name": "add", "arguments": {"steps": [{"name": "look_up", "arguments": {}}, {"na',
            '{"name": "add", "arguments": {"a": {"name": "look_up", "arguments": {}}, "b": 03}}',
            '{"name": "add" then {"name": "add", "arguments": {}}',
            '{"name": "ad", {"name": "add", "arguments": {}}',
            '{"name": "add", {"name": "look_up", "arguments": {}}',
            '{"name": "add", ' * 3000,
        ]
    ),
    *((name, HERMES, answer, text, calls) for name, answer, text, calls in HERMES_CASES),
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
    shown, found = read(CallReader(form, NAMES, "call_", schemas=SCHEMAS), pieces)
    assert shown.strip() == text.strip()
    assert [(name, json.loads(arguments)) for name, arguments in found] == calls
    assert all(arguments.encode() for _, arguments in found)


PARTS = [
    "<tool_call>", "\n", "<function=", "add", ">", "<parameter=", "a", ">\n", "1", "</parameter>\n",
    "</function>", "</tool_call>", "```", "{", "}", '"', "{{", '"name": "add"', '"arguments": {}',
    " ", "x", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "[TOOL_CALLS]", ADD, TAGGED,
    '{"name": "add",', "```json\n",
]  # fmt: skip


@pytest.mark.parametrize("form", [HERMES, LLAMA, MISTRAL, LISTED, TAGS, KEYS])
def test_how_it_is_cut_changes_nothing(form: CallFormat) -> None:
    rng = random.Random(1)
    for _ in range(50):
        answer = "".join(rng.choices(PARTS, k=rng.randint(2, 25)))
        cuts = sorted(rng.choices(range(len(answer)), k=4))
        pieces = [answer[a:b] for a, b in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
        whole, parts, letters = (
            read(CallReader(form, NAMES, "call_", schemas=SCHEMAS), given)
            for given in ([answer], pieces, list(answer))
        )
        assert whole == parts == letters, answer


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


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a", "12", 12),
        ("a", "twelve", "twelve"),  # what a model writes against its schema is passed on
        ("text", "12", "12"),
        ("text", "", ""),
        ("text", '"quoted"', '"quoted"'),
        ("flag", "true", True),
        ("flag", "null", None),
        ("flag", "True", True),
        ("either", "12", 12),
        ("either", "true", "true"),
        ("one", "1", "1"),
        ("one", "2", 2),
        ("free", '{"a": [1, "é"]}', {"a": [1, "é"]}),
        ("free", "{a", "{a"),
        ("odd", "5", 5),
        ("unknown", "5", 5),
        ("perhaps", "12345", "12345"),
        ("perhaps", "null", None),
        ("perhaps", '"quoted"', '"quoted"'),
        ("number_or", "5", 5),
        ("number_or", "null", None),
        ("named", "12", "12"),
        ("named", "null", "null"),
        ("const", "1", "1"),
        ("some", "1", "1"),
        ("some", "2", 2),
        ("all", "12", "12"),
        ("round", "12", "12"),
        ("nowhere", "12", 12),
        ("elsewhere", "12", 12),
        ("free", '["\\ud800"]', ["\ud800"]),
        ("free", "NaN", "NaN"),
        ("a", "-Infinity", "-Infinity"),
        ("free", "[1e999]", "[1e999]"),
    ],
)
def test_the_value_in_a_tag_is_what_its_schema_has_it(name: str, text: str, expected: Any) -> None:
    answer = TAGGED.replace("=a>", f"={name}>").replace("\n1\n", f"\n{text}\n")
    _, ((_, arguments),) = read(CallReader(TAGS, NAMES, "c", schemas=SCHEMAS), [answer])
    assert arguments.encode()
    assert json.loads(arguments, parse_constant=pytest.fail)[name] == expected or name == "text"
    assert type(json.loads(arguments)[name]) is type(expected)


def test_an_argument_in_tags_that_is_cut_off_is_none_and_leaves_its_call_open() -> None:
    whole = ['"a": 1', '"text": "  if a < \\"b\\":\\n    </p>"']
    for size in range(len(TAGGED)):
        reader = CallReader(TAGS, NAMES, "call_", schemas=SCHEMAS)
        text, calls = read(reader, list(TAGGED[:size]))
        if not calls:
            continue
        begun, done = (TAGGED[:size].count(tag) for tag in ("<parameter=", "</parameter>"))
        told = ", ".join(whole[:done])
        expected = f"{{{told}}}" if begun == done else f"{{{told}" if told else ""
        assert (text, calls) == ("", [("add", expected)])


@pytest.mark.parametrize(
    "schemas",
    [{}, {"add": {"properties": 5}}, {"add": {"properties": {"a": {"type": [1, {}], "enum": 3}}}}],
)
def test_schemas_that_are_none_do_no_harm(schemas: Any) -> None:
    _, ((_, arguments),) = read(CallReader(TAGS, NAMES, "c", schemas=schemas), [TAGGED])
    assert json.loads(arguments)["a"] == 1


def test_text_is_not_held_back_longer_than_it_must() -> None:
    reader = CallReader(HERMES, NAMES, "call_")
    assert reader.feed("The sum is <") == ["The sum is "]
    assert reader.feed("b") == ["<b"]


FENCED = '```json\n[{"name": "add", "arguments": {}}, {"name": "add", "arguments": {}}]\n```'


def test_a_block_of_code_is_not_held_back() -> None:
    reader = CallReader(HERMES, NAMES, "call_")
    block = "Look:\n```python\nx = {1}\nprint(`x`)\n```\nDone."
    shown = ""
    for at, letter in enumerate(block):
        shown += "".join(map(str, reader.feed(letter)))
        if "x =" in block[: at + 1]:
            waits = len(block[: at + 1]) - len(block[: at + 1].rstrip("`"))
            assert len(shown) >= at + 1 - waits
    assert shown + "".join(map(str, reader.end())) == block
    for begin in ("```c++\n", "```\n#", "``` json\n"):
        text = begin + '{"name": "add", "arguments": {}}'
        assert read(CallReader(HERMES, NAMES, "call_"), [text])[1] == []
    shown, calls = read(CallReader(HERMES, NAMES, "call_"), [f"```sh\n{ADD}\n```\n", ADD])
    assert shown == f"```sh\n{ADD}\n```\n"  # what stands in code is code
    assert len(calls) == 1


PAIR = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("form", ["```json\n{}\n```", "{}", "<tool_call>\n{} </tool_call>"])
@pytest.mark.parametrize(
    ("arguments", "fit"),
    [
        ('{"a": 1, "b": 2}', True),
        ('{"b": 2, "a": 1}', True),
        ('{"a": 1}', False),
        ('{"a": 1, "b": "2"}', False),
        ('{"a": 1, "b": 2, "c": 3}', False),
    ],
)
def test_a_strict_tools_call_in_another_form_is_one_where_its_arguments_fit(
    form: str, arguments: str, fit: bool
) -> None:
    answer = form.replace("{}", f'{{"name":"add", "arguments": {arguments}}}')
    shown, calls = read(CallReader(HERMES, NAMES, "call_", strict={"add": PAIR}), list(answer))
    if fit:
        assert [(name, json.loads(text)) for name, text in calls] == [
            ("add", json.loads(arguments))
        ]
        assert not shown.strip()
    else:
        assert (shown, calls) == (answer, [])


def test_of_several_calls_in_another_form_each_must_fit() -> None:
    _, calls = read(CallReader(HERMES, NAMES, "call_", strict={"look_up": PAIR}), [FENCED])
    assert [name for name, _ in calls] == ["add", "add"]
    shown, calls = read(CallReader(HERMES, NAMES, "call_", strict={"add": PAIR}), [FENCED])
    assert (shown, calls) == (FENCED, [])
    _, calls = read(CallReader(HERMES, NAMES, "call_", strict={"add": PAIR}), [ADD])
    assert [name for name, _ in calls] == ["add"]


def test_one_call_where_there_may_be_one() -> None:
    """The first, with which the answer ends."""
    block = '```json\n{"name": "look_up", "arguments": {}}\n```'
    for answer in (FENCED, f"{ADD}\n{ADD}", f"{ADD}\n{block}", f"```\n{ONE}\n```\n{block}"):
        for pieces in ([f"Well. {answer} So."], list(f"Well. {answer} So.")):
            shown, calls = read(CallReader(HERMES, NAMES, "call_", parallel=False), pieces)
            assert shown.strip() == "Well."
            assert [name for name, _ in calls] == ["add"]


@pytest.mark.parametrize(
    "begin", ["```", "```python\n", '```json\n{"a": "', '{"a": "', "<tool_call>\n{"]
)
def test_a_long_block_costs_what_it_has_letters(begin: str) -> None:
    """By counting: what is held is looked through once, whatever the number of pieces."""
    reader, looked = CallReader(HERMES, NAMES, "call_"), 0

    class Counting(str):
        __slots__ = ()

        def find(self, *args: Any) -> int:
            nonlocal looked
            looked += len(self) - (args[1] if len(args) > 1 else 0)
            return super().find(*args)

    pieces = reader.feed(begin)
    for _ in range(400):
        reader._held = Counting(reader._held)
        pieces += reader.feed("word ")
    assert looked < 400 * 60 + 10 * 2000
    pieces += reader.end()
    assert reader.calls == []
    assert "".join(map(str, pieces)) == begin + "word " * 400
